"""The adapter between a stream and `fit`. Imports Keras: `frameworks.keras` loads it when it is wanted.

Keras accepts an instance of its (private) DataAdapter as it is, and its trainers take any Python iterable in place of a
tf.data.Dataset, an iterator for JAX or a DataLoader. So every batch is pulled when a step wants it, and not before: no
thread, no prefetch, and an order that `fit(shuffle=True)` cannot reach; so too where the replicas of a strategy share
it. Where Keras takes a batch to build a model, it gets one without content; on JAX with an accelerator it keeps one
batch ahead, which goes back if no step took it.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from types import FrameType
from typing import Any, Literal, NamedTuple, Self

import keras
import numpy as np
import numpy.typing as npt
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

from streamd.core.spec import StreamSpec
from streamd.errors import ConfigError
from streamd.frameworks.keras.backends import Convert, build_converter, check_distribution, looks_ahead
from streamd.frameworks.keras.finished_steps import FinishedSteps
from streamd.frameworks.keras.frames import (
    find_calling_epoch_iterator,
    find_calling_strategy,
    find_running_keras_methods,
    is_building_model,
)
from streamd.frameworks.keras.reader import find_or_create_reader
from streamd.frameworks.keras.resume_plan import StepGeometry
from streamd.frameworks.model_inputs import FeedBatch, FeedStream, ModelFeed, build_blank_batch

MakeToken = Callable[[], str]
AskingIterator = weakref.ref[EpochIterator] | None


class _TakenBatch(NamedTuple):
    """What is kept of a batch that Keras has taken: nothing that holds its memory."""

    make_token: MakeToken
    sample_ids: bytes


class _EpochRest(NamedTuple):
    """What another run left of an epoch. Its `fit` may have ended before it came to that."""

    steps: int
    is_wanted: Callable[[], bool]


def _convert_arrays(arrays: tuple[Any, ...], convert: Convert) -> tuple[Any, ...]:
    """What the backend takes, in the same structure."""
    return tuple(_convert_array_or_dict(part, convert) for part in arrays)


def _convert_array_or_dict(part: Any, convert: Convert) -> Any:
    if isinstance(part, Mapping):
        return {name: convert(array) for name, array in part.items()}
    return None if part is None else convert(part)


class _FitSteps:
    """The steps of one epoch of `fit`. Begins only when the first batch is asked for.

    On TensorFlow, Keras calls `iter` just before `next` at each step. There the batch is fetched, since Keras
    understands the end of an epoch that is shorter than declared (a resumed one) if `iter` raises StopIteration, and
    not if `next` does. On other backends `iter` is not called again, and `next` may raise it.
    """

    def __init__(self, adapter: StreamAdapter, convert: Convert, asking: AskingIterator) -> None:
        self._adapter = adapter
        self._convert = convert
        self._asking = asking
        self._batches: Iterator[FeedBatch] | None = None
        self._fetched: tuple[Any, ...] | None = None
        self._steps_left = self._steps_given = 0

    def __iter__(self) -> Self:
        if self._fetched is None:
            self._fetched = self._fetch_step()
        return self

    def __next__(self) -> tuple[Any, ...]:
        if self._batches is None and is_building_model():
            return _convert_arrays(self._adapter.build_example_arrays(), self._adapter.convert)
        data = self._fetch_step() if self._fetched is None else self._fetched
        self._fetched = None
        return data

    def _fetch_step(self) -> tuple[Any, ...]:
        if self._batches is None:
            self._batches, self._steps_left = self._adapter.begin_epoch(find_running_keras_methods(), self._asking)
        batch = self._fetch_batch(self._batches) if self._steps_left else None
        if batch is None:
            self._adapter.end_epoch(self._steps_given)
            raise StopIteration
        self._steps_left -= 1
        self._steps_given += 1
        if self._adapter.on_batch is not None:
            self._adapter.on_batch(batch)
        self._adapter.record_taken_batch(_TakenBatch(batch.make_token, batch.sample_ids.tobytes()))
        return _convert_arrays(self._adapter.feed.build_arrays(batch), self._convert)

    def _fetch_batch(self, batches: Iterator[FeedBatch]) -> FeedBatch | None:
        with self._adapter.guard_fetch():
            return next(batches, None)


class _FitEpochs:
    """Stands where Keras expects a dataset: each `iter` gives the steps of one more epoch."""

    def __init__(self, adapter: StreamAdapter, convert: Convert, asking: AskingIterator) -> None:
        self._adapter = adapter
        self._convert = convert
        self._asking = asking

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return _FitSteps(self._adapter, self._convert, self._asking)

    @property
    def _variant_tensor(self) -> Any:
        """The first thing a strategy asks of a dataset that it has to distribute itself."""
        raise ConfigError(
            "fit_data feeds tf.distribute's MirroredStrategy and OneDeviceStrategy, and this model is under another "
            'one: start one trainer a device, each with its own subscribe(rank="auto"), or build the model outside the '
            "strategy's scope"
        )


class StreamAdapter(DataAdapter):  # type: ignore[misc]  # Keras has no types
    """A stream as `x` or `validation_data` of `fit`, `evaluate` and `predict`.

    An epoch of `fit` is one of the stream, or the rest of one that was left early. With fewer `steps` it is the next
    so many steps, wherever they lie. The others, and validation, take the first of the subscription's first epoch.
    """

    def __init__(self, stream: FeedStream, feed: ModelFeed, steps: int | None) -> None:
        super().__init__()
        self.feed = feed
        self.finished_steps: FinishedSteps | None = None  # who wants to know which batches the model has finished
        self.on_batch: Callable[[FeedBatch], None] | None = None  # who wants to see each batch on its way to the model
        self.guard_fetch: Callable[[], AbstractContextManager[None]] = nullcontext  # around each wait for a batch
        self.convert = build_converter(keras.backend.backend())
        self.reader = find_or_create_reader(stream)
        self._stream = stream
        self._steps = steps
        self._epoch_rest: _EpochRest | None = None  # the next epoch of `fit`, where it is what another run left of one
        self.epoch_steps = 0  # of the epoch of `fit` that was begun last, as many as come in this process
        self.is_own_epoch = True  # whether that is an epoch of the stream, or the rest of one
        self._method = "fit"  # which has begun last
        self._looks_ahead = False
        self._batch_ahead: _TakenBatch | None = None  # of the batch that Keras has taken ahead of its step
        self._make_given_token: MakeToken | None = (
            None  # of the last batch that a step of `fit` has got, or where its epoch began
        )
        self._id_bytes = bytearray()  # of the samples that steps have got
        self._silenced_warnings = ExitStack()

    def seek(self, token: str, *, after: Literal["step", "epoch"] = "step") -> int:
        """Goes on behind the batch whose token this is, or its epoch. Returns how many steps are left of the stream's.

        Raises TokenError when the token is of another stream or order.
        """
        self.reader.seek(token, after=after)
        self._batch_ahead = self._epoch_rest = None
        return self._stream.steps_left

    def set_interrupted_epoch_steps(self, steps: int, is_wanted: Callable[[], bool]) -> None:
        """Makes the next epoch of `fit` one of so many steps, however many others have; if it `is_wanted` then."""
        self._epoch_rest = _EpochRest(steps, is_wanted)

    def end_epoch_early(self) -> None:
        """Asks for the receipt of the stream's epoch, of which no step is left, and so goes on to the next one."""
        for batches in self._stream.epochs():
            next(batches, None)
            break

    @property
    def spec(self) -> StreamSpec:
        return self._stream.spec

    def build_example_arrays(self) -> tuple[Any, ...]:
        """The arrays of a batch, of the right shapes and types, and without content."""
        return self.feed.build_arrays(build_blank_batch(self._stream.spec))

    @property
    def sample_ids(self) -> npt.NDArray[np.int64]:
        """int64 (N,): the samples of the last call, or epoch of `fit`, in its order; -1 where a row has none.

        After `predict`, those of the rows of its result: `client.names("test", data.sample_ids)` names their files.
        """
        return np.frombuffer(bytes(self._id_bytes), np.int64)

    @property
    def step_geometry(self) -> StepGeometry:
        """How `fit` takes the stream."""
        whole = self.num_batches == len(self._stream)
        return StepGeometry(self._stream.spec.batch_size, self._stream.world, self.num_batches, whole)

    def begin_epoch(self, running: list[FrameType], asking: AskingIterator) -> tuple[Iterator[FeedBatch], int]:
        """The batches that the innermost of Keras's `running` methods takes next, and how many; there may be fewer.

        Raises ConfigError when another of them reads the stream.
        """
        method = self.reader.register_keras_call(running, asking)
        if self._batch_ahead is not None and self._make_given_token is not None and self._method == "fit":
            self.reader.seek(self._make_given_token())  # an epoch was left, and what Keras had ahead is gone
        self._batch_ahead = None
        self._method = method
        self._looks_ahead = looks_ahead()
        self._id_bytes.clear()
        return self._begin_fit_epoch() if method == "fit" else (self.reader.restart_stream(), self.num_batches)

    def _begin_fit_epoch(self) -> tuple[Iterator[FeedBatch], int]:
        rest = self._epoch_rest.steps if self._epoch_rest is not None and self._epoch_rest.is_wanted() else None
        self._epoch_rest = None
        self.is_own_epoch = rest is None and self.num_batches == len(self._stream)
        batches = self.reader.continue_fit_batches(whole=self.is_own_epoch)
        if self._looks_ahead:
            self._make_given_token = partial(str, self._stream.token)
        if self.is_own_epoch:
            self.epoch_steps = min(self._stream.steps_left, self.num_batches)
            return batches, self.num_batches  # which the epoch's own end comes before, where it was begun elsewhere
        self.epoch_steps = self.num_batches if rest is None else rest
        return batches, self.epoch_steps

    def record_taken_batch(self, taken: _TakenBatch) -> None:
        """A batch goes to Keras. Where it looks ahead, the step gets the one before."""
        if self._looks_ahead:
            self._batch_ahead, before = taken, self._batch_ahead
        else:
            before = taken
        if before is not None:
            self._record_step_batch(before)

    def _record_step_batch(self, taken: _TakenBatch) -> None:
        self._id_bytes += taken.sample_ids
        if self._method != "fit":
            return
        self._make_given_token = taken.make_token
        if self.finished_steps is not None:
            self.finished_steps.add_fetched_batch(taken.make_token)

    def end_epoch(self, given: int) -> None:
        """Keras has asked for more than the `given` batches that there were.

        It warns of data that ran out, and of training that is interrupted: neither is so with the rest of an epoch. It
        says so between here and `on_epoch_end`.
        """
        if self._batch_ahead is not None:
            self._record_step_batch(self._batch_ahead)
            self._batch_ahead = None
        if given < self.num_batches:
            self._silenced_warnings.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")

    def on_epoch_end(self) -> None:
        """Called by Keras, at the end of each call too, and before one begins."""
        self._silenced_warnings.close()
        if self._method != "fit":
            self._method = "fit"
            self._batch_ahead = None
            self.reader.end_evaluation()

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

    def _find_batch_row_counts(self) -> set[int]:
        """How many rows batches have that are sure to come; a rank's last one may be dropped."""
        spec = self._stream.spec
        return {spec.batch_rows(0), spec.batch_rows(spec.batches - 1 if len(self._stream) == spec.batches else 0)}

    def get_jax_iterator(self) -> _FitEpochs:
        """Raises ConfigError where devices cannot share the batches."""
        check_distribution(self._find_batch_row_counts())
        return _FitEpochs(self, self.convert, find_calling_epoch_iterator())

    get_torch_dataloader = get_jax_iterator

    def get_tf_dataset(self) -> Iterable[Any]:
        """For the replicas of a strategy where the model has one. Raises ConfigError as above."""
        from streamd.frameworks.keras.replicas import SharedDataset, build_replica_parts  # noqa: PLC0415 - imports TensorFlow

        parts = build_replica_parts(find_calling_strategy())
        if parts is None:
            check_distribution(self._find_batch_row_counts())
            return _FitEpochs(self, self.convert, find_calling_epoch_iterator())
        parts.check_row_counts(self._find_batch_row_counts())
        return SharedDataset(_FitEpochs(self, parts, find_calling_epoch_iterator()))
