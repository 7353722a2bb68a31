"""What only the frames of a running `fit` know: which callbacks it has, how long its epochs are. Imports Keras."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Self

import keras

from streamd.errors import ConfigError


class FirstEpoch(int):
    """The epoch that a `fit` begins with, for Keras to find in the model; one that `is_running` no more counts as 0.

    For a `fit` that another callback ends before its first epoch cannot take it back.
    """

    _is_running: Callable[[], bool]

    def __new__(cls, epoch: int, is_running: Callable[[], bool]) -> Self:
        first = super().__new__(cls, epoch)
        first._is_running = is_running
        return first

    def __bool__(self) -> bool:
        return self != 0 and self._is_running()


def find_callbacks() -> Any:
    """The list of callbacks that is calling one of them: Keras gives them no other way to know of each other."""
    for frame in _stack(sys._getframe()):  # noqa: SLF001 - inspect's own is this, with a check for other Pythons
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.callbacks.CallbackList):
            return caller
    raise ConfigError("ResumeCallback is called by none of Keras's: give it to  fit(callbacks=[...])")


def is_fitting(callback: weakref.ref[Any]) -> bool:
    """Whether a `fit` with this callback is running, in whichever thread; one that ended with an error is not."""
    this = callback()
    frames = sys._current_frames().values()  # noqa: SLF001 - there is no other way to see the stacks of threads
    return this is not None and any(this in callbacks for frame in frames for callbacks, _ in _fits(frame))


def set_epoch_steps(steps: int) -> None:
    """Lets the next epoch of the `fit` that is calling have so many steps; its bar shows them too.

    `fit` looks at them as each epoch begins, and takes them from its data before the first one only.
    """
    for callbacks, epochs in _fits(sys._getframe()):  # noqa: SLF001 - as above
        epochs._num_batches = steps  # noqa: SLF001 - Keras's own, which nothing public sets
        if epochs.steps_per_epoch:
            epochs.steps_per_epoch = steps
        for each in callbacks:
            if isinstance(each, keras.callbacks.ProgbarLogger):
                each.target = steps
        return


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _fits(frame: FrameType) -> Iterator[tuple[list[Any], Any]]:
    """The callbacks of each `fit` that led to a frame, and what counts its epochs' steps; the innermost first."""
    for each in _stack(frame):
        if each.f_code.co_name == "fit":
            callbacks, epochs = (each.f_locals.get(name) for name in ("callbacks", "epoch_iterator"))
            if isinstance(callbacks, keras.callbacks.CallbackList) and epochs is not None:
                yield callbacks.callbacks, epochs
