"""File names in a column of text: one blob, from which names are taken when needed.

A Python list of ten million names would take a gigabyte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Final, overload

from streamd.dataset.manifest.types import Int64s

_BLOCK_NAMES: Final = 1 << 16  # ends converted to Python's int at a time, which is far cheaper than one by one


class PathColumn(Sequence[bytes]):
    """Names in `blob`, with their bounds in `ends` (n + 1). Single names can be replaced."""

    def __init__(self, blob: memoryview, ends: Int64s) -> None:
        self._blob = blob
        self._ends = ends
        self._replaced_names: dict[int, bytes] = {}

    def __len__(self) -> int:
        return int(self._ends.size) - 1

    @overload
    def __getitem__(self, row: int) -> bytes: ...

    @overload
    def __getitem__(self, row: slice) -> list[bytes]: ...

    def __getitem__(self, row: int | slice) -> bytes | list[bytes]:
        rows = range(len(self))[row]
        return list(self._slice_names(rows)) if isinstance(rows, range) else self._lookup_name(rows)

    def __setitem__(self, row: int, name: bytes) -> None:
        self._replaced_names[range(len(self))[row]] = name

    def __iter__(self) -> Iterator[bytes]:
        rows = range(len(self))
        return chain.from_iterable(
            self._slice_names(rows[start : start + _BLOCK_NAMES]) for start in rows[::_BLOCK_NAMES]
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(bytes.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]  # as of a list, since names change

    def _lookup_name(self, row: int) -> bytes:
        name = self._replaced_names.get(row)
        return bytes(self._blob[self._ends.item(row) : self._ends.item(row + 1)]) if name is None else name

    def _slice_names(self, rows: range) -> Iterator[bytes]:
        if self._replaced_names or rows.step != 1:
            return map(self._lookup_name, rows)
        ends = self._ends[rows.start : rows.stop + 1].tolist()
        return (bytes(self._blob[begin:end]) for begin, end in pairwise(ends))
