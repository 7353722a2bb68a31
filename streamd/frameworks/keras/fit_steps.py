"""The iterators from which Keras takes batches, in place of a data set. Imports Keras."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from keras.src.trainers.epoch_iterator import EpochIterator

from streamd.errors import ConfigError
from streamd.frameworks.keras.backends import Convert
from streamd.frameworks.keras.frames import find_running_keras_methods, is_building_model
from streamd.frameworks.model_inputs import FeedBatch, build_blank_batch

if TYPE_CHECKING:
    from streamd.frameworks.keras.adapter import StreamAdapter

AskingIterator = weakref.ref[EpochIterator] | None


def convert_arrays(arrays: tuple[Any, ...], convert: Convert) -> tuple[Any, ...]:
    """Converts each array for the backend, and keeps the structure."""
    return tuple(map_arrays(convert, part) for part in arrays)


def map_arrays(function: Convert, part: Any) -> Any:
    """Applies a function to the arrays of one part of a batch: an array, a dict of arrays or None."""
    if isinstance(part, Mapping):
        return {name: function(array) for name, array in part.items()}
    return None if part is None else function(part)


class FitSteps:
    """The steps of one epoch of `fit`, which begins only when the first batch is requested.

    On TensorFlow, Keras calls `iter` just before `next` at each step. The batch is fetched in `iter`, because Keras
    handles the end of an epoch that is shorter than declared (a resumed one) if `iter` raises StopIteration, but not if
    `next` does. On other backends `iter` is not called again, and `next` may raise StopIteration.
    """

    def __init__(self, adapter: StreamAdapter, convert: Convert, asking: AskingIterator) -> None:
        self._adapter = adapter
        self._convert = convert
        self._asking = asking
        self._settings = adapter.find_call_settings(asking)
        self._batches: Iterator[FeedBatch] | None = None
        self._fetched: tuple[Any, ...] | None = None
        self._steps_left = self._steps_given = 0

    def __iter__(self) -> Self:
        if self._fetched is None:
            self._fetched = self._fetch_step()
        return self

    def __next__(self) -> tuple[Any, ...]:
        # Keras drops the batch with which it builds a model. It gets an empty one, and the epoch does not begin.
        if self._batches is None and is_building_model():
            example = self._settings.feed.build_arrays(build_blank_batch(self._adapter.spec))
            return convert_arrays(example, self._adapter.convert)
        data = self._fetch_step() if self._fetched is None else self._fetched
        self._fetched = None
        return data

    def _fetch_step(self) -> tuple[Any, ...]:
        if self._batches is None:
            self._batches, self._steps_left = self._adapter.begin_epoch(find_running_keras_methods(), self._asking)
        batch = self._fetch_batch(self._batches) if self._steps_left else None
        if batch is None:
            self._adapter.end_epoch(is_short=self._steps_given < self._settings.steps)
            raise StopIteration
        self._steps_left -= 1
        self._steps_given += 1
        if self._adapter.on_batch is not None:
            self._adapter.on_batch(batch)
        self._adapter.record_taken_batch(batch)
        return convert_arrays(self._settings.feed.build_arrays(batch), self._convert)

    def _fetch_batch(self, batches: Iterator[FeedBatch]) -> FeedBatch | None:
        with self._adapter.guard_fetch():
            return next(batches, None)


@dataclass(frozen=True, slots=True, eq=False)
class FitEpochs:
    """Takes the place of a dataset in Keras: each `iter` returns the steps of one more epoch."""

    adapter: StreamAdapter
    convert: Convert
    asking: AskingIterator

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return FitSteps(self.adapter, self.convert, self.asking)

    @property
    def _variant_tensor(self) -> Any:
        """Raises ConfigError: a strategy reads this first of a dataset that it has to distribute itself."""
        raise ConfigError(
            "fit_data feeds tf.distribute's MirroredStrategy and OneDeviceStrategy, but this model is under another "
            'one: start one trainer per device, each with its own subscribe(rank="auto"), or build the model outside '
            "the strategy's scope"
        )
