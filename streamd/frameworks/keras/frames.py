"""Reads facts from the stack of a running Keras call. Imports Keras.

These are the function that requests a batch, the arguments of the call, the callbacks of a `fit`, and the length of its
epochs. Keras passes none of them to an adapter.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

import keras
from keras.src.models.functional import Functional
from keras.src.trainers.epoch_iterator import EpochIterator

from streamd.errors import ConfigError
from streamd.frameworks.keras.arguments import KerasCall, ModelForm

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
