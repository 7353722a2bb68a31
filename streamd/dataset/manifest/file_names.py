"""File names as columns: each folder once, and for every file the number of its folder and what it is called there.

`folders` holds the folders' names, slash included, one behind the other, and `folder_ends` (f + 1) says where each
begins and ends; `folder` (n) is the number of each file's. `names` and `offsets` (n + 1) are the same for what is
behind the last slash. A manifest of version 1 has whole names, and no folders.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

ColumnArray = npt.NDArray[Any]

_INTEGER_TYPES: Final = tuple(map(np.dtype, ("u1", "i1", "u2", "i2", "u4", "i4")))


def build_name_columns(files: Sequence[bytes]) -> dict[str, ColumnArray]:
    """The columns of `files`, (n,)."""
    numbers: dict[bytes, int] = {}
    names, ends = bytearray(), array("q", [0])

    def iterate_folder_numbers() -> Iterator[int]:
        """The folder of each file; what is behind it is noted."""
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
    """Whole numbers in the narrowest type that holds them all, little-endian; other values as they are."""
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
        # Workers ask for every sample they decode; memory views cost a tenth of what array scalars do.
        self._names, self._ends = columns["names"].data, columns["offsets"].data
        self._folder = columns["folder"].data if "folder" in columns else None
        if self._folder is not None:
            self._folders, self._folder_ends = columns["folders"].data, columns["folder_ends"].data

    def file_name(self, number: int) -> bytes:
        """The name of file `number`, relative to the root. IndexError when there are not so many."""
        name = self._names[self._ends[number] : self._ends[number + 1]]
        if self._folder is None:
            return bytes(name)
        folder = self._folder[number]
        return bytes(self._folders[self._folder_ends[folder] : self._folder_ends[folder + 1]]) + name
