"""Keeps decompressed chunks of arrays, within one limit for all stores of a process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Final

from streamd.dataset.arrays.to_uint8 import RawRows
from streamd.limits import CHUNKS_KEPT_BYTES

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
