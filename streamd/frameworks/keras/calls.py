"""The calls of Keras that read a stream: how they are found, which arguments they may have, and where they read.

Keras passes an adapter neither the function that requests a batch, nor the arguments of the call, nor the callbacks of
a `fit`, nor the length of its epochs: `fit`, `evaluate` and validation call the same methods of an adapter, in the same
order and without arguments, and callbacks come only after that. So all this is read from the stack. Imports Keras.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from operator import index
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, NoReturn, Self, TypeVar

import keras
from keras.src.models.functional import Functional
from keras.src.trainers.epoch_iterator import EpochIterator

from streamd.client import Batch
from streamd.core.text import format_count
from streamd.errors import ConfigError, ReceiptError
from streamd.frameworks.model_inputs import FeedStream

if TYPE_CHECKING:
    from streamd.frameworks.keras.adapter import StreamAdapter

# Functions of Keras's own iterators, which pass a request for a batch on.
_PASSING_FUNCTIONS: Final = frozenset({"__next__", "_one_batch_ahead_iterator", "_get_distributed_iterator"})
KerasMethod = Literal["fit", "evaluate", "predict"]

_KERAS_METHODS: Final = frozenset({"fit", "evaluate", "predict"})
_TRAINER_MODULES: Final = "keras.src.backend."  # prefix of the modules with each backend's trainer
# These functions take a batch only for its shapes, and drop it; on TensorFlow only under a strategy. On JAX `predict`
# itself does so, whereas the requests of its steps come from another function.
_BUILDING_FUNCTIONS: Final = {
    "tensorflow": frozenset({"_maybe_symbolic_build"}),
    "jax": frozenset({"_symbolic_build", "predict"}),
    "torch": frozenset({"_symbolic_build"}),
}


# --- who asks for a batch


def is_building_model() -> bool:
    """Returns whether Keras requests a batch only to build a model from its shapes, before the first step.

    Such a batch would be missing from the epoch. Only the name of the requesting function distinguishes it from a
    step's. Must be called directly by the iterator's `__next__`, since it looks two frames up.
    """
    frames = _iterate_stack_frames(sys._getframe(2))  # noqa: SLF001 - inspect's own is far slower
    names = (each.f_code.co_name for each in frames)
    requester = next((name for name in names if name not in _PASSING_FUNCTIONS), "")
    return requester in _BUILDING_FUNCTIONS[keras.backend.backend()]


def find_running_keras_methods() -> list[FrameType]:
    """Returns the frames of Keras's fit, evaluate and predict on this thread's stack, the innermost first.

    Keras tells its adapter neither which of them requests a batch nor when it ends.
    """
    return [
        frame
        for frame in _iterate_stack_frames(sys._getframe(1))  # noqa: SLF001 - as above
        if frame.f_code.co_name in _KERAS_METHODS and frame.f_globals.get("__name__", "").startswith(_TRAINER_MODULES)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class KerasCall:
    """A call of one of Keras's methods that begins to read an adapter.

    model: the model whose method it is.
    values: its arguments by name; a method lacks some.
    validation_parts: the validation data as Keras splits them into x, y and sample_weight; None without any.
    iterator: Keras's iterator of this call, over training or over validation data.
    steps: the steps an epoch that the call, or Keras itself, has set; None for all.
    trains: the iterator is for the training data of a `fit`, not for validation.
    stream, validation: the `x` argument, and the `x` of the validation data; None for other data than a stream's.
    """

    method: KerasMethod
    model: Any
    values: Mapping[str, Any]
    validation_parts: tuple[Any, Any, Any] | None
    iterator: EpochIterator
    steps: int | None
    trains: bool
    stream: StreamAdapter | None = None
    validation: StreamAdapter | None = None


def find_new_keras_call() -> KerasCall | None:
    """Returns the Keras call that reads an adapter's `num_batches`, if this is its first access; else None.

    On every backend this is the first access of each Keras iterator, and the only way to the arguments of the call.
    Must be called directly by the property.
    """
    making = sys._getframe(2)  # noqa: SLF001 - as above
    running = find_running_keras_methods() if making.f_code is EpochIterator.__init__.__code__ else []
    if not running:
        return None
    code, known = running[0].f_code, running[0].f_locals
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    has_validation = known.get("validation_data") is not None
    validation = (known["val_x"], known["val_y"], known["val_sample_weight"]) if has_validation else None
    method: Any = code.co_name
    return KerasCall(
        method,
        known["self"],
        {name: known.get(name) for name in names},
        validation,
        making.f_locals["self"],
        making.f_locals["steps_per_epoch"],
        trains=method == "fit" and "epoch_iterator" not in known,
    )


def find_model_graph(model: Any) -> Any:
    """Returns the functional model that a model is, or that a sequential one has built; None for any other."""
    graph = getattr(model, "_functional", None) if isinstance(model, keras.Sequential) else model
    is_graph = isinstance(graph, Functional) and type(model).call in (Functional.call, keras.Sequential.call)
    return graph if is_graph else None


def find_calling_epoch_iterator() -> weakref.ref[EpochIterator] | None:
    """Returns Keras's iterator whose method called the caller of this; None in a user's own loop."""
    asking = sys._getframe(2).f_locals.get("self")  # noqa: SLF001 - as above
    return weakref.ref(asking) if isinstance(asking, EpochIterator) else None


# --- Rules for the arguments of fit, evaluate and predict that concern a stream.
#
# Keras does not pass the arguments of its methods to an adapter. So each argument on which Keras does not act itself
# has a rule here. The rule accepts a value if the stream does the same anyway or the adapter acts on it, and otherwise
# returns what to write instead.


# Returns the objection to an argument's value; None if it is honoured. Takes the call, the argument's name and value,
# and the stream's data that it concerns: those of validation, or x.
Rule = Callable[["KerasCall", str, Any, "StreamAdapter | None"], str | None]

# Arguments that concern validation data alone, and what Keras takes them to be where they are left out.
_VALIDATION_DEFAULTS: Final = {"validation_steps": None, "validation_batch_size": None, "validation_freq": 1}


def check_arguments(call: KerasCall) -> None:
    """Raises ConfigError for the first argument that would be ignored; the message says what to write instead."""
    for name, rule in ARGUMENTS[call.method].items():
        given = call.values.get(name)
        if name in _VALIDATION_DEFAULTS and call.validation_parts is None:
            objection = None if given in (None, _VALIDATION_DEFAULTS[name]) else _NO_VALIDATION_DATA
        else:
            data = call.validation if name in _VALIDATION_DEFAULTS else call.stream
            objection = None if rule is None else rule(call, name, given, data)
        if objection is not None:
            raise ConfigError(f"{call.method}({name}={_shorten(given)}): {objection}")


def check_epochs_left(name: str, wanted: tuple[int, int], available: tuple[int, int]) -> None:
    """Raises ConfigError if `fit` would reach the end of the subscription to stream `name`.

    `wanted` and `available` are (epochs, steps).
    """
    if wanted[1] <= available[1]:
        return
    where = f"ends after {_describe_epochs(*available)}" if available[1] else "has no epoch left"
    raise ConfigError(
        f"fit has {_describe_epochs(*wanted)} to go, but the subscription to {name!r} {where}: subscribe with "
        "epochs=None, which never ends, or with as many epochs as all calls of fit take together"
    )


def _describe_epochs(epochs: int, steps: int) -> str:
    return f"{format_count(epochs, 'epoch')} ({format_count(steps, 'step')})"


def _check_data(call: KerasCall, _: str, __: Any, data: StreamAdapter | None) -> str | None:
    step = {"fit": "train_step", "predict": "predict_step"}.get(call.method, "test_step")
    return None if data is None else _compare_with_model(call.model, step, data)


def _check_validation_data(call: KerasCall, *_: Any) -> str | None:
    data, *beside = call.validation_parts or (None,)
    if call.validation is not None:
        if all(each is None for each in beside):
            return _compare_with_model(call.model, "test_step", call.validation)
        return "a stream brings its own targets and weights: give  validation_data=fit_data(stream)  alone"
    # A stream, a client or a stream's name, which Keras would take for data.
    if hasattr(data, "spec") and hasattr(data, "epochs"):
        return "a stream must be passed to Keras through fit_data:  validation_data=fit_data(stream)"
    if not hasattr(data, "subscribe") and not isinstance(data, str):
        return None
    what, name = (f"the name {data!r}", data) if isinstance(data, str) else ("a client", "validation")
    return f"{what} is not data for Keras: give  validation_data=fit_data(client.subscribe({name!r}))"


def _compare_with_model(model: Any, step: str, data: StreamAdapter) -> str | None:
    """Returns why a model cannot work on what a stream gives; None if it can, as far as that is known.

    `step` is the model's method that gets the arrays. A step or a loss of its own may use them in any way.
    """
    if getattr(type(model), step) is not getattr(keras.Model, step):
        return None
    spec, inputs, targets = data.spec, tuple(data.feed.inputs), data.feed.targets
    graph = find_model_graph(model)
    if graph is not None:
        names, given = tuple(graph.input) if isinstance(graph.input, dict) else (), ", ".join(inputs)
        if isinstance(graph.input, keras.KerasTensor) and len(inputs) > 1:
            # An image among the inputs may go by another name; labels alone have the stream's first beside them.
            image = next((name for name in inputs if name in spec.images), next(iter(spec.images)))
            return (
                f"the model takes one array, and stream {spec.name!r} gives a dict of {len(inputs)}, {given}: choose "
                f"one, as in  fit_data(stream, inputs=[{image!r}]),  or build the model with an input for each, as in  "
                f"keras.Model({{{inputs[0]!r}: keras.Input(...), ...}}, outputs)"
            )
        # Keras takes one array for the only input, whatever its name.
        if len(names) > 1 and not set(names).issubset(inputs):
            return (
                f"the model has the inputs {', '.join(names)}, and stream {spec.name!r} gives {given}: choose images "
                "and labels with  fit_data(stream, inputs=[...]),  and give the model's inputs their names"
            )
    # A loss of Keras's would fail without targets.
    compiled = model._compile_loss  # noqa: SLF001 - nothing public says that there is one
    has_loss = compiled is not None and type(model).compute_loss is keras.Model.compute_loss
    if step == "predict_step" or not has_loss:
        return None
    if not targets:
        images = ", ".join(spec.images)
        remedy = (
            f"choose with  fit_data(stream, targets=...)  among its labels ({', '.join(spec.labels)}) and images "
            f"({images})"
            if spec.labels
            else "serve it with labels, which config.yaml names for each stream, or let the model learn an image, with "
            f" fit_data(stream, targets=[{next(iter(spec.images))!r}])"
        )
        return (
            f"the model's loss needs targets, and stream {spec.name!r} gives none: {remedy}; or compile a model "
            "without loss= where its own train_step computes the loss from the images"
        )
    if graph is not None and isinstance(graph.output, keras.KerasTensor) and len(targets) > 1:
        return (
            f"the model has one output, and stream {spec.name!r} gives a dict of {len(targets)} targets, "
            f"{', '.join(targets)}: choose one, as in  fit_data(stream, targets={targets[-1]!r}),  or build the model "
            "with an output for each, in a dict by these names"
        )
    return None


VALIDATION_SPLIT_REMEDY: Final = (
    "Keras cannot divide a stream: serve both parts, with  split: {validation: 0.2}  in config.yaml, and give  "
    'validation_data=fit_data(client.subscribe("validation"))'
)

# What to write in place of a value that a stream brings itself.
_OWN_VALUES: Final = {
    "y": "a stream brings its own targets: leave y out, and choose with  fit_data(stream, targets=...)",
    "sample_weight": (
        "a stream brings its own weights: leave sample_weight out, and name the column that has them in config.yaml, "
        "weights: COLUMN"
    ),
    "validation_split": VALIDATION_SPLIT_REMEDY,
    "class_weight": "fit_data already has a class_weight: give class_weight to fit_data or to fit, not to both",
}


def _check_own_value(_: KerasCall, name: str, given: Any, data: StreamAdapter | None) -> str | None:
    if data is None or given is None or (name == "validation_split" and not given):
        return None
    # The adapter itself multiplies by the only class_weight.
    return None if name == "class_weight" and data.feed.class_weights is None else _OWN_VALUES[name]


def _check_batch_size(call: KerasCall, name: str, given: Any, data: StreamAdapter | None) -> str | None:
    # Keras takes the size of other training data for validation too.
    if name == "validation_batch_size" and call.stream is None:
        given = given or call.values.get("batch_size")
    if data is None or given is None or given == data.spec.batch_size:
        return None
    spec = data.spec
    return (
        f"batches of stream {spec.name!r} have {spec.batch_size} samples: leave {name} out, or take others with  "
        f"client.subscribe({spec.name!r}, batch_size={_shorten(given)})"
    )


def _check_steps(_: KerasCall, name: str, given: Any, data: StreamAdapter | None) -> str | None:
    if data is None or given is None:
        return None
    try:
        count = index(given)
    except TypeError:
        count = 0
    if 1 <= count <= len(data.stream):
        return None
    whole = format_count(len(data.stream), "step")
    return (
        f"an epoch of stream {data.spec.name!r} has {whole}: leave {name} out, which takes all of them, or give a "
        f"whole number from 1 to {len(data.stream)}"
    )


def _check_validation_freq(_: KerasCall, __: str, given: Any, ___: StreamAdapter | None) -> str | None:
    if isinstance(given, list) or (isinstance(given, int) and given >= 1):
        return None
    return "give a whole number of epochs, 1 or more, or a list of the epochs after which to validate, counted from 1"


_NO_VALIDATION_DATA: Final = (
    "this argument needs validation_data, which is missing: give validation_data too, or leave this argument out"
)


def _check_shuffle(_: KerasCall, __: str, given: Any, data: StreamAdapter | None) -> str | None:
    if data is None or given is None or given is True:
        return None
    spec = data.spec
    if given not in (True, False):
        return "a stream comes in the order that config.yaml says,  shuffle: full | none | chunk:  leave shuffle out"
    if given or spec.shuffle == "none":
        return None
    return (
        f"stream {spec.name!r} comes shuffled ({spec.shuffle}), whatever shuffle is set to in Keras: leave shuffle "
        "out, or serve a stream with  shuffle: none  in config.yaml"
    )


def _shorten(value: Any) -> str:
    """Returns a short value's repr; "..." for a long one, and for arrays and other objects."""
    text = repr(value)
    is_short = len(text) <= 40 and "\n" not in text  # noqa: PLR2004 - half a line
    return text if is_short and isinstance(value, bool | int | float | str | dict) else "..."


# Every parameter of Keras's methods, which a test compares with Keras's own signatures. None: Keras itself acts on it,
# whatever the data are.
ARGUMENTS: Final[Mapping[KerasMethod, Mapping[str, Rule | None]]] = {
    "fit": {
        "x": _check_data,
        "y": _check_own_value,
        "batch_size": _check_batch_size,
        "epochs": None,  # compared with the subscription when the first epoch begins: see check_epochs_left
        "verbose": None,
        "callbacks": None,
        "validation_split": _check_own_value,
        "validation_data": _check_validation_data,
        "shuffle": _check_shuffle,
        "class_weight": _check_own_value,
        "sample_weight": _check_own_value,
        "initial_epoch": None,
        "steps_per_epoch": _check_steps,  # the adapter makes epochs of that length
        "validation_steps": _check_steps,
        "validation_batch_size": _check_batch_size,
        "validation_freq": _check_validation_freq,
    },
    "evaluate": {
        "x": _check_data,
        "y": _check_own_value,
        "batch_size": _check_batch_size,
        "verbose": None,
        "sample_weight": _check_own_value,
        "steps": _check_steps,
        "callbacks": None,
        "return_dict": None,
        "kwargs": None,  # Keras refuses unknown ones itself
    },
    "predict": {
        "x": _check_data,
        "batch_size": _check_batch_size,
        "verbose": None,
        "steps": _check_steps,
        "callbacks": None,
    },
}

# What to write in place of a method or attribute of tf.data.Dataset, by its name. TensorFlow itself reads the last two,
# of a data set that a strategy is to distribute.
_PER_BATCH: Final = (
    "write the function into the model or the training step, or serve its result with  transform:  in config.yaml"
)
_DISTRIBUTED: Final = (
    "model.fit(fit_data(stream)) under the strategy gives each replica a part of each batch; a training loop of your "
    "own does so with  strategy.experimental_distribute_values_from_function"
)
DATASET_REMEDIES: Final[Mapping[str, str]] = {
    "map": _PER_BATCH,
    "apply": _PER_BATCH,
    "filter": "serve a part of the samples: with  where:  of a table, or from a folder of their own",
    "batch": "a stream comes in batches; others are  client.subscribe(NAME, batch_size=N)",
    "padded_batch": "a stream comes in batches; others are  client.subscribe(NAME, batch_size=N)",
    "rebatch": "write  client.subscribe(NAME, batch_size=N)",
    "ragged_batch": "a stream comes in batches; others are  client.subscribe(NAME, batch_size=N)",
    "unbatch": "loop over the rows of each batch",
    "shuffle": "a stream comes in the order that config.yaml says, anew in each epoch: leave it out",
    "prefetch": "the daemon makes batches ahead: leave it out, or set  client.subscribe(NAME, prefetch=N)",
    "repeat": "each epoch of fit, and each loop, is the next epoch: leave it out",
    "cache": "the daemon decodes once for all trainers: leave it out, or set  cache:  in config.yaml",
    "take": "write  fit_data(stream, steps=N),  or  preview(N)  to look at batches",
    "skip": "write  client.subscribe(NAME, resume=TOKEN),  or  stream.advance_to_epoch(N)",
    "shard": 'write  client.subscribe(NAME, rank="auto")',
    "enumerate": "write  enumerate(data)",
    "as_numpy_iterator": "loop over  stream,  whose batches are NumPy arrays",
    "with_options": "there are no options to set: leave it out",
    "cardinality": "write  len(data)",
    "concatenate": "serve both as one stream, from one folder or table; a loop may read  itertools.chain(one, other)",
    "_variant_tensor": _DISTRIBUTED,
    "element_spec": _DISTRIBUTED,
}


# --- a `fit` and its callbacks


class FirstEpoch(int):
    """The epoch with which a `fit` begins, as Keras reads it from the model; false once the `fit` is over.

    A `fit` that another callback ends before its first epoch cannot reset the model's attribute itself.
    """

    _is_running: Callable[[], bool]

    def __new__(cls, epoch: int, is_running: Callable[[], bool]) -> Self:
        first = super().__new__(cls, epoch)
        first._is_running = is_running
        return first

    def __bool__(self) -> bool:
        return self != 0 and self._is_running()


def find_fit_callbacks() -> Any:
    """Returns the CallbackList that is calling one of its callbacks. Raises ConfigError if there is none on the stack.

    Keras offers no other way for callbacks to find each other.
    """
    for frame in _iterate_stack_frames(sys._getframe()):  # noqa: SLF001 - inspect's own is this, with a check for other Pythons
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.callbacks.CallbackList):
            return caller
    raise ConfigError("ResumeCallback was not called by Keras: give it to  fit(callbacks=[...])")


def check_data_of_running_fit(data: object, name: str, call: str) -> None:
    """Raises ConfigError where the `fit` that calls a callback reads other data than the callback `name` was given.

    `call` is how the callback is made with `data`.
    """
    for _, epochs in _iterate_fit_calls(sys._getframe()):  # noqa: SLF001 - as above
        if isinstance(epochs, EpochIterator) and epochs.data_adapter is not data:
            raise ConfigError(
                f"this fit does not read the data that {name} was given: give both the same object,  data = "
                f"fit_data(stream); model.fit(data, callbacks=[{call}])"
            )
        return


def is_callback_in_running_fit(callback: weakref.ref[Any]) -> bool:
    """Returns whether a `fit` with this callback runs in any thread; a `fit` that raised an error does not run."""
    this = callback()
    frames = sys._current_frames().values()  # noqa: SLF001 - there is no other way to see the stacks of threads
    return this is not None and any(this in callbacks for frame in frames for callbacks, _ in _iterate_fit_calls(frame))


def set_keras_epoch_steps(steps: int) -> None:
    """Sets the number of steps of the next epoch of the calling `fit`, and of its progress bar.

    `fit` reads the number from its data before the first epoch only, and from its iterator as each epoch begins.
    """
    for callbacks, epochs in _iterate_fit_calls(sys._getframe()):  # noqa: SLF001 - as above
        epochs._num_batches = steps  # noqa: SLF001 - Keras's own, which nothing public sets
        if epochs.steps_per_epoch:
            epochs.steps_per_epoch = steps
        for each in callbacks:
            if isinstance(each, keras.callbacks.ProgbarLogger):
                each.target = steps
        return


def _iterate_stack_frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _iterate_fit_calls(frame: FrameType) -> Iterator[tuple[list[Any], Any]]:
    """Yields the callbacks and the epoch iterator of each `fit` on a frame's stack, the innermost first."""
    for each in _iterate_stack_frames(frame):
        if each.f_code.co_name == "fit":
            callbacks, epochs = (each.f_locals.get(name) for name in ("callbacks", "epoch_iterator"))
            if isinstance(callbacks, keras.callbacks.CallbackList) and epochs is not None:
                yield callbacks.callbacks, epochs


# --- Tracks which batches a model has finished, when batches are fetched ahead of their steps. Pure.


Step = TypeVar("Step")


@dataclass(slots=True)
class PendingSteps(Generic[Step]):
    """What is kept of each batch that a model has received and not finished; they finish in the order of `unfinished`.

    done: the finished steps of the epoch.
    last: what was kept of the last finished batch of all epochs; None before the first.
    """

    unfinished: deque[Step] = field(default_factory=deque)
    done: int = 0
    last: Step | None = None

    def begin_epoch(self) -> None:
        """Begins an epoch: forgets unfinished batches, and counts steps from 0."""
        self.unfinished.clear()
        self.done = 0

    def finish_steps(self, steps: int) -> list[Step]:
        """Marks the epoch's first `steps` steps as finished, and returns those that are newly so.

        A trainer that executes several steps at once may report more steps than there were at an epoch's end, so only
        batches that were added count.
        """
        new = [self.unfinished.popleft() for _ in range(min(steps - self.done, len(self.unfinished)))]
        self.done += len(new)
        self.last = new[-1] if new else self.last
        return new


# --- The position at which each call reads a stream: `fit` and loops continue, `evaluate` and `predict` begin anew.
#
# `frames` finds out which method requests a batch; this module decides whether an earlier call is still running.


ConvertBatch = Callable[[Batch], Any]


class _ReadingCall(NamedTuple):
    """A Keras call that has begun to read a stream.

    `thread` and `frame` (an identity) distinguish it from other running calls. Keras's `iterator` lives only as long as
    the call, unless the caller keeps an error that the call raised.
    """

    method: str
    thread: int
    frame: int
    iterator: weakref.ref[Any]

    def is_running_in_other_thread(self) -> bool:
        """Returns whether another thread still has the call's frame on its stack; that of a failed call is gone."""
        if self.thread == get_ident():
            return False
        top = sys._current_frames().get(self.thread)  # noqa: SLF001 - nothing else shows the stacks of threads
        return any((id(each), each.f_code.co_name) == (self.frame, self.method) for each in _iterate_stack_frames(top))


class _PresentEpoch:
    """The rest of the stream's present epoch, which begins here. Raises ConfigError after the subscription's last.

    steps: what `convert` makes of its batches; the batches themselves without one.
    make_token: makes the token of the position at which the last of these batches left the stream.
    """

    def __init__(self, stream: FeedStream, convert: ConvertBatch | None, *, anew: bool = False) -> None:
        self._stream = stream
        self._convert = convert
        self._was_last = False  # the batch before was the epoch's last, as the stream announced
        steps = next(stream.epochs(anew=anew, convert=self.take), None)
        if steps is None:
            raise ConfigError(
                f"the subscription to {stream.spec.name!r} has no epoch left: subscribe with epochs=None, or with as "
                "many epochs as all calls of fit and all loops take together"
            )
        self.steps = steps
        self.make_token: Callable[[], str] = partial(str, stream.token)

    def take(self, batch: Batch) -> Any:
        """Converts a batch. Called by the stream, which gives the same batch again if an interrupt comes before."""
        if self._was_last:
            raise ReceiptError(
                f"epoch {batch.epoch} has more steps than announced: batch {batch.index} came after its end"
            )
        step = batch if self._convert is None else self._convert(batch)
        was_last = not self._stream.steps_left
        # Behind this there is no call, at which an interrupt could be handled: what is not handed out is not noted.
        self.make_token, self._was_last = batch.make_token, was_last
        return step


class KerasReader:
    """Shares a stream among Keras's methods; all adapters of a stream use the same reader.

    The stream is either at the position of `fit` (`_fit_place` is None), or was moved by `evaluate`, `predict` or a
    loop that evaluates. `_fit_place` then has the token to return to. If the stream is no longer where the other method
    left it, the user has moved it since, and the saved position is given up.
    """

    def __init__(self, stream: FeedStream) -> None:
        self.stream = stream
        self._fit_place: str | None = None  # the token from which fit continues, while the stream is elsewhere
        self._make_parked_token: Callable[[], str] | None = None  # where another method has left the stream so far
        self._is_untouched = False  # the position of `fit` is the beginning of the subscription
        self._calls: list[_ReadingCall] = []

    def seek(self, token: str, *, after: Literal["step", "epoch"] = "step") -> None:
        """Makes `fit` continue after the token's batch, or after its epoch. Raises TokenError for another stream's."""
        self.stream.seek(token, after=after)
        self._forget_fit_place()

    def register_keras_call(self, running: list[FrameType], iterator: weakref.ref[Any] | None) -> str:
        """Registers the innermost of the `running` calls as a reader, and returns its method's name.

        Called when a call begins to read, and at each of its epochs. Returns "fit" for a user's own loop. Raises
        ConfigError when the call would take the stream away from another one.
        """
        if not running or iterator is None:
            return "fit"
        asking, *outer = running
        call = _ReadingCall(asking.f_code.co_name, get_ident(), id(asking), iterator)
        self.check_not_in_use(call.method, outer)
        if call not in self._calls:
            self._calls.append(call)
            if call.method == "fit" and getattr(asking.f_locals.get("val_x"), "reader", None) is self:
                self._raise_stream_in_use("validation", "fit")  # at once, and not after the first epoch
        return call.method

    def check_not_in_use(self, what: str, running: list[FrameType]) -> None:
        """Raises ConfigError if a call reads the stream that `what` would take away.

        `running` has the frames of the calls in this thread. A `fit` within another one takes nothing away.
        """
        self._calls = [each for each in self._calls if each.iterator() is not None]
        here = {id(frame) for frame in running}
        for each in self._calls:
            is_reading = each.frame in here or each.is_running_in_other_thread()
            if is_reading and (each.method, what) != ("fit", "fit"):
                self._raise_stream_in_use(what, each.method)

    def _raise_stream_in_use(self, what: str, other: str) -> NoReturn:
        name = self.stream.spec.name
        raise ConfigError(
            f"{what} would take stream {name!r} away from the {other} that is reading it, and would move it to "
            f"another batch: give {what} a subscription of its own, as in  fit_data(client.subscribe({name!r}))"
        )

    def continue_fit_batches(self, *, whole: bool, convert: ConvertBatch | None = None) -> Iterator[Any]:
        """Returns batches to train on: the rest of the stream's present epoch if `whole`, else those of all epochs."""
        self._return_to_fit_place()
        if whole:
            return _PresentEpoch(self.stream, convert).steps
        return chain.from_iterable(_PresentEpoch(self.stream, convert).steps for _ in repeat(None))

    def restart_stream(self, *, for_loop: bool = False, convert: ConvertBatch | None = None) -> Iterator[Any]:
        """Returns batches to evaluate: those of the subscription's first epoch.

        for_loop: a user's own loop evaluates. Its first pass after `resume=` or `seek` goes on there.
        """
        self._forget_place_if_moved()
        if self._fit_place is None:
            self._fit_place = self.stream.token
        self._make_parked_token = None
        if not for_loop:
            self.stream.rewind()
        present = _PresentEpoch(self.stream, convert, anew=for_loop)
        self._is_untouched = self._fit_place == self.stream.token
        # Set now, since a call that is interrupted never reports its end.
        self._make_parked_token = lambda: present.make_token()  # noqa: PLW0108 - each batch sets another
        return present.steps

    @property
    def fit_place(self) -> str:
        """The token from which `fit` continues."""
        self._forget_place_if_moved()
        return self.stream.token if self._fit_place is None else self._fit_place

    def end_evaluation(self) -> None:
        """Ends `evaluate` or `predict`, and moves the stream at once, so that the next batches are made meanwhile."""
        # If `fit` is at the beginning of the subscription, it and another evaluation begin at the same batch.
        if self._is_untouched:
            self.stream.rewind()
            self._make_parked_token = partial(str, self.stream.token)
        else:
            self._return_to_fit_place()

    def _return_to_fit_place(self) -> None:
        self._forget_place_if_moved()
        if self._fit_place is not None:
            self.stream.return_to(self._fit_place)
            self._forget_fit_place()

    def _forget_place_if_moved(self) -> None:
        """Gives up the saved position of `fit` if the user has moved the stream since, by `seek` or in a loop.

        `fit` then continues where the user has left the stream.
        """
        if self._make_parked_token is not None and self._make_parked_token() != self.stream.token:
            self._forget_fit_place()

    def _forget_fit_place(self) -> None:
        self._fit_place = self._make_parked_token = None
        self._is_untouched = False


_readers: Final[weakref.WeakValueDictionary[int, KerasReader]] = weakref.WeakValueDictionary()


def find_or_create_reader(stream: FeedStream) -> KerasReader:
    """Returns the reader of a stream, always the same one."""
    # The key is an identity. A reader refers to its stream, so no other object can have that identity while it lives.
    reader = _readers.get(id(stream))
    if reader is None:
        reader = _readers[id(stream)] = KerasReader(stream)
    return reader
