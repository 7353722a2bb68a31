"""Slots are made, leased, reused last in first out, evicted by value, and counted right."""

from __future__ import annotations

import random

import pytest

from streamd.core.spec import BatchKey
from streamd.limits import MAX_SLOTS
from streamd.scheduler.slot_pool import BatchDemand, SlotEntry, SlotPool


def key(index: int, stream: str = "train") -> BatchKey:
    return BatchKey(stream, 0, index)


def wanted_from(*cursors: int) -> BatchDemand:
    """Sessions at these indices of every stream."""

    def worth(wanted: BatchKey) -> float:
        return -min((wanted.index - cursor for cursor in cursors if cursor <= wanted.index), default=float("inf"))

    return BatchDemand(lambda: [key(cursor, stream) for cursor in cursors for stream in ("train", "validation")], worth)


NOBODY = wanted_from()


def fill(pool: SlotPool, *indices: int, slot_bytes: int = 1, stream: str = "train") -> list[SlotEntry]:
    entries = []
    for index in indices:
        entry = pool.allocate_slot(key(index, stream), slot_bytes, NOBODY, is_modest=False)
        assert entry is not None
        entries.append(pool.mark_batch_whole(entry.slot))
        pool.cache_batch(entry)
    return entries


def test_slots_are_made_until_memory_is_used_up() -> None:
    pool = SlotPool(10)

    fill(pool, 0, 1, slot_bytes=5)

    assert pool.used_bytes == 10
    assert pool.dropped_slots == []


def test_a_slot_is_produced_leased_cached_and_freed() -> None:
    pool = SlotPool(10)
    entry = pool.allocate_slot(key(3), 2, NOBODY, is_modest=False)
    assert entry is not None
    assert repr(entry) == "<SlotEntry 'train' 0:3 in slot 1, in production>"

    shown = [repr(pool)]
    pool.mark_batch_whole(1)
    shown.append(repr(pool))
    pool.lease_batch(entry)
    shown.append(repr(pool))
    pool.release_lease(1)
    pool.cache_batch(entry)
    shown.append(repr(pool))
    pool.discard_batch(entry)
    shown.append(repr(pool))

    states = ["1 in production", "1 idle", "1 leased", "1 cached", "1 free"]
    assert shown == [f"<SlotPool 2 of 10 bytes, {state}>" for state in states]


def test_a_batch_leased_or_in_production_is_never_evicted() -> None:
    pool = SlotPool(2)
    pool.lease_batch(fill(pool, 0)[0])
    assert pool.allocate_slot(key(1), 1, NOBODY, is_modest=False) is not None

    assert pool.allocate_slot(key(2), 1, NOBODY, is_modest=False) is None
    assert set(pool.entries) == {key(0), key(1)}


def test_the_last_freed_slot_is_reused_first() -> None:
    pool = SlotPool(3)
    first, second, third = fill(pool, 0, 1, 2)
    pool.discard_batch(first)
    pool.discard_batch(third)
    pool.discard_batch(second)

    assert [entry.slot for entry in fill(pool, 3, 4, 5)] == [second.slot, third.slot, first.slot]


def test_the_least_valuable_batch_is_evicted_and_its_key_reported() -> None:
    pool = SlotPool(4)
    fill(pool, 3, 11, 4, 17)

    placed = pool.allocate_slot(key(5), 1, wanted_from(2, 10), is_modest=False)

    assert placed is not None
    assert pool.evicted_keys == [key(17)]
    assert set(pool.entries) == {key(3), key(11), key(4), key(5)}


def test_no_batch_is_evicted_for_a_less_valuable_one() -> None:
    pool = SlotPool(2)
    fill(pool, 3, 4)

    assert pool.allocate_slot(key(9), 1, wanted_from(2), is_modest=True) is None
    assert pool.allocate_slot(key(4), 1, wanted_from(2), is_modest=True) is None
    assert set(pool.entries) == {key(3), key(4)}


def test_no_batch_is_evicted_if_that_makes_too_little_room() -> None:
    pool = SlotPool(10)
    pool.lease_batch(fill(pool, 0, slot_bytes=6)[0])
    fill(pool, 1, 2, 3)

    assert pool.allocate_slot(key(4), 6, NOBODY, is_modest=False) is None
    assert set(pool.entries) == {key(0), key(1), key(2), key(3)}
    assert pool.evicted_keys == []
    assert pool.dropped_slots == []


def test_of_unwanted_batches_the_latest_is_evicted_and_the_first_stays() -> None:
    pool = SlotPool(4)
    fill(pool, 0, 1, 2, 5)

    for new, gone in ((6, 2), (7, 1)):
        pool.evicted_keys.clear()
        assert pool.allocate_slot(key(new), 1, wanted_from(5), is_modest=True) is not None
        assert pool.evicted_keys == [key(gone)]


def test_of_unwanted_batches_the_oldest_epoch_is_evicted_first() -> None:
    pool = SlotPool(3)
    for epoch, index in ((0, 4), (1, 0), (1, 1)):
        placed = pool.allocate_slot(BatchKey("train", epoch, index), 1, NOBODY, is_modest=False)
        assert placed is not None
        pool.cache_batch(pool.mark_batch_whole(placed.slot))
    demand = BatchDemand(lambda: [BatchKey("train", 1, 2)], lambda _: float("-inf"))

    pool.allocate_slot(BatchKey("train", 1, 2), 1, demand, is_modest=False)

    assert pool.evicted_keys == [BatchKey("train", 0, 4)]


def test_of_equally_valuable_batches_one_in_a_slot_of_the_right_size_is_evicted_first() -> None:
    pool = SlotPool(6)
    fill(pool, 0, 1, slot_bytes=2)
    fill(pool, 0, slot_bytes=2, stream="validation")

    pool.allocate_slot(key(9, "validation"), 2, wanted_from(5), is_modest=False)
    fill(small := SlotPool(3), 0, slot_bytes=2)
    fill(small, 0, stream="validation")
    small.allocate_slot(key(9, "validation"), 1, wanted_from(5), is_modest=False)

    assert pool.dropped_slots == small.dropped_slots == []
    assert small.evicted_keys == [key(0, "validation")]


def test_free_slots_of_another_size_are_dropped_before_any_batch() -> None:
    pool = SlotPool(6)
    small = fill(pool, 0, 1, 2)
    for entry in small[:2]:
        pool.discard_batch(entry)

    placed = pool.allocate_slot(key(0, "validation"), 5, NOBODY, is_modest=False)

    assert placed is not None
    assert key(2) in pool.entries
    assert pool.dropped_slots == [small[0].slot, small[1].slot]
    assert pool.used_bytes == 6


def test_batches_of_another_size_are_evicted_until_there_is_room() -> None:
    pool = SlotPool(6)
    fill(pool, 0, 1, 2, 3, 4, 5)

    placed = pool.allocate_slot(key(0, "validation"), 4, wanted_from(0), is_modest=False)

    assert placed is not None
    assert set(pool.entries) == {key(0), key(1), key(0, "validation")}
    assert len(pool.dropped_slots) == 4
    assert pool.used_bytes == 6


def test_a_slot_that_may_stay_mapped_is_dropped_with_its_batch() -> None:
    pool = SlotPool(3)
    entry = fill(pool, 0)[0]
    entry.may_stay_mapped = True

    pool.discard_batch(entry)

    assert pool.dropped_slots == [entry.slot]
    assert pool.used_bytes == 0
    assert fill(pool, 1)[0].slot != entry.slot


def test_an_abandoned_production_keeps_its_slot_and_frees_its_key() -> None:
    pool = SlotPool(3)
    old = pool.allocate_slot(key(0), 1, NOBODY, is_modest=False)
    assert old is not None
    del pool.entries[old.key]
    new = pool.allocate_slot(key(0), 1, NOBODY, is_modest=False)
    assert new is not None
    pool.mark_batch_whole(new.slot)

    pool.discard_batch(pool.mark_batch_whole(old.slot))

    assert pool.entries == {key(0): new}
    assert new.slot != old.slot
    assert pool.free_slots == {1: [old.slot]}


def test_all_free_slots_can_be_dropped() -> None:
    pool = SlotPool(9)
    small = fill(pool, 0, 1)
    kept, large = fill(pool, 2, 3, slot_bytes=3)
    for entry in (*small, large):
        pool.discard_batch(entry)

    assert pool.drop_free_slots() == 3
    assert pool.used_bytes == 3
    assert sorted(pool.dropped_slots) == sorted(entry.slot for entry in (*small, large))
    assert pool.entries == {key(2): kept}
    assert pool.drop_free_slots() == 0


def test_there_are_never_more_slots_than_descriptors() -> None:
    pool = SlotPool(1 << 40)
    for entry in fill(pool, *range(MAX_SLOTS)):
        pool.lease_batch(entry)

    assert pool.allocate_slot(key(MAX_SLOTS), 1, NOBODY, is_modest=False) is None


@pytest.mark.parametrize("seed", range(30))
def test_the_batch_furthest_from_all_cursors_is_evicted(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - no secret, a case that can be repeated
    cursors = [0, *rng.sample(range(1, 100), 3)]
    pool = SlotPool(20)
    fill(pool, *rng.sample(range(100), 20))
    demand = wanted_from(*cursors)
    worst = min(map(demand.compute_worth, pool.entries))

    pool.allocate_slot(key(1000), 1, demand, is_modest=False)

    assert demand.compute_worth(pool.evicted_keys[0]) == worst


@pytest.mark.parametrize("seed", range(20))
def test_cached_bytes_and_batches_are_counted_right_in_random_runs(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - no secret, a case that can be repeated
    pool = SlotPool(12)
    for index in range(200):
        placed = pool.allocate_slot(key(index), rng.choice((1, 2, 5)), NOBODY, is_modest=False)
        if placed is not None and rng.random() < 0.8:
            pool.mark_batch_whole(placed.slot)
        for entry in list(pool.entries.values()):
            if entry.is_whole and rng.random() < 0.3:
                pool.lease_batch(entry)
            if entry.lease_count and rng.random() < 0.5:
                pool.release_lease(entry.slot)
            if not entry.is_whole and rng.random() < 0.5:
                pool.mark_batch_whole(entry.slot)
            if entry.is_whole and not entry.lease_count:
                (pool.discard_batch if rng.random() < 0.1 else pool.cache_batch)(entry)
        idle = [entry for entry in pool.entries.values() if entry.is_whole and not entry.lease_count]
        empty = sum(size * len(slots) for size, slots in pool.free_slots.items())
        assert pool._cached_bytes == sum(entry.slot_bytes for entry in idle)
        assert pool._cached_batches.get("train", []) == sorted((entry.key.epoch, entry.key.index) for entry in idle)
        assert pool.used_bytes == empty + sum(entry.slot_bytes for entry in pool.entries.values()) <= 12
