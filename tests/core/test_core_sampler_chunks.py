"""The order of chunks: a bijection wherever the short chunk falls, mixed within buffers, and pinned."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.core.permutation import Ids
from streamd.core.sampler import shuffle_in_chunks

LARGEST: Final = 1 << 32  # what a configuration may say


def whole(samples: int, chunk: int, buffer: int, seed: int = 0, epoch: int = 0) -> Ids:
    return shuffle_in_chunks(np.arange(samples, dtype=np.int64), samples, chunk, buffer, seed, epoch)


def buffers_of(ids: Ids, chunk: int, buffer: int) -> Ids:
    """The number of the buffer that each sample belongs to, when chunks are counted as they first come."""
    _, firsts, chunks = np.unique(ids // chunk, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(firsts))[chunks] // buffer


sizes = st.one_of(st.integers(1, 40), st.sampled_from([1000, 4096, LARGEST]))


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.integers(1, 700), sizes, sizes, st.integers(-(2**70), 2**70), st.integers(0, 2**40))
def test_every_sample_comes_once(samples: int, chunk: int, buffer: int, seed: int, epoch: int) -> None:
    ids = whole(samples, chunk, buffer, seed, epoch)
    assert ids.dtype == np.int64
    assert np.array_equal(np.sort(ids), np.arange(samples))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(1, 10**12), sizes, sizes, st.integers(0, 99), st.data())
def test_positions_asked_apart_give_what_they_give_together(
    samples: int, chunk: int, buffer: int, epoch: int, data: st.DataObject
) -> None:
    wanted = data.draw(st.lists(st.integers(0, samples - 1), min_size=1, max_size=20))
    together = shuffle_in_chunks(np.array(wanted), samples, chunk, buffer, 7, epoch).tolist()
    apart = [shuffle_in_chunks(np.array([one]), samples, chunk, buffer, 7, epoch).item() for one in wanted]
    assert together == apart
    assert all(0 <= one < samples for one in together)
    assert len(set(together)) == len(set(wanted))


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.integers(1, 700), st.integers(1, 40), st.integers(1, 12), st.integers(0, 99))
def test_a_buffer_is_left_only_when_all_its_chunks_are_used_up(
    samples: int, chunk: int, buffer: int, epoch: int
) -> None:
    assert (np.diff(buffers_of(whole(samples, chunk, buffer, epoch=epoch), chunk, buffer)) >= 0).all()


def test_a_buffer_of_one_chunk_is_read_shuffle_cut() -> None:
    ids = whole(3200 * 5, 3200, 1).reshape(5, 3200)
    assert sorted((ids[:, 0] // 3200).tolist()) == [0, 1, 2, 3, 4]
    assert (ids // 3200 == ids[:, :1] // 3200).all()
    assert [np.array_equal(np.sort(each), each) for each in ids] == [False] * 5


def test_the_short_chunk_comes_at_every_place() -> None:
    places = {int(np.flatnonzero(whole(50, 8, 1, epoch=epoch) // 8 == 6)[0]) for epoch in range(60)}
    assert places == {0, 8, 16, 24, 32, 40, 48}


def test_buffers_are_mixed_apart_from_each_other_and_so_are_epochs() -> None:
    """Stored in one chunk each, so that a row of what is left is the mixing alone."""
    rows = [whole(6400, 64, 1, epoch=epoch).reshape(100, 64) % 64 for epoch in range(2)]
    assert np.unique(np.concatenate(rows), axis=0).shape == (200, 64)


def test_buffers_of_more_chunks_than_there_are_hold_them_all() -> None:
    assert whole(1000, 7, 143).tolist() == whole(1000, 7, LARGEST).tolist()
    assert whole(1000, 7, 143).tolist() != whole(1000, 7, 142).tolist()


# --- the order is pinned: another one needs another PLAN_VERSION, and then new values here

PINNED: Final[dict[tuple[int, int, int, int, int], list[int]]] = {
    (7, 3, 1, 0, 0): [3, 4, 5, 2, 1, 0, 6],
    (7, 3, 1, 0, 1): [0, 1, 2, 6, 3, 4, 5],
    (14, 4, 2, 1, 0): [10, 5, 7, 9, 8, 11, 6, 4, 2, 3, 13, 1, 0, 12],
    (16, 4, 2, 12345, 3): [7, 6, 13, 4, 5, 14, 12, 15, 8, 0, 1, 11, 2, 3, 10, 9],
}


@pytest.mark.parametrize("facts", PINNED, ids=str)
def test_small_orders_are_what_they_always_were(facts: tuple[int, int, int, int, int]) -> None:
    assert whole(*facts).tolist() == PINNED[facts]


def test_larger_orders_are_what_they_always_were() -> None:
    ids = whole(100_003, 320, 16, 1, 2)
    assert (
        hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()
        == "a5c4af53569a85215d8d19a8083d8c3f7c386c7dba120f275cd49022527d5d9a"
    )
    edges = shuffle_in_chunks(np.array([0, 1, 10**12]), 10**12 + 39, 3200, 16, 7, 2)
    assert edges.tolist() == [81458932980, 876714024709, 634160245566]


# --- how it mixes (fixed seeds: these cannot fail by chance, only by a change)


@pytest.mark.parametrize(("samples", "chunk", "buffer"), [(48, 4, 3), (50, 8, 7)])
def test_a_sample_visits_all_positions_about_equally_often(samples: int, chunk: int, buffer: int) -> None:
    epochs = 600
    orders = np.stack([whole(samples, chunk, buffer, epoch=epoch) for epoch in range(epochs)])
    for sample in (0, samples // 2, samples - 1):
        counts = np.bincount(np.argmax(orders == sample, axis=1), minlength=samples)
        chi_square = ((counts - epochs / samples) ** 2 / (epochs / samples)).sum()
        assert chi_square < 100  # 49 degrees of freedom: seven standard deviations would be 119, five 98
