"""The adapter between a stream and `fit`. Imports Keras and TensorFlow: `frameworks.keras` loads it when it is wanted.

Keras accepts an instance of its (private) DataAdapter as it is, and its TensorFlow trainer takes any Python iterable
in place of a tf.data.Dataset. So every batch is pulled when a step wants it, and not before: no thread, no prefetch,
no peek, and an order that `fit(shuffle=True)` cannot reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Self

from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from streamd.errors import ConfigError, ReceiptError
from streamd.frameworks.feed import Batch, Feed, Stream
from streamd.frameworks.tensorflow import tensor


def _tensors(arrays: Any) -> Any:
    if isinstance(arrays, Mapping):
        return {name: tensor(array) for name, array in arrays.items()}
    return None if arrays is None else tensor(arrays)


class _Present:
    """The rest of the stream's present epoch, run to its end, where the stream makes its receipt, with its last batch.

    Keras stops asking one step before that end. Not a generator, which would hold each batch until the next is wanted.
    """

    def __init__(self, batches: Iterator[Batch], whole: int) -> None:
        self._batches = batches
        self._left = whole  # fewer come when the epoch was begun elsewhere: then they end without being counted

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        batch = next(self._batches)
        self._left -= 1
        if self._left == 0:
            extra = next(self._batches, None)
            if extra is not None:
                raise ReceiptError(
                    f"epoch {extra.epoch} has more steps than announced: {extra.index} came after its end"
                )
        return batch


class _Steps:
    """The steps of one epoch of `fit`. Begins only when the first batch is asked for.

    Keras calls `iter` just before `next` at each step. There the batch is fetched, since Keras understands the end of
    an epoch that is shorter than declared (a resumed one) if `iter` raises StopIteration, and not if `next` does.
    """

    def __init__(self, adapter: StreamAdapter) -> None:
        self._adapter = adapter
        self._batches: Iterator[Batch] | None = None
        self._fetched: tuple[Any, ...] | None = None
        self._left = adapter.num_batches

    def __iter__(self) -> Self:
        if self._fetched is None:
            self._fetched = self._fetch()
        return self

    def __next__(self) -> tuple[Any, ...]:
        data = self._fetch() if self._fetched is None else self._fetched
        self._fetched = None
        return data

    def _fetch(self) -> tuple[Any, ...]:
        if self._left == 0:
            raise StopIteration
        if self._batches is None:
            self._batches = self._adapter.begin_epoch()
        batch = next(self._batches)
        self._left -= 1
        return tuple(_tensors(part) for part in self._adapter.feed.arrays(batch))


class _Epochs:
    """Stands where Keras expects a dataset: each `iter` gives the steps of one more epoch."""

    def __init__(self, adapter: StreamAdapter) -> None:
        self._adapter = adapter

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return _Steps(self._adapter)

    @property
    def _variant_tensor(self) -> Any:
        """The first thing a distribution strategy asks of a dataset."""
        raise ConfigError(
            "fit_data cannot be used with a tf.distribute strategy: start one trainer a device, each with its own "
            "subscribe(rank=, world=), or build the model outside the strategy's scope"
        )


class StreamAdapter(DataAdapter):  # type: ignore[misc]  # Keras has no types
    """A stream as `x` or `validation_data` of `fit`, `evaluate` and `predict`.

    An epoch of theirs is one of the stream, or the rest of one that was left early. With fewer `steps` it is the next
    so many steps, wherever they lie.
    """

    def __init__(self, stream: Stream, feed: Feed, steps: int | None) -> None:
        super().__init__()
        self.feed = feed
        self._stream = stream
        self._steps = steps
        self._flow = chain.from_iterable(self._epochs())

    def _epochs(self) -> Iterator[Iterator[Batch]]:
        """The epochs of the stream. Raises ConfigError when the subscription has no more."""
        for batches in self._stream.epochs():
            yield _Present(batches, len(self._stream))
        raise ConfigError(
            f"the subscription to {self._stream.spec.name!r} has no epoch left: subscribe with epochs=None, or with as "
            "many epochs as all calls of fit take together"
        )

    def begin_epoch(self) -> Iterator[Batch]:
        """The batches for the next epoch of `fit`, at least as many as it takes, but for the rest of one."""
        return self._flow if self.num_batches < len(self._stream) else next(self._epochs())

    @property
    def num_batches(self) -> int:
        """Steps that Keras takes an epoch."""
        return len(self._stream) if self._steps is None else min(self._steps, len(self._stream))

    @property
    def batch_size(self) -> int:
        return self._stream.spec.batch_size

    @property
    def has_partial_batch(self) -> bool:
        return self.partial_batch_size is not None

    @property
    def partial_batch_size(self) -> int | None:
        spec = self._stream.spec
        left = spec.samples % spec.batch_size
        return left if left and spec.remainder == "keep" else None

    def get_tf_dataset(self) -> _Epochs:
        return _Epochs(self)
