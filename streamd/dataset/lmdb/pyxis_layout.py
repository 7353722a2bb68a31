"""The layout of ml-pyxis: the keys in an LMDB of samples, and the arrays in its values. Pure.

    data_db    0000000017 -> {X: {type: 2, dtype: "|u1", shape: [128, 128, 3], data: bytes}, y: ...}
    meta_db    nb_samples -> the number of samples, as text

Both levels are msgpack, the inner one as bytes in the outer one. Not every value is decoded: values with arrays of the
same shapes differ in the arrays' data alone, so one decoded value shows where the data of all others lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.msgpack import Decoder, decode, encode

DATA_DB: Final = b"data_db"
META_DB: Final = b"meta_db"
COUNT_KEY: Final = b"nb_samples"
_ARRAY_TYPE: Final = 2  # the `type` of an array; 1 is a text, which ml-pyxis itself never writes
_value_decoder: Final = Decoder(dict[str, memoryview])
_parts_decoder: Final = Decoder(dict[bytes, msgspec.Raw])
_text_decoder: Final = Decoder(str)
_shape_decoder: Final = Decoder(tuple[int, ...])
_data_decoder: Final = Decoder(memoryview)

BytesLike = bytes | memoryview


class UnfitValueError(Exception):
    """A value that is not laid out as ml-pyxis does, and why."""


def build_sample_key(number: int) -> bytes:
    """Returns the key of a sample in `data_db`."""
    return b"%010d" % number


def encode_sample(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Returns the value of one sample, with its arrays by name, byte for byte as `pyxis.Writer` writes it."""
    return encode({name: _encode_array(array) for name, array in arrays.items()})


def _encode_array(array: npt.NDArray[Any]) -> bytes:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return encode({b"type": _ARRAY_TYPE, b"dtype": array.dtype.str, b"shape": array.shape, b"data": data})


@dataclass(frozen=True, slots=True)
class ArrayField:
    """One array of a value: the bytes from `start` to `stop`, in C order."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


@dataclass(frozen=True, slots=True)
class ValueTemplate:
    """The layout of one value and of all others that it `matches_value`; `fields` are the arrays by name."""

    fields: Mapping[str, ArrayField]
    _length: int
    _fixed: tuple[tuple[int, int, bytes], ...]  # the parts between the arrays' data: start, stop, bytes

    @staticmethod
    def from_value(value: BytesLike) -> ValueTemplate:
        """Decodes a value, and skips what is no array. Raises UnfitValueError."""
        try:
            inner = _value_decoder.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UnfitValueError(f"it is not a msgpack map from names to bytes ({error})") from error
        found = {name: _parse_array_field(name, packed, find_memory_address(value)) for name, packed in inner.items()}
        fields = {name: field for name, field in found.items() if field is not None}
        # Everything between the data of the arrays must be equal in a value that matches: names, dtypes, shapes,
        # lengths.
        arrays = sorted((field.start, field.stop) for field in fields.values())
        gaps = pairwise([0, *(end for array in arrays for end in array), len(value)])
        fixed = tuple((start, stop, bytes(value[start:stop])) for start, stop in list(gaps)[::2])
        return ValueTemplate(fields, len(value), fixed)

    def matches_value(self, value: BytesLike) -> bool:
        """Returns whether a value has the same arrays, of the same shapes, at the same offsets."""
        return len(value) == self._length and all(value[start:stop] == piece for start, stop, piece in self._fixed)


def _parse_array_field(name: str, packed: memoryview, origin: int) -> ArrayField | None:
    """Returns an array of a value that begins at the address `origin`; None for anything else.

    Raises UnfitValueError for an array whose size contradicts its shape.
    """
    try:
        parts = _parts_decoder.decode(packed)
        if decode(parts[b"type"]) != _ARRAY_TYPE:
            return None
        dtype, shape = np.dtype(_text_decoder.decode(parts[b"dtype"])), _shape_decoder.decode(parts[b"shape"])
        data = _data_decoder.decode(parts[b"data"])
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError, ValueError):
        return None
    if dtype.hasobject or min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != data.nbytes:
        raise UnfitValueError(f"its {name!r} claims to be {dtype} {shape} and has {data.nbytes} bytes")
    # The decoder returns views of the value and not copies, so the difference of addresses is the offset.
    start = find_memory_address(data) - origin if data.nbytes else 0
    return ArrayField(dtype, shape, start, start + data.nbytes)


def find_memory_address(memory: BytesLike) -> int:
    """Returns the address of `memory` in this process."""
    address: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return address
