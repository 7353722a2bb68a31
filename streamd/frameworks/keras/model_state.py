"""What a Keras model is made of while it is trained, taken and put back. Imports Keras; knows no backend."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import keras

from streamd.errors import ConfigError
from streamd.frameworks.lazy_import import load
from streamd.frameworks.plain_data import Array, Packer

_PARTS: Final = {
    "model": "another model; build it as it was",
    "optimizer": "another optimizer's state; compile with that of then",
    "metrics": "other metrics; compile with those of then",
}
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")  # of an object, another one in each process


class _Variable(NamedTuple):
    """What is saved of a variable, beside its value."""

    path: str
    shape: list[int]
    dtype: str
    number: int


def build(model: Any, example: tuple[Any, ...]) -> None:
    """Makes all variables of a compiled model that Keras would make in its first step, on a batch like `example`."""
    model._symbolic_build(data_batch=example)  # noqa: SLF001 - what Keras does itself on other backends than TensorFlow


def take(model: Any, packer: Packer) -> dict[str, Any]:
    """The values of all variables: weights, states of random seeds, the optimizer's and the metrics'.

    On torch, the states of its own generators too, one a device: a Dropout that was given no seed draws from them.
    """
    taken = {part: [_describe(each, packer) for each in _variables(model, part)] for part in _PARTS}
    generators = [packer.add(generator.get_state().numpy()) for generator in _generators()]
    return {"kind": _kind(model.optimizer), "generators": generators, **taken}


def put_back(model: Any, state: dict[str, Any], arrays: Sequence[Array], where: str) -> None:
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
