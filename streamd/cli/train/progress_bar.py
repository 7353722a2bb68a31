"""Keras's progress bar with the wait for data in it. Imports Keras: `run` loads it."""

from __future__ import annotations

import time
from typing import Any, Protocol

import keras


class TimedStream(Protocol):
    """A stream; `wait_s` is the time spent in its `next()` so far."""

    @property
    def wait_s(self) -> float: ...


class WaitFraction(float):
    """A part of 1. Keras's bar takes the mean of a value and formats it with four digits: this is shown as `3%`."""

    def __truediv__(self, number: float) -> WaitFraction:
        return WaitFraction(float(self) / number)

    def __format__(self, form: str) -> str:
        return f"{float(self):.0%}"


class WaitBar(keras.callbacks.ProgbarLogger):  # type: ignore[misc]  # Keras has no types
    """The bar of `fit`, which also shows the share of the epoch so far that went by waiting for batches.

    Keras makes no bar of its own where it is given one. Only the bar shows it: the history has the model's own numbers.
    """

    def __init__(self, stream: TimedStream) -> None:
        super().__init__()
        self._stream = stream
        self._began_s = self._waited_before_s = 0.0
        self._wait = WaitFraction()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._began_s, self._waited_before_s = time.monotonic(), self._stream.wait_s
        self._wait = WaitFraction()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        waited_s, elapsed_s = self._stream.wait_s - self._waited_before_s, time.monotonic() - self._began_s
        self._wait = WaitFraction(waited_s / elapsed_s if elapsed_s > 0 else 0)
        super().on_train_batch_end(batch, self._add_wait_to_logs(logs))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # What was so when the last step was done: not validation's.
        super().on_epoch_end(epoch, self._add_wait_to_logs(logs))

    def _add_wait_to_logs(self, logs: Any) -> dict[str, Any]:
        return {**(logs or {}), "wait": self._wait}
