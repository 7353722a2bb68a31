"""The plan is a bijection, the same for everybody, and may never change unnoticed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sample_specs import some_spec

from streamd.core.permutation import derive_epoch_keys, permute_positions
from streamd.core.sampler import (
    PAD_ID,
    Ids,
    SampleOrder,
    compute_batch_ids,
    compute_batch_index_ranges,
    compute_ids_of_batches,
    shuffle_in_chunks,
)
from streamd.core.spec import RemainderPolicy, Segment, Shuffle, StreamSpec

BLOCK_ROWS: Final = 4096


def whole(n: int, seed: int = 0, epoch: int = 0) -> Ids:
    return permute_positions(np.arange(n, dtype=np.int64), n, derive_epoch_keys(seed, epoch))


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


def test_a_dropped_remainder_leaves_out_other_samples_in_other_epochs() -> None:
    spec = stream_of(103, 10, "drop")
    left_out = {frozenset(set(range(103)) - set(np.concatenate(epoch_of(spec, epoch)).tolist())) for epoch in range(5)}
    assert len(left_out) > 1


@pytest.mark.parametrize(("samples", "size"), [(8, 8), (9, 8), (103, 10), (9001, 100), (7, 8)])
def test_a_padded_remainder_ends_in_pad_ids_only(samples: int, size: int) -> None:
    ids = np.concatenate(epoch_of(stream_of(samples, size, "pad"), 2))
    assert ids.size % size == 0
    assert sorted(ids[:samples].tolist()) == list(range(samples))
    assert (ids[samples:] == PAD_ID).all()


def test_unshuffled_batches_follow_the_stored_order() -> None:
    assert np.concatenate(epoch_of(stream_of(5000, 7, shuffle="none"), 9)).tolist() == list(range(5000))


def test_batches_follow_the_permutation() -> None:
    assert np.concatenate(epoch_of(stream_of(9000, 100), 4)).tolist() == whole(9000, seed=3, epoch=4).tolist()


def test_batches_of_chunks_follow_their_order() -> None:
    spec = stream_of(9001, 100, shuffle="chunk")
    planned = shuffle_in_chunks(np.arange(9001, dtype=np.int64), 9001, spec.chunk, spec.buffer, spec.seed, 4)
    assert np.concatenate(epoch_of(spec, 4)).tolist() == planned.tolist()


@pytest.mark.parametrize("size", [1, 3, 100, 1000, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 9000])
def test_a_batch_asked_alone_equals_the_batch_asked_in_sequence(size: int) -> None:
    spec = stream_of(3 * BLOCK_ROWS + 17, size)
    truth = whole(spec.samples, seed=spec.seed, epoch=6)
    edges = {
        0,
        1,
        BLOCK_ROWS // size - 1,
        BLOCK_ROWS // size,
        2 * BLOCK_ROWS // size,
        spec.batches - 2,
        spec.batches - 1,
    }
    for index in sorted(edges, reverse=True):
        if 0 <= index < spec.batches:
            alone = compute_batch_ids(SampleOrder.from_spec(spec), 6, index, spec.batch_rows(index))
            assert alone.tolist() == truth[index * size : (index + 1) * size].tolist()


def test_a_batch_beyond_the_last_holds_no_sample() -> None:
    spec = stream_of(103, 10)
    for index in (spec.batches, spec.batches + 1, spec.batches + 5000):
        assert (
            compute_batch_ids(SampleOrder.from_spec(spec), 0, index, spec.batch_rows(index)).tolist() == [PAD_ID] * 10
        )


def test_a_batch_beyond_a_dropped_remainder_does_not_bring_the_remainder_back() -> None:
    spec = stream_of(103, 10, "drop")
    assert compute_batch_ids(SampleOrder.from_spec(spec), 0, 10, 10).tolist() == [PAD_ID] * 10


@pytest.mark.parametrize("index", [0, 10])
def test_nobody_can_change_what_the_next_asking_gives(index: int) -> None:
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
def test_batches_planned_together_are_those_planned_one_by_one(
    samples: int, size: int, remainder: RemainderPolicy, data: st.DataObject
) -> None:
    spec = stream_of(samples, size, remainder, data.draw(st.sampled_from(["full", "none", "chunk"])))
    order = SampleOrder.from_spec(spec)
    indices = data.draw(st.lists(st.integers(0, spec.batches + 3), min_size=1, max_size=8))  # beyond the last, too
    rows = [spec.batch_rows(index) for index in indices]
    each = [compute_batch_ids(order, 1, index, count) for index, count in zip(indices, rows, strict=True)]
    assert compute_ids_of_batches(order, 1, np.array(indices), np.array(rows)).tolist() == np.concatenate(each).tolist()


def test_the_indices_of_a_history_come_in_its_order() -> None:
    history = [Segment(0, 3, 1, 4), Segment(12, 2, 0, 3), Segment(18, 1, 0, 1)]
    assert [list(walk) for walk in compute_batch_index_ranges(history)] == [[1, 5, 9], [12, 15], [18]]
    assert compute_batch_index_ranges([]) == []
