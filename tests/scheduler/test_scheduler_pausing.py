"""A stream without its data is paused: it delays no other stream, and resumes where it was."""

from __future__ import annotations

import pytest
from support.scheduler_driver import MIB, World, train

from streamd.core.spec import BatchKey
from streamd.errors import BrokenRuleError
from streamd.scheduler.events import DropSlots, ProduceBatch, ProgressReported, StreamChanged


def test_a_paused_stream_resumes_where_it_was_and_sends_each_batch_once() -> None:
    world = World(train(9))
    one, two = world.subscribe(), world.subscribe()
    world.produce()
    in_work = [job.slot for job in world.producing]

    actions = world.pause()

    assert DropSlots(tuple(in_work)) in actions  # a worker may still write there
    assert not world.producing
    world.run()
    assert [len(each.taken) for each in (one, two)] == [1, 1]
    assert not one.stopped
    assert [type(action) for action in world.resume()] == [ProduceBatch] * len(in_work)
    world.run()
    assert one.taken == two.taken == one.batches_of_all(9)


def test_a_paused_stream_leaves_workers_and_memory_to_others() -> None:
    world = World(train(9), train(9, name="validation"), memory=12 * MIB, workers=1)
    waits, other = world.subscribe(), world.subscribe("validation")
    world.pause()
    assert [job.key.stream for job in world.producing] == ["validation"] * 2
    world.run(other)
    assert other.taken == other.batches_of_all(9)
    late = world.subscribe(credit=2)
    assert late.open
    world.resume()
    world.run()
    assert waits.taken == late.taken == waits.batches_of_all(9)


def test_batches_ready_before_the_pause_are_still_sent() -> None:
    world = World(train(9))
    trainer = world.subscribe(credit=2)
    for _ in range(2):
        world.produce()
    world.produce_all()
    ready = len(world.window._pool.entries)
    world.pause()
    world.run()
    assert len(trainer.taken) == ready > 2


def test_a_new_stream_of_the_same_name_is_not_paused() -> None:
    world = World(train(9))
    world.subscribe()
    world.pause()
    world.handle(StreamChanged("train", train(9)))
    again = world.subscribe()
    world.run(again)
    assert again.taken == again.batches_of_all(9)


def test_producing_a_batch_of_a_paused_stream_breaks_a_rule() -> None:
    world = World(train(9))
    world.subscribe()
    world.pause()
    action = ProduceBatch(BatchKey("train", 0, 7), 99, MIB)
    with pytest.raises(BrokenRuleError, match=r"slot_free_to_write .* while it is paused"):
        world.window._invariant_checker.check_event(ProgressReported(1, 0), [action], world.window.used_bytes + MIB)
