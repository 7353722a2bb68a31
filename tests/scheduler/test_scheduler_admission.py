"""Which sessions are admitted with how much credit, and the messages of refusals."""

from __future__ import annotations

from typing import Any

import pytest
from support.scheduler_driver import MIB, World, train, wish

from streamd.core.spec import StreamShape, UnevenPolicy
from streamd.limits import MAX_CREDIT, MAX_SLOTS
from streamd.scheduler.admission import (
    ADMISSION_RETRY_S,
    AdmissionDenial,
    AdmissionGrant,
    SchedulerLimits,
    admit_session,
    compute_production_slots,
    compute_session_bytes,
    compute_tasks_per_worker,
)
from streamd.scheduler.events import ProgressReported
from streamd.scheduler.session import ScheduledSession

SHAPE = train(100)
WORKERS = 2  # five slots in production


def session(number: int, credit: int, *, held: int = 0, shape: StreamShape = SHAPE) -> ScheduledSession:
    made = ScheduledSession.from_subscription(wish(number, credit=8), shape, credit)
    made.leases = {number: number for number in range(held)}
    return made


def ask(
    memory_mib: int, *sessions: ScheduledSession, shape: StreamShape = SHAPE, **wanted: Any
) -> AdmissionGrant | AdmissionDenial:
    event = wish(9, **{"credit": 8, **wanted})
    return admit_session(event, shape, sessions, SchedulerLimits(memory_mib * MIB, WORKERS))


def denied(verdict: AdmissionGrant | AdmissionDenial) -> AdmissionDenial:
    assert isinstance(verdict, AdmissionDenial)
    return verdict


@pytest.mark.parametrize(
    ("tasks", "workers", "slots"), [(1, 2, 17), (1, 16, 129), (2, 2, 9), (3, 2, 7), (4, 2, 5), (64, 2, 2)]
)
def test_production_slots_hold_eight_tasks_a_worker_and_one_more_batch(tasks: int, workers: int, slots: int) -> None:
    assert compute_production_slots(train(9, tasks=tasks), SchedulerLimits(1 << 40, workers)) == slots


# Down to two tasks a worker, production takes an eighth of the memory at most; then it leaves two slots to a session.
@pytest.mark.parametrize(
    ("memory", "slots"),
    [(800, 17), (100, 12), (48, 6), (40, 5), (8, 5), (7, 5), (6, 4), (4, 2), (3, 1), (1, 1)],
)
def test_production_takes_fewer_slots_where_memory_is_small(memory: int, slots: int) -> None:
    assert compute_production_slots(SHAPE, SchedulerLimits(memory * MIB, WORKERS)) == slots


@pytest.mark.parametrize(
    ("task_s", "tasks"), [(0.0, 2), (1e-9, 8), (0.003, 8), (0.006, 4), (0.009, 2), (0.02, 2), (10.0, 2)]
)
def test_a_worker_gets_more_cheap_tasks_than_expensive_ones(task_s: float, tasks: int) -> None:
    assert compute_tasks_per_worker(task_s) == tasks


def test_production_memory_is_that_of_the_largest_stream_in_use() -> None:
    large = train(9, name="large", slot_bytes=4 * MIB)

    limits = SchedulerLimits(40 * MIB, WORKERS)
    assert compute_session_bytes([session(1, 2)], limits) == (40 - 5) * MIB
    assert compute_session_bytes([session(1, 2), session(2, 2, shape=large)], limits) == (40 - 20) * MIB


@pytest.mark.parametrize(
    ("slots", "others", "grant"),
    [
        pytest.param(16, (), AdmissionGrant(8, {}), id="it gets the credit that it wants where memory permits"),
        pytest.param(15, (), AdmissionGrant(7, {}), id="it gets no more than half of what is free"),
        pytest.param(3, (), AdmissionGrant(2, {}), id="it gets two at least"),
        pytest.param(2, (), AdmissionGrant(2, {}), id="it gets two of two"),
        pytest.param(8 + 4, (8,), AdmissionGrant(4, {1: 4}), id="the first part of the memory is shared with another"),
        pytest.param(8 + 6, (8,), AdmissionGrant(5, {1: 4}), id="it may get more than the other is left with"),
        pytest.param(2 * 8 + 4, (8,), AdmissionGrant(6, {}), id="it takes less than it wants before another shrinks"),
        pytest.param(12, (8, 8), AdmissionGrant(2, {1: 4, 2: 4}), id="others shrink before it is refused"),
        pytest.param(6, (8, 8), AdmissionGrant(2, {1: 2, 2: 2}), id="others shrink to two before it is refused"),
    ],
)
def test_a_new_session_is_granted_credit(slots: int, others: tuple[int, ...], grant: AdmissionGrant) -> None:
    assert ask(5 + slots, *(session(number, credit) for number, credit in enumerate(others, 1))) == grant


@pytest.mark.parametrize(("slots", "trainers"), [(4, 2), (8, 3), (16, 4), (64, 11)])
def test_trainers_that_hold_their_whole_credit_leave_room_for_the_next(slots: int, trainers: int) -> None:
    sessions: list[ScheduledSession] = []
    while isinstance(verdict := ask(5 + slots, *sessions), AdmissionGrant):
        for number, credit in verdict.shrunk_credits.items():
            sessions[number].credit = credit
        sessions.append(session(len(sessions), verdict.credit, held=verdict.credit))

    assert len(sessions) == trainers


def test_credit_is_limited_by_the_number_of_descriptors() -> None:
    first = session(1, MAX_CREDIT)
    rest = [session(number, 450) for number in range(2, 8)]
    total = MAX_SLOTS - 17
    extra = total - (total // 8 + 14) - (512 - 2) - 6 * (450 - 2)

    assert ask(1 << 20, first, *rest, credit=MAX_CREDIT) == AdmissionGrant(2 + extra, {1: 512})


@pytest.mark.parametrize(("wanted", "credit"), [(-5, 2), (0, 2), (1, 2), (1 << 20, MAX_CREDIT)])
def test_credit_is_at_least_two_and_bounded(wanted: int, credit: int) -> None:
    assert ask(1 << 20, credit=wanted) == AdmissionGrant(credit, {})


def test_a_stream_too_large_for_memory_is_refused_with_the_calculation() -> None:
    no = denied(ask(2))

    assert no.refusal == "memory"
    assert no.retry_s is None
    assert "one batch takes 1.0 MiB" in no.text
    assert "take 3.0 MiB, but memory is limited to" in no.text
    assert "memory is limited to 2.0 MiB" in no.text
    assert "set memory to at least 3MiB" in no.text


def test_the_memory_that_the_message_advises_is_enough() -> None:
    shape = train(100, slot_bytes=5 * MIB + 4096)
    no = denied(ask(11, shape=shape))
    advised = int(no.text.split("at least ")[1].split("MiB")[0])

    assert advised > 11
    assert isinstance(ask(advised, shape=shape), AdmissionGrant)


def test_deciding_on_admission_changes_no_session() -> None:
    one, two = session(1, 8), session(2, 8)

    assert isinstance(ask(5 + 6, one, two), AdmissionGrant)
    assert isinstance(ask(5 + 5, one, two), AdmissionDenial)
    assert (one.credit, two.credit) == (8, 8)


def test_no_credit_shrinks_for_a_session_that_is_refused() -> None:
    no = denied(ask(5 + 3, session(1, 8), resuming=True))

    assert no.shrunk_credits == {}


def test_without_memory_a_new_session_is_refused_and_a_resuming_one_told_to_retry() -> None:
    new = denied(ask(5 + 3, session(1, 2)))
    resuming = denied(ask(5 + 3, session(1, 2), resuming=True))

    assert new.retry_s is None
    assert resuming.retry_s == ADMISSION_RETRY_S
    assert " together with the 1 session already open" in new.text
    assert "set memory to at least 9MiB" in new.text
    assert isinstance(ask(9, session(1, 2)), AdmissionGrant)


def test_a_session_must_wait_for_batches_held_beyond_a_shrunk_credit() -> None:
    holder = session(1, 8, held=8)
    no = denied(ask(5 + 9, holder))

    assert no.retry_s == ADMISSION_RETRY_S
    assert no.shrunk_credits == {1: 4}
    assert "give back" in no.text

    holder.credit = 4
    holder.leases = {number: number for number in range(4)}
    assert ask(5 + 9, holder) == AdmissionGrant(2, {})


def test_more_ranks_than_batches_are_refused_unless_steps_are_padded() -> None:
    no = denied(ask(99, world=101))

    assert no.refusal == "usage"
    assert no.retry_s is None
    assert "world 101 is more than the 100 batches" in no.text
    assert isinstance(ask(99, world=100), AdmissionGrant)
    assert isinstance(ask(99, world=101, uneven="pad"), AdmissionGrant)


@pytest.mark.parametrize("uneven", ["drop", "pad"])
def test_a_stream_without_a_batch_is_refused(uneven: UnevenPolicy) -> None:
    assert denied(ask(99, shape=train(0), uneven=uneven)).refusal == "usage"


def test_the_scheduler_shrinks_other_credits_to_admit_a_session() -> None:
    world = World(SHAPE, memory=11 * MIB, workers=WORKERS)
    first, second, third = (world.subscribe(credit=8) for _ in range(3))

    assert (first.credit, second.credit, third.credit) == (2, 2, 2)
    assert [each.credit for each in world.window.sessions] == [2, 2, 2]
    assert world.warnings == ["memory is short: sessions [1] get fewer batches to make room for another session"]
    world.run()
    assert first.taken == second.taken == third.taken == first.batches_of_all(100)


def test_a_refused_session_is_not_created() -> None:
    world = World(SHAPE, memory=2 * MIB)
    trainer = world.subscribe()

    assert trainer.refused is not None
    assert trainer.refused.refusal == "memory"
    assert world.window.sessions == ()
    assert not world.made


def test_a_refused_session_is_admitted_after_others_release_batches() -> None:
    world = World(SHAPE, memory=11 * MIB, workers=WORKERS)
    holders = [world.subscribe(credit=8) for _ in range(2)]
    while any(len(each.held) < each.credit for each in holders):
        world.produce()
    assert [each.credit for each in holders] == [3, 2]
    late = world.subscribe(credit=8)
    assert late.refused is not None
    assert late.refused.retry_s == ADMISSION_RETRY_S

    world.take(holders[0])

    assert world.connect(late)
    assert late.credit == 2


def test_stopped_trainers_that_hold_their_whole_credit_do_not_block_a_new_session() -> None:
    world = World(SHAPE, memory=13 * MIB, workers=WORKERS)
    stopped = [world.subscribe(credit=1024) for _ in range(2)]
    while any(len(each.held) < each.credit for each in stopped):
        world.produce()

    late = world.subscribe(credit=8)

    world.run(late)
    assert late.taken == late.batches_of_all(100)


def test_credit_grows_again_when_other_sessions_end() -> None:
    world = World(SHAPE, memory=11 * MIB, workers=WORKERS)
    first, second, third = (world.subscribe(credit=8) for _ in range(3))
    alone = World(SHAPE, memory=11 * MIB, workers=WORKERS).subscribe(credit=8).credit

    world.end(second, lost=True)
    world.end(third, lost=False)

    assert first.credit == alone > 2
    world.run(first)
    assert first.taken == first.batches_of_all(SHAPE.batches)


def test_a_trainer_that_holds_several_batches_keeps_enough_credit() -> None:
    world = World(train(40), memory=13 * MIB, workers=WORKERS)
    holder = world.subscribe(credit=8)
    assert holder.credit == 4
    while len(holder.inbox) < 4:
        world.produce()
    held = [world.receive(holder) for _ in range(3)]
    world.handle(ProgressReported(holder.session, 3))

    others = [world.subscribe(credit=2) for _ in range(6)]

    assert holder.credit == 4
    assert any(other.refused for other in others)
    assert world.window.sessions[0].least_credit == 4
    world.release(holder, *held)
    world.run()
    assert holder.taken == holder.batches_of_all(40)
