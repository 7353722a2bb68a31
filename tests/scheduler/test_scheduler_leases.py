"""Batches held from ended sessions count in memory, and in the credit of the trainer's next session."""

from __future__ import annotations

import pytest
from support.scheduler_driver import MIB, Trainer, World, train

from streamd.scheduler.events import LeaseReleased, SessionClosed, StreamChanged


def take_and_hold(world: World, trainer: Trainer, batches: int) -> list[int]:
    """Lets the trainer take so many batches and keep them; returns their slots."""
    slots = []
    for _ in range(batches):
        world.run(trainer, until=lambda: bool(trainer.inbox))
        number = world.receive(trainer)
        world.grant(trainer, number + 1 + trainer.credit)
        slots.append(trainer.held[number])
    return slots


def tight(slots: int, *, credit: int = 2) -> tuple[World, Trainer]:
    """A world with so much memory, one slot of it for production, and a trainer."""
    world = World(train(40), memory=slots * MIB, workers=1)
    return world, world.subscribe(credit=credit)


def holding_over(slots: int, batches: int, *, credit: int = 2) -> tuple[World, Trainer, int]:
    """A world, its trainer that holds so many batches of a session that it has closed, and that session's number."""
    world, trainer = tight(slots, credit=credit)
    take_and_hold(world, trainer, batches)
    session = trainer.session
    world.close(trainer)
    return world, trainer, session


def test_batches_held_from_an_ended_session_count_until_they_are_dropped() -> None:
    world, trainer = tight(9, credit=4)
    one, two = take_and_hold(world, trainer, 2)
    session = trainer.session
    world.close(trainer)
    other = world.subscribe(credit=2)
    world.run(other)
    assert {one, two} <= world.slots.keys()
    assert [each.held_bytes for each in world.window.ended_sessions.values()] == [2 * MIB]

    world.drop(trainer, session, 0)
    assert [each.held_bytes for each in world.window.ended_sessions.values()] == [MIB]
    world.drop(trainer, session, 1)
    assert not world.window.ended_sessions


def test_slots_of_batches_not_taken_are_reused_when_the_session_ends() -> None:
    world, trainer = tight(9, credit=4)
    while len(trainer.held) < trainer.credit:
        world.produce()
    slots = set(trainer.held.values())
    world.close(trainer)
    assert not world.window.ended_sessions
    world.run(world.subscribe(credit=4))
    assert slots <= world.slots.keys()


def test_a_trainer_that_dies_after_its_session_frees_its_batches_and_its_slots_are_dropped() -> None:
    world, trainer = tight(9, credit=4)
    slots = set(take_and_hold(world, trainer, 2))
    world.close(trainer)
    world.die(trainer)
    assert slots <= world.gone
    assert not world.window.ended_sessions


def test_a_trainer_is_assumed_to_hold_every_batch_sent_until_it_reports() -> None:
    world, trainer = tight(9, credit=4)
    while len(trainer.held) < trainer.credit:
        world.produce()
    session, sent, taken = trainer.session, len(trainer.held), world.receive(trainer)
    world.close(trainer, told=False)
    assert len(world.window.ended_sessions[session].leases) == sent > 1
    world.handle(SessionClosed(session, (taken,)))
    assert list(world.window.ended_sessions[session].leases) == [taken]


def test_a_seeking_trainer_stays_within_its_credit_in_minimal_memory() -> None:
    world, trainer, session = holding_over(3, 1)
    assert world.connect(trainer, resuming=True)
    assert trainer.credit == 2

    world.run(trainer, until=lambda: len(trainer.held) == 1)
    world.produce_all()
    assert len(trainer.held) == 1, "one that it holds still, one that it was sent"
    world.drop(trainer, session, 0)
    world.produce_all()
    assert len(trainer.held) == 2


def test_a_trainer_that_still_holds_its_whole_credit_is_sent_nothing_until_it_drops_a_batch() -> None:
    world, trainer, session = holding_over(3, 2)
    assert world.connect(trainer, resuming=True)
    world.produce_all()
    assert trainer.held == {}
    world.drop(trainer, session, 0)
    world.produce_all()
    assert len(trainer.held) == 1


def test_batches_held_over_do_not_reduce_the_credit_if_memory_allows() -> None:
    world, trainer, session = holding_over(32, 2, credit=4)
    world.connect(trainer)
    assert trainer.credit == 6
    world.drop(trainer, session, 0, 1)
    assert trainer.credit == 4


@pytest.mark.parametrize("resuming", [True, False])
def test_another_trainer_is_refused_for_a_while_because_of_batches_held_over(*, resuming: bool) -> None:
    world, trainer, session = holding_over(3, 1)
    other = world.subscribe(credit=2)
    refused = other.refused
    assert refused is not None
    assert refused.retry_s is not None
    assert (
        "take 4.0 MiB together with the 1.0 MiB of 1 batch that trainers still hold of subscriptions that have ended"
    ) in refused.text
    assert (
        "drop the arrays and tensors taken from those batches and keep batch.copy() or images.clone() instead"
    ) in refused.text
    world.drop(trainer, session, 0)
    assert world.connect(other, resuming=resuming)


def test_batches_held_over_are_counted_with_one_session_only() -> None:
    world, trainer, _ = holding_over(32, 2, credit=4)
    world.connect(trainer)
    twin = world.subscribe(credit=4)
    world.end(twin, lost=True)
    twin.earlier = trainer.earlier
    world.connect(twin)
    assert (trainer.credit, twin.credit) == (6, 4)


def test_batches_held_over_count_in_the_credit_of_the_next_session_once_more() -> None:
    world, trainer, first = holding_over(32, 2, credit=4)
    world.connect(trainer)
    take_and_hold(world, trainer, 1)
    second = trainer.session
    world.close(trainer)
    assert world.connect(trainer)
    assert trainer.credit == 7
    world.drop(trainer, first, 0, 1)
    assert trainer.credit == 5
    world.drop(trainer, second, 0)
    assert trainer.credit == 4


def test_a_session_that_is_not_known_is_nobodys_earlier_one() -> None:
    world, trainer, session = holding_over(32, 2, credit=4)
    trainer.earlier[session + 7] = {}
    world.connect(trainer)
    assert trainer.credit == 6


def test_batches_of_another_user_do_not_count_in_the_credit() -> None:
    world = World(train(40), memory=64 * MIB, workers=1)
    holder = world.subscribe(credit=4, user=1001)
    take_and_hold(world, holder, 2)
    world.close(holder)
    other = world.subscribe(credit=4, user=1002)
    world.end(other, lost=False)
    other.earlier = holder.earlier
    world.connect(other)
    world.connect(holder)
    assert (other.credit, holder.credit) == (4, 6)


def test_batches_held_over_of_another_size_do_not_count_in_the_credit() -> None:
    world, trainer = tight(32, credit=4)
    take_and_hold(world, trainer, 2)
    shape = world.shapes["train"] = train(40, slot_bytes=2 * MIB)
    world.handle(StreamChanged("train", shape))
    assert trainer.stopped is not None
    world.connect(trainer)
    assert trainer.credit == 4
    assert sum(each.held_bytes for each in world.window.ended_sessions.values()) == 2 * MIB


def test_batches_held_from_a_removed_stream_stay_in_memory() -> None:
    world, trainer = tight(9, credit=4)
    (slot,) = take_and_hold(world, trainer, 1)
    session = trainer.session
    world.handle(StreamChanged("train", None))
    assert slot in world.slots
    assert slot not in world.gone
    world.handle(LeaseReleased(session, tuple(trainer.earlier.pop(session))))
    assert not world.window.ended_sessions
