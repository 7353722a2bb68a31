"""The adapter between a stream and `fit`. Imports Keras: `frameworks.keras` imports this module on first use.

Keras accepts an instance of its (private) DataAdapter as it is, and its trainers accept any Python iterable in place of
a tf.data.Dataset, an iterator for JAX or a DataLoader. So a batch is pulled only when a step needs it, also when a
strategy's replicas share it: no thread, no prefetch, and an order that `fit(shuffle=True)` cannot change. When Keras
takes a batch to build a model, it receives an empty one. On JAX with an accelerator Keras holds one batch ahead; if no
step took it, the stream returns to it.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Self

import keras
import numpy as np
import numpy.typing as npt
from keras.src.backend import compute_output_spec
from keras.src.distribution import distribution_lib
from keras.src.losses.losses import LossFunctionWrapper
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

from streamd.client import Batch
from streamd.client.arguments import parse_whole_number
from streamd.client.waiting import print_stderr_line
from streamd.core.spec import StreamSpec
from streamd.core.text import format_count
from streamd.errors import ConfigError, NoCopyError, NoDatasetMethodError
from streamd.frameworks import import_library, tensorflow, torch
from streamd.frameworks.keras.calls import (
    DATASET_REMEDIES,
    VALIDATION_SPLIT_REMEDY,
    PendingSteps,
    check_arguments,
    check_epochs_left,
    find_calling_epoch_iterator,
    find_model_graph,
    find_new_keras_call,
    find_or_create_reader,
    find_running_keras_methods,
    is_building_model,
)
from streamd.frameworks.model_inputs import (
    Array,
    FeedStream,
    ModelFeed,
    add_class_weights,
    begins_anew,
    build_blank_batch,
    get_array,
    unwrap_only_item,
)
from streamd.limits import LAST_WORD_S

MakeToken = Callable[[], str]


class _TakenBatch(NamedTuple):
    """The parts of a batch that are kept after Keras has taken it. Labels are copies: nothing here holds its lease."""

    make_token: MakeToken
    id_bytes: bytes
    labels: Mapping[str, Array]


class _CallSettings(NamedTuple):
    """The settings of one call of Keras's methods: the steps of an epoch, and how a batch becomes arrays."""

    steps: int
    feed: ModelFeed


class StreamAdapter(DataAdapter):  # type: ignore[misc]  # Keras has no types
    """A stream as `x` or `validation_data` of `fit`, `evaluate` and `predict`: see `fit_data`, which makes it.

    `len` is the number of steps of an epoch. `class_names` are the target's classes; `labels` and `names()` correspond
    to the rows of the last `predict`.
    """

    def __init__(self, stream: FeedStream, feed: ModelFeed, steps: int | None, evaluate: bool | None = None) -> None:
        super().__init__()
        self.feed = feed
        self.pending_tokens: PendingSteps[MakeToken] | None = None  # set by ResumeCallback, to track finished batches
        self.on_batch: Callable[[Batch], None] | None = None  # called with each batch that goes to the model
        self.guard_fetch: Callable[[], AbstractContextManager[None]] = nullcontext  # entered around each wait
        self.convert = build_converter(keras.backend.backend())
        self.reader = find_or_create_reader(stream)
        self.stream = stream
        self._loops_evaluate = begins_anew(stream.spec, evaluate)
        self._is_for_evaluation = bool(evaluate)
        self._own_settings = _CallSettings(len(stream) if steps is None else min(steps, len(stream)), feed)
        self._fit_settings = self._own_settings  # settings of the `fit` that began last
        # Calls may nest, as a `fit` in a callback of another, so settings belong to Keras's iterator of each call.
        self._settings_by_iterator: weakref.WeakKeyDictionary[EpochIterator, _CallSettings] = (
            weakref.WeakKeyDictionary()
        )
        # Set by ResumeCallback for the next epoch of `fit`, if it completes one of an earlier run: the steps left, and
        # whether they are still wanted, which they are not once the `fit` that set them is over.
        self.epoch_rest: tuple[int, Callable[[], bool]] | None = None
        self.epoch_steps = 0  # steps in this process of the epoch of `fit` that began last
        self.is_own_epoch = True  # that epoch is one of the stream, or the rest of one
        self._method = "fit"  # the method that began last
        self._looks_ahead = False
        self._batch_ahead: _TakenBatch | None = None  # the batch that Keras has taken ahead of its step
        # The token of the last batch that reached a step of `fit`, or of the position where its epoch began.
        self._make_given_token: MakeToken | None = None
        # Of the batches that reached a step: the sample ids of the last call; then the sample ids, and the labels as
        # they were served, of the last `predict`.
        self._id_bytes = bytearray()
        self._predicted_id_bytes = bytearray()
        self._predicted_labels: dict[str, list[Array]] = {}
        self._silenced_warnings = ExitStack()

    def seek(self, token: str, *, after: Literal["step", "epoch"] = "step") -> int:
        """Moves the stream to the position after the token's batch, or after its epoch.

        Returns how many steps are left of the stream's present epoch. Raises TokenError when the token belongs to
        another stream or order.
        """
        self.reader.seek(token, after=after)
        self._batch_ahead = self.epoch_rest = None
        return self.stream.steps_left

    @property
    def spec(self) -> StreamSpec:
        return self.stream.spec

    def build_example_arrays(self) -> tuple[Any, ...]:
        """Returns the arrays of an empty batch, with the shapes and types of a real one."""
        return self._fit_settings.feed.build_arrays(build_blank_batch(self.stream.spec))

    @property
    def sample_ids(self) -> npt.NDArray[np.int64]:
        """Sample ids of the last call, or of the last epoch of `fit`, in order; int64 (N,), -1 for a row without one.

        After `predict` they are those of the result's rows: `client.names("test", data.sample_ids)` returns the files.
        """
        return np.frombuffer(bytes(self._id_bytes), np.int64)

    # --- what was predicted

    @property
    def labels(self) -> Any:
        """The true labels of the rows of the last `predict`, in order; a dict by name if there are several targets.

        Categories are int64 (N,), indices into `class_names`. Rows without a sample have zeros, and -1 in `sample_ids`.
        Raises ConfigError if nothing was predicted, or there are no targets.
        """
        if not self.feed.targets:
            raise ConfigError("this fit_data has no targets, so its rows have no labels: choose with  targets=")
        self._check_has_predicted()
        return unwrap_only_item({name: np.concatenate(parts) for name, parts in self._predicted_labels.items()})

    def names(self) -> list[str]:
        """Requests the file names of the rows of the last `predict` from the daemon, in order; "" without a sample.

        Raises ConfigError if nothing was predicted.
        """
        self._check_has_predicted()
        return self.stream.names(np.frombuffer(bytes(self._predicted_id_bytes), np.int64).tolist())

    def _check_has_predicted(self) -> None:
        if not self._predicted_id_bytes:
            raise ConfigError(
                "nothing has been predicted yet: call  model.predict(data)  first; labels and names belong to the rows "
                "that it predicts"
            )

    @property
    def class_names(self) -> list[str]:
        """The classes of the target, in the order of the model's outputs.

        Raises ConfigError unless exactly one target has classes.
        """
        spec, targets = self.spec, self.feed.targets
        classed = [name for name in targets if name in spec.labels and spec.labels[name].classes]
        if len(classed) != 1:
            kinds = ", ".join(
                f"{name}: "
                f"{spec.labels[name].type if name in spec.labels else f'image of mode {spec.images[name].mode}'}"
                for name in targets
            )
            raise ConfigError(
                f"class_names needs exactly one target with classes, but the targets of stream {spec.name!r} are "
                f"{kinds or 'none'}: read  stream.spec.labels[NAME].classes"
            )
        return [str(each) for each in spec.labels[classed[0]].classes]

    # --- looking at batches

    def __len__(self) -> int:
        """The number of steps of an epoch, as given to `fit_data`."""
        return self._own_settings.steps

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Iterates over copies of the batches of one pass, as the model receives them: see `fit_data`.

        `fit` then continues after it, or where it was if loops evaluate. `sample_ids`, `labels` and `names()` do not
        change. Raises ConfigError while one of Keras's methods reads the stream, and when the subscription has no
        epoch left.
        """
        self.reader.check_not_in_use("a loop over fit_data", find_running_keras_methods())
        self._return_batch_ahead()
        is_whole = len(self) == len(self.stream)
        if self._loops_evaluate:
            steps = self.reader.restart_stream(for_loop=True, convert=self._copy_arrays)
        else:
            steps = self.reader.continue_fit_batches(whole=is_whole, convert=self._copy_arrays)
        return steps if is_whole else islice(steps, len(self))

    def preview(self, batches: int = 1) -> list[tuple[Any, ...]]:
        """Returns copies of the first batches of the next pass, as the model receives them, to look at.

        Nothing moves: they are read in a session of their own, and the next pass or `fit` begins with them.
        """
        count = parse_whole_number("batches", batches, 1)
        place = None if self._loops_evaluate else self.reader.fit_place
        return list(map(self._copy_arrays, self.stream.look_ahead(count, anew=self._loops_evaluate, token=place)))

    def _copy_arrays(self, batch: Batch) -> tuple[Any, ...]:
        return convert_arrays(self.feed.build_arrays(batch), lambda array: self.convert(array.copy()))

    def __repr__(self) -> str:
        steps, samples = format_count(len(self), "step"), format_count(self.spec.batch_size, "sample")
        parts = [f"x: {', '.join(_describe_array(self.spec, name, key) for key, name in self.feed.inputs.items())}"]
        targets = [_describe_array(self.spec, name, name) for name in self.feed.targets]
        parts += [f"y: {', '.join(targets)}"] if targets else []
        parts += ["with weights"] if self.feed.weighted else []
        return f"<fit_data of {self.spec.name!r}: {steps} an epoch, {samples} each; {'; '.join(parts)}>"

    if not TYPE_CHECKING:  # else every misspelt attribute would be right to the type checker

        def __getattr__(self, name: str) -> NoReturn:
            """Refuses the methods of tf.data.Dataset in words, and any other name as Python does."""
            remedy = DATASET_REMEDIES.get(name)
            if remedy is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            raise NoDatasetMethodError(f"fit_data is not a tf.data.Dataset, which has {name}: {remedy}")

    def __reduce__(self) -> NoReturn:
        """Refuses pickle and copies, as for a spawned process or a trial."""
        raise NoCopyError(
            f"fit_data of {self.spec.name!r}",
            f"write  fit_data(streamd.connect().subscribe({self.spec.name!r}))  in the other process or trial",
        )

    @property
    def __array__(self) -> NoReturn:
        """Raises ConfigError for `fit(validation_split=...)`, AttributeError for any other caller.

        Keras reads this attribute to split its data, before it does anything else.
        """
        running = find_running_keras_methods()
        split = running[0].f_locals.get("validation_split") if running else None
        if split:
            raise ConfigError(f"fit(validation_split={split}): {VALIDATION_SPLIT_REMEDY}")
        raise AttributeError("__array__")

    # --- what Keras and its callbacks ask for

    def begin_epoch(self, running: list[FrameType], asking: AskingIterator) -> tuple[Iterator[Batch], int]:
        """Returns the next batches of the innermost of Keras's `running` methods, and their number, or an upper bound.

        Raises ConfigError when another of these methods reads the stream.
        """
        method = self.reader.register_keras_call(running, asking)
        self._return_batch_ahead()
        self._method = method
        self._looks_ahead = looks_ahead()
        self._id_bytes = bytearray()  # a new one: the last `predict` keeps its own
        if method == "predict":
            self._predicted_id_bytes, self._predicted_labels = self._id_bytes, {name: [] for name in self.feed.targets}
        if method != "fit":
            return self.reader.restart_stream(), self.find_call_settings(asking).steps
        rest: int | None = None
        if self.epoch_rest is not None:
            left, is_wanted = self.epoch_rest
            rest, self.epoch_rest = left if is_wanted() else None, None
        stream, usual = self.stream, self.num_batches
        self.is_own_epoch = rest is None and usual == len(stream)
        # This first brings the stream back to the position of `fit`, whose steps and epochs left are read below.
        batches = self.reader.continue_fit_batches(whole=self.is_own_epoch)
        first = rest if rest is not None else min(stream.steps_left, usual) if self.is_own_epoch else usual
        # A subscription that ends before this `fit` does is refused before the first step.
        if stream.epochs_left is not None:
            known = running[0].f_locals if running else {}
            # In a user's own loop there is one epoch to go.
            epochs = int(known["epochs"] - known["epoch"]) if "epoch" in known else 1
            whole_epochs = stream.epochs_left - (1 if stream.steps_left else 0)
            available = stream.epochs_left, stream.steps_left + whole_epochs * len(stream)
            check_epochs_left(stream.spec.name, (epochs, (first or usual) + (epochs - 1) * usual), available)
        if self._looks_ahead:
            self._make_given_token = partial(str, stream.token)
        self.epoch_steps = first
        self._report_unrestored_place(running)
        # For an own epoch this is an upper bound: one that was begun earlier ends before.
        return batches, usual if self.is_own_epoch else first

    def _return_batch_ahead(self) -> None:
        """Goes back if a batch of `fit` is still ahead: its last epoch was left early, and Keras has dropped it."""
        if self._batch_ahead is not None and self._make_given_token is not None and self._method == "fit":
            self.reader.seek(self._make_given_token())
        self._batch_ahead = None

    def _report_unrestored_place(self, running: list[FrameType]) -> None:
        """Prints a line where a `fit` restores weights, or an epoch's number, and not the position in the stream."""
        from streamd.frameworks.keras.resume import ResumeCallback  # noqa: PLC0415 - it imports this module

        # Only the first epoch of a `fit` is looked at.
        known = running[0].f_locals if running else {}
        given = known.get("callbacks")
        if not isinstance(given, keras.callbacks.CallbackList) or known.get("epoch") != known.get("initial_epoch"):
            return
        if any(isinstance(each, ResumeCallback) for each in given.callbacks):
            return
        name, stream, first = self.spec.name, self.stream, int(known["epoch"])
        backup = next((each for each in given.callbacks if isinstance(each, keras.callbacks.BackupAndRestore)), None)
        is_at_beginning = stream.epoch == 0 and stream.steps_left == len(stream)
        if backup is not None:
            print_stderr_line(
                f"{type(backup).__name__} restores the weights, and not the position in stream {name!r}: a fit that is "
                "started again would train a later epoch on the samples of epoch 0; write  "
                "callbacks=[ResumeCallback(data, DIR)]  in its place, which restores both"
            )
        elif first and is_at_beginning:
            print_stderr_line(
                f"fit begins with epoch {first}, and stream {name!r} with epoch 0: weights of that epoch meet "
                "samples that they were trained on; write  callbacks=[ResumeCallback(data, DIR)],  which restores "
                f"weights and position, or  stream.advance_to_epoch({first})  before fit"
            )

    def record_taken_batch(self, batch: Batch) -> None:
        """Records a batch that goes to Keras. If Keras holds one batch ahead, the one before it now reaches a step."""
        targets = self.feed.targets if self._method == "predict" else ()
        labels = {name: get_array(batch, name).copy() for name in targets}
        taken = _TakenBatch(batch.make_token, batch.sample_ids.tobytes(), labels)
        if self._looks_ahead:
            self._batch_ahead, before = taken, self._batch_ahead
        else:
            before = taken
        if before is not None:
            self._record_step_batch(before)

    def _record_step_batch(self, taken: _TakenBatch) -> None:
        self._id_bytes += taken.id_bytes
        for name, values in taken.labels.items():
            self._predicted_labels[name].append(values)
        if self._method != "fit":
            return
        self._make_given_token = taken.make_token
        if self.pending_tokens is not None:
            self.pending_tokens.unfinished.append(taken.make_token)

    def end_epoch(self, *, is_short: bool) -> None:
        """Ends an epoch whose batches have run out; `is_short`: it had fewer steps than Keras was told.

        Keras then warns that the data ran out and that training was interrupted, neither of which is true for the rest
        of an epoch. These warnings come between here and `on_epoch_end`, and are silenced until then.
        """
        if self._batch_ahead is not None:
            self._record_step_batch(self._batch_ahead)
            self._batch_ahead = None
        if is_short:
            self._silenced_warnings.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")

    def on_epoch_end(self) -> None:
        """Takes the receipt of an epoch, and ends an evaluation, so that `fit` continues.

        Keras calls this before a call, and after epochs and calls. It requests no step after an epoch's last one, so
        that the stream would see the end of the last epoch of all only when it is closed.
        """
        self._silenced_warnings.close()
        # The receipt is there in a moment, and a Ctrl-C during the last step waits until the epoch is complete. Only a
        # longer wait, for a daemon that is away, may be interrupted.
        if not self.stream.end_epoch(LAST_WORD_S):
            with self.guard_fetch():
                self.stream.end_epoch()
        if self._method != "fit":
            self._method = "fit"
            self._batch_ahead = None
            self.reader.end_evaluation()

    @property
    def num_batches(self) -> int:
        """The steps of an epoch of the Keras call that reads this; for any other reader, those of the last `fit`.

        Each Keras call reads this property first, so its arguments are checked here. Raises ConfigError for an argument
        that would be ignored.
        """
        new = find_new_keras_call()
        if new is not None:
            if new.trains and self._is_for_evaluation:
                raise ConfigError(
                    "fit would train on one epoch again and again: this fit_data was made with evaluate=True, for "
                    "loops that evaluate; leave evaluate out for the data of fit"
                )
            fed = self if new.trains or new.method != "fit" else new.values["x"]
            validation = new.validation_parts[0] if new.validation_parts else None
            streams = [each if isinstance(each, StreamAdapter) else None for each in (fed, validation)]
            check_arguments(replace(new, stream=streams[0], validation=streams[1]))
            settings = self._own_settings
            if new.steps is not None:
                settings = settings._replace(steps=min(new.steps, len(self.stream)))
            if new.trains and (weights := new.values["class_weight"]) is not None:
                settings = settings._replace(feed=add_class_weights(self.feed, self.spec, weights))
            if new.method != "predict":
                settings = settings._replace(feed=match_own_loss(settings.feed, self.spec, new.model))
            if new.trains:
                self._fit_settings = settings
            self._settings_by_iterator[new.iterator] = settings
        asking = find_calling_epoch_iterator()
        return self._fit_settings.steps if asking is None else self.find_call_settings(asking).steps

    def find_call_settings(self, asking: AskingIterator) -> _CallSettings:
        """Returns the settings of the call that owns this iterator; without one, those given to `fit_data`."""
        iterator = asking() if asking is not None else None
        return self._own_settings if iterator is None else self._settings_by_iterator.get(iterator, self._own_settings)

    @property
    def batch_size(self) -> int:
        return self.stream.spec.batch_size

    @property
    def has_partial_batch(self) -> bool:
        return self.partial_batch_size is not None

    @property
    def partial_batch_size(self) -> int | None:
        spec = self.stream.spec
        left = spec.samples % spec.batch_size
        return left if left and spec.remainder == "keep" else None

    def _find_batch_row_counts(self) -> set[int]:
        """Returns the row counts of batches that are certain to come; a rank's last batch may be dropped."""
        spec = self.stream.spec
        return {spec.batch_rows(0), spec.batch_rows(spec.batches - 1 if len(self.stream) == spec.batches else 0)}

    def get_jax_iterator(self) -> FitEpochs:
        """Returns the epochs for JAX. Raises ConfigError if a distribution's devices cannot share the batches."""
        check_distribution(self._find_batch_row_counts())
        return FitEpochs(self, self.convert, find_calling_epoch_iterator())

    get_torch_dataloader = get_jax_iterator

    def get_tf_dataset(self) -> Iterable[Any]:
        """Returns the epochs for TensorFlow, split for replicas if the model has a strategy.

        Raises ConfigError if replicas or devices cannot share the batches.
        """
        asking = find_calling_epoch_iterator()
        # Only Keras's own iterator, which requests the dataset, knows the strategy of the model that is fed.
        strategy = getattr(None if asking is None else asking(), "_distribute_strategy", None)
        distribute = import_library("tensorflow", "train", "Keras on TensorFlow").distribute
        # These two are supported. TensorFlow's default strategy splits nothing, and the rest are refused by
        # `FitEpochs._variant_tensor`: Keras 3 fails under MultiWorkerMirroredStrategy with any data.
        if not isinstance(strategy, distribute.MirroredStrategy | distribute.OneDeviceStrategy):
            check_distribution(self._find_batch_row_counts())
            return FitEpochs(self, self.convert, asking)
        parts = ReplicaParts(strategy)
        parts.check_row_counts(self._find_batch_row_counts())
        return _build_shared_dataset_type()(FitEpochs(self, parts, asking))


def _describe_array(spec: StreamSpec, name: str, key: str) -> str:
    """Describes an input or a target that the model receives as `key`: `photo 32x32x3`, `kind (3 classes)`."""
    if name in spec.images:
        return f"{key} {'x'.join(map(str, spec.images[name].shape))}"
    label = spec.labels[name]
    return f"{name} ({format_count(len(label.classes), 'class', 'classes') if label.classes else label.type})"


# --- The iterators from which Keras takes batches, in place of a data set. Imports Keras.


AskingIterator = weakref.ref[EpochIterator] | None


def convert_arrays(arrays: tuple[Any, ...], convert: Convert) -> tuple[Any, ...]:
    """Converts each array for the backend, and keeps the structure: each part is an array, a dict of arrays or None."""
    return tuple(
        {name: convert(array) for name, array in part.items()}
        if isinstance(part, Mapping)
        else None
        if part is None
        else convert(part)
        for part in arrays
    )


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
        self._batches: Iterator[Batch] | None = None
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
        batch = None
        if self._steps_left:
            with self._adapter.guard_fetch():
                batch = next(self._batches, None)
        if batch is None:
            self._adapter.end_epoch(is_short=self._steps_given < self._settings.steps)
            raise StopIteration
        self._steps_left -= 1
        self._steps_given += 1
        if self._adapter.on_batch is not None:
            self._adapter.on_batch(batch)
        self._adapter.record_taken_batch(batch)
        return convert_arrays(self._settings.feed.build_arrays(batch), self._convert)


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


# --- Splits the rows of a batch among the replicas of a tf.distribute strategy.
#
# Keras accepts an instance of DistributedDataset as it is, its trainer accepts any Python iterator in place of one of
# TensorFlow's, and a strategy builds per-replica values from any tensors. So tf.data is not involved: a batch is pulled
# when a step needs it, as without a strategy, and a fit that stops early has read nothing ahead.


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    """Gives each replica of a strategy a part of the rows, in the order of the replicas: `predict` relies on it.

    The parts of a batch differ by one row at most; the rows of a larger part weigh less, as with tf.data.
    """

    strategy: Any

    def __len__(self) -> int:
        return len(self.strategy.extended.worker_devices)

    def __call__(self, array: Array) -> Any:
        """Returns a per-replica value: for each replica a tensor over its rows, or a copy if `tensor` needs one.

        Raises ConfigError when a replica would get no rows.
        """
        rows, parts = len(array), len(self)
        self.check_row_counts({rows})

        def slice_part(replica: Any) -> Any:
            number = replica.replica_id_in_sync_group
            return tensorflow.tensor(array[rows * number // parts : rows * (number + 1) // parts])

        return self.strategy.experimental_distribute_values_from_function(slice_part)

    def check_row_counts(self, row_counts: Iterable[int]) -> None:
        """Raises ConfigError when a replica would get no rows: BatchNormalization over none makes all weights NaN."""
        for rows in row_counts:
            if rows < len(self):
                raise ConfigError(
                    f"a batch of {format_count(rows, 'row')} cannot be shared by {len(self)} replicas: serve the "
                    "stream with  drop_remainder: true  or with a larger batch_size"
                )


@cache
def _build_shared_dataset_type() -> Callable[[FitEpochs], Iterable[Any]]:
    """Returns what takes the place of a strategy's own dataset in Keras; its base needs TensorFlow.

    Each `iter` of it yields the steps of one more epoch, whose arrays are per-replica values from `ReplicaParts`.
    """
    base: Any = import_library("tensorflow", "train", "Keras on TensorFlow").distribute.DistributedDataset

    class SharedDataset(base):  # type: ignore[misc]  # TensorFlow has no types
        def __init__(self, epochs: FitEpochs) -> None:
            self._epochs = epochs

        def __iter__(self) -> Iterator[Any]:
            return iter(self._epochs)

    return SharedDataset


# --- Gives weights the shape of a user's own loss, where it returns a number for each sample. Imports Keras.


def match_own_loss(feed: ModelFeed, spec: StreamSpec, model: Any) -> ModelFeed:
    """Returns the feed, with weights (B,) if the model's loss is the user's own and returns a number for each sample.

    Without that, Keras would fail, or weigh the numbers wrongly where two dimensions are equal by chance. Raises
    ConfigError if pixels have weights by their class, for which such a loss has no place.
    """
    if not feed.weighted or len(feed.targets) != 1 or feed.value_ranks[feed.targets[0]] == 1:
        return feed
    # The dimensions of what a loss of the user's own returns, where they are known.
    loss, graph = model.loss, find_model_graph(model)
    if graph is None or not isinstance(graph.output, keras.KerasTensor) or not callable(loss):
        return feed
    kind = type(loss) if isinstance(loss, keras.losses.Loss) else loss
    if str(getattr(kind, "__module__", "")).split(".")[0] == "keras":
        return feed
    measure = loss if isinstance(loss, keras.losses.Loss) else LossFunctionWrapper(loss, reduction=None)
    shape = feed.build_arrays(build_blank_batch(spec))[1].shape
    true, predicted = keras.KerasTensor(shape), keras.KerasTensor((shape[0], *graph.output.shape[1:]))
    try:
        found = compute_output_spec(measure.call, true, predicted)
    except Exception:  # noqa: BLE001 - the user's own code, which Keras calls again, and whose error it then shows
        return feed
    if not isinstance(found, keras.KerasTensor) or len(found.shape) != 1:
        return feed
    name = feed.targets[0]
    if feed.class_weights is not None:
        raise ConfigError(
            f"the model's loss returns one number for each sample, and class_weight weighs each pixel of {name!r}: "
            "return one number for each pixel, or leave class_weight out"
        )
    return replace(feed, value_ranks={name: 1})


# --- Differences between Keras's backends: how arrays are converted, and which devices share a batch. Imports Keras.


Convert = Callable[[Array], Any]


class LeaseSparingConverter:
    """Lends a batch's memory to a framework only if the previous batch was released; otherwise copies.

    The images of a batch lie in the same memory, and are lent together.

    So at most one lease outlives its step in a framework that ends leases late. JAX may be many steps behind, and
    releases used memory only when it is called again, which does not happen while the loop waits for the next batch. On
    torch, Keras's tree functions leave reference cycles that hold each tensor until garbage is collected. `collect`
    makes the framework release what it can.
    """

    def __init__(self, lend: Convert, copy: Convert, collect: Callable[[], object]) -> None:
        self._lend = lend
        self._copy = copy
        self._collect = collect
        self._lent: Callable[[], object] = lambda: None

    def __call__(self, array: Array) -> Any:
        """Converts `array` for the framework. A writable array belongs to its owner and is copied."""
        if array.flags.writeable:
            return self._copy(array)
        memory = array if array.base is None else array.base
        if self._lent() is not memory:
            if self._lent() is not None:
                self._collect()
            if self._lent() is not None:
                return self._copy(array)
            # Every view keeps the base alive, so the weak reference dies only after the framework's last use.
            self._lent = weakref.ref(memory)
        return self._lend(array)


def build_converter(backend: str) -> Convert:
    """Returns the function that converts a batch's arrays for `backend`. Raises ConfigError for an unknown backend.

    TensorFlow computes over the batch's memory and releases it with the step; JAX and torch use
    `LeaseSparingConverter`. JAX accepts NumPy arrays.
    """
    if backend == "tensorflow":
        return tensorflow.tensor
    # The youngest generation has what the last step left; a full collection takes milliseconds.
    collect: Callable[[], object] = partial(gc.collect, 0)
    if backend == "jax":
        # JAX's own hook is cheap. A version that has none is called by a garbage collection.
        with suppress(ImportError, AttributeError):
            collect = import_module("jaxlib._jax").collect_garbage
        return LeaseSparingConverter(lambda array: array, np.copy, collect)
    if backend == "torch":
        from keras.src.backend.torch.core import get_device  # noqa: PLC0415 - imports torch

        library = import_library("torch", "torch", "Keras on torch")
        device = library.device(get_device())
        # Arrays that go to another device are copied there, so nothing is lent.
        if device.type != "cpu":
            move = torch.build_device_mover(library, device)
            return lambda array: move(torch.tensor(array))
        return LeaseSparingConverter(torch.tensor, lambda array: library.from_numpy(array.copy()), collect)
    raise ConfigError(
        f"fit_data works with Keras on TensorFlow, JAX or torch, but here Keras runs on {backend}: set KERAS_BACKEND "
        "to one of these before Keras is imported"
    )


def check_distribution(row_counts: Iterable[int]) -> None:
    """Raises ConfigError if a keras.distribution is set and cannot share batches of these row counts among devices."""
    distribution, backend = distribution_lib.distribution(), keras.backend.backend()
    if distribution is None:
        return
    if backend != "jax":
        raise ConfigError(
            f"keras.distribution divides batches among devices on JAX only; on {backend}, one device would do all the "
            'work: set KERAS_BACKEND=jax, or start one trainer per device, each with its own subscribe(rank="auto")'
        )
    mesh = distribution.device_mesh
    devices = mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)]
    parts = max(1, devices // import_library("jax", "jax", "Keras on JAX").process_count())
    for rows in row_counts:
        if rows % parts:
            raise ConfigError(
                f"a batch of {format_count(rows, 'row')} cannot be shared equally by {parts} devices: serve the "
                f"stream with a batch_size that {parts} divides, and with  drop_remainder: true  or  drop_remainder: "
                "pad"
            )


def looks_ahead() -> bool:
    """Returns whether Keras takes each batch one step early, as it does on JAX with an accelerator."""
    if keras.backend.backend() != "jax" or distribution_lib.distribution() is not None:
        return False
    return bool(import_library("jax", "jax", "Keras on JAX").default_backend() != "cpu")
