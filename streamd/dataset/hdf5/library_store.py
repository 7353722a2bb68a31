"""Samples of an HDF5 file that only h5py can read: compressed, not in NumPy's number format, or not all written.

Whole chunks are read. The library converts numbers whose bits are not as NumPy's.

HDF5 has one lock for everything a process does with it, so each worker process has its own. A chunk that was read is
kept as long as there is room in the process, since the next task may need its other rows.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import prod
from threading import Lock
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import Ids
from streamd.dataset.arrays.store import ListedRows, PixelConverter, RawRows, RowPrefetcher, RowStore
from streamd.dataset.hdf5.arrays import UnfitHdf5Error, find_sliceable_rows, open_hdf5_file
from streamd.dataset.hdf5.chunk_grid import CHUNK_OFFSETS, CHUNK_SHAPE, ChunkGrid
from streamd.dataset.manifest.types import ArrayFiles
from streamd.errors import ConfigError
from streamd.limits import CHUNKS_KEPT_BYTES

DAMAGED_CHUNK: Final = "its chunk of the file is damaged: it cannot be decompressed"
# HDF5's message contains this word when a system call failed. Such a fault may pass, so it condemns no sample.
_SYSTEM_FAILURE: Final = "errno"


class Hdf5Store(RowStore):
    """Rows of an array, or of a table's column, read by whole chunks.

    `decompression_totals` has the number of chunks decompressed so far, and the seconds that took.
    """

    def _open_files(self) -> None:
        """Opens the file. Raises ConfigError when it cannot be read, MissingExtraError, OSError."""
        self.decompression_totals = (0, 0.0)
        descriptor = self._open_file(0)
        try:
            self._file = open_hdf5_file(descriptor, cache_bytes=0)
        except UnfitHdf5Error as error:
            name = self._listed.array_file_names()[0]
            raise ConfigError(f"{os.fsdecode(name)!r} cannot be read: {error}") from error
        seen, place = os.fstat(descriptor), self._converter.stored.place
        # The key of the chunk cache includes the size and mtime: a file that was replaced or rewritten finds no chunks
        # of the earlier one.
        self._array: ArrayKey = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, place)
        self._dataset = find_sliceable_rows(self._file, place)
        self._chunk_rows = build_chunk_grid(self._listed, self._arrays, self._converter).chunk_rows

    def _locate_rows(self, rows: Ids) -> Iterable[tuple[int, int]]:
        """Returns nothing: reading ahead would take the library's lock, which the present task needs."""
        del rows
        return ()

    def _copy_rows(self, rows: Ids, raw: RawRows) -> Mapping[int, str]:
        """Copies rows to `raw`. Raises OSError if the system fails."""
        bad: dict[int, str] = {}
        numbers, inner = (rows // self._chunk_rows).tolist(), (rows % self._chunk_rows).tolist()
        # In this order rows of one chunk follow each other, so that each chunk is read once.
        for place in CHUNK_CACHE.order_cached_first(self._array, numbers):
            number = numbers[place]
            chunk = CHUNK_CACHE.get_chunk(self._array, number)
            if chunk is None:
                CHUNK_CACHE.evict_chunks(self._chunk_rows * self._converter.row_bytes)
                started_s, first = time.monotonic(), number * self._chunk_rows
                # Where a row is in several chunks, side by side, all of them are read.
                try:
                    read: RawRows = self._dataset[first : first + self._chunk_rows]
                except OSError as error:
                    if _SYSTEM_FAILURE in str(error):
                        raise
                    bad[place] = DAMAGED_CHUNK
                    continue
                unpacked, unpack_s = self.decompression_totals
                self.decompression_totals = (unpacked + 1, unpack_s + time.monotonic() - started_s)
                chunk = read.reshape(-1, *self._converter.shape)
                CHUNK_CACHE.add_chunk(self._array, number, chunk)
            raw[place] = chunk[inner[place]]
        return bad

    def close(self) -> None:
        """Closes the file, and drops its chunks. Another store over the same array reads them again."""
        CHUNK_CACHE.drop_array(self._array)
        self._file.close()
        super().close()


# --- Keeps decompressed chunks of arrays, within one limit for all stores of a process.


ArrayKey = tuple[object, ...]  # identifies an array; two stores over one array have the same key and share its chunks


class ChunkCache:
    """The most recently used chunks, up to `max_bytes` in all. A single chunk may be larger. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._chunks: OrderedDict[tuple[ArrayKey, int], RawRows] = OrderedDict()
        # Rows are gathered in the event loop's thread, and stores are closed in another. The lock protects the order
        # and the byte count; chunks themselves are never written to once they are here.
        self._lock = Lock()

    def get_chunk(self, array: ArrayKey, number: int) -> RawRows | None:
        """Returns a chunk, or None if it is not kept."""
        with self._lock:
            if (array, number) not in self._chunks:
                return None
            self._chunks.move_to_end((array, number))
            return self._chunks[array, number]

    def order_cached_first(self, array: ArrayKey, numbers: Sequence[int]) -> list[int]:
        """Returns the positions in `numbers`, those of kept chunks first, otherwise in rising order of the chunks.

        If missing chunks were read first, a task that needs more chunks than fit would evict the kept ones before it
        uses them.
        """
        with self._lock:
            absent = {number: (array, number) not in self._chunks for number in set(numbers)}
        return sorted(range(len(numbers)), key=lambda place: (absent[numbers[place]], numbers[place]))

    def evict_chunks(self, nbytes: int) -> None:
        """Drops the least recently used chunks until so many bytes fit.

        It is also called before a chunk is read, so that the limit holds while memory for the new one is allocated.
        """
        with self._lock:
            # The loop ends with an empty cache if the chunk is larger than the limit: it is then the only one kept.
            while self._chunks and self._bytes + nbytes > self._max_bytes:
                self._bytes -= self._chunks.popitem(last=False)[1].nbytes

    def add_chunk(self, array: ArrayKey, number: int, chunk: RawRows) -> None:
        """Adds a chunk that is not kept yet."""
        self.evict_chunks(chunk.nbytes)
        with self._lock:
            self._chunks[array, number] = chunk
            self._bytes += chunk.nbytes

    def drop_array(self, array: ArrayKey) -> None:
        """Drops all chunks of an array."""
        with self._lock:
            for key in [key for key in self._chunks if key[0] == array]:
                self._bytes -= self._chunks.pop(key).nbytes


CHUNK_CACHE: Final = ChunkCache(CHUNKS_KEPT_BYTES)  # one for the process, however many streams it has open


# --- Samples that lie uncompressed in chunks of an HDF5 file: copied from known offsets of the mapped file.
#
# The offset of each chunk was found when the samples were listed. So a worker opens no HDF5: it needs neither the
# library's lock nor its memory, and never follows the numbers in a damaged file.


Offsets: TypeAlias = npt.NDArray[np.int64]


class ChunkStore(RowStore):
    """Rows of an array in chunks."""

    def _open_files(self) -> None:
        self._map_chunks(build_chunk_grid(self._listed, self._arrays, self._converter), CHUNK_OFFSETS)

    def _map_chunks(self, grid: ChunkGrid, column: str) -> None:
        """Maps the file, in which the chunks of `grid` begin at the offsets of an extra `column` of the manifest."""
        self._grid = grid
        self._offsets = self._listed.find_extra_column(column).reshape(-1, len(grid.row_pieces))
        self._part_bytes = prod(self._grid.chunk_shape[1:]) * self._converter.dtype.itemsize  # of a row, in one chunk
        self._bytes = np.frombuffer(self._map_file(0), np.uint8)
        self._prefetcher = RowPrefetcher(self._part_bytes)

    def _locate_rows(self, rows: Ids) -> Iterable[tuple[int, int]]:
        offsets = self._find_offsets(rows).tolist()
        return ((self._descriptors[0], offset) for offset in chain.from_iterable(offsets))

    def _copy_rows(self, rows: Ids, raw: RawRows) -> Mapping[int, str]:
        offsets = self._find_offsets(rows)
        if self._grid.has_whole_rows:
            nbytes = self._part_bytes
            whole = [self._bytes[offset : offset + nbytes] for offset in offsets[:, 0].tolist()]
            np.concatenate(whole, out=raw.reshape(-1).view(np.uint8))  # a little faster than a loop in Python
        else:
            # Large images span several chunks each, and the last of these may reach beyond the image.
            for row, begins in zip(raw, offsets.tolist(), strict=True):
                for piece, offset in zip(self._grid.row_pieces, begins, strict=True):
                    part = self._bytes[offset : offset + self._part_bytes].view(self._converter.dtype)
                    row[piece.in_row] = part.reshape(self._grid.chunk_shape[1:])[piece.in_chunk]
        return {}

    def _find_offsets(self, rows: Ids) -> Offsets:
        """Returns the offset of each piece of each row in the file, in bytes, (n, pieces)."""
        chunks, inner = np.divmod(rows, self._grid.chunk_rows)
        offsets: Offsets = self._offsets[chunks] + inner[:, np.newaxis] * self._part_bytes
        return offsets

    def close(self) -> None:
        """Drops the mapping and the column of the manifest, and closes the file."""
        self._bytes = np.empty(0, np.uint8)
        self._offsets = np.empty((0, 1), np.int64)
        super().close()


def build_chunk_grid(listed: ListedRows, arrays: ArrayFiles, converter: PixelConverter) -> ChunkGrid:
    """Returns the grid of the listed array. An array of grey images may have no dimension for channels."""
    chunk = tuple(listed.find_extra_column(CHUNK_SHAPE).tolist())
    shape = (arrays.starts[-1], *converter.shape)
    grey = len(chunk) < len(shape)
    return ChunkGrid(shape, (*chunk, 1) if grey else chunk)
