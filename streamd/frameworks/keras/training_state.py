"""Packs and restores the state of a training, except its position in the stream. Imports Keras, for any backend.

The state has the variables of the model, its optimizer and its metrics; the changes in other callbacks since the `fit`
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

from streamd.core.text import format_count
from streamd.errors import ConfigError
from streamd.frameworks.lazy_import import import_library
from streamd.frameworks.plain_data import Array, DataPacker, UnkeptError, ValueSnapshot, unpack_value

_PARTS: Final = {
    "model": "the state of another model; build the model as it was",
    "optimizer": "the state of another optimizer; compile with the optimizer of that run",
    "metrics": "other metrics; compile with the metrics of that run",
}
_KERAS_OWN: Final = frozenset({"_model", "params"})  # set in every callback by Keras
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")  # an object's address, which differs between processes


class _SavedVariable(NamedTuple):
    """The saved facts about a variable; `number` is that of the array with its value."""

    path: str
    shape: list[int]
    dtype: str
    number: int


def create_model_variables(model: Any, example: tuple[Any, ...]) -> None:
    """Creates all variables of a compiled model that Keras would create in its first step, from an example batch."""
    model._symbolic_build(data_batch=example)  # noqa: SLF001 - Keras does so itself on all backends but TensorFlow


def pack_variables(model: Any, packer: DataPacker) -> dict[str, Any]:
    """Packs the values of all variables: weights, states of random seeds, the optimizer's and the metrics'.

    On torch, also the states of torch's own generators, one for each device: a Dropout without a seed draws from them.
    """
    taken = {part: [_describe_variable(each, packer) for each in _list_variables(model, part)] for part in _PARTS}
    generators = [packer.add_array(generator.get_state().numpy()) for generator in _find_torch_generators()]
    return {"kind": _name_optimizer(model.optimizer), "generators": generators, **taken}


def restore_variables(model: Any, state: dict[str, Any], arrays: Sequence[Array], where: str) -> None:
    """Assigns saved values to the variables of a built model. Raises ConfigError, before any change, on a mismatch.

    `where` names the state in errors. Variables are matched by their order, since names differ between processes.
    """
    if _name_optimizer(model.optimizer) != state["kind"]:
        raise _build_state_mismatch_error(
            where,
            "optimizer",
            f"it was saved from {state['kind']}, but the model has {_name_optimizer(model.optimizer)}",
        )
    saved = {part: [_SavedVariable(*each) for each in state[part]] for part in _PARTS}
    for part in _PARTS:
        _check_variables(_list_variables(model, part), saved[part], part, where)
    for part in _PARTS:
        for variable, record in zip(_list_variables(model, part), saved[part], strict=True):
            variable.assign(arrays[record.number])
    for generator, number in zip(
        _find_torch_generators(), state.get("generators", ()), strict=False
    ):  # devices may differ
        generator.set_state(import_library("torch", "torch", "Keras on torch").from_numpy(arrays[number].copy()))


def describe_learning_rate(optimizer: Any) -> float | str | None:
    """Returns the present learning rate, or a description of its schedule; None if there is none."""
    rate = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_learning_rate", None)
    if rate is None or isinstance(rate, keras.Variable):
        return None if rate is None else float(rate.numpy())
    if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return getattr(rate, "__qualname__", type(rate).__name__)
    try:
        made_of = str(rate.get_config())
    except Exception:  # noqa: BLE001 - a user's schedule without a config, as it is never saved: only its type is known
        return type(rate).__name__
    return f"{type(rate).__name__} of {_ADDRESS.sub('', made_of)}"


def _find_torch_generators() -> list[Any]:
    """Returns torch's default generators, of the CPU and of each GPU if CUDA is in use; none on other backends."""
    if keras.backend.backend() != "torch":
        return []
    torch = import_library("torch", "torch", "Keras on torch")
    return [torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ())]


def _list_variables(model: Any, part: str) -> list[Any]:
    if part == "optimizer":
        return list(model.optimizer.variables) if model.optimizer is not None else []
    return list(model.variables if part == "model" else model.metrics_variables)


def _name_optimizer(optimizer: Any) -> str:
    return type(optimizer).__name__


def _describe_variable(variable: Any, packer: DataPacker) -> _SavedVariable:
    number = packer.add_array(variable.numpy())
    return _SavedVariable(variable.path, list(variable.shape), keras.backend.standardize_dtype(variable.dtype), number)


def _check_variables(variables: list[Any], saved: list[_SavedVariable], part: str, where: str) -> None:
    if len(variables) != len(saved):
        raise _build_state_mismatch_error(
            where, part, f"it has {format_count(len(saved), 'variable')}, but there are {len(variables)} now"
        )
    for variable, record in zip(variables, saved, strict=True):
        shape, dtype = list(variable.shape), keras.backend.standardize_dtype(variable.dtype)
        if (shape, dtype) != (record.shape, record.dtype):
            raise _build_state_mismatch_error(
                where,
                part,
                f"{record.path} was {record.dtype} {record.shape}, but {variable.path} is {dtype} {shape} now",
            )


def _build_state_mismatch_error(where: str, part: str, facts: str) -> ConfigError:
    return ConfigError(f"{where} holds {_PARTS[part]}, or choose another folder to start from the beginning: {facts}")


# --- the other callbacks


class OtherCallbacks:
    """The callbacks other than the one that saves, as they are after `on_train_begin` of all of them.

    Attributes that change after that are a callback's state; the others are its configuration, which the program sets.
    The progress bar has no state. An attribute that cannot be packed is reported once, except in Keras's own
    callbacks, where it is something like an open file.
    """

    def __init__(self, callbacks: Sequence[Any], warn: Callable[[str], None]) -> None:
        self._callbacks = [each for each in callbacks if not isinstance(each, keras.callbacks.ProgbarLogger)]
        self._initial_values = [_snapshot_attributes(each) for each in self._callbacks]
        self._warn = warn
        self._warned: set[str] = set()

    def pack_callback_states(self, packer: DataPacker) -> list[list[Any]]:
        """Returns for each callback its kind and its changed attributes, packed, by name."""
        both = zip(self._callbacks, self._initial_values, strict=True)
        return [
            [_build_callback_kind(each), self._pack_changed_attributes(each, begun, packer)] for each, begun in both
        ]

    def restore_callback_states(self, saved: Sequence[Sequence[Any]], arrays: Sequence[Array]) -> None:
        """Restores the callbacks' attributes: the first callback of a kind gets the first state of that kind, etc."""
        states = {(kind, number): state for kind, number, state in _number_within_kind(saved)}
        for kind, number, callback in _number_within_kind(
            [(_build_callback_kind(each), each) for each in self._callbacks]
        ):
            for name, packed in states.get((kind, number), {}).items():
                setattr(callback, name, unpack_value(packed, arrays, keras.ops))

    def _pack_changed_attributes(
        self, callback: Any, begun: dict[str, ValueSnapshot], packer: DataPacker
    ) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        for name, look in _snapshot_attributes(callback).items():
            if name in begun and begun[name].is_same_value(look):
                continue
            try:
                changes[name] = packer.pack_value(vars(callback)[name])
            except UnkeptError as error:
                self._warn_unkept_attribute(callback, name, str(error))
        return changes

    def _warn_unkept_attribute(self, callback: Any, name: str, kind: str) -> None:
        what = f"{type(callback).__name__}.{name}"
        if what not in self._warned and not type(callback).__module__.startswith("keras."):
            self._warned.add(what)
            self._warn(
                f"{what} is of type {kind} and cannot be kept: after a restart this callback starts without its saved "
                "value"
            )


def _snapshot_attributes(callback: Any) -> dict[str, ValueSnapshot]:
    return {
        name: ValueSnapshot.from_value(value, keras.ops)
        for name, value in vars(callback).items()
        if name not in _KERAS_OWN
    }


def _build_callback_kind(callback: Any) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def _number_within_kind(kinds: Sequence[Sequence[Any]]) -> list[tuple[str, int, Any]]:
    """Returns (kind, number within the kind, value) for each (kind, value)."""
    seen: Counter[str] = Counter()
    numbered = []
    for kind, what in kinds:
        numbered.append((kind, seen[kind], what))
        seen[kind] += 1
    return numbered


# --- random generators


def collect_generator_states() -> dict[str, Any]:
    """Returns the generator states of Python, NumPy and, if it is loaded, torch on the CPU, as plain data."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - what others draw from, whatever one should
    }
    if torch := sys.modules.get("torch"):
        states["torch"] = torch.get_rng_state().numpy()
    return states


def restore_generator_states(states: dict[str, Any]) -> None:
    """Restores the states that `collect_generator_states` returned."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002 - as above
    torch = sys.modules.get("torch")
    if torch and "torch" in states:
        torch.set_rng_state(torch.from_numpy(states["torch"]))
