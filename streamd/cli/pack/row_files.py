"""Images as plain rows in files: a header of fixed size, then a fixed number of rows, one after the other.

Two formats write them so, and all labels at the end. Boxes and points as they are delivered are known only while rows
are written, so they wait for the end as rows of temporary files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from streamd.cli.pack.packed_rows import (
    BoxRows,
    PackedRows,
    combine_checksums,
    compute_box_bytes,
    compute_row_checksums,
)
from streamd.core.permutation import Ids, Words
from streamd.core.text import escape_unprintable
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.arrays.store import Pixels
from streamd.errors import PackError
from streamd.limits import PACK_BATCH_BYTES

_FILE_MODE: Final = 0o644
_UNBOUNDED_ROWS: Final = 1 << 62  # rows in a temporary file
RowBytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class KeptRows:
    """Some rows of a pack: their numbers, their samples, and the boxes and points of these as they are delivered."""

    rows: slice
    ids: Ids
    boxes: Mapping[str, BoxRows]


@dataclass(slots=True)
class RowFiles:
    """The files `path(0)`, `path(1)`, ..., each with `rows_per_file` rows after `header_bytes`.

    Every row is written at its own offset, so a run that continues after row n overwrites rows that an interrupted run
    may have written in part. Where `is_shared`, other rows lie in the same file, and it is never cut off.
    """

    build_path: Callable[[int], Path]
    header_bytes: int
    row_bytes: int
    rows_per_file: int
    is_shared: bool = False
    row_count: int = 0
    _descriptor: int = -1
    _file_number: int = -1

    def truncate_after_rows(self, rows: int) -> None:
        """Continues after this many rows, and removes everything after them."""
        self.row_count = rows
        if self.is_shared:
            return
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

    def drop_from_page_cache(self) -> None:
        """Drops all files from the page cache."""
        for number in range(len(self.list_row_counts())):
            drop_from_page_cache(self.build_path(number))

    def read_rows(self, start: int, stop: int) -> RowBytes:
        """Returns the rows from `start` to `stop`, (n, bytes of a row)."""
        rows = np.empty((stop - start, self.row_bytes), np.uint8)
        while start < stop:
            number, within = divmod(start, self.rows_per_file)
            count = min(stop - start, self.rows_per_file - within)
            with self.build_path(number).open("rb", buffering=0) as file:
                part = rows[len(rows) - (stop - start) :][:count]
                _read_all_at(file.fileno(), part, self.header_bytes + within * self.row_bytes)
            start += count
        return rows


class RowFilesWriter:
    """The part of PackWriter that formats of rows in files share.

    `image_files` has the files of each image, and `_box_files` the temporary ones of each label of boxes or points.
    """

    def __init__(self, job: PackJob, image_files: Mapping[str, RowFiles]) -> None:
        self._job, self._image_files = job, image_files
        self._box_files = {
            name: RowFiles(partial(_build_box_path, job, number), 0, row_bytes, _UNBOUNDED_ROWS)
            for number, (name, row_bytes) in enumerate(compute_box_bytes(job.stream.spec).items())
        }

    @property
    def _all_files(self) -> list[RowFiles]:
        return [*self._image_files.values(), *self._box_files.values()]

    @property
    def _row_count(self) -> int:
        return self._all_files[0].row_count

    def resume_after_rows(self, rows: int, position: Mapping[str, int]) -> None:
        del position
        for files in self._all_files:
            files.truncate_after_rows(rows)

    def append_rows(self, rows: PackedRows) -> Words:
        for files, array in zip(self._all_files, rows.iterate_arrays(), strict=True):
            files.append_rows(array)
        return rows.compute_checksums()

    def sync_to_disk(self) -> dict[str, int]:
        for files in self._all_files:
            files.sync_to_disk()
        return {}

    def read_row_checksums(self) -> Iterator[Words]:
        """Yields the checksums of all rows, read back from the disk, a block at a time."""
        for files in self._all_files:
            files.drop_from_page_cache()
        together = max(1, PACK_BATCH_BYTES // sum(files.row_bytes for files in self._all_files))
        for start in range(0, self._row_count, together):
            stop = min(start + together, self._row_count)
            yield combine_checksums([compute_row_checksums(files.read_rows(start, stop)) for files in self._all_files])

    def iterate_kept_rows(self, bad_ids: Ids) -> Iterator[KeptRows]:
        """Yields the pack's samples in order, with their boxes and points as delivered, a block at a time."""
        spec, first = self._job.stream.spec, 0
        for ids in self._job.iterate_kept_ids(bad_ids):
            rows = slice(first, first + ids.size)
            boxes = {
                name: files.read_rows(rows.start, rows.stop).view(np.float32).reshape(-1, *spec.labels[name].shape)
                for name, files in self._box_files.items()
            }
            yield KeptRows(rows, ids, boxes)
            first = rows.stop

    def _estimate_box_bytes(self) -> int:
        """Returns the bytes that boxes and points take: once in temporary files, and once in the pack."""
        return 2 * self._job.stream.spec.samples * sum(files.row_bytes for files in self._box_files.values())

    def close(self) -> None:
        for files in self._all_files:
            files.close()


def _build_box_path(job: PackJob, label: int, number: int) -> Path:
    """Returns the path of the only temporary file of a label; for other numbers, one at which no file is."""
    name = f"{job.scratch_path.name}-boxes-{label}" + (f"-{number}" if number else "")
    return job.scratch_path.with_name(name)


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


def _read_all_at(descriptor: int, rows: RowBytes, offset: int) -> None:
    """Fills `rows` from a file; rows that the file lacks stay zero, which their checksums will show."""
    memory = memoryview(rows.reshape(-1).data)
    while memory:
        count = os.preadv(descriptor, [memory], offset)
        if not count:
            memory[:] = bytes(len(memory))
            return
        memory, offset = memory[count:], offset + count


# --- The interface between a pack run and the formats.


_BLOCK_BATCHES: Final = 64  # batches whose ids are planned at a time


@dataclass(frozen=True, slots=True)
class PackJob:
    """The stream to pack, whose batches are in the order of the pack, and the folder or file to write.

    `scratch_path` is a path for a temporary file; others may begin with its name. They last until the pack is in place.
    """

    stream: ServedStream
    product_path: Path
    scratch_path: Path

    @property
    def row_bytes(self) -> int:
        """The bytes of all images of a sample."""
        return self.stream.spec.sample_bytes

    def iterate_kept_ids(self, bad_ids: Ids) -> Iterator[Ids]:
        """Yields the sample ids of the pack's rows in order, a block at a time."""
        batches = self.stream.spec.batches
        for first in range(0, batches, _BLOCK_BATCHES):
            ids, _ = self.stream.compute_planned_ids_of_batches(0, range(first, min(first + _BLOCK_BATCHES, batches)))
            yield ids[~np.isin(ids, bad_ids)] if bad_ids.size else ids


class PackWriter(Protocol):
    """Writes one format. Used by one thread at a time.

    Everything raises OSError when the disk refuses.
    """

    def resume_after_rows(self, rows: int, position: Mapping[str, int]) -> None:
        """Continues after the first `rows` rows, which are safe on the disk. Must be called before anything else.

        `position` is the value that `sync_to_disk` returned for these rows.
        """

    def append_rows(self, rows: PackedRows) -> Words:
        """Writes more rows, and returns a checksum of each, (n,) uint64."""

    def sync_to_disk(self) -> dict[str, int]:
        """Syncs all rows to the disk, and returns the `position` for `resume_after_rows`."""

    def finish_pack(self, bad_ids: Ids) -> None:
        """Completes the pack after the last row; the samples `bad_ids` were left out. May be called again."""

    def read_checksums(self, bad_ids: Ids) -> Iterator[Words]:
        """Yields the checksums of all rows, read back from the disk, a block at a time.

        Raises PackError if labels differ from those that were written.
        """

    def estimate_bytes(self) -> int:
        """Returns about how many bytes the whole pack takes on the disk."""

    def build_serving_settings(self, pack_path: Path) -> dict[str, object]:
        """Returns the keys of a stream's configuration that serve the pack at `pack_path`."""

    def close(self) -> None:
        """Closes all files."""


def build_read_mismatch_error(path: Path) -> PackError:
    """Builds the error for a pack whose content differs from what was written."""
    return PackError(
        f"{escape_unprintable(str(path))} does not read back from the disk as it was written: the disk or this "
        "machine's memory is failing. Nothing was put in place; check the disk, then pack again with --restart"
    )
