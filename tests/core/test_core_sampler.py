"""The sampler is a bijection, the same for everybody, and may never change unnoticed."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sample_specs import some_spec

from streamd.core.sampler import (
    PAD_ID,
    Ids,
    SampleOrder,
    compute_batch_ids,
    compute_batch_index_ranges,
    compute_ids_of_batches,
    derive_epoch_keys,
    permute_positions,
    shuffle_in_chunks,
)
from streamd.core.spec import RemainderPolicy, Segment, Shuffle, StreamSpec

BLOCK_ROWS: Final = 4096
LARGEST: Final = 1 << 32  # what a configuration may say


def whole(n: int, seed: int = 0, epoch: int = 0) -> Ids:
    return permute_positions(np.arange(n, dtype=np.int64), n, derive_epoch_keys(seed, epoch))


def in_chunks(samples: int, chunk: int, buffer: int, seed: int = 0, epoch: int = 0) -> Ids:
    return shuffle_in_chunks(np.arange(samples, dtype=np.int64), samples, chunk, buffer, seed, epoch)


def stream_of(
    samples: int, batch_size: int, remainder: RemainderPolicy = "keep", shuffle: Shuffle = "full"
) -> StreamSpec:
    batches = samples // batch_size if remainder == "drop" else -(-samples // batch_size)
    spec = some_spec(samples=samples, batch_size=batch_size, batches=batches, remainder=remainder, shuffle=shuffle)
    return replace(spec, chunk=max(1, samples // 7), buffer=2) if shuffle == "chunk" else spec


def epoch_of(spec: StreamSpec, epoch: int) -> list[Ids]:
    order = SampleOrder.from_spec(spec)
    return [compute_batch_ids(order, epoch, index, spec.batch_rows(index)) for index in range(spec.batches)]


# --- batches


@pytest.mark.parametrize("shuffle", ["full", "none", "chunk"])
@pytest.mark.parametrize(
    ("samples", "size"), [(1, 1), (1, 8), (7, 8), (8, 8), (9, 8), (103, 10), (9000, 100), (8192, 4096)]
)
def test_the_batches_of_a_kept_remainder_hold_every_sample_once(samples: int, size: int, shuffle: Shuffle) -> None:
    batches = epoch_of(stream_of(samples, size, "keep", shuffle), 2)
    assert [ids.size for ids in batches[:-1]] == [size] * (len(batches) - 1)
    assert sorted(np.concatenate(batches).tolist()) == list(range(samples))


@pytest.mark.parametrize(("samples", "size"), [(8, 8), (9, 8), (103, 10), (9001, 100), (7, 8)])
def test_a_dropped_remainder_leaves_out_less_than_a_batch_and_repeats_nothing(samples: int, size: int) -> None:
    batches = epoch_of(stream_of(samples, size, "drop"), 2)
    ids = np.concatenate([np.empty(0, dtype=np.int64), *batches])
    assert ids.size == samples - samples % size
    assert np.unique(ids).size == ids.size
    assert all(0 <= one < samples for one in ids.tolist())


def test_a_dropped_remainder_leaves_out_different_samples_in_different_epochs() -> None:
    spec = stream_of(103, 10, "drop")
    left_out = {frozenset(set(range(103)) - set(np.concatenate(epoch_of(spec, epoch)).tolist())) for epoch in range(5)}
    assert len(left_out) > 1


@pytest.mark.parametrize(("samples", "size"), [(8, 8), (9, 8), (103, 10), (9001, 100), (7, 8)])
def test_a_padded_remainder_ends_in_pad_ids_only(samples: int, size: int) -> None:
    ids = np.concatenate(epoch_of(stream_of(samples, size, "pad"), 2))
    assert ids.size % size == 0
    assert sorted(ids[:samples].tolist()) == list(range(samples))
    assert (ids[samples:] == PAD_ID).all()


@pytest.mark.parametrize("shuffle", ["full", "none", "chunk"])
def test_batches_follow_their_order(shuffle: Shuffle) -> None:
    spec = stream_of(9001, 100, shuffle=shuffle)
    orders = {"full": whole(9001, spec.seed, 4), "none": np.arange(9001)}
    planned = orders[shuffle] if shuffle in orders else in_chunks(9001, spec.chunk, spec.buffer, spec.seed, 4)
    assert np.concatenate(epoch_of(spec, 4)).tolist() == planned.tolist()


@pytest.mark.parametrize("size", [1, 3, 100, 1000, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 9000])
def test_a_batch_computed_alone_equals_the_batch_computed_in_sequence(size: int) -> None:
    spec = stream_of(3 * BLOCK_ROWS + 17, size)
    truth = whole(spec.samples, seed=spec.seed, epoch=6)
    per_block, last = BLOCK_ROWS // size, spec.batches - 1
    edges = {0, 1, per_block - 1, per_block, 2 * BLOCK_ROWS // size, last - 1, last}
    for index in sorted(edges, reverse=True):
        if 0 <= index < spec.batches:
            alone = compute_batch_ids(SampleOrder.from_spec(spec), 6, index, spec.batch_rows(index))
            assert alone.tolist() == truth[index * size : (index + 1) * size].tolist()


@pytest.mark.parametrize("remainder", ["keep", "drop"])
@pytest.mark.parametrize("beyond", [0, 1, 5000])
def test_a_batch_beyond_the_last_is_all_padding(remainder: RemainderPolicy, beyond: int) -> None:
    spec = stream_of(103, 10, remainder)
    index = spec.batches + beyond
    assert compute_batch_ids(SampleOrder.from_spec(spec), 0, index, 10).tolist() == [PAD_ID] * 10


@pytest.mark.parametrize("index", [0, 10])
def test_writing_to_a_batch_does_not_change_the_next_result(index: int) -> None:
    order = SampleOrder.from_spec(stream_of(103, 10))
    first = compute_batch_ids(order, 0, index, 10)
    kept = first.tolist()
    with suppress(ValueError):  # a view is read-only
        first[:] = -7
    assert compute_batch_ids(order, 0, index, 10).tolist() == kept


def test_the_order_holds_what_the_spec_says() -> None:
    spec = some_spec()
    assert SampleOrder.from_spec(spec) == SampleOrder(samples=103, batch_size=10, batches=11, shuffle="full", seed=3)
    chunked = SampleOrder(samples=103, batch_size=10, batches=11, shuffle="chunk", seed=3, chunk=8, buffer=4)
    assert SampleOrder.from_spec(replace(spec, shuffle="chunk", chunk=8, buffer=4)) == chunked


# --- histories


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.integers(1, 300), st.integers(1, 40), st.sampled_from(["keep", "drop", "pad"]), st.data())
def test_batches_planned_together_equal_batches_planned_one_by_one(
    samples: int, size: int, remainder: RemainderPolicy, data: st.DataObject
) -> None:
    spec = stream_of(samples, size, remainder, data.draw(st.sampled_from(["full", "none", "chunk"])))
    order = SampleOrder.from_spec(spec)
    indices = data.draw(st.lists(st.integers(0, spec.batches + 3), min_size=1, max_size=8))  # beyond the last, too
    rows = [spec.batch_rows(index) for index in indices]
    each = [compute_batch_ids(order, 1, index, count) for index, count in zip(indices, rows, strict=True)]
    assert compute_ids_of_batches(order, 1, np.array(indices), np.array(rows)).tolist() == np.concatenate(each).tolist()


def test_the_indices_of_a_history_are_in_its_order() -> None:
    history = [Segment(0, 3, 1, 4), Segment(12, 2, 0, 3), Segment(18, 1, 0, 1)]
    assert [list(walk) for walk in compute_batch_index_ranges(history)] == [[1, 5, 9], [12, 15], [18]]
    assert compute_batch_index_ranges([]) == []


# --- the order of chunks: a bijection wherever the short chunk falls, mixed within buffers


def buffers_of(ids: Ids, chunk: int, buffer: int) -> Ids:
    """The number of the buffer that each sample belongs to, when chunks are counted as they first come."""
    _, firsts, chunks = np.unique(ids // chunk, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(firsts))[chunks] // buffer


sizes = st.one_of(st.integers(1, 40), st.sampled_from([1000, 4096, LARGEST]))


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.integers(1, 700), sizes, sizes, st.integers(-(2**70), 2**70), st.integers(0, 2**40))
def test_chunked_shuffling_yields_every_sample_once(
    samples: int, chunk: int, buffer: int, seed: int, epoch: int
) -> None:
    ids = in_chunks(samples, chunk, buffer, seed, epoch)
    assert ids.dtype == np.int64
    assert np.array_equal(np.sort(ids), np.arange(samples))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(1, 10**12), sizes, sizes, st.integers(0, 99), st.data())
def test_single_positions_in_chunks_give_the_same_ids_as_many_at_once(
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
def test_a_buffer_is_used_up_before_the_next_begins(samples: int, chunk: int, buffer: int, epoch: int) -> None:
    assert (np.diff(buffers_of(in_chunks(samples, chunk, buffer, epoch=epoch), chunk, buffer)) >= 0).all()


def test_a_buffer_of_one_chunk_shuffles_within_each_chunk() -> None:
    ids = in_chunks(3200 * 5, 3200, 1).reshape(5, 3200)
    assert sorted((ids[:, 0] // 3200).tolist()) == [0, 1, 2, 3, 4]
    assert (ids // 3200 == ids[:, :1] // 3200).all()
    assert [np.array_equal(np.sort(each), each) for each in ids] == [False] * 5


def test_the_short_chunk_may_be_at_every_position() -> None:
    places = {int(np.flatnonzero(in_chunks(50, 8, 1, epoch=epoch) // 8 == 6)[0]) for epoch in range(60)}
    assert places == {0, 8, 16, 24, 32, 40, 48}


def test_buffers_and_epochs_are_mixed_independently() -> None:
    """Stored in one chunk each, so that a row of what is left is the mixing alone."""
    rows = [in_chunks(6400, 64, 1, epoch=epoch).reshape(100, 64) % 64 for epoch in range(2)]
    assert np.unique(np.concatenate(rows), axis=0).shape == (200, 64)


def test_a_buffer_larger_than_the_data_holds_all_chunks() -> None:
    assert in_chunks(1000, 7, 143).tolist() == in_chunks(1000, 7, LARGEST).tolist()
    assert in_chunks(1000, 7, 143).tolist() != in_chunks(1000, 7, 142).tolist()


# --- the order is pinned: another one needs another PLAN_VERSION, and then new values here

PINNED: Final[dict[tuple[int, int, int, int, int], list[int]]] = {
    (7, 3, 1, 0, 0): [3, 4, 5, 2, 1, 0, 6],
    (7, 3, 1, 0, 1): [0, 1, 2, 6, 3, 4, 5],
    (14, 4, 2, 1, 0): [10, 5, 7, 9, 8, 11, 6, 4, 2, 3, 13, 1, 0, 12],
    (16, 4, 2, 12345, 3): [7, 6, 13, 4, 5, 14, 12, 15, 8, 0, 1, 11, 2, 3, 10, 9],
}


@pytest.mark.parametrize("facts", PINNED, ids=str)
def test_small_orders_are_unchanged_from_earlier_versions(facts: tuple[int, int, int, int, int]) -> None:
    assert in_chunks(*facts).tolist() == PINNED[facts]


def test_large_orders_are_unchanged_from_earlier_versions() -> None:
    ids = in_chunks(100_003, 320, 16, 1, 2)
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
    orders = np.stack([in_chunks(samples, chunk, buffer, epoch=epoch) for epoch in range(epochs)])
    for sample in (0, samples // 2, samples - 1):
        counts = np.bincount(np.argmax(orders == sample, axis=1), minlength=samples)
        chi_square = ((counts - epochs / samples) ** 2 / (epochs / samples)).sum()
        assert chi_square < 100  # 49 degrees of freedom: seven standard deviations would be 119, five 98
