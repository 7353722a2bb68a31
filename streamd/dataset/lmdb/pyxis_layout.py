"""The layout of ml-pyxis: the keys in an LMDB of samples, and the arrays in its values. Pure.

    data_db    0000000017 -> {X: {type: 2, dtype: "|u1", shape: [128, 128, 3], data: bytes}, y: ...}
    meta_db    nb_samples -> the number of samples, as text

Both levels are msgpack, the inner one as bytes in the outer one. Not every value is decoded: values with arrays of the
same shapes differ in the arrays' data alone, so one decoded value shows where the data of all others lie.
"""

from __future__ import annotations

import struct
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
    values: dict[str, bytes] = {}
    for name, array in arrays.items():
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        fields = {b"type": _ARRAY_TYPE, b"dtype": array.dtype.str, b"shape": array.shape, b"data": data}
        values[name] = encode(fields)
    return encode(values)


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


# --- The head of an LMDB file: where its last page ends, which commit was its last, and whether it is whole. Pure.
#
# page header 16 | magic u32 | version u32 | address 8 | map bytes 8 | two tables, 48 each | last page 8 | commit 8
#
# Each of the first two pages has such a head. Commits write them alternately, and the head of the later commit counts.
# The page size is in the first table; the root page, from which all others are found, is in the second. LMDB follows
# page numbers in a file without checking them, so a file is checked here before it is opened.


_META: Final = struct.Struct("<16x II 16x I 84x QQQ")
_COMMIT: Final = struct.Struct("<Q")
_COMMIT_AT: Final = _META.size - _COMMIT.size
_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_PAGE_BYTES: Final = frozenset(1 << power for power in range(9, 17))
OFFSETS_COLUMN: Final = "offsets"  # a column of the manifest: the offset of each image in such a file, in bytes
COMMIT_COLUMN: Final = "commit"  # a column of the manifest, of one number: the last commit before the listing
HEAD_BYTES: Final = max(_PAGE_BYTES) + _META.size  # `parse_lmdb_head` needs these first bytes, or a whole shorter file


_PAGE: Final = struct.Struct("<10x HH 2x")
_NODE: Final = struct.Struct("<HHHH")
_NUMBER: Final = struct.Struct("<Q")
_BRANCH, _LEAF = 1, 2  # kinds of pages
_LARGE, _TABLE = 1, 2  # kinds of values: on pages of their own; a table, which ends with its root page
_TABLE_BYTES: Final = 48
_NO_PAGE: Final = (1 << 64) - 1  # the root of a table without entries


@dataclass(frozen=True, slots=True)
class LmdbHead:
    """The later of the two heads of an LMDB file.

    `end_offset` is where the last page ends, in bytes; that page may be free. `commit` is the number of the last
    commit. `root` is the number of the page from which all other pages in use are found.
    """

    page_bytes: int
    end_offset: int
    commit: int
    root: int


def parse_lmdb_head(data: bytes | memoryview) -> LmdbHead | None:
    """Returns the head of a file that begins with `data`.

    Returns None if it is no LMDB file of a 64-bit, little-endian machine.
    """
    first = _parse_meta_page(data, 0)
    second = None if first is None else _parse_meta_page(data, first.page_bytes)
    if first is None or second is None:
        return None
    return max(first, second, key=lambda head: head.commit)


def _parse_meta_page(data: bytes | memoryview, offset: int) -> LmdbHead | None:
    if len(data) < offset + _META.size:
        return None
    magic, version, page_bytes, root, last_page, commit = _META.unpack_from(data, offset)
    if (magic, version) != (_MAGIC, _VERSION) or page_bytes not in _PAGE_BYTES:
        return None
    return LmdbHead(page_bytes, (last_page + 1) * page_bytes, commit, root)


def parse_last_commit(data: bytes | memoryview, page_bytes: int) -> int:
    """Returns the `LmdbHead.commit` of a file that begins with `data`, and that is known to have a head."""
    commits = (int(_COMMIT.unpack_from(data, page + _COMMIT_AT)[0]) for page in (0, page_bytes))
    return max(commits)


def is_file_whole(data: bytes | memoryview, head: LmdbHead) -> bool:
    """Returns whether every page in use lies in `data`, the whole file. Free pages at its end need not exist."""
    if len(data) >= head.end_offset:
        return True
    pending, seen = [head.root], {_NO_PAGE}
    while pending:
        page = pending.pop()
        # A damaged file may have cycles. Each page is visited once, so the walk ends.
        if page in seen:
            continue
        seen.add(page)
        start = page * head.page_bytes
        if start + head.page_bytes > len(data):
            return False
        # The pages below this one, and the last of the pages that hold its large values. The bounds keep a damaged page
        # from raising here. A wrong page number does no harm, since each is checked.
        body, last = data[start : start + head.page_bytes], 0
        kind, lower = _PAGE.unpack_from(body)
        for (at,) in struct.iter_unpack("<H", body[_PAGE.size : min(lower, len(body)) & ~1]):
            low, high, flags, key_bytes = _NODE.unpack_from(body, min(at, len(body) - _NODE.size))
            value = body[at + _NODE.size + key_bytes :]
            if kind & _BRANCH:
                pending.append(low | high << 16 | flags << 32)
            elif kind & _LEAF and flags & _LARGE and len(value) >= _NUMBER.size:
                pages = -(-(_PAGE.size + (low | high << 16)) // len(body))
                last = max(last, int(_NUMBER.unpack_from(value)[0]) + pages - 1)
            elif kind & _LEAF and flags & _TABLE and len(value) >= _TABLE_BYTES:
                pending.append(int(_NUMBER.unpack_from(value, _TABLE_BYTES - _NUMBER.size)[0]))
        if (last + 1) * head.page_bytes > len(data):
            return False
    return True
