"""Worker time when decoding is the bottleneck: a late trainer catches up, then sessions share the time."""

from __future__ import annotations

import pytest
from support.scheduler_driver import MIB, World, train

from streamd.core.spec import BatchKey, Cursor, Segment
from streamd.limits import CATCH_UP_S

COST_S = 0.01


def at(index: int) -> Cursor:
    return Cursor(0, (Segment(0, index, 0, 1),))


def test_a_trainer_five_seconds_late_catches_up_and_costs_the_leader_no_more_than_that() -> None:
    world = World(train(3000), memory=20 * MIB, check=False)
    leader = world.subscribe(credit=8)
    world.run(cost_s=COST_S, until=lambda: len(leader.taken) >= 500)
    joined_s, made = world.now_s, len(world.made)
    joiner = world.subscribe(credit=8)

    world.run(cost_s=COST_S)

    assert joiner.taken == joiner.batches_of_all(3000)
    again = len(world.made) - made - 2500
    assert 450 <= again <= 520, "what the leader had behind it is decoded once more, and nothing else"
    assert world.now_s - joined_s <= (2500 + again + 10) * COST_S
    assert (world.now_s - joined_s) - 2500 * COST_S <= CATCH_UP_S


@pytest.mark.long
def test_no_session_ever_pays_more_than_the_catch_up_bound() -> None:
    world = World(train(4000), memory=256 * MIB, check=False)
    trainers = [world.subscribe(credit=4, cursor=at(place)) for place in (2000, 1500, 1000, 500, 10)]
    most_lost_s = 0.0

    def watch() -> bool:
        nonlocal most_lost_s
        most_lost_s = max(most_lost_s, *(session.catch_up_cost_s for session in world.window.sessions))
        return len(trainers[0].taken) >= 1500

    world.run(cost_s=COST_S, until=watch)

    assert 1.0 < most_lost_s <= CATCH_UP_S


@pytest.mark.parametrize("company", [1, 3])
def test_worker_time_is_shared_by_sessions_when_one_is_too_far_behind(company: int) -> None:
    world = World(train(20000), check=False)
    ahead = [world.subscribe(cursor=at(10000), credit=4) for _ in range(company)]
    behind = world.subscribe(cursor=at(10), credit=4)

    world.run(cost_s=COST_S, until=lambda: len(world.made) >= 2000)

    assert len(ahead[0].taken) / len(behind.taken) == pytest.approx(company, rel=0.05)


def test_a_stream_with_larger_batches_gets_no_more_worker_time() -> None:
    world = World(train(9000), train(9000, name="large", tasks=4), workers=4, check=False)
    small, large = world.subscribe(credit=8), world.subscribe("large", credit=8)

    world.run(cost_s=COST_S, until=lambda: len(world.made) >= 2000)

    assert len(small.taken) / len(large.taken) == pytest.approx(4.0, rel=0.1)


def test_a_trainer_that_paused_gets_no_extra_worker_time() -> None:
    world = World(train(20000), check=False)
    awake, sleeper = world.subscribe(cursor=at(10000), credit=4), world.subscribe(cursor=at(10), credit=4)
    world.run(awake, cost_s=COST_S, until=lambda: len(awake.taken) >= 1000)
    before = len(awake.taken)

    world.run(cost_s=COST_S, until=lambda: len(sleeper.taken) >= 200)

    assert len(awake.taken) - before == pytest.approx(200, abs=20)


def test_an_idle_trainer_neither_delays_nor_charges_others() -> None:
    world = World(train(2000), check=False)
    resting, worker = world.subscribe(cursor=at(400), credit=4), world.subscribe(credit=4)

    world.run(worker, cost_s=COST_S)

    assert worker.taken == worker.batches_of_all(2000)
    assert world.now_s == pytest.approx(2000 * COST_S, abs=0.1)
    assert next(each for each in world.window.sessions if each.id == resting.session).catch_up_cost_s == 0.0


def test_a_slow_trainer_shares_batches_still_in_memory() -> None:
    world = World(train(100), memory=256 * MIB)
    fast, slow = world.subscribe(credit=4), world.subscribe(credit=4)

    world.run(fast)
    world.run(slow)

    assert slow.taken == fast.taken
    assert len(world.made) == 100
    assert world.made[0] == BatchKey("train", 0, 0)
