"""Compressed chunks: the order that decompresses each of them once a worker."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from streamd.dataset.hdf5.chunk_cost import LIBRARY, Packed
from streamd.dataset.hdf5.chunk_grid import CHUNK_SHAPE
from streamd.dataset.manifest.types import Arrays, Int64s, Stored
from streamd.limits import CHUNKS_KEPT_BYTES, MIB

LARGE = Packed(6000, 600, 30 * MIB)
SMALL = Packed(60_000, 20, MIB)
TINY = Packed(60_000, 100, MIB // 16)


def listed(store: str, *chunk: int, dtype: str = "|u1") -> Packed | None:
    columns: Mapping[str, Int64s] = {CHUNK_SHAPE: np.array(chunk)}
    return Packed.of(Arrays((4, 5, 3), (0, 90), (0,), Stored(store, "/x", dtype)), columns.__getitem__)


def test_chunks_are_counted_as_they_are_when_decompressed() -> None:
    assert listed(LIBRARY, 7, 4, 5, 3) == Packed(90, 7, 7 * 60)
    assert listed(LIBRARY, 7, 2, 5, 3, dtype="<f4") == Packed(90, 7, 7 * 60 * 4)  # what lies beside it is read as well


def test_in_what_is_not_compressed_or_each_row_by_itself_every_order_costs_the_same() -> None:
    assert listed("chunks", 7, 4, 5, 3) is None
    assert listed(LIBRARY, 1, 4, 5, 3) is None
    assert Packed.of(None, lambda name: np.array([len(name)])) is None


@pytest.mark.parametrize(
    ("packed", "chunk", "buffer"), [(LARGE, 600, 4), (SMALL, 160, 16), (TINY, 3200, 19)], ids=["large", "small", "tiny"]
)
def test_a_buffer_holds_what_a_worker_keeps_in_chunks_of_the_file_or_several(
    packed: Packed, chunk: int, buffer: int
) -> None:
    rows = np.arange(packed.rows)
    assert (packed.fast_chunk(packed.rows), packed.fast_buffer(rows, chunk)) == (chunk, buffer)
    assert chunk * buffer // packed.chunk_rows * packed.chunk_bytes <= CHUNKS_KEPT_BYTES


def test_a_part_has_fewer_samples_in_a_chunk_and_they_reach_into_the_next() -> None:
    rows = np.flatnonzero(np.arange(6000) % 5)
    assert LARGE.fast_chunk(rows.size) == 480
    assert LARGE.fast_buffer(rows, 480) == 4
    assert LARGE.fast_buffer(rows + 300, 480) == 2
    assert LARGE.fast_buffer(rows, 1000) == 2


def test_two_chunks_are_mixed_however_large_they_are() -> None:
    huge = Packed(100, 50, 250 * MIB)
    assert huge.kept == 1
    assert huge.fast_buffer(np.arange(100), huge.fast_chunk(100)) == 2
    assert huge.fast_chunk(1) == 1


def test_an_array_that_a_worker_keeps_whole_is_one_buffer_of_few_chunks() -> None:
    few = Packed(300, 20, MIB)
    assert (few.fits, few.fast_chunk(300), few.fast_buffer(np.arange(300), 160)) == (True, 160, 2)
    assert Packed(100, 60, 1).fast_chunk(100) == 100
    assert not LARGE.fits
