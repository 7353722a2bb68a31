"""Memory stays within its budget and suffices for every admitted session; no leased slot is rewritten."""

from __future__ import annotations

import pytest
from support.scheduler_driver import MIB, World, train

from streamd.core.spec import BatchKey
from streamd.limits import KEEP_COST_S, MIN_CREDIT
from streamd.scheduler.events import DropSlots, SessionLost, StreamChanged, TimePassed


def test_a_stopped_trainer_blocks_nobody_and_memory_stays_within_its_bound() -> None:
    world = World(train(300), memory=24 * MIB)
    stopped, runner = world.subscribe(credit=4), world.subscribe(credit=4)

    world.run(runner)

    assert runner.taken == runner.batches_of_all(300)
    assert len(stopped.held) == 4
    assert world.window.used_bytes == 24 * MIB
    world.run(stopped)
    assert stopped.taken == stopped.batches_of_all(300), "once it wakes, it gets the rest"


def test_every_session_gets_slots_while_others_keep_their_whole_credit() -> None:
    world = World(train(100), memory=15 * MIB, workers=1)
    keepers = [world.subscribe(credit=2) for _ in range(3)]
    for keeper in keepers:
        world.run(until=lambda keeper=keeper: len(keeper.held) == 2)  # type: ignore[misc]  # bound early
    late = world.subscribe(credit=2)

    world.run(late)

    assert late.taken == late.batches_of_all(100)


def test_the_smallest_memory_serves_a_trainer_that_keeps_one_batch() -> None:
    world = World(train(30), memory=3 * MIB, workers=4)
    trainer = world.subscribe(credit=8)
    assert trainer.credit == MIN_CREDIT
    world.produce()
    kept = world.receive(trainer)

    world.run()

    assert kept in trainer.held
    assert trainer.taken == trainer.batches_of_all(30)


def test_production_ahead_never_evicts_a_nearer_batch() -> None:
    world = World(train(200), memory=12 * MIB, workers=2)
    behind, leader = world.subscribe(credit=2), world.subscribe(credit=2)
    world.run(leader, until=lambda: len(leader.taken) >= 100)
    world.produce_all()
    wanted = set(range(behind.sent, behind.sent + 3))

    assert {key.index for key in world.window._pool.entries} >= wanted
    decoded = world.made.count(BatchKey("train", 0, behind.sent))
    world.run(behind, until=lambda: behind.taken[-1:] == [(0, behind.sent)])
    assert decoded == 1


def test_the_batches_furthest_from_every_cursor_are_evicted_first() -> None:
    world = World(train(200), memory=12 * MIB, workers=2)
    behind, leader = world.subscribe(credit=2), world.subscribe(credit=2)

    world.run(leader, until=lambda: len(leader.taken) >= 60)

    held = sorted(key.index for key in world.window._pool.entries if key.index > behind.sent)
    near = [index for index in held if index < 30]
    assert near == list(range(near[0], near[0] + len(near))), "the laggard's own are kept without a gap"
    assert near[0] <= behind.sent + 1


def test_a_busy_stream_of_small_batches_does_not_starve_one_of_large_batches() -> None:
    small, large = train(400, name="small"), train(20, name="large", slot_bytes=30 * MIB)
    world = World(small, large, memory=100 * MIB, workers=2)
    busy, big = world.subscribe("small", epochs=None, credit=8), world.subscribe("large", credit=2)

    world.run(until=lambda: len(big.taken) >= 20 or len(busy.taken) > 400)

    assert big.taken == big.batches_of_all(20)
    assert len(busy.taken) <= 100


def test_nothing_is_produced_ahead_while_a_session_waits_for_memory() -> None:
    old_shape, new_shape = train(50, slot_bytes=3 * MIB), train(60, slot_bytes=3 * MIB)
    world = World(old_shape, train(400, name="other"), memory=26 * MIB, workers=8, check=False)
    first, other = world.subscribe(credit=2), world.subscribe("other", credit=2)
    world.run(until=lambda: len(first.taken) >= 20 and world.window.used_bytes == world.limits.memory_bytes)
    assert world.window.used_bytes == world.limits.memory_bytes
    world.shapes["train"] = new_shape
    world.handle(StreamChanged("train", new_shape))  # the old productions go on, and keep their memory
    made, taken = len(world.made), len(other.taken)
    world.subscribe(credit=2)
    assert len(world.made) == made

    while world.made[-1].stream == "other":
        world.produce([job.key.stream for job in world.producing].index("other"))
        world.take(other, len(other.inbox))

    assert len(other.taken) <= taken + 8


def test_slots_of_a_lost_session_are_dropped_if_no_session_wants_their_batches() -> None:
    world = World(train(40))
    trainer = world.subscribe(credit=4)
    world.run(until=lambda: len(trainer.taken) >= 8)
    while len(trainer.held) < 4:
        world.produce()
    seen = set(trainer.held.values())

    trainer.held, trainer.credit = {}, 0
    actions = world.handle(SessionLost(trainer.session))

    assert {slot for action in actions if isinstance(action, DropSlots) for slot in action.slots} == seen
    assert world.gone >= seen
    again = world.subscribe()
    world.run(again)
    assert again.taken == again.batches_of_all(40)


def test_a_lost_sessions_batch_is_sent_to_others_before_its_slot_is_dropped() -> None:
    world = World(train(40), workers=1)
    lost, other = world.subscribe(credit=2), world.subscribe(credit=2)
    world.produce()
    slot = lost.held[0]
    world.end(lost, lost=True)
    assert slot not in world.gone

    world.take(other)

    assert slot in world.gone
    world.run(other)
    assert other.taken == other.batches_of_all(40)


def test_only_a_slot_that_a_forked_child_may_see_is_dropped_on_release() -> None:
    world = World(train(40))
    trainer = world.subscribe(credit=4)
    while len(trainer.held) < 4:
        world.produce()
    numbers = [world.receive(trainer) for _ in range(3)]
    slots = [trainer.held[number] for number in numbers]

    world.release(trainer, *numbers, retired=(numbers[1],))

    assert slots[1] in world.gone
    assert {slots[0], slots[2]} & world.gone == set()
    world.run()
    assert trainer.taken == trainer.batches_of_all(40)
    assert slots[1] not in world.slots


@pytest.mark.parametrize(("user", "is_erased"), [(0, False), (61003, True)], ids=["own user", "another user"])
def test_the_slots_of_a_lost_session_keep_their_pages_for_children_of_the_own_user_alone(
    user: int, *, is_erased: bool
) -> None:
    world = World(train(40))
    trainer = world.subscribe(credit=4, user=user)
    while len(trainer.held) < 4:
        world.produce()
    slots = {trainer.held[world.receive(trainer)] for _ in range(3)}

    world.end(trainer, lost=True)

    assert slots <= world.gone
    assert slots & world.erased == (slots if is_erased else set())


def test_a_slot_that_a_forked_child_may_see_keeps_its_pages_whoever_else_was_lost() -> None:
    world = World(train(40))
    first, hostile = world.subscribe(credit=4), world.subscribe(credit=4, user=61003)
    world.run(first, until=lambda: len(hostile.held) == 4)
    while len(first.held) < 4:
        world.produce()
    number = world.receive(first)
    slot = first.held[number]
    world.release(first, number, retired=(number,))

    world.end(hostile, lost=True)

    assert slot in world.gone
    assert slot not in world.erased


def test_a_retired_slot_is_dropped_after_the_last_session_that_wants_its_batch() -> None:
    world = World(train(40))
    first = world.subscribe(credit=4)
    second = world.subscribe(credit=4)
    world.run(first, until=lambda: len(second.held) == 4)
    while len(first.held) < 4:
        world.produce()
    number = world.receive(first)
    slot = first.held[number]

    world.release(first, number, retired=(number,))
    assert slot in world.slots

    world.run(second)
    assert slot in world.gone


def test_the_slot_of_a_batch_finished_after_its_session_is_free_again() -> None:
    world = World(train(9), workers=1)
    trainer = world.subscribe()
    world.end(trainer, lost=True)
    assert world.producing

    world.produce_all()

    assert world.window._pool.entries == {}
    assert not world.gone
    assert sum(map(len, world.window._pool.free_slots.values())) == len(world.slots)


def test_expensive_batches_stay_cached_until_memory_is_needed_or_all_sessions_end() -> None:
    world = World(train(40), memory=64 * MIB)
    first = world.subscribe(epochs=2)
    world.run(cost_s=KEEP_COST_S)
    made = len(world.made)
    second = world.subscribe()

    world.run(cost_s=KEEP_COST_S)

    assert second.taken == second.batches_of_all(40)
    assert len(world.made) - made <= 40 - 16, "the rest of the first epoch still lay in memory"
    world.end(first, lost=False)
    world.end(second, lost=False)
    assert world.window._pool.entries == {}


def test_cheap_batches_are_not_cached() -> None:
    world = World(train(40), memory=64 * MIB)
    world.subscribe(epochs=2)

    world.run(cost_s=0.5 * KEEP_COST_S)

    assert world.window._pool.entries == {}


def test_the_wait_for_memory_is_timed() -> None:
    world = World(train(20), memory=9 * MIB, workers=8, check=False)
    trainer = world.subscribe(credit=2)
    world.run(until=lambda: len(trainer.taken) >= 8 and len(world.producing) == 7)
    world.end(trainer, lost=True)
    assert len(world.producing) == 7
    larger = world.shapes["train"] = train(20, slot_bytes=3 * MIB)
    world.handle(StreamChanged("train", larger))

    world.now_s = 1.0
    late = world.subscribe(credit=2)
    assert world.window.slot_wait_s == 0.0
    world.now_s = 3.0
    world.produce()  # one of the old ones: its memory goes to the new one at once

    assert world.producing[-1].slot_bytes == 3 * MIB
    assert world.window.slot_wait_s == 2.0
    world.run(cost_s=1.0)
    assert late.taken == late.batches_of_all(20)


def test_a_denied_slot_costs_no_batch_and_no_session() -> None:
    world = World(train(30), memory=64 * MIB, workers=2, check=False)
    behind, ahead = world.subscribe(credit=2), world.subscribe(credit=2)
    world.run(ahead, until=lambda: len(ahead.taken) >= 6)
    slots = len(world.slots) - 1

    world.deny()
    assert "no descriptor is left: limited to " in world.warnings[-1]
    world.run(ahead)

    assert len(world.slots) == slots
    assert ahead.taken == ahead.batches_of_all(30)
    world.run(behind)
    assert behind.taken == behind.batches_of_all(30)


def test_denying_every_slot_stops_the_stream_until_the_next_session() -> None:
    world = World(train(30), workers=1, memory=4 * MIB, check=False)
    one = world.subscribe(credit=2)
    while len(world.producing) > 1:
        world.deny()
    world.deny()

    assert one.stopped is not None
    assert one.stopped.reason == "no descriptor is left"
    late = world.subscribe()
    world.run(late)
    assert late.taken == late.batches_of_all(30)


def test_denied_slots_are_tried_again_after_all_sessions_ended() -> None:
    world = World(train(30), check=False)
    first = world.subscribe(credit=4)
    while len(world.slots) > 2:
        world.deny()
    world.run()
    assert first.taken == first.batches_of_all(30)
    assert len(world.slots) == 2
    world.end(first, lost=False)
    world.now_s = 60.0
    world.handle(TimePassed())

    second = world.subscribe(credit=4)
    world.run(second)
    assert len(world.slots) > 2
    assert second.taken == second.batches_of_all(30)


def test_a_slot_denied_for_the_old_stream_only_frees_its_memory() -> None:
    world = World(train(30), check=False)
    world.subscribe(credit=2)
    world.handle(StreamChanged("train", world.shapes["train"]))
    used = world.window.used_bytes

    world.deny()

    assert world.window.used_bytes == used - MIB


def test_denied_slots_are_tried_again_while_ranks_hold_their_batches() -> None:
    world = World(train(30), check=False)
    ranks = [world.subscribe(rank=rank, world=2, credit=4) for rank in range(2)]
    while len(world.slots) > 2:
        world.deny()
    due_s = world.window.next_deadline_s()
    assert due_s is not None
    world.produce_all()
    held = [(one, world.receive(one)) for one in ranks for _ in range(len(one.inbox))]
    assert len(held) == 2
    assert not world.producing, "what is held leaves no slot for more"

    world.now_s = due_s
    world.handle(TimePassed())

    assert world.producing
    for one, number in held:
        world.release(one, number)
        world.grant(one, number + 5)
    world.run()
    assert [one.taken for one in ranks] == [one.batches_of_all(30) for one in ranks]


def test_a_credit_that_grows_within_what_its_session_holds_breaks_no_rule() -> None:
    """The others leave as they came: whoever held its batches before they took its credit gets some of it back."""
    world = World(train(300), train(100, name="big", slot_bytes=2 * MIB), memory=28 * MIB, workers=1)
    holder = world.subscribe(credit=8, user=1002)
    while len(holder.held) < 8:
        world.produce()
    own, large = world.subscribe(credit=8), world.subscribe("big", credit=4, user=1002)
    shrunk = holder.credit
    late = world.subscribe(credit=3)
    for trainer in (late, large):
        if trainer.open:
            world.end(trainer, lost=False)

    assert shrunk < holder.credit <= len(holder.held)
    assert own.open
