"""One scheduler, step by step: order, credit, leases, ranks, ends. `World` checks its rules after every event."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from support.scheduler_driver import MIB, World, epoch_of, steps_told, train, wish

from streamd.core.spec import Cursor, Segment, UnevenPolicy
from streamd.limits import TASKS_AHEAD_PER_WORKER
from streamd.scheduler.admission import SchedulerLimits
from streamd.scheduler.events import (
    BatchProduced,
    CreditGranted,
    DropSlots,
    Event,
    LeaseReleased,
    ProduceBatch,
    ProgressReported,
    SendBatch,
    SessionClosed,
    SessionLost,
    StopStream,
    StreamChanged,
    TimePassed,
)
from streamd.scheduler.scheduler import Scheduler


def test_a_lone_trainer_gets_all_batches_in_order_once_over_several_epochs() -> None:
    world = World(train(7))
    trainer = world.subscribe(epochs=3)

    world.run()

    assert trainer.taken == [(epoch, index) for epoch in range(3) for index in range(7)]
    assert len(world.made) == 21


def test_the_receipt_follows_the_last_batch_of_each_epoch_and_holds_all_its_steps() -> None:
    world = World(train(5))
    trainer = world.subscribe(epochs=2, credit=8)

    world.run(until=lambda: trainer.sent == 5)
    assert [cursor.epoch for cursor in trainer.receipts] == [0]
    world.run()

    assert [cursor.epoch for cursor in trainer.receipts] == [0, 1]
    assert [steps_told(cursor) for cursor in trainer.receipts] == [[0, 1, 2, 3, 4]] * 2
    assert trainer.receipts[1].history == (Segment(0, 5, 0, 1),)


def test_a_trainer_past_its_last_epoch_is_sent_nothing() -> None:
    world = World(train(5))

    trainer = world.subscribe(epochs=2, cursor=Cursor(2))

    assert trainer.open
    assert not world.made
    assert not trainer.receipts


def test_without_a_number_of_epochs_a_session_never_ends() -> None:
    world = World(train(3))
    trainer = world.subscribe(epochs=None)

    world.run(until=lambda: len(trainer.taken) >= 30)

    assert trainer.taken[-1] >= (9, 0)


def test_events_handled_together_are_answered_in_order_before_new_production() -> None:
    scheduler = Scheduler([train(9)], SchedulerLimits(64 * MIB, workers=1))
    started = [action for action in scheduler.handle_events([wish()], 0.0) if isinstance(action, ProduceBatch)]
    assert [made.key.index for made in started] == [0]

    came: list[Event] = [CreditGranted(1, 4), *(BatchProduced(made.slot) for made in started)]
    actions = scheduler.handle_events(came, 0.001)

    assert [type(action) for action in actions[:2]] == [SendBatch, ProduceBatch]
    assert [action.slot for action in actions if isinstance(action, SendBatch)] == [made.slot for made in started]
    assert [action.key.index for action in actions if isinstance(action, ProduceBatch)][:2] == [1, 2]


@pytest.mark.parametrize(
    ("grants", "sent"),
    [((), [0]), ((2, 4), [0, 2, 4]), ((3, 3, 1, 0, 2, 3), [0, 3, 3, 3, 3, 3, 3])],
    ids=["no credit", "growing credit", "repeated and reordered credit"],
)
def test_a_trainer_is_sent_no_more_batches_than_it_was_granted(grants: tuple[int, ...], sent: list[int]) -> None:
    world = World(train(9))
    trainer = world.subscribe(credit=6)
    world.end(trainer, lost=False)
    world.connect(trainer, grant=False)
    world.produce_all()

    found = [trainer.sent]
    for upto in grants:
        world.grant(trainer, upto)
        found.append(trainer.sent)

    assert found == sent


def test_a_trainer_never_holds_more_batches_than_its_credit() -> None:
    world = World(train(50))
    trainer = world.subscribe(credit=3)
    world.grant(trainer, 1000)
    world.produce_all()

    assert sorted(trainer.held) == [0, 1, 2]
    world.release(trainer, 1)
    assert sorted(trainer.held) == [0, 2, 3]


def test_events_of_unknown_sessions_and_batches_are_ignored() -> None:
    world = World(train(9))
    trainer = world.subscribe(credit=3)
    world.produce()
    strange: list[Event] = [
        CreditGranted(99, 5),
        LeaseReleased(99, (0, 1)),
        LeaseReleased(trainer.session, (7, 8, 1 << 60)),
        ProgressReported(99, 1),
        SessionLost(99),
        SessionClosed(99),
    ]

    assert [action for event in strange for action in world.handle(event) if isinstance(action, SendBatch)] == []
    world.run()
    assert trainer.taken == trainer.batches_of_all(9)


def test_a_repeated_release_frees_the_lease_once() -> None:
    world = World(train(9))
    one, other = world.subscribe(credit=4), world.subscribe(credit=4)
    world.produce()
    slot = one.held[0]

    world.release(one, 0)
    world.release(one, 0)

    assert other.held[0] == slot
    assert world.window._pool.by_slot[slot].lease_count == 1


def test_progress_is_recorded_and_never_decreases() -> None:
    world = World(train(9))
    trainer = world.subscribe()
    for taken in (2, 1):
        assert world.handle(ProgressReported(trainer.session, taken)) == []

    assert world.window.sessions[0].taken == 2


def test_trainers_in_step_share_every_decoded_batch() -> None:
    world = World(train(20))
    trainers = [world.subscribe(epochs=2) for _ in range(4)]

    world.run()

    assert all(trainer.taken == trainer.batches_of_all(20) for trainer in trainers)
    assert set(Counter(world.made).values()) == {1}


def test_trainers_share_one_slot_a_batch_until_the_last_releases_it() -> None:
    world = World(train(9), workers=1)
    one, other = world.subscribe(credit=2), world.subscribe(credit=2)
    world.produce()
    assert one.held == other.held

    world.take(one)
    assert other.held[0] not in world.window._pool.free_slots.get(MIB, [])
    world.take(other)
    assert world.window._pool.by_slot.get(0) is None


def test_each_worker_gets_about_two_tasks_whatever_the_batch_size() -> None:
    for tasks, running in ((1, 6), (2, 3), (4, 2), (100, 1)):
        world = World(train(50, tasks=tasks), workers=3)
        world.subscribe(credit=20)

        assert len(world.producing) == running
        assert world.tasks - tasks < 3 * TASKS_AHEAD_PER_WORKER


@pytest.mark.parametrize("at", [0, 1, 4, 5])
def test_a_session_continues_with_the_step_after_its_cursor(at: int) -> None:
    world = World(train(5))
    cursor = Cursor(1, (Segment(0, at, 0, 1),) if at else ())
    trainer = world.subscribe(epochs=3, cursor=cursor)

    world.run()

    assert trainer.taken == [(1, index) for index in range(at, 5)] + [(2, index) for index in range(5)]
    assert [(told.epoch, steps_told(told)) for told in trainer.receipts] == [(1, [0, 1, 2, 3, 4]), (2, [0, 1, 2, 3, 4])]


UNEVEN: tuple[UnevenPolicy, ...] = ("drop", "pad")


@pytest.mark.parametrize(("world_size", "uneven"), list(itertools.product(range(1, 6), UNEVEN)))
def test_ranks_take_every_batch_exactly_once_together(world_size: int, uneven: UnevenPolicy) -> None:
    batches = 13
    world = World(train(batches))
    ranks = [world.subscribe(rank=rank, world=world_size, uneven=uneven) for rank in range(world_size)]

    world.run()

    steps = batches // world_size if uneven == "drop" else -(-batches // world_size)
    assert all(len(rank.taken) == steps for rank in ranks)
    assert sorted(index for rank in ranks for _, index in rank.taken) == list(range(steps * world_size))


def test_a_world_may_change_in_the_middle_of_an_epoch() -> None:
    world = World(train(11))
    first = [world.subscribe(rank=rank, world=2) for rank in range(2)]
    while len(first[0].inbox) < 2:
        world.produce()
    world.take(first[0], 2)
    cursor = first[0].cursor
    assert cursor.next_base_index == 4
    for rank in first:
        world.end(rank, lost=True)

    second = [world.subscribe(rank=rank, world=3, cursor=cursor) for rank in range(3)]
    world.run(*second)

    assert sorted(index for rank in second for _, index in rank.taken) == list(range(4, 10))
    assert second[0].receipts[0].history == (Segment(0, 2, 0, 2), Segment(4, 2, 0, 3))


def test_the_test_helper_counts_the_batches_of_a_rank() -> None:
    assert epoch_of(7, 0, 1, 3, "drop") == [1, 4]
    assert epoch_of(7, 0, 1, 3, "pad") == [1, 4, 7]
    assert epoch_of(6, 3, 2, 3, "pad") == [5]
    assert epoch_of(6, 6, 0, 3, "pad") == []


def test_a_failed_production_stops_only_its_stream_which_then_accepts_new_sessions() -> None:
    world = World(train(9), train(9, name="validation"))
    one, two, other = world.subscribe(), world.subscribe(), world.subscribe("validation")

    failed, actions = world.fail("the disk is gone")

    assert StopStream("train", (one.session, two.session), "the disk is gone", changed=False) in actions
    assert DropSlots((failed.slot,)) in actions
    world.run(other)
    assert other.taken == other.batches_of_all(9)
    assert not other.stopped
    again = world.subscribe()
    world.run(again)
    assert again.taken == again.batches_of_all(9)


def test_a_changed_stream_ends_its_sessions_and_serves_only_new_batches() -> None:
    world = World(train(9), train(9, name="validation"))
    old, other = world.subscribe(), world.subscribe("validation")
    world.run(until=lambda: len(old.taken) == 3)
    old_jobs = {job.slot for job in world.producing if job.key.stream == "train"}
    assert old_jobs

    shape = world.shapes["train"] = train(5, slot_bytes=2 * MIB, tasks=3)
    world.checking = False  # the old productions still run, in slots of the old size
    actions = world.handle(StreamChanged("train", shape))
    new = world.subscribe()
    world.run(new, other)

    assert StopStream("train", (old.session,), "its configuration changed", changed=True) in actions
    assert old.stopped
    assert new.taken == new.batches_of_all(5)
    assert other.taken == other.batches_of_all(9)
    assert world.window.producing_count == 0
    assert not world.window._workload._tasks_running


def test_removing_a_stream_in_production_leaves_no_worker_counted_as_busy() -> None:
    world = World(train(9, tasks=2), train(9, name="validation"), workers=1)
    world.subscribe()
    assert world.producing

    world.handle(StreamChanged("train", None))
    world.produce_all()
    other = world.subscribe("validation")
    world.run(other)

    assert other.taken == other.batches_of_all(9)
    assert not world.window._workload._tasks_running


def test_a_late_failure_of_the_old_stream_does_not_stop_the_new_one() -> None:
    world = World(train(9))
    world.subscribe()
    world.handle(StreamChanged("train", train(9)))
    new = world.subscribe()

    _, actions = world.fail("too late")

    assert not any(isinstance(action, StopStream) for action in actions)
    assert not new.stopped


def test_a_draining_scheduler_produces_nothing_more_but_sends_batches_in_production() -> None:
    world = World(train(50), workers=2)
    trainer = world.subscribe(credit=8)
    made = len(world.made)

    world.drain()
    world.run()

    assert len(world.made) == made
    assert len(trainer.taken) == made


def test_idle_memory_is_freed_half_a_minute_after_the_last_session() -> None:
    world = World(train(9))
    assert world.window.next_deadline_s() is None
    trainer = world.subscribe()
    world.run()
    assert world.window.next_deadline_s() is None

    world.now_s = 100.0
    world.end(trainer, lost=False)
    assert world.window.used_bytes > 0
    assert world.window.next_deadline_s() == 130.0
    world.now_s = 129.0
    assert world.handle(TimePassed()) == []
    late = world.subscribe(epochs=0)
    assert world.window.next_deadline_s() is None, "a new session puts it off"
    world.now_s = 1000.0
    assert world.handle(TimePassed()) == []
    world.end(late, lost=False)
    world.now_s = 1030.0
    dropped = world.handle(TimePassed())

    assert [type(action) for action in dropped] == [DropSlots]
    assert world.window.used_bytes == 0
    assert world.window.next_deadline_s() is None
