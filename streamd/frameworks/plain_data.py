"""Packs Python values into JSON and arrays, and unpacks them. Plain data only: no pickle, nothing that can execute."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from streamd.limits import MAX_NESTING

Array = npt.NDArray[Any]


class UnkeptError(Exception):
    """A value is not plain data and cannot be packed."""


@dataclass(slots=True)
class DataPacker:
    """Packs values into JSON, which refers to arrays by their numbers in `arrays`.

    `functions` is a module such as keras.ops, whose functions are packed by name.
    """

    functions: Any
    arrays: list[Array] = field(default_factory=list)

    def add_array(self, array: Array) -> int:
        """Stores an array and returns its number."""
        self.arrays.append(array)
        return len(self.arrays) - 1

    def pack_value(self, value: Any, within: tuple[int, ...] = ()) -> Any:
        """Returns JSON for None, numbers, text, arrays, named functions, and lists, tuples and dicts of these.

        Every JSON object has one key, a tag that names the type of its value. `within` has the identities of the
        containers around the value. Raises UnkeptError for any other type, for nesting deeper than MAX_NESTING, and
        for a container that contains itself.
        """
        if len(within) > MAX_NESTING or id(value) in within:
            raise UnkeptError(
                f"{type(value).__name__}, which contains itself or is nested more than {MAX_NESTING} levels deep,"
            )
        inner = (*within, id(value))
        if value is None or type(value) in {bool, int, float, str}:
            return value
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            return {"array" if isinstance(value, np.ndarray) else "scalar": self.add_array(np.asarray(value))}
        if type(value) is list:
            return [self.pack_value(each, inner) for each in value]
        if type(value) is tuple:
            return {"tuple": [self.pack_value(each, inner) for each in value]}
        if type(value) is dict:
            return {
                "dict": [[self.pack_value(key, inner), self.pack_value(each, inner)] for key, each in value.items()]
            }
        name = getattr(value, "__name__", "")
        if name and getattr(self.functions, name, None) is value:
            return {"function": name}
        raise UnkeptError(type(value).__name__)


def unpack_value(packed: Any, arrays: Sequence[Array], functions: Any) -> Any:
    """Returns the value that was packed. Its arrays are copies, which the caller may change."""
    if isinstance(packed, list):
        return [unpack_value(each, arrays, functions) for each in packed]
    if not isinstance(packed, Mapping):
        return packed
    ((tag, what),) = packed.items()
    if tag == "function":
        return getattr(functions, what)
    if tag in {"array", "scalar"}:
        return arrays[what].copy() if tag == "array" else arrays[what][()]
    items = unpack_value(what, arrays, functions)
    return tuple(items) if tag == "tuple" else dict(items)


@dataclass(frozen=True, slots=True)
class ValueSnapshot:
    """A value's content at one time, to detect later changes. Values that are not plain data compare by identity."""

    text: str
    arrays: tuple[Array, ...] = ()
    other: Any = None

    @staticmethod
    def from_value(value: Any, functions: Any) -> ValueSnapshot:
        packer = DataPacker(functions)
        try:
            text = json.dumps(packer.pack_value(value))
        except UnkeptError:
            return ValueSnapshot("", other=value)
        return ValueSnapshot(text, tuple(array.copy() for array in packer.arrays))

    def is_same_value(self, other: ValueSnapshot) -> bool:
        """Returns whether both snapshots show the same value.

        Changes within an object that is not plain data are not detected.
        """
        if self.text != other.text or self.other is not other.other or len(self.arrays) != len(other.arrays):
            return False
        return all(map(_are_equal_arrays, self.arrays, other.arrays))


def _are_equal_arrays(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
