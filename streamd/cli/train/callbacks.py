"""Callbacks of a training: the wait for data in the bar, and where the training is. Imports Keras: `run` imports it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import keras

from streamd.client import Stream
from streamd.frameworks.keras.adapter import StreamAdapter
from streamd.frameworks.keras.calls import find_fit_callbacks


class WaitFraction(float):
    """A fraction that formats as `3%`: Keras's bar takes the mean of a value and formats it with four digits."""

    def __truediv__(self, number: float) -> WaitFraction:
        return WaitFraction(float(self) / number)

    def __format__(self, form: str) -> str:
        return f"{float(self):.0%}"


class WaitBar(keras.callbacks.ProgbarLogger):  # type: ignore[misc]  # Keras has no types
    """The bar of `fit`, which also shows the share of the epoch so far that was spent waiting for batches.

    Keras adds no bar if it is given one. The share appears only in the bar: the history has the model's own values.
    """

    def __init__(self, stream: Stream) -> None:
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
        super().on_train_batch_end(batch, {**(logs or {}), "wait": self._wait})

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # `_wait` is not computed again here: it is the share at the end of the last training step, and leaves out the
        # validation.
        super().on_epoch_end(epoch, {**(logs or {}), "wait": self._wait})


@dataclass(slots=True)
class _CurrentPlace:
    """`step` steps of `epoch` are done, with epochs counted from 0; `trained_steps` is this process's total."""

    epoch: int = 0
    step: int = 0
    trained_steps: int = 0
    is_validating: bool = False
    histories: list[Any] = field(default_factory=list)


class PlaceRecorder(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Records the position of a `fit` and its history, so that both are known when it is interrupted."""

    def __init__(self, data: StreamAdapter) -> None:
        super().__init__()
        self._data = data
        # One object that is changed in place. ResumeCallback compares it by identity, since it is not plain data, so
        # none of its fields counts as state to save.
        self._place = _CurrentPlace()

    @property
    def trained_steps(self) -> int:
        """The number of steps that this process has done."""
        return self._place.trained_steps

    @property
    def history(self) -> dict[str, list[float]]:
        """The values of the loss and of each metric, one for each whole epoch."""
        return dict(self._place.histories[0].history) if self._place.histories else {}

    def describe_place(self) -> str:
        """Describes the position, such as `in epoch 7 of 100, after step 31 of 125`."""
        place, epochs = self._place, self.params["epochs"]
        if place.is_validating:
            return f"during the validation of epoch {place.epoch + 1} of {epochs}"
        if not place.step:
            return f"after epoch {place.epoch} of {epochs}"
        earlier = max(0, self._data.num_batches - self._data.epoch_steps)  # steps that an earlier process did
        step, steps = place.step + earlier, self._data.epoch_steps + earlier
        return f"in epoch {place.epoch + 1} of {epochs}, after step {step} of {steps}"

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        histories = [each for each in find_fit_callbacks().callbacks if isinstance(each, keras.callbacks.History)]
        self._place.histories[:] = histories

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        self._place.epoch, self._place.step = epoch, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        self._place.trained_steps += batch + 1 - self._place.step
        self._place.step = batch + 1

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        self._place.is_validating = True

    def on_test_end(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        self._place.is_validating = False
