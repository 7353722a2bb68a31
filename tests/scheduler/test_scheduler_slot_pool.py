"""Slots: found, held, reused last in first out, given up by worth, and never lost count of."""

from __future__ import annotations

import random

import pytest

from streamd.core.spec import BatchKey
from streamd.limits import MAX_SLOTS
from streamd.scheduler.slot_pool import Demand, Entry, Pool


def key(index: int, stream: str = "train") -> BatchKey:
    return BatchKey(stream, 0, index)


def wanted_from(*cursors: int) -> Demand:
    """Sessions at these indices of every stream."""

    def worth(wanted: BatchKey) -> float:
        return -min((wanted.index - cursor for cursor in cursors if cursor <= wanted.index), default=float("inf"))

    return Demand(lambda: [key(cursor, stream) for cursor in cursors for stream in ("train", "validation")], worth)


NOBODY = wanted_from()


def fill(pool: Pool, *indices: int, slot_bytes: int = 1, stream: str = "train") -> list[Entry]:
    entries = []
    for index in indices:
        entry = pool.place(key(index, stream), slot_bytes, NOBODY, modest=False)
        assert entry is not None
        entries.append(pool.finish(entry.slot))
        pool.rest(entry)
    return entries


def test_slots_are_made_until_memory_is_used_up() -> None:
    pool = Pool(10)

    fill(pool, 0, 1, slot_bytes=5)

    assert pool.used == 10
    assert pool.dropped == []


def test_a_batch_that_is_held_or_in_production_never_gives_way() -> None:
    pool = Pool(2)
    pool.hold(fill(pool, 0)[0])
    assert pool.place(key(1), 1, NOBODY, modest=False) is not None

    assert pool.place(key(2), 1, NOBODY, modest=False) is None
    assert set(pool.entries) == {key(0), key(1)}


def test_the_last_freed_slot_is_the_first_used() -> None:
    pool = Pool(3)
    first, second, third = fill(pool, 0, 1, 2)
    pool.discard(first)
    pool.discard(third)
    pool.discard(second)

    assert [entry.slot for entry in fill(pool, 3, 4, 5)] == [second.slot, third.slot, first.slot]


def test_the_least_worth_gives_way_and_its_name_is_told() -> None:
    pool = Pool(4)
    fill(pool, 3, 11, 4, 17)

    placed = pool.place(key(5), 1, wanted_from(2, 10), modest=False)

    assert placed is not None
    assert pool.evicted == [key(17)]
    assert set(pool.entries) == {key(3), key(11), key(4), key(5)}


def test_nothing_gives_way_to_what_is_worth_less() -> None:
    pool = Pool(2)
    fill(pool, 3, 4)

    assert pool.place(key(9), 1, wanted_from(2), modest=True) is None
    assert pool.place(key(4), 1, wanted_from(2), modest=True) is None
    assert set(pool.entries) == {key(3), key(4)}


def test_nothing_gives_way_in_vain() -> None:
    pool = Pool(10)
    pool.hold(fill(pool, 0, slot_bytes=6)[0])
    fill(pool, 1, 2, 3)

    assert pool.place(key(4), 6, NOBODY, modest=False) is None
    assert set(pool.entries) == {key(0), key(1), key(2), key(3)}
    assert pool.evicted == []
    assert pool.dropped == []


def test_of_what_nobody_wants_what_lies_right_behind_gives_way_and_the_beginning_stays() -> None:
    pool = Pool(4)
    fill(pool, 0, 1, 2, 5)

    for new, gone in ((6, 2), (7, 1)):
        pool.evicted.clear()
        assert pool.place(key(new), 1, wanted_from(5), modest=True) is not None
        assert pool.evicted == [key(gone)]


def test_of_what_nobody_wants_an_older_epoch_gives_way_first() -> None:
    pool = Pool(3)
    for epoch, index in ((0, 4), (1, 0), (1, 1)):
        placed = pool.place(BatchKey("train", epoch, index), 1, NOBODY, modest=False)
        assert placed is not None
        pool.rest(pool.finish(placed.slot))
    demand = Demand(lambda: [BatchKey("train", 1, 2)], lambda _: float("-inf"))

    pool.place(BatchKey("train", 1, 2), 1, demand, modest=False)

    assert pool.evicted == [BatchKey("train", 0, 4)]


def test_of_batches_worth_the_same_one_whose_slot_fits_gives_way_first() -> None:
    pool = Pool(6)
    fill(pool, 0, 1, slot_bytes=2)
    fill(pool, 0, slot_bytes=2, stream="validation")

    pool.place(key(9, "validation"), 2, wanted_from(5), modest=False)
    fill(small := Pool(3), 0, slot_bytes=2)
    fill(small, 0, stream="validation")
    small.place(key(9, "validation"), 1, wanted_from(5), modest=False)

    assert pool.dropped == small.dropped == []
    assert small.evicted == [key(0, "validation")]


def test_empty_slots_of_another_size_give_way_before_any_batch() -> None:
    pool = Pool(6)
    small = fill(pool, 0, 1, 2)
    for entry in small[:2]:
        pool.discard(entry)

    placed = pool.place(key(0, "validation"), 5, NOBODY, modest=False)

    assert placed is not None
    assert key(2) in pool.entries
    assert pool.dropped == [small[0].slot, small[1].slot]
    assert pool.used == 6


def test_batches_of_another_size_give_way_until_there_is_room() -> None:
    pool = Pool(6)
    fill(pool, 0, 1, 2, 3, 4, 5)

    placed = pool.place(key(0, "validation"), 4, wanted_from(0), modest=False)

    assert placed is not None
    assert set(pool.entries) == {key(0), key(1), key(0, "validation")}
    assert len(pool.dropped) == 4
    assert pool.used == 6


def test_a_tainted_slot_is_over_once_its_batch_is_forgotten() -> None:
    pool = Pool(3)
    entry = fill(pool, 0)[0]
    entry.tainted = True

    pool.discard(entry)

    assert pool.dropped == [entry.slot]
    assert pool.used == 0
    assert fill(pool, 1)[0].slot != entry.slot


def test_a_disowned_production_keeps_its_slot_and_leaves_its_name() -> None:
    pool = Pool(3)
    old = pool.place(key(0), 1, NOBODY, modest=False)
    assert old is not None
    pool.disown(old)
    new = pool.place(key(0), 1, NOBODY, modest=False)
    assert new is not None
    pool.finish(new.slot)

    pool.discard(pool.finish(old.slot))

    assert pool.entries == {key(0): new}
    assert new.slot != old.slot
    assert pool.free == {1: [old.slot]}


def test_all_empty_slots_can_be_given_back_to_the_host() -> None:
    pool = Pool(9)
    small = fill(pool, 0, 1)
    kept, large = fill(pool, 2, 3, slot_bytes=3)
    for entry in (*small, large):
        pool.discard(entry)

    assert pool.drop_free() == 3
    assert pool.used == 3
    assert sorted(pool.dropped) == sorted(entry.slot for entry in (*small, large))
    assert pool.entries == {key(2): kept}
    assert pool.drop_free() == 0


def test_there_are_never_more_slots_than_descriptors() -> None:
    pool = Pool(1 << 40)
    for entry in fill(pool, *range(MAX_SLOTS)):
        pool.hold(entry)

    assert pool.place(key(MAX_SLOTS), 1, NOBODY, modest=False) is None


@pytest.mark.parametrize("seed", range(30))
def test_of_batches_between_cursors_the_furthest_from_all_of_them_gives_way(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - no secret, a case that can be repeated
    cursors = [0, *rng.sample(range(1, 100), 3)]
    pool = Pool(20)
    fill(pool, *rng.sample(range(100), 20))
    demand = wanted_from(*cursors)
    worst = min(map(demand.worth, pool.entries))

    pool.place(key(1000), 1, demand, modest=False)

    assert demand.worth(pool.evicted[0]) == worst


@pytest.mark.parametrize("seed", range(20))
def test_what_nobody_holds_is_counted_right_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - no secret, a case that can be repeated
    pool = Pool(12)
    for index in range(200):
        placed = pool.place(key(index), rng.choice((1, 2, 5)), NOBODY, modest=False)
        if placed is not None and rng.random() < 0.8:
            pool.finish(placed.slot)
        for entry in list(pool.entries.values()):
            if entry.ready and rng.random() < 0.3:
                pool.hold(entry)
            if entry.holders and rng.random() < 0.5:
                pool.release(entry.slot)
            if not entry.ready and rng.random() < 0.5:
                pool.finish(entry.slot)
            if entry.ready and not entry.holders:
                (pool.discard if rng.random() < 0.1 else pool.rest)(entry)
        idle = [entry for entry in pool.entries.values() if entry.ready and not entry.holders]
        empty = sum(size * len(slots) for size, slots in pool.free.items())
        assert pool._idle_bytes == sum(entry.slot_bytes for entry in idle)
        assert pool._idle.get("train", []) == sorted((entry.key.epoch, entry.key.index) for entry in idle)
        assert pool.used == empty + sum(entry.slot_bytes for entry in pool.entries.values()) <= 12
