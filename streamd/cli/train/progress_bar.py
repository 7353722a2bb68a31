"""Keras's progress bar with the share of time spent waiting for data. Imports Keras: `run` imports it."""

from __future__ import annotations

import time
from typing import Any, Protocol

import keras


class TimedStream(Protocol):
    """A stream; `wait_s` is the time spent in its `next()` so far."""

    @property
    def wait_s(self) -> float: ...


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
        # The share at the end of the last step, without the validation.
        super().on_epoch_end(epoch, self._add_wait_to_logs(logs))

    def _add_wait_to_logs(self, logs: Any) -> dict[str, Any]:
        return {**(logs or {}), "wait": self._wait}
