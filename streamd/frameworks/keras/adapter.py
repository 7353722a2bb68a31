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
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from itertools import islice
from types import FrameType
from typing import Any, Literal, NamedTuple, NoReturn

import keras
import numpy as np
import numpy.typing as npt
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

from streamd.core.spec import StreamSpec
from streamd.core.text import format_count
from streamd.errors import ConfigError, StreamdError
from streamd.frameworks.keras.arguments import (
    VALIDATION_SPLIT_REMEDY,
    FedStream,
    KerasCall,
    check_arguments,
    check_epochs_left,
)
from streamd.frameworks.keras.backends import build_converter, check_distribution, looks_ahead
from streamd.frameworks.keras.finished_steps import FinishedSteps
from streamd.frameworks.keras.fit_steps import AskingIterator, FitEpochs, convert_arrays, copy_arrays
from streamd.frameworks.keras.frames import (
    NewCall,
    find_calling_epoch_iterator,
    find_calling_strategy,
    find_new_keras_call,
    find_running_keras_methods,
)
from streamd.frameworks.keras.predicted_rows import (
    BatchRows,
    copy_target_labels,
    find_class_names,
    join_sample_ids,
    join_target_labels,
    list_target_names,
)
from streamd.frameworks.keras.reader import find_or_create_reader
from streamd.frameworks.keras.resume_plan import StepGeometry
from streamd.frameworks.model_inputs import (
    FeedBatch,
    FeedStream,
    ModelFeed,
    add_class_weights,
    build_blank_batch,
)

MakeToken = Callable[[], str]


class _TakenBatch(NamedTuple):
    """What is kept of a batch that Keras has taken: nothing that holds its memory."""

    make_token: MakeToken
    rows: BatchRows


class _CallSettings(NamedTuple):
    """What one call of Keras's methods takes: so many steps an epoch, and what becomes of each batch."""

    steps: int
    feed: ModelFeed


class _EpochRest(NamedTuple):
    """What another run left of an epoch. Its `fit` may have ended before it came to that."""

    steps: int
    is_wanted: Callable[[], bool]


class StreamAdapter(DataAdapter):  # type: ignore[misc]  # Keras has no types
    """A stream as `x` or `validation_data` of `fit`, `evaluate` and `predict`.

    An epoch of `fit` is one of the stream, or the rest of one that was left early. With fewer `steps` it is the next
    so many steps, wherever they lie. The others, and validation, take the first of the subscription's first epoch.

    Its length is the steps of an epoch. A loop over it takes the batches that `evaluate` takes. `class_names` are those
    of the target; `labels` and `names()` stand beside the rows of the last `predict`.
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
        self._own_settings = _CallSettings(len(stream) if steps is None else min(steps, len(stream)), feed)
        self._fit_settings = self._own_settings  # of the `fit` that has begun last
        self._settings_by_iterator: weakref.WeakKeyDictionary[EpochIterator, _CallSettings] = (
            weakref.WeakKeyDictionary()
        )
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
        self._predicted: list[BatchRows] | None = None  # what the steps of the last `predict` have got
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

    @property
    def stream_steps(self) -> int:
        """Steps of a whole epoch of the stream."""
        return len(self._stream)

    def build_example_arrays(self) -> tuple[Any, ...]:
        """The arrays of a batch, of the right shapes and types, and without content."""
        return self._fit_settings.feed.build_arrays(build_blank_batch(self._stream.spec))

    @property
    def sample_ids(self) -> npt.NDArray[np.int64]:
        """int64 (N,): the samples of the last call, or epoch of `fit`, in its order; -1 where a row has none.

        After `predict`, those of the rows of its result: `client.names("test", data.sample_ids)` names their files.
        """
        return np.frombuffer(bytes(self._id_bytes), np.int64)

    # --- what was predicted

    @property
    def labels(self) -> Any:
        """The true labels of the rows of the last `predict`, in their order; by name where there are several targets.

        Categories are int64 (N,), places in `class_names`. Rows without a sample have zeros, and -1 as their
        `sample_ids`. Raises ConfigError where nothing was predicted, or there are no targets.
        """
        return join_target_labels(self._predicted, self.feed.targets)

    def names(self) -> list[str]:
        """The file names of the rows of the last `predict`, in their order; "" for a row without a sample.

        They are asked of the daemon. Raises ConfigError where nothing was predicted.
        """
        return self._stream.names(join_sample_ids(self._predicted).tolist())

    @property
    def class_names(self) -> list[str]:
        """The classes of the target, in the order of the model's outputs. Raises ConfigError where it has none."""
        return find_class_names(self.spec, self.feed.targets)

    # --- looking at batches

    def __len__(self) -> int:
        """Steps of an epoch."""
        return self._own_settings.steps

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Batches as a model gets them, in memory of their own: those of `evaluate`, from the first of the first epoch.

        `fit` goes on where it was, however the loop ends; `sample_ids`, `labels` and `names()` stay as they are. Raises
        ConfigError while one of Keras's methods reads the stream, and StreamdError when another has read it since.
        """
        self.reader.check_not_in_use("a loop over fit_data", find_running_keras_methods())
        batches = self.reader.restart_stream()
        try:
            for batch in islice(batches, len(self)):
                yield convert_arrays(tuple(map(copy_arrays, self.feed.build_arrays(batch))), self.convert)
                if not self.reader.is_evaluating(batches):
                    raise StreamdError(
                        f"stream {self.spec.name!r} was read by another call since this loop began: begin the loop "
                        "again, or give it a subscription of its own"
                    )
        finally:
            if self.reader.is_evaluating(batches):
                self.reader.end_evaluation()

    def __repr__(self) -> str:
        spec, parts = self.spec, [f"x: images{''.join(f', {name}' for name in self.feed.inputs)}"]
        targets = [_describe_target(spec, name) for name in list_target_names(self.feed.targets)]
        parts += [f"y: {', '.join(targets)}"] if targets else []
        parts += ["with weights"] if self.feed.weighted else []
        shape = "x".join(map(str, spec.image_shape))
        steps = format_count(len(self), "step")
        return f"<fit_data of {spec.name!r}: {steps} an epoch, {spec.batch_size} images of {shape}; {'; '.join(parts)}>"

    @property
    def __array__(self) -> NoReturn:
        """Keras looks for it when it is to divide its data for `validation_split`, which it does before all else.

        For everyone else there is no such attribute.
        """
        running = find_running_keras_methods()
        split = running[0].f_locals.get("validation_split") if running else None
        if split:
            raise ConfigError(f"fit(validation_split={split}): {VALIDATION_SPLIT_REMEDY}")
        raise AttributeError("__array__")

    # --- what Keras and its callbacks ask for

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
        if method == "fit":
            return self._begin_fit_epoch(_count_epochs_to_go(running))
        if method == "predict":
            self._predicted = []
        return self.reader.restart_stream(), self.find_call_settings(asking).steps

    def _begin_fit_epoch(self, epochs_to_go: int) -> tuple[Iterator[FeedBatch], int]:
        rest = self._epoch_rest.steps if self._epoch_rest is not None and self._epoch_rest.is_wanted() else None
        self._epoch_rest = None
        self.is_own_epoch = rest is None and self.num_batches == len(self._stream)
        batches = self.reader.continue_fit_batches(whole=self.is_own_epoch)
        self._check_epochs_left(epochs_to_go, rest)
        if self._looks_ahead:
            self._make_given_token = partial(str, self._stream.token)
        if self.is_own_epoch:
            self.epoch_steps = min(self._stream.steps_left, self.num_batches)
            return batches, self.num_batches  # which the epoch's own end comes before, where it was begun elsewhere
        self.epoch_steps = self.num_batches if rest is None else rest
        return batches, self.epoch_steps

    def _check_epochs_left(self, epochs: int, rest: int | None) -> None:
        """Raises ConfigError, before the first step, where the subscription ends before so many epochs of `fit`."""
        stream = self._stream
        if stream.epochs_left is None:
            return
        whole_epochs = stream.epochs_left - (1 if stream.steps_left else 0)
        available = stream.epochs_left, stream.steps_left + whole_epochs * len(stream)
        first = rest if rest is not None else stream.steps_left if self.is_own_epoch else self.num_batches
        wanted = epochs, (first or self.num_batches) + (epochs - 1) * self.num_batches
        check_epochs_left(stream.spec.name, wanted, available)

    def record_taken_batch(self, batch: FeedBatch) -> None:
        """A batch goes to Keras. Where it looks ahead, the step gets the one before."""
        targets = self.feed.targets if self._method == "predict" else None
        rows = BatchRows(batch.sample_ids.tobytes(), copy_target_labels(batch.labels, targets))
        taken = _TakenBatch(batch.make_token, rows)
        if self._looks_ahead:
            self._batch_ahead, before = taken, self._batch_ahead
        else:
            before = taken
        if before is not None:
            self._record_step_batch(before)

    def _record_step_batch(self, taken: _TakenBatch) -> None:
        self._id_bytes += taken.rows.sample_ids
        if self._method == "predict" and self._predicted is not None:
            self._predicted.append(taken.rows)
        if self._method != "fit":
            return
        self._make_given_token = taken.make_token
        if self.finished_steps is not None:
            self.finished_steps.add_fetched_batch(taken.make_token)

    def end_epoch(self, *, is_short: bool) -> None:
        """Keras has asked for more batches than there were; where the epoch `is_short`, for no more than announced.

        It warns of data that ran out, and of training that is interrupted: neither is so with the rest of an epoch. It
        says so between here and `on_epoch_end`.
        """
        if self._batch_ahead is not None:
            self._record_step_batch(self._batch_ahead)
            self._batch_ahead = None
        if is_short:
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
        """Steps that the call of Keras's which asks takes an epoch; for anyone else, those of the last `fit`.

        Each call asks for them before anything else, so here its arguments are looked at. Raises ConfigError for one
        that would be ignored.
        """
        new = find_new_keras_call()
        if new is not None:
            self._accept_call(new)
        asking = find_calling_epoch_iterator()
        return self._fit_settings.steps if asking is None else self.find_call_settings(asking).steps

    @property
    def own_steps(self) -> int:
        """Steps of an epoch, as `fit_data` was asked for them."""
        return self._own_settings.steps

    def _accept_call(self, new: NewCall) -> None:
        validation = new.validation[0] if new.validation else None
        call = KerasCall(
            new.method,
            new.values,
            stream=_describe_fed_stream(self if new.trains or new.method != "fit" else new.values["x"]),
            validation=_describe_fed_stream(validation),
            validation_parts=new.validation,
            needs_targets=new.needs_targets,
            validation_needs_targets=new.validation_needs_targets,
        )
        check_arguments(call)
        settings = self._own_settings
        if new.steps is not None:
            settings = settings._replace(steps=min(new.steps, len(self._stream)))
        if new.trains:
            weights = new.values["class_weight"]
            if weights is not None:
                settings = settings._replace(feed=add_class_weights(self.feed, self.spec, weights))
            self._fit_settings = settings
        self._settings_by_iterator[new.iterator] = settings

    def find_call_settings(self, asking: AskingIterator) -> _CallSettings:
        """Those of the call that has this iterator; without one, as `fit_data` was asked for them."""
        iterator = asking() if asking is not None else None
        return self._own_settings if iterator is None else self._settings_by_iterator.get(iterator, self._own_settings)

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

    def get_jax_iterator(self) -> FitEpochs:
        """Raises ConfigError where devices cannot share the batches."""
        check_distribution(self._find_batch_row_counts())
        return FitEpochs(self, self.convert, find_calling_epoch_iterator())

    get_torch_dataloader = get_jax_iterator

    def get_tf_dataset(self) -> Iterable[Any]:
        """For the replicas of a strategy where the model has one. Raises ConfigError as above."""
        from streamd.frameworks.keras.replicas import SharedDataset, build_replica_parts  # noqa: PLC0415 - imports TensorFlow

        parts = build_replica_parts(find_calling_strategy())
        if parts is None:
            check_distribution(self._find_batch_row_counts())
            return FitEpochs(self, self.convert, find_calling_epoch_iterator())
        parts.check_row_counts(self._find_batch_row_counts())
        return SharedDataset(FitEpochs(self, parts, find_calling_epoch_iterator()))


def _count_epochs_to_go(running: list[FrameType]) -> int:
    """Of the `fit` that begins an epoch, that one among them; 1 for a loop of one's own."""
    known = running[0].f_locals if running else {}
    return int(known["epochs"] - known["epoch"]) if "epoch" in known else 1


def _describe_fed_stream(data: Any) -> FedStream | None:
    """What the rules for Keras's arguments ask of a stream; None for other data."""
    if not isinstance(data, StreamAdapter):
        return None
    has_targets = data.feed.targets is not None
    return FedStream(data.spec, data.stream_steps, data.feed.class_weights is not None, has_targets)


def _describe_target(spec: StreamSpec, name: str) -> str:
    label = spec.labels[name]
    return f"{name} ({format_count(len(label.classes), 'class', 'classes') if label.classes else label.type})"
