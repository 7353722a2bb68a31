"""Images as plain rows in files: a header of fixed size, then a fixed number of rows, one after the other.

Two formats write them so, and all labels at the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.cli.pack.checksums import compute_row_checksums
from streamd.cli.pack.writer import PackJob
from streamd.core.permutation import Ids, Words
from streamd.dataset.arrays.store import Pixels
from streamd.limits import PACK_BATCH_BYTES

_FILE_MODE: Final = 0o644


@dataclass(slots=True)
class RowFiles:
    """The files `path(0)`, `path(1)`, ..., each with `rows_per_file` rows after `header_bytes`.

    Every row is written at its own offset, so a run that continues after row n overwrites rows that an interrupted run
    may have written in part.
    """

    build_path: Callable[[int], Path]
    header_bytes: int
    row_bytes: int
    rows_per_file: int
    row_count: int = 0
    _descriptor: int = -1
    _file_number: int = -1

    def truncate_after_rows(self, rows: int) -> None:
        """Continues after this many rows, and removes everything after them."""
        self.row_count = rows
        number, within = divmod(rows, self.rows_per_file)
        if within and self.build_path(number).exists():
            os.truncate(self.build_path(number), self.header_bytes + within * self.row_bytes)
        beyond = number + bool(within)
        while self.build_path(beyond).exists():
            self.build_path(beyond).unlink()
            beyond += 1

    def append_rows(self, images: Pixels) -> None:
        """Writes more rows."""
        while len(images):
            number, within = divmod(self.row_count, self.rows_per_file)
            part, images = images[: self.rows_per_file - within], images[self.rows_per_file - within :]
            self._write_rows_to_file(number, np.ascontiguousarray(part), self.header_bytes + within * self.row_bytes)
            self.row_count += len(part)

    def _write_rows_to_file(self, number: int, part: Pixels, offset: int) -> None:
        """Writes rows to a file, and starts writing them to the disk at once.

        Otherwise the disk would be idle until the next sync, which would then take longer.
        """
        write_all_at(self._open_file(number), part, offset)
        os.posix_fadvise(self._descriptor, offset, part.nbytes, os.POSIX_FADV_DONTNEED)

    def _open_file(self, number: int) -> int:
        if number != self._file_number:
            self.sync_to_disk()
            self.close()
            self._descriptor = os.open(self.build_path(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
            self._file_number = number
        return self._descriptor

    def sync_to_disk(self) -> None:
        """Syncs all rows to the disk, and drops them from the page cache, which other readers need."""
        if self._descriptor >= 0:
            os.fdatasync(self._descriptor)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = self._file_number = -1

    def list_row_counts(self) -> list[int]:
        """Returns the number of rows of each file."""
        whole, rest = divmod(self.row_count, self.rows_per_file)
        return [self.rows_per_file] * whole + [rest] * bool(rest)

    def read_rows(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yields all rows from the disk, a block (n, bytes of a row) at a time."""
        together = max(1, PACK_BATCH_BYTES // self.row_bytes)
        for number, count in enumerate(self.list_row_counts()):
            drop_from_page_cache(self.build_path(number))
            with self.build_path(number).open("rb", buffering=0) as file:
                for first in range(0, count, together):
                    rows = np.empty((min(together, count - first), self.row_bytes), np.uint8)
                    _read_all_at(file.fileno(), rows, self.header_bytes + first * self.row_bytes)
                    yield rows


class RowFilesWriter:
    """The part of PackWriter that formats of rows in files share."""

    def __init__(self, job: PackJob, row_files: RowFiles) -> None:
        self._job, self._row_files = job, row_files

    def resume_after_rows(self, rows: int, position: Mapping[str, int]) -> None:
        del position
        self._row_files.truncate_after_rows(rows)

    def append_rows(self, ids: Ids, images: Pixels) -> Words:
        del ids
        self._row_files.append_rows(images)
        return compute_row_checksums(images)

    def sync_to_disk(self) -> dict[str, int]:
        self._row_files.sync_to_disk()
        return {}

    def close(self) -> None:
        self._row_files.close()


def drop_from_page_cache(path: Path) -> None:
    """Drops a file from the page cache, so that the next read comes from the disk."""
    with path.open("rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def write_all_at(descriptor: int, data: bytes | Pixels, offset: int) -> None:
    """Writes all bytes at an offset. Raises OSError."""
    memory = memoryview(data.data if isinstance(data, np.ndarray) else data).cast("B")
    while memory:
        written = os.pwrite(descriptor, memory, offset)
        memory, offset = memory[written:], offset + written


def _read_all_at(descriptor: int, rows: npt.NDArray[np.uint8], offset: int) -> None:
    """Fills `rows` from a file; rows that the file lacks stay zero, which their checksums will show."""
    memory = memoryview(rows.reshape(-1).data)
    while memory:
        count = os.preadv(descriptor, [memory], offset)
        if not count:
            memory[:] = bytes(len(memory))
            return
        memory, offset = memory[count:], offset + count
