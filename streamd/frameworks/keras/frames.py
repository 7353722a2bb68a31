"""Reads facts from the stack of a running Keras call. Imports Keras.

These are the function that requests a batch, the arguments of the call, the callbacks of a `fit`, and the length of its
epochs. Keras passes none of them to an adapter.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from threading import get_ident
from types import FrameType
from typing import Any, Final, Generic, Literal, NamedTuple, NoReturn, Self, TypeVar

import keras
from keras.src.models.functional import Functional
from keras.src.trainers.epoch_iterator import EpochIterator

from streamd.client import Batch
from streamd.errors import ConfigError, ReceiptError
from streamd.frameworks.keras.arguments import KerasCall, ModelForm
from streamd.frameworks.model_inputs import FeedStream

# Functions of Keras's own iterators, which pass a request for a batch on.
_PASSING_FUNCTIONS: Final = frozenset({"__next__", "_one_batch_ahead_iterator", "_get_distributed_iterator"})
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
    return _find_batch_requester_name(sys._getframe(2)) in _BUILDING_FUNCTIONS[keras.backend.backend()]  # noqa: SLF001 - inspect's own is far slower


def _find_batch_requester_name(frame: FrameType | None) -> str:
    """Returns the name of the function that requests a batch, starting at `frame`."""
    names = (each.f_code.co_name for each in _iterate_stack_frames(frame))
    return next((name for name in names if name not in _PASSING_FUNCTIONS), "")


def find_running_keras_methods() -> list[FrameType]:
    """Returns the frames of Keras's fit, evaluate and predict on this thread's stack, the innermost first.

    Keras tells its adapter neither which of them requests a batch nor when it ends.
    """
    return [
        frame
        for frame in _iterate_stack_frames(sys._getframe(1))  # noqa: SLF001 - as above
        if frame.f_code.co_name in _KERAS_METHODS and frame.f_globals.get("__name__", "").startswith(_TRAINER_MODULES)
    ]


class NewCall(NamedTuple):
    """A call of one of Keras's methods that begins to read an adapter.

    iterator: Keras's iterator of this call, over training or over validation data.
    call: the call, without facts about its streams.
    steps: the steps an epoch that the call, or Keras itself, has set; None for all.
    trains: the iterator is for the training data of a `fit`, not for validation.
    model: the model whose method it is.
    """

    iterator: EpochIterator
    call: KerasCall
    steps: int | None
    trains: bool
    model: Any


def find_new_keras_call() -> NewCall | None:
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
    call = KerasCall(
        method,
        {name: known.get(name) for name in names},
        validation_parts=validation,
        form=_describe_model(known["self"], {"fit": "train_step", "predict": "predict_step"}.get(method, "test_step")),
        validation_form=_describe_model(known["self"], "test_step"),
    )
    trains = method == "fit" and "epoch_iterator" not in known
    return NewCall(making.f_locals["self"], call, making.f_locals["steps_per_epoch"], trains, known["self"])


def _describe_model(model: Any, step: str) -> ModelForm:
    """Returns what is known of a model whose `step` runs: nothing where the step, or how it is called, is its own."""
    if _has_own_method(model, step):
        return ModelForm()
    needs_targets = model._compile_loss is not None and not _has_own_method(model, "compute_loss")  # noqa: SLF001 - nothing public says that there is one
    graph = find_model_graph(model)
    if graph is None:
        return ModelForm(needs_targets)
    names = tuple(graph.input) if isinstance(graph.input, dict) else None
    has_one_input, has_one_output = (isinstance(each, keras.KerasTensor) for each in (graph.input, graph.output))
    return ModelForm(needs_targets, has_one_input, names, has_one_output)


def find_model_graph(model: Any) -> Any:
    """Returns the functional model that a model is, or that a sequential one has built; None for any other."""
    graph = getattr(model, "_functional", None) if isinstance(model, keras.Sequential) else model
    is_graph = isinstance(graph, Functional) and type(model).call in (Functional.call, keras.Sequential.call)
    return graph if is_graph else None


def _has_own_method(model: Any, name: str) -> bool:
    return getattr(type(model), name) is not getattr(keras.Model, name)


def find_calling_epoch_iterator() -> weakref.ref[EpochIterator] | None:
    """Returns Keras's iterator whose method called the caller of this; None in a user's own loop."""
    asking = sys._getframe(2).f_locals.get("self")  # noqa: SLF001 - as above
    return weakref.ref(asking) if isinstance(asking, EpochIterator) else None


def find_calling_strategy() -> Any:
    """Returns the tf.distribute strategy of the model that is fed; None if there is none.

    Only Keras's own iterator, which requests the dataset, knows the strategy.
    """
    return getattr(sys._getframe(2).f_locals.get("self"), "_distribute_strategy", None)  # noqa: SLF001 - as above


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


class FitBegin(NamedTuple):
    """The epoch with which a `fit` begins, counted from 0, and its callbacks."""

    epoch: int
    callbacks: list[Any]


def find_first_epoch(running: list[FrameType]) -> FitBegin | None:
    """Returns how the innermost of the `running` methods began, if it is a `fit` in its first epoch; else None."""
    known = running[0].f_locals if running else {}
    callbacks = known.get("callbacks")
    if not isinstance(callbacks, keras.callbacks.CallbackList) or known.get("epoch") != known.get("initial_epoch"):
        return None
    return FitBegin(int(known["epoch"]), callbacks.callbacks)


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


class PendingSteps(Generic[Step]):
    """The batches that a model has received and not finished; they finish in the order in which it received them."""

    def __init__(self) -> None:
        self._pending: deque[Step] = deque()
        self._done = 0  # finished steps of the epoch

    @property
    def is_all_finished(self) -> bool:
        """Whether the model has finished every batch that was added."""
        return not self._pending

    def begin_epoch(self) -> None:
        """Begins an epoch: forgets unfinished batches, and counts steps from 0."""
        self._pending.clear()
        self._done = 0

    def add_step(self, step: Step) -> None:
        """Adds a batch that goes to the model."""
        self._pending.append(step)

    def take_finished_steps(self, steps: int) -> list[Step]:
        """Marks the epoch's first `steps` steps as finished, and returns those that are newly so.

        A trainer that executes several steps at once may report more steps than there were at an epoch's end, so only
        batches that were added count.
        """
        new = [self._pending.popleft() for _ in range(min(steps - self._done, len(self._pending)))]
        self._done += len(new)
        return new


class FinishedSteps(PendingSteps[Callable[[], str]]):
    """The position after the last batch on which a model was trained; each step is a function that makes its token."""

    def __init__(self) -> None:
        super().__init__()
        self._place: Callable[[], str] | None = None

    @property
    def last_finished_token(self) -> str | None:
        """The token of the last finished batch; None before the first."""
        return None if self._place is None else self._place()

    def mark_steps_finished(self, steps: int) -> int:
        """Marks the epoch's first `steps` steps as finished, and returns how many of them really are."""
        if finished := self.take_finished_steps(steps):
            self._place = finished[-1]
        return self._done


# --- The position at which each call reads a stream: `fit` and loops continue, `evaluate` and `predict` begin anew.
#
# `frames` finds out which method requests a batch; this module decides whether an earlier call is still running.


ConvertBatch = Callable[[Batch], Any]


def keep_batch(batch: Batch) -> Batch:
    """Returns the batch, where `fit` converts it itself."""
    return batch


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
        frame = None
        if self.thread != get_ident():
            frame = sys._current_frames().get(self.thread)  # noqa: SLF001 - nothing else shows the stacks of threads
        while frame is not None and (id(frame), frame.f_code.co_name) != (self.frame, self.method):
            frame = frame.f_back
        return frame is not None


class _PresentEpoch:
    """The rest of the stream's present epoch. `steps` is what `convert` makes of its batches."""

    def __init__(self, stream: FeedStream, convert: ConvertBatch, *, anew: bool) -> None:
        self._stream = stream
        self._convert = convert
        self._was_last = False  # the batch before was the epoch's last, as the stream announced
        self.steps = next(stream.epochs(anew=anew, convert=self.take), None)  # None behind the last epoch
        self._make_token: Callable[[], str] = partial(str, stream.token)

    def make_token(self) -> str:
        """Returns the token of the position at which the last of these batches left the stream."""
        return self._make_token()

    def take(self, batch: Batch) -> Any:
        """Converts a batch. Called by the stream, which gives the same batch again if an interrupt comes before."""
        if self._was_last:
            raise ReceiptError(
                f"epoch {batch.epoch} has more steps than announced: batch {batch.index} came after its end"
            )
        step = self._convert(batch)
        was_last = not self._stream.steps_left
        # Behind this there is no call, at which an interrupt could be handled: what is not handed out is not noted.
        self._make_token, self._was_last = batch.make_token, was_last
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
        for each in self._list_running_calls(outer):
            if (each.method, call.method) != ("fit", "fit"):
                self._raise_stream_in_use(call.method, each.method)
        if call not in self._calls:
            self._calls.append(call)
            if call.method == "fit" and getattr(asking.f_locals.get("val_x"), "reader", None) is self:
                self._raise_stream_in_use("validation", "fit")  # at once, and not after the first epoch
        return call.method

    def check_not_in_use(self, what: str, running: list[FrameType]) -> None:
        """Raises ConfigError if a call reads the stream that `what` would take away.

        `running` has the frames of the calls in this thread.
        """
        for each in self._list_running_calls(running):
            self._raise_stream_in_use(what, each.method)

    def _list_running_calls(self, frames: list[FrameType]) -> list[_ReadingCall]:
        """Returns the calls that read this stream now; `frames` has the frames of calls in this thread."""
        self._calls = [each for each in self._calls if each.iterator() is not None]
        here = {id(frame) for frame in frames}
        return [each for each in self._calls if each.frame in here or each.is_running_in_other_thread()]

    def _raise_stream_in_use(self, what: str, other: str) -> NoReturn:
        name = self.stream.spec.name
        raise ConfigError(
            f"{what} would take stream {name!r} away from the {other} that is reading it, and would move it to "
            f"another batch: give {what} a subscription of its own, as in  fit_data(client.subscribe({name!r}))"
        )

    def continue_fit_batches(self, *, whole: bool, convert: ConvertBatch = keep_batch) -> Iterator[Any]:
        """Returns batches to train on: the rest of the stream's present epoch if `whole`, else those of all epochs."""
        self._return_to_fit_place()
        if whole:
            return self._begin_epoch(convert)[1]
        return chain.from_iterable(self._begin_epoch(convert)[1] for _ in repeat(None))

    def restart_stream(self, *, for_loop: bool = False, convert: ConvertBatch = keep_batch) -> Iterator[Any]:
        """Returns batches to evaluate: those of the subscription's first epoch.

        for_loop: a user's own loop evaluates. Its first pass after `resume=` or `seek` goes on there.
        """
        self._forget_place_if_moved()
        if self._fit_place is None:
            self._fit_place = self.stream.token
        self._make_parked_token = None
        if not for_loop:
            self.stream.rewind()
        present, steps = self._begin_epoch(convert, anew=for_loop)
        self._is_untouched = self._fit_place == self.stream.token
        # Set now, since a call that is interrupted never reports its end.
        self._make_parked_token = present.make_token
        return steps

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

    def _begin_epoch(self, convert: ConvertBatch, *, anew: bool = False) -> tuple[_PresentEpoch, Iterator[Any]]:
        """Begins the next epoch of the stream. Raises ConfigError after the subscription's last."""
        present = _PresentEpoch(self.stream, convert, anew=anew)
        if present.steps is not None:
            return present, present.steps
        raise ConfigError(
            f"the subscription to {self.stream.spec.name!r} has no epoch left: subscribe with epochs=None, or with as "
            "many epochs as all calls of fit and all loops take together"
        )


_readers: Final[weakref.WeakValueDictionary[int, KerasReader]] = weakref.WeakValueDictionary()


def find_or_create_reader(stream: FeedStream) -> KerasReader:
    """Returns the reader of a stream, always the same one."""
    # The key is an identity. A reader refers to its stream, so no other object can have that identity while it lives.
    reader = _readers.get(id(stream))
    if reader is None:
        reader = _readers[id(stream)] = KerasReader(stream)
    return reader
