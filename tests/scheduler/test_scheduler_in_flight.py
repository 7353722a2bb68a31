"""How many more batches the workers can be given."""

from __future__ import annotations

import pytest
from support.scheduler_driver import MIB, train

from streamd.core.spec import StreamShape
from streamd.limits import KEEP_COST_S, MAX_TASKS_AHEAD, TASKS_AHEAD_PER_WORKER, WORK_BESIDE_OTHERS_S
from streamd.scheduler.admission import SchedulerLimits
from streamd.scheduler.scheduler import Workload

SHAPE = train(100)
WORKERS = 2
DEAR_S = 0.5
CHEAP_S = 0.0001


def load(*shapes: StreamShape, memory: int = 1024 * MIB) -> Workload:
    return Workload(shapes or (SHAPE,), SchedulerLimits(memory, WORKERS))


def produce(work: Workload, shape: StreamShape, cost_s: float, since_s: float = 0.0) -> None:
    work.start_batch(shape, 1)
    work.finish_batch(1, since_s, since_s + cost_s)


def filled(work: Workload, shape: StreamShape) -> int:
    """How many batches go into production until there is no room for another one."""
    before = len(work)
    while not work.is_full:
        work.start_batch(shape, len(work) + 100)
    return len(work) - before


def test_a_worker_gets_two_tasks_while_their_cost_is_unknown_or_high() -> None:
    fresh, dear = load(), load()
    produce(dear, SHAPE, DEAR_S)

    assert filled(fresh, SHAPE) == filled(dear, SHAPE) == WORKERS * TASKS_AHEAD_PER_WORKER
    assert fresh.is_full
    assert dear.is_full


def test_a_worker_gets_more_cheap_tasks_unless_memory_is_scarce() -> None:
    plenty, scarce = load(), load()
    for work in (plenty, scarce):
        produce(work, SHAPE, CHEAP_S)
    scarce.is_memory_scarce = True

    assert filled(plenty, SHAPE) == WORKERS * MAX_TASKS_AHEAD
    assert filled(scarce, SHAPE) == WORKERS * TASKS_AHEAD_PER_WORKER


def test_beside_sessions_of_another_stream_a_worker_gets_less_work_at_a_time() -> None:
    work = load()
    work.start_batch(SHAPE, 1)
    work.finish_batch(1, 0.0, WORK_BESIDE_OTHERS_S / 3, busy_s=WORK_BESIDE_OTHERS_S / 3)
    work.has_sessions_of_several_streams = True
    assert filled(work, SHAPE) == WORKERS * 3

    work.has_sessions_of_several_streams = False
    assert filled(work, SHAPE) == WORKERS * (MAX_TASKS_AHEAD - 3)


def test_a_long_task_takes_up_more_of_a_worker_than_a_short_one() -> None:
    short, long = train(100, name="short"), train(100, name="long")
    work = load(short, long)
    produce(work, short, CHEAP_S)
    produce(work, long, DEAR_S, since_s=1.0)
    for slot in range(WORKERS * MAX_TASKS_AHEAD // 2):
        work.start_batch(short, slot)

    assert filled(work, long) == WORKERS * TASKS_AHEAD_PER_WORKER // 2


def test_production_looks_as_far_ahead_as_the_workers_have_tasks() -> None:
    work = load()
    assert work.count_batches_ahead("train") == WORKERS * TASKS_AHEAD_PER_WORKER + 1

    produce(work, SHAPE, CHEAP_S)
    assert work.count_batches_ahead("train") == WORKERS * MAX_TASKS_AHEAD + 1

    work.is_memory_scarce = True
    assert work.count_batches_ahead("train") == WORKERS * TASKS_AHEAD_PER_WORKER + 1


def test_a_stream_fills_no_more_slots_at_once_than_its_limit() -> None:
    work = load(memory=5 * MIB)
    slots = 0
    while work.can_fill_another_batch("train"):
        slots += 1
        work.start_batch(SHAPE, slots)

    assert slots == 3
    work.remove_batch(1)
    assert work.can_fill_another_batch("train")


def test_a_batch_costs_the_time_since_the_previous_one() -> None:
    work = load()
    work.start_batch(SHAPE, 1)
    work.start_batch(SHAPE, 2)

    work.finish_batch(1, 0.0, 1.0)
    work.finish_batch(2, 0.0, 3.0)

    assert work.batch_costs_s["train"] == pytest.approx(1.0 + 0.1 * (2.0 - 1.0))


def test_batches_of_the_old_stream_do_not_count_for_the_new_one() -> None:
    old, new = train(100), train(50)
    work = load(old, memory=5 * MIB)
    for slot in (1, 2, 3):
        work.start_batch(old, slot)
    work.put_stream(new)
    assert work.can_fill_another_batch("train")

    work.finish_batch(1, 0.0, 1.0)
    work.start_batch(new, 4)

    assert work.can_fill_another_batch("train")
    assert len(work) == 3


def test_the_last_batch_of_a_removed_stream_is_no_longer_counted() -> None:
    work = load()
    work.start_batch(SHAPE, 1)
    work.remove_stream("train")

    work.finish_batch(1, 0.0, CHEAP_S)

    assert len(work) == 0
    assert not work.is_full


def test_the_work_of_a_batch_follows_the_time_that_workers_spent() -> None:
    work = load()
    unknown_s = work.estimate_batch_work_s(SHAPE)
    work.start_batch(SHAPE, 1)
    work.finish_batch(1, 0.0, 1.0, busy_s=3.0)
    assert work.estimate_batch_work_s(SHAPE) == pytest.approx(3.0)
    work.start_batch(SHAPE, 1)
    work.finish_batch(1, 1.0, 2.0, busy_s=5.0)

    assert work.estimate_batch_work_s(SHAPE) == pytest.approx(3.2)
    assert unknown_s == pytest.approx(0.01 * SHAPE.tasks)


@pytest.mark.parametrize(("busy_s", "is_expensive"), [(0.0, True), (KEEP_COST_S, False), (2 * KEEP_COST_S, True)])
def test_a_batch_that_the_daemon_finishes_late_is_not_expensive(busy_s: float, is_expensive: bool) -> None:
    work = load()
    work.start_batch(SHAPE, 1)
    work.finish_batch(1, 0.0, 5 * KEEP_COST_S, busy_s=busy_s)

    assert work.is_expensive("train") is is_expensive


def test_workers_that_join_get_tasks_and_those_of_workers_that_left_are_not_given_again() -> None:
    work = load()
    assert filled(work, SHAPE) == WORKERS * TASKS_AHEAD_PER_WORKER

    work.change_limits(SchedulerLimits(1024 * MIB, 2 * WORKERS))
    assert filled(work, SHAPE) == WORKERS * TASKS_AHEAD_PER_WORKER

    work.change_limits(SchedulerLimits(1024 * MIB, 1))
    assert work.is_full


def test_a_worker_behind_a_network_gets_as_many_tasks_as_it_needs_whatever_they_cost() -> None:
    work = load()
    work.change_limits(SchedulerLimits(1024 * MIB, WORKERS, tasks_ahead=MAX_TASKS_AHEAD))
    produce(work, SHAPE, DEAR_S)
    assert filled(work, SHAPE) == WORKERS * MAX_TASKS_AHEAD
