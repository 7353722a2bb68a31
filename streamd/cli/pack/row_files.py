"""Images as plain rows in files: a header of fixed size, then one row behind the other, so many in a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.dataset.arrays.store import Pixels
from streamd.limits import PACK_BATCH_BYTES

_MODE: Final = 0o644


@dataclass(slots=True)
class RowFiles:
    """The files `path(0)`, `path(1)`, ..., each of `most` rows behind `header_bytes`.

    Every row is written at its place, so that whoever goes on behind row n writes what a run cut short may have left
    half there.
    """

    path: Callable[[int], Path]
    header_bytes: int
    row_bytes: int
    most: int
    rows: int = 0
    _descriptor: int = -1
    _number: int = -1

    def resume(self, rows: int) -> None:
        """Goes on behind so many rows, and forgets what lies behind them."""
        self.rows = rows
        number, within = divmod(rows, self.most)
        if within and self.path(number).exists():
            os.truncate(self.path(number), self.header_bytes + within * self.row_bytes)
        beyond = number + bool(within)
        while self.path(beyond).exists():
            self.path(beyond).unlink()
            beyond += 1

    def append(self, images: Pixels) -> None:
        """Writes more rows."""
        while len(images):
            number, within = divmod(self.rows, self.most)
            part, images = images[: self.most - within], images[self.most - within :]
            self._write(number, np.ascontiguousarray(part), self.header_bytes + within * self.row_bytes)
            self.rows += len(part)

    def _write(self, number: int, part: Pixels, offset: int) -> None:
        """Writes to a file, and has the disk begin at once: else it would rest until the next sync, and we in it."""
        write_at(self._file(number), part, offset)
        os.posix_fadvise(self._descriptor, offset, part.nbytes, os.POSIX_FADV_DONTNEED)

    def _file(self, number: int) -> int:
        if number != self._number:
            self.sync()
            self.close()
            self._descriptor = os.open(self.path(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
            self._number = number
        return self._descriptor

    def sync(self) -> None:
        """Returns when all rows are safe. They leave the memory, which belongs to what others read."""
        if self._descriptor >= 0:
            os.fdatasync(self._descriptor)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = self._number = -1

    def counts(self) -> list[int]:
        """How many rows each file has."""
        whole, rest = divmod(self.rows, self.most)
        return [self.most] * whole + [rest] * bool(rest)

    def read(self) -> Iterator[npt.NDArray[np.uint8]]:
        """All rows from the disk, (n, bytes of a row), some at a time."""
        together = max(1, PACK_BATCH_BYTES // self.row_bytes)
        for number, count in enumerate(self.counts()):
            drop_from_memory(self.path(number))
            with self.path(number).open("rb", buffering=0) as file:
                for first in range(0, count, together):
                    rows = np.empty((min(together, count - first), self.row_bytes), np.uint8)
                    _fill(file.fileno(), rows, self.header_bytes + first * self.row_bytes)
                    yield rows


def drop_from_memory(path: Path) -> None:
    """What is read from a file next comes from the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def write_at(descriptor: int, data: bytes | Pixels, offset: int) -> None:
    """Writes all of it. Raises OSError."""
    memory = memoryview(data.data if isinstance(data, np.ndarray) else data).cast("B")
    while memory:
        written = os.pwrite(descriptor, memory, offset)
        memory, offset = memory[written:], offset + written


def _fill(descriptor: int, rows: npt.NDArray[np.uint8], offset: int) -> None:
    """Reads all of `rows`; what the file lacks stays zero, which its checksums will tell."""
    memory = memoryview(rows.reshape(-1).data)
    while memory:
        count = os.preadv(descriptor, [memory], offset)
        if not count:
            memory[:] = bytes(len(memory))
            return
        memory, offset = memory[count:], offset + count
