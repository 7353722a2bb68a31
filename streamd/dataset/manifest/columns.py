"""File names and texts as columns. Pure.

Of file names, each folder is kept once, and for every file the number of its folder and its name in there.

`folders` is the concatenation of the folders' names, each with its last slash, and `folder_ends` (f + 1) their bounds.
`folder` (n) is the number of each file's folder. `names` and `offsets` (n + 1) are the concatenation and the bounds of
what comes after the last slash. A manifest of version 1 has whole names, and no folders.

A label of texts stays in the column of cells that it was read from, and becomes fields of equal width when they are
needed, some at a time. As one array, 10⁶ texts of 1 KiB would take a gigabyte beside that column.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import mix64

ColumnArray = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]
RowIndices = npt.NDArray[np.int64]
TextFields = npt.NDArray[np.bytes_]

_INTEGER_TYPES: Final = tuple(map(np.dtype, ("u1", "i1", "u2", "i2", "u4", "i4")))
_NAMES_AT_ONCE: Final = 1 << 16  # hashed at a time
_BLOCK_BYTES: Final = 1 << 22  # of fields at a time; making the fields costs more than handling a block


def build_name_columns(files: Sequence[bytes]) -> dict[str, ColumnArray]:
    """Returns the columns of the names `files`, (n,)."""
    numbers: dict[bytes, int] = {}
    names, ends = bytearray(), array("q", [0])

    def iterate_folder_numbers() -> Iterator[int]:
        """Yields the number of each file's folder, and appends the rest of its name to `names`."""
        for file in files:
            cut = file.rfind(b"/") + 1
            names.extend(file[cut:])
            ends.append(len(names))
            yield numbers.setdefault(file[:cut], len(numbers))

    folder = np.fromiter(iterate_folder_numbers(), dtype=np.int64, count=len(files))
    folder_ends = np.cumsum([0, *map(len, numbers)], dtype=np.int64)
    return {
        "folders": np.frombuffer(b"".join(numbers), dtype=np.uint8),
        "folder_ends": narrow_integers(folder_ends),
        "folder": narrow_integers(folder),
        "names": np.frombuffer(names, dtype=np.uint8),
        "offsets": narrow_integers(np.frombuffer(ends, dtype=np.int64)),
    }


def narrow_integers(values: ColumnArray) -> ColumnArray:
    """Returns whole numbers in the narrowest type that holds them all, and other values as they are, little-endian."""
    kind = values.dtype
    if kind.kind == "i" and values.size:
        least, most = int(values.min()), int(values.max())
        kind = next(
            (each for each in _INTEGER_TYPES if np.iinfo(each).min <= least and most <= np.iinfo(each).max), kind
        )
    return values.astype(kind.newbyteorder("<"), copy=False)


class FileNames:
    """Looks names up in the columns of a mapped manifest."""

    def __init__(self, columns: Mapping[str, ColumnArray]) -> None:
        # Workers look up every sample that they decode, and memory views cost a tenth of what array scalars do.
        self._names, self._ends = columns["names"].data, columns["offsets"].data
        self._folder = columns["folder"].data if "folder" in columns else None
        if self._folder is not None:
            self._folders, self._folder_ends = columns["folders"].data, columns["folder_ends"].data

    def file_name(self, number: int) -> bytes:
        """Returns the name of file `number`, relative to the root. Raises IndexError if there are fewer files."""
        name = self._names[self._ends[number] : self._ends[number + 1]]
        if self._folder is None:
            return bytes(name)
        folder = self._folder[number]
        return bytes(self._folders[self._folder_ends[folder] : self._folder_ends[folder + 1]]) + name

    def count_distinct(self) -> int:
        """Returns how many different names there are, by a hash of 64 bits of each."""
        names, ends = np.asarray(self._names), np.asarray(self._ends).astype(np.int64)
        folders = np.zeros(ends.size - 1, np.uint64) if self._folder is None else np.asarray(self._folder)
        hashes = np.empty(folders.size, np.uint64)
        for start in range(0, folders.size, _NAMES_AT_ONCE):
            bounds = ends[start : start + _NAMES_AT_ONCE + 1]
            begins, lengths = bounds[:-1], np.diff(bounds)
            places = np.arange(bounds[0], bounds[-1]) - np.repeat(begins, lengths)
            letters = mix64(
                names[bounds[0] : bounds[-1]].astype(np.uint64) + (places.astype(np.uint64) << np.uint64(8))
            )
            sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(letters, dtype=np.uint64)])
            own = sums[bounds[1:] - bounds[0]] - sums[begins - bounds[0]]
            hashes[start : start + own.size] = own
        return int(np.unique(mix64(hashes + mix64(folders.astype(np.uint64)))).size)


class TextColumn:
    """UTF-8 texts of at most `width` bytes, (n,), in `pieces`: arrays of pyarrow's large strings, without nulls.

    `rows` selects rows of all pieces, ascending; None means all rows.
    """

    def __init__(self, pieces: Sequence[Any], width: int, rows: RowIndices | None = None) -> None:
        self.dtype = np.dtype(f"S{width}")
        self._pieces = pieces
        self._rows = rows

    @property
    def shape(self) -> tuple[int]:
        return (sum(map(len, self._pieces)) if self._rows is None else int(self._rows.size),)

    @property
    def nbytes(self) -> int:
        """The size of all fields."""
        return self.shape[0] * self.dtype.itemsize

    def __getitem__(self, rows: RowIndices) -> TextColumn:
        """Returns the rows at these positions, ascending. No text is copied."""
        own = rows if self._rows is None else self._rows[rows]
        return TextColumn(self._pieces, self.dtype.itemsize, own)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Returns all fields as one array."""
        del copy  # the array is always new
        return np.concatenate([np.empty(0, self.dtype), *self.iterate_blocks()]).astype(dtype or self.dtype, copy=False)

    def tolist(self) -> list[Any]:
        """Returns all texts, as an array does."""
        return [text for block in self.iterate_blocks() for text in block.tolist()]

    def iterate_blocks(self) -> Iterator[TextFields]:
        """Yields the fields in blocks, (rows,) each."""
        step = max(1, _BLOCK_BYTES // self.dtype.itemsize)
        pieces = ((piece, None) for piece in self._pieces)
        for piece, rows in pieces if self._rows is None else split_rows_by_column_piece(self._pieces, self._rows):
            for start in range(0, len(piece if rows is None else rows), step):
                texts = piece.slice(start, step) if rows is None else piece.take(rows[start : start + step])
                yield np.array(texts.cast("large_binary").to_pylist(), self.dtype)


def split_rows_by_column_piece(pieces: Sequence[Any], rows: RowIndices) -> Iterator[tuple[Any, RowIndices]]:
    """Yields each piece of a column with those of `rows` that lie in it, counted from its start. `rows` ascend."""
    starts = [0, *accumulate(map(len, pieces))]
    cuts = np.searchsorted(rows, starts).tolist()
    for piece, first, (start, stop) in zip(pieces, starts, pairwise(cuts), strict=False):
        yield piece, rows[start:stop] - first


# --- Where `streamd pack` keeps the names of the files that it packed, so that a pack is served under them. Pure.
#
# npy the first column of labels.parquet tar the first field of each sample's .json hdf5 /names lmdb an array of each
# sample, as bytes; packs of older versions have none
#
# The key is `name`, followed by as many `_` as it takes to differ from all labels.


PACKED_TABLE: Final = "labels.parquet"
PACKED_IMAGES_ARRAY: Final = "images"
PACKED_NAMES_ARRAY: Final = "names"
_NAME_KEY: Final = "name"
_NAME_KEYS: Final = re.compile(rf"{_NAME_KEY}_*")


def choose_name_key(labels: Container[str]) -> str:
    """Returns the key of the names beside these labels."""
    return choose_unused_key(_NAME_KEY, labels)


def choose_unused_key(name: str, labels: Container[str]) -> str:
    """Returns `name`, followed by as many `_` as it takes to differ from all labels."""
    return name if name not in labels else choose_unused_key(f"{name}_", labels)


def is_packed_name_key(key: str) -> bool:
    """Returns whether a pack may keep its names under this key."""
    return _NAME_KEYS.fullmatch(key) is not None


# --- Columns of rows of numbers, any number of them a sample: the boxes or points that the data hold. Pure.
#
# A label of this kind takes the memory of the boxes that there are, and not of the most that a sample may have: COCO
# has seven boxes a picture, and `max` is often a hundred.


Rows = npt.NDArray[np.float32]

ROWS_PREFIX: Final = "boxes."  # in a manifest, of the column with the rows of all boxes or points of a label


@dataclass(frozen=True, slots=True, eq=False)
class RaggedColumn:
    """`numbers`, float32 (total, k), are the rows of all samples one after another.

    Those of sample i end before row `ends[i]`; `ends` is (n,), whole numbers of any type.
    """

    ends: npt.NDArray[Any]
    numbers: Rows

    def __len__(self) -> int:
        return int(self.ends.size)

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)

    @property
    def dtype(self) -> np.dtype[np.float32]:
        return np.dtype(np.float32)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Returns the rows of all samples, (total, k)."""
        del copy  # the array is always new
        return self.numbers.astype(dtype or self.dtype)

    def tolist(self) -> list[Any]:
        """Returns the rows of each sample, as nested lists."""
        return [self.read_sample(sample).tolist() for sample in range(len(self))]

    @property
    def counts(self) -> Int64s:
        """The number of rows of each sample, (n,)."""
        ends = self.ends.astype(np.int64)
        return np.concatenate([ends[:1], ends[1:] - ends[:-1]])

    def read_sample(self, sample: int) -> Rows:
        """Returns the rows of one sample, (m, k)."""
        start = int(self.ends[sample - 1]) if sample else 0
        return self.numbers[start : int(self.ends[sample])]

    def __getitem__(self, samples: Int64s) -> RaggedColumn:
        """Returns the column of the samples at these positions."""
        counts = self.counts[samples]
        ends = np.cumsum(counts, dtype=np.int64)
        # The place of each row in the old column: the start of its sample there, and its number within the sample.
        starts = self.ends.astype(np.int64)[samples] - counts
        places = np.repeat(starts - (ends - counts), counts) + np.arange(int(counts.sum()), dtype=np.int64)
        return RaggedColumn(ends, self.numbers[places])


def build_label_columns(
    name: str, values: npt.NDArray[Any] | TextColumn | RaggedColumn
) -> Mapping[str, npt.NDArray[Any] | TextColumn]:
    """Returns the columns of a manifest that hold a label: one, or two for boxes and points."""
    if isinstance(values, RaggedColumn):
        ends = narrow_integers(values.ends.astype(np.int64))
        return {f"label.{name}": ends, f"{ROWS_PREFIX}{name}": values.numbers.astype("<f4", copy=False)}
    return {f"label.{name}": values if isinstance(values, TextColumn) else narrow_integers(values)}


# --- File names in a column of text: one blob, from which names are taken when needed.
#
# A Python list of ten million names would take a gigabyte.

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
