"""Decompressed chunks of all stores are cached up to one bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from streamd.dataset.hdf5.library_store import CHUNK_CACHE, ChunkCache
from streamd.limits import CHUNKS_KEPT_BYTES

A, B = ("a",), ("b",)


def chunk(nbytes: int) -> npt.NDArray[Any]:
    return np.zeros(nbytes, np.uint8)


@pytest.fixture
def kept() -> ChunkCache:
    kept = ChunkCache(100)
    kept.add_chunk(A, 0, chunk(40))
    kept.add_chunk(B, 0, chunk(40))
    return kept


def test_the_least_recently_used_chunk_of_any_array_is_evicted_first(kept: ChunkCache) -> None:
    assert kept.get_chunk(A, 0) is not None
    kept.add_chunk(B, 1, chunk(40))
    assert [kept.get_chunk(*each) is not None for each in ((A, 0), (B, 0), (B, 1))] == [True, False, True]


def test_chunks_are_evicted_before_new_ones_are_read(kept: ChunkCache) -> None:
    kept.evict_chunks(61)
    assert [kept.get_chunk(each, 0) is not None for each in (A, B)] == [False, False]


def test_one_chunk_is_kept_even_beyond_the_bound(kept: ChunkCache) -> None:
    kept.add_chunk(A, 1, chunk(1000))
    assert kept.get_chunk(A, 1) is not None
    assert kept.get_chunk(B, 0) is None
    kept.add_chunk(B, 1, chunk(100))
    assert kept.get_chunk(A, 1) is None


def test_a_closed_array_frees_its_room(kept: ChunkCache) -> None:
    kept.drop_array(A)
    assert kept.get_chunk(A, 0) is None
    kept.add_chunk(B, 1, chunk(60))
    assert kept.get_chunk(B, 0) is not None


def test_cached_chunks_come_first_and_the_rest_in_order(kept: ChunkCache) -> None:
    kept.add_chunk(A, 2, chunk(1))
    assert kept.order_cached_first(A, [3, 2, 1, 2, 0]) == [4, 1, 3, 2, 0]


def test_all_arrays_of_a_process_share_one_bound() -> None:
    CHUNK_CACHE.add_chunk(A, 0, np.broadcast_to(np.uint8(0), CHUNKS_KEPT_BYTES))
    CHUNK_CACHE.add_chunk(B, 0, chunk(1))
    assert CHUNK_CACHE.get_chunk(A, 0) is None
    CHUNK_CACHE.drop_array(B)
