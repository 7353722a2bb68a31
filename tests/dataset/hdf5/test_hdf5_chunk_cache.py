"""What was decompressed is kept while there is room, whichever store it belongs to."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from streamd.dataset.hdf5.chunk_cache import KEPT, Kept
from streamd.limits import CHUNKS_KEPT_BYTES

A, B = ("a",), ("b",)


def chunk(nbytes: int) -> npt.NDArray[Any]:
    return np.zeros(nbytes, np.uint8)


@pytest.fixture
def kept() -> Kept:
    kept = Kept(100)
    kept.put(A, 0, chunk(40))
    kept.put(B, 0, chunk(40))
    return kept


def test_what_was_used_longest_ago_goes_first_of_whichever_array_it_is(kept: Kept) -> None:
    assert kept.get(A, 0) is not None
    kept.put(B, 1, chunk(40))
    assert [kept.get(*each) is not None for each in ((A, 0), (B, 0), (B, 1))] == [True, False, True]


def test_room_is_made_before_it_is_filled(kept: Kept) -> None:
    kept.make_room(61)
    assert [kept.get(each, 0) is not None for each in (A, B)] == [False, False]


def test_one_chunk_is_kept_however_large(kept: Kept) -> None:
    kept.put(A, 1, chunk(1000))
    assert kept.get(A, 1) is not None
    assert kept.get(B, 0) is None
    kept.put(B, 1, chunk(100))
    assert kept.get(A, 1) is None


def test_an_array_that_is_closed_leaves_its_room_to_others(kept: Kept) -> None:
    kept.forget(A)
    assert kept.get(A, 0) is None
    kept.put(B, 1, chunk(60))
    assert kept.get(B, 0) is not None


def test_what_is_kept_comes_first_and_the_rest_in_order(kept: Kept) -> None:
    kept.put(A, 2, chunk(1))
    assert kept.kept_first(A, [3, 2, 1, 2, 0]) == [4, 1, 3, 2, 0]


def test_a_process_has_one_bound() -> None:
    KEPT.put(A, 0, np.broadcast_to(np.uint8(0), CHUNKS_KEPT_BYTES))
    KEPT.put(B, 0, chunk(1))
    assert KEPT.get(A, 0) is None
    KEPT.forget(B)
