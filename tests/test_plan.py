"""The plan is a bijection, the same for everybody, and may never change unnoticed."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_specs import some_spec

from streamd.plan import PAD_ID, PLAN_VERSION, Ids, Order, batch_ids, mix64, permute, several_ids, walked
from streamd.spec import Remainder, Segment, Shuffle, StreamSpec

BLOCK_ROWS: Final = 4096


def whole(n: int, seed: int = 0, epoch: int = 0) -> Ids:
    return permute(np.arange(n, dtype=np.int64), n, seed, epoch)


def stream_of(samples: int, batch_size: int, remainder: Remainder = "keep", shuffle: Shuffle = "full") -> StreamSpec:
    batches = samples // batch_size if remainder == "drop" else -(-samples // batch_size)
    return some_spec(samples=samples, batch_size=batch_size, batches=batches, remainder=remainder, shuffle=shuffle)


def epoch_of(spec: StreamSpec, epoch: int) -> list[Ids]:
    order = Order.of(spec)
    return [batch_ids(order, epoch, index, spec.rows(index)) for index in range(spec.batches)]


# --- the bijection


def test_the_order_is_a_bijection_for_every_n_to_3000() -> None:
    broken = [n for n in range(3001) if not np.array_equal(np.sort(whole(n, seed=n, epoch=n % 7)), np.arange(n))]
    assert broken == []


def test_the_order_of_a_million_samples_is_a_bijection() -> None:
    n = 10**6 + 3
    seen = np.bincount(whole(n, seed=5, epoch=1), minlength=n)
    assert seen.size == n
    assert seen.min() == seen.max() == 1


@pytest.mark.parametrize("n", [2**32 + 15, 2**32 - 5, 2**40, 10**12 + 39])
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_a_block_of_a_huge_order_stays_in_range_and_repeats_nothing(n: int, place: float) -> None:
    start = int((n - 20_000) * place)
    ids = permute(np.arange(start, start + 20_000, dtype=np.int64), n, 1, 1)
    assert ids.min() >= 0
    assert ids.max() < n
    assert np.unique(ids).size == ids.size


def test_ids_are_int64_and_positions_are_left_alone() -> None:
    positions = np.arange(100, dtype=np.int64)
    assert permute(positions, 100, 0, 0).dtype == np.int64
    assert positions.tolist() == list(range(100))
    one = np.zeros(1, dtype=np.int64)
    assert permute(one, 1, 0, 0) is not one


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(2, 10**9), st.integers(-(2**70), 2**70), st.integers(0, 2**40), st.data())
def test_positions_asked_apart_give_what_they_give_together(n: int, seed: int, epoch: int, data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20))
    together = permute(np.array(wanted, dtype=np.int64), n, seed, epoch).tolist()
    assert together == [permute(np.array([one], dtype=np.int64), n, seed, epoch).item() for one in wanted]
    assert len(set(together)) == len(set(wanted))


def test_two_epochs_and_two_seeds_differ_from_32_samples_on() -> None:
    alike = [
        n
        for n in range(32, 400)
        if np.array_equal(whole(n), whole(n, epoch=1)) or np.array_equal(whole(n), whole(n, seed=1))
    ]
    assert alike == []


def test_seed_and_epoch_do_not_stand_for_each_other() -> None:
    orders = {tuple(whole(64, seed, epoch).tolist()) for seed in range(12) for epoch in range(12)}
    assert len(orders) == 144


def test_mix64_is_a_bijection_with_the_published_values() -> None:
    words = np.arange(100_000, dtype=np.uint64)
    assert np.unique(mix64(words)).size == words.size
    # splitmix64 of seed 1234567 adds the golden gamma before its finaliser; these are its first published outputs.
    state = (1234567 + np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    assert mix64(state).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


# --- the order is pinned: another one needs another PLAN_VERSION, and then new values here

PINNED: Final = {
    (7, 0, 0): [6, 3, 0, 1, 4, 5, 2],
    (7, 0, 1): [5, 4, 1, 3, 0, 2, 6],
    (10, 1, 0): [9, 4, 0, 7, 3, 8, 6, 2, 5, 1],
    (16, 12345, 3): [3, 6, 11, 12, 10, 13, 4, 5, 1, 14, 9, 8, 15, 2, 0, 7],
}


@pytest.mark.parametrize(("n", "seed", "epoch"), PINNED)
def test_small_orders_are_what_they_always_were(n: int, seed: int, epoch: int) -> None:
    assert whole(n, seed, epoch).tolist() == PINNED[n, seed, epoch]


def test_larger_orders_are_what_they_always_were() -> None:
    digest = hashlib.sha256(whole(1000).astype("<i8").tobytes()).hexdigest()
    assert digest == "9df4e01fb182ef6ff78efe074deebf9ffbc66964c622f28c463353c3b3852ce6"
    edges = permute(np.array([0, 1, 2, 2**32 + 14]), 2**32 + 15, 7, 2)
    assert edges.tolist() == [2398832745, 1496795776, 1819119414, 1800378757]
    assert PLAN_VERSION == 1


# --- batches


@pytest.mark.parametrize("shuffle", ["full", "none"])
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
            alone = batch_ids(Order.of(spec), 6, index, spec.rows(index))
            assert alone.tolist() == truth[index * size : (index + 1) * size].tolist()


def test_a_batch_beyond_the_last_holds_no_sample() -> None:
    spec = stream_of(103, 10)
    for index in (spec.batches, spec.batches + 1, spec.batches + 5000):
        assert batch_ids(Order.of(spec), 0, index, spec.rows(index)).tolist() == [PAD_ID] * 10


def test_a_batch_beyond_a_dropped_remainder_does_not_bring_the_remainder_back() -> None:
    spec = stream_of(103, 10, "drop")
    assert batch_ids(Order.of(spec), 0, 10, 10).tolist() == [PAD_ID] * 10


@pytest.mark.parametrize("index", [0, 10])
def test_nobody_can_change_what_the_next_asking_gives(index: int) -> None:
    order = Order.of(stream_of(103, 10))
    first = batch_ids(order, 0, index, 10)
    kept = first.tolist()
    with suppress(ValueError):  # a view is read-only
        first[:] = -7
    assert batch_ids(order, 0, index, 10).tolist() == kept


def test_the_order_holds_what_the_spec_says() -> None:
    spec = some_spec()
    assert Order.of(spec) == Order(samples=103, batch_size=10, batches=11, shuffle="full", seed=3)


# --- how it mixes (fixed seeds: these cannot fail by chance, only by a change)


def test_a_sample_visits_all_positions_about_equally_often() -> None:
    n, epochs = 50, 2000
    orders = np.stack([whole(n, epoch=epoch) for epoch in range(epochs)])
    for sample in (0, 1, 25, n - 1):
        counts = np.bincount(np.argmax(orders == sample, axis=1), minlength=n)
        chi_square = ((counts - epochs / n) ** 2 / (epochs / n)).sum()
        assert chi_square < 100  # 49 degrees of freedom: seven standard deviations would be 119, five 98


def test_every_small_order_occurs() -> None:
    counts = np.unique(np.stack([whole(4, epoch=epoch) for epoch in range(2400)]), axis=0, return_counts=True)[1]
    assert counts.size == 24
    assert ((counts - 100) ** 2 / 100).sum() < 70  # 23 degrees of freedom


@pytest.mark.parametrize("n", [50, 1000])
def test_neighbours_in_storage_are_neighbours_in_the_order_as_rarely_as_chance_has_it(n: int) -> None:
    epochs = 100_000 // n
    steps = np.concatenate([np.abs(np.diff(whole(n, epoch=epoch))) for epoch in range(epochs)])
    expected = steps.size * 2 / n
    assert abs(int(np.count_nonzero(steps == 1)) - expected) < 5 * expected**0.5


def test_two_epochs_share_positions_as_rarely_as_chance_has_it() -> None:
    same = sum(int(np.count_nonzero(whole(100, epoch=e) == whole(100, epoch=e + 1))) for e in range(1000))
    assert abs(same - 1000) < 160  # one fixed point a pair on average, five standard deviations


# --- histories


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.integers(1, 300), st.integers(1, 40), st.sampled_from(["keep", "drop", "pad"]), st.data())
def test_batches_planned_together_are_those_planned_one_by_one(
    samples: int, size: int, remainder: Remainder, data: st.DataObject
) -> None:
    spec = stream_of(samples, size, remainder, data.draw(st.sampled_from(["full", "none"])))
    order = Order.of(spec)
    indices = data.draw(st.lists(st.integers(0, spec.batches + 3), min_size=1, max_size=8))  # beyond the last, too
    rows = [spec.rows(index) for index in indices]
    each = [batch_ids(order, 1, index, count) for index, count in zip(indices, rows, strict=True)]
    assert several_ids(order, 1, np.array(indices), np.array(rows)).tolist() == np.concatenate(each).tolist()


def test_the_indices_of_a_history_come_in_its_order() -> None:
    history = [Segment(0, 3, 1, 4), Segment(12, 2, 0, 3), Segment(18, 1, 0, 1)]
    assert [list(walk) for walk in walked(history)] == [[1, 5, 9], [12, 15], [18]]
    assert walked([]) == []
