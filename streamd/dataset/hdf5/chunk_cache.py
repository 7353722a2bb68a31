"""Chunks of arrays that were decompressed, kept while there is room: one bound for all stores of a process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Final

from streamd.dataset.arrays.to_uint8 import RawRows
from streamd.limits import CHUNKS_KEPT_BYTES

ArrayKey = tuple[object, ...]  # what tells arrays apart; the same for two stores over one array, which share its chunks


class ChunkCache:
    """The chunks that were used last, up to `max_bytes`, but one of any size. For several threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._chunks: OrderedDict[tuple[ArrayKey, int], RawRows] = OrderedDict()
        self._lock = Lock()  # stores are closed in a thread of their own

    def get_chunk(self, array: ArrayKey, number: int) -> RawRows | None:
        """A chunk, if it is kept."""
        with self._lock:
            if (array, number) not in self._chunks:
                return None
            self._chunks.move_to_end((array, number))
            return self._chunks[array, number]

    def order_cached_first(self, array: ArrayKey, numbers: Sequence[int]) -> list[int]:
        """The places of chunks' `numbers`, in rising order but for those that are kept, which come first.

        Read the other way round, tasks that want more chunks than there is room for would find none of them.
        """
        with self._lock:
            absent = {number: (array, number) not in self._chunks for number in set(numbers)}
        return sorted(range(len(numbers)), key=lambda place: (absent[numbers[place]], numbers[place]))

    def evict_chunks(self, nbytes: int) -> None:
        """Drops what was used longest ago, until there is room for so many bytes: before these take memory, too."""
        with self._lock:
            while self._chunks and self._bytes + nbytes > self._max_bytes:
                self._bytes -= self._chunks.popitem(last=False)[1].nbytes

    def add_chunk(self, array: ArrayKey, number: int, chunk: RawRows) -> None:
        """Keeps a chunk that is not kept."""
        self.evict_chunks(chunk.nbytes)
        with self._lock:
            self._chunks[array, number] = chunk
            self._bytes += chunk.nbytes

    def drop_array(self, array: ArrayKey) -> None:
        """Drops all chunks of an array."""
        with self._lock:
            for key in [key for key in self._chunks if key[0] == array]:
                self._bytes -= self._chunks.pop(key).nbytes


CHUNK_CACHE: Final = ChunkCache(CHUNKS_KEPT_BYTES)  # this process's, however many streams it has open
