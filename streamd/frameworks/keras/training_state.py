"""What a training is made of beside its place in the stream, taken and put back. Imports Keras; knows no backend.

That is the variables of the model, its optimizer and its metrics; what the other callbacks have learned since the `fit`
began; and the states of the process's random generators, which callbacks, losses and Keras on torch draw from.
"""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import keras
import numpy as np

from streamd.errors import ConfigError
from streamd.frameworks.lazy_import import load
from streamd.frameworks.plain_data import Array, Look, Packer, UnkeptError, unpack

_PARTS: Final = {
    "model": "another model; build it as it was",
    "optimizer": "another optimizer's state; compile with that of then",
    "metrics": "other metrics; compile with those of then",
}
_KERAS_OWN: Final = frozenset({"_model", "params"})  # set in every callback by Keras
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")  # of an object, another one in each process


class _Variable(NamedTuple):
    """What is saved of a variable, beside its value."""

    path: str
    shape: list[int]
    dtype: str
    number: int


def build_variables(model: Any, example: tuple[Any, ...]) -> None:
    """Makes all variables of a compiled model that Keras would make in its first step, on a batch like `example`."""
    model._symbolic_build(data_batch=example)  # noqa: SLF001 - what Keras does itself on other backends than TensorFlow


def take_variables(model: Any, packer: Packer) -> dict[str, Any]:
    """The values of all variables: weights, states of random seeds, the optimizer's and the metrics'.

    On torch, the states of its own generators too, one a device: a Dropout that was given no seed draws from them.
    """
    taken = {part: [_describe(each, packer) for each in _variables(model, part)] for part in _PARTS}
    generators = [packer.add(generator.get_state().numpy()) for generator in _generators()]
    return {"kind": _kind(model.optimizer), "generators": generators, **taken}


def restore_variables(model: Any, state: dict[str, Any], arrays: Sequence[Array], where: str) -> None:
    """Gives a model that was built the values that were taken, or raises ConfigError and changes nothing.

    `where` names the state. Variables are matched by their order: names differ from one process to the next.
    """
    if _kind(model.optimizer) != state["kind"]:
        raise _misfit(where, "optimizer", f"it is of {state['kind']}, not of {_kind(model.optimizer)}")
    saved = {part: [_Variable(*each) for each in state[part]] for part in _PARTS}
    for part in _PARTS:
        _check(_variables(model, part), saved[part], part, where)
    for part in _PARTS:
        for variable, record in zip(_variables(model, part), saved[part], strict=True):
            variable.assign(arrays[record.number])
    for generator, number in zip(_generators(), state.get("generators", ()), strict=False):  # devices may differ
        generator.set_state(load("torch", "torch", "Keras on torch").from_numpy(arrays[number].copy()))


def describe_rate(optimizer: Any) -> float | str | None:
    """The learning rate as it is now, or what its schedule is made of; None where there is none."""
    rate = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_learning_rate", None)
    if rate is None or isinstance(rate, keras.Variable):
        return None if rate is None else float(rate.numpy())
    if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return getattr(rate, "__qualname__", type(rate).__name__)
    try:
        made_of = str(rate.get_config())
    except Exception:  # noqa: BLE001 - one of the user's own that is never saved with a model: its type is what is known
        return type(rate).__name__
    return f"{type(rate).__name__} of {_ADDRESS.sub('', made_of)}"


def _generators() -> list[Any]:
    """Those that torch draws from by default, on the CPU and on each GPU in use; none on other backends."""
    if keras.backend.backend() != "torch":
        return []
    torch = load("torch", "torch", "Keras on torch")
    return [torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ())]


def _variables(model: Any, part: str) -> list[Any]:
    if part == "optimizer":
        return list(model.optimizer.variables) if model.optimizer is not None else []
    return list(model.variables if part == "model" else model.metrics_variables)


def _kind(optimizer: Any) -> str:
    return type(optimizer).__name__


def _describe(variable: Any, packer: Packer) -> _Variable:
    number = packer.add(variable.numpy())
    return _Variable(variable.path, list(variable.shape), keras.backend.standardize_dtype(variable.dtype), number)


def _check(variables: list[Any], saved: list[_Variable], part: str, where: str) -> None:
    if len(variables) != len(saved):
        raise _misfit(where, part, f"it has {len(saved)} variables where there are {len(variables)} now")
    for variable, record in zip(variables, saved, strict=True):
        shape, dtype = list(variable.shape), keras.backend.standardize_dtype(variable.dtype)
        if (shape, dtype) != (record.shape, record.dtype):
            raise _misfit(
                where,
                part,
                f"{record.path} is {record.dtype} {record.shape} where {variable.path} is {dtype} {shape} now",
            )


def _misfit(where: str, part: str, facts: str) -> ConfigError:
    return ConfigError(f"{where} holds {_PARTS[part]}, or name another folder to begin anew: {facts}")


# --- the other callbacks


class OtherCallbacks:
    """The callbacks beside the one that saves, as they are when all of them have heard that the training begins.

    What changes from there on is their state; what does not is how they were made, and stays as the program says. The
    progress bar has none. What cannot be kept is told of once, unless it is Keras's own business, such as an open file.
    """

    def __init__(self, callbacks: Sequence[Any], say: Callable[[str], None]) -> None:
        self._callbacks = [each for each in callbacks if not isinstance(each, keras.callbacks.ProgbarLogger)]
        self._begun = [_looks(each) for each in self._callbacks]
        self._say = say
        self._told: set[str] = set()

    def take(self, packer: Packer) -> list[list[Any]]:
        """For each callback its kind and what has changed in it, by attribute."""
        both = zip(self._callbacks, self._begun, strict=True)
        return [[_callback_kind(each), self._changes(each, begun, packer)] for each, begun in both]

    def put_back(self, saved: Sequence[Sequence[Any]], arrays: Sequence[Array]) -> None:
        """Gives each callback the state of its like: the first of a kind to the first, and so on."""
        states = {(kind, number): state for kind, number, state in _numbered(saved)}
        for kind, number, callback in _numbered([(_callback_kind(each), each) for each in self._callbacks]):
            for name, packed in states.get((kind, number), {}).items():
                setattr(callback, name, unpack(packed, arrays, keras.ops))

    def _changes(self, callback: Any, begun: dict[str, Look], packer: Packer) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        for name, look in _looks(callback).items():
            if name in begun and begun[name].same(look):
                continue
            try:
                changes[name] = packer.pack(vars(callback)[name])
            except UnkeptError as error:
                self._tell(callback, name, str(error))
        return changes

    def _tell(self, callback: Any, name: str, kind: str) -> None:
        what = f"{type(callback).__name__}.{name}"
        if what not in self._told and not type(callback).__module__.startswith("keras."):
            self._told.add(what)
            self._say(f"{what} is of type {kind} and cannot be kept: after a restart this callback begins anew with it")


def _looks(callback: Any) -> dict[str, Look]:
    return {name: Look.at(value, keras.ops) for name, value in vars(callback).items() if name not in _KERAS_OWN}


def _callback_kind(callback: Any) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def _numbered(kinds: Sequence[Sequence[Any]]) -> list[tuple[str, int, Any]]:
    """(kind, how many of the kind came before, what belongs to it)."""
    seen: Counter[str] = Counter()
    numbered = []
    for kind, what in kinds:
        numbered.append((kind, seen[kind], what))
        seen[kind] += 1
    return numbered


# --- random generators


def take_generators() -> dict[str, Any]:
    """Of Python, NumPy and, where it is loaded, torch on the CPU: plain data."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - what others draw from, whatever one should
    }
    if torch := sys.modules.get("torch"):
        states["torch"] = torch.get_rng_state().numpy()
    return states


def restore_generators(states: dict[str, Any]) -> None:
    """Goes on where the generators were when `take_generators` was called."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002 - as above
    torch = sys.modules.get("torch")
    if torch and "torch" in states:
        torch.set_rng_state(torch.from_numpy(states["torch"]))
