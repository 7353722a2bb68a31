"""Whether one more session fits, and how much credit is left for it. Arithmetic, and the words that explain it.

No session is given more than half of what is free, so that what it holds, stopped for ever perhaps, leaves room for the
next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from streamd.core.spec import StreamShape, count_steps_left
from streamd.core.text import format_count
from streamd.ipc.messages import Refusal
from streamd.limits import (
    AHEAD_SHARE,
    MAX_SLOTS,
    MAX_TASKS_AHEAD,
    MIB,
    MIN_CREDIT,
    TASKS_AHEAD_PER_WORKER,
    WORK_AHEAD_S,
)
from streamd.scheduler.ended_sessions import HeldOverMemory
from streamd.scheduler.events import Subscribed
from streamd.scheduler.session import ScheduledSession, clamp_wanted_credit

ADMISSION_RETRY_S = 0.5  # sessions end and leases return at any time
_NOTHING_HELD_OVER: Final = HeldOverMemory()


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What all sessions share: the bytes of all slots together and their number, and the workers that fill them."""

    memory_bytes: int
    workers: int
    most_slots: int = MAX_SLOTS


@dataclass(frozen=True, slots=True)
class AdmissionGrant:
    """A new session's credit; `shrunk` tells what others have left for its sake: session -> credit."""

    credit: int
    shrunk_credits: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class AdmissionDenial:
    """Why a session is not admitted. Others shrink only when that will let it in after `retry_s`."""

    refusal: Refusal
    text: str
    retry_s: float | None = None
    shrunk_credits: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _FreeCapacity:
    """What there is for sessions: bytes, and slots, since each is a descriptor in the daemon and in every worker."""

    free_bytes: int
    free_slots: int

    def subtract_sessions(self, sessions: Sequence[ScheduledSession], counts: Mapping[int, int]) -> _FreeCapacity:
        """What is left when each session has so many slots; may be less than nothing."""
        taken = sum(counts[session.id] * session.shape.slot_bytes for session in sessions)
        return _FreeCapacity(self.free_bytes - taken, self.free_slots - sum(counts.values()))

    def count_fitting_batches(self, slot_bytes: int) -> int:
        """How many batches of a size fit."""
        return min(self.free_bytes // slot_bytes, self.free_slots)


def compute_production_slots(shape: StreamShape, limits: SchedulerLimits) -> int:
    """Slots that production may fill at a time, as far as two are left for a session.

    Two tasks a worker, or as many as a worker is ever given where that is a small part of the memory.
    """
    least, most = (
        compute_batches_ahead(shape, limits.workers, tasks) for tasks in (TASKS_AHEAD_PER_WORKER, MAX_TASKS_AHEAD)
    )
    wanted = max(least, min(most, limits.memory_bytes // AHEAD_SHARE // shape.slot_bytes))
    return max(1, min(wanted, limits.memory_bytes // shape.slot_bytes - MIN_CREDIT, limits.most_slots // 2))


def compute_batches_ahead(shape: StreamShape, workers: int, tasks: int) -> int:
    """Batches in which each worker has so many tasks, and one more."""
    return -(-workers * tasks // shape.tasks) + 1


def compute_tasks_per_worker(task_s: float) -> int:
    """Tasks that lie with a worker at a time when one takes so long; 0 says that nothing is known yet."""
    wanted = int(WORK_AHEAD_S / task_s) if task_s > 0 else TASKS_AHEAD_PER_WORKER
    return max(TASKS_AHEAD_PER_WORKER, min(MAX_TASKS_AHEAD, wanted))


def compute_production_bytes(sessions: Sequence[ScheduledSession], limits: SchedulerLimits, shape: StreamShape) -> int:
    """Bytes that the workers fill at a time, for `shape` and all streams in use."""
    shapes = {session.shape.name: session.shape for session in sessions} | {shape.name: shape}
    return max(compute_production_slots(each, limits) * each.slot_bytes for each in shapes.values())


def compute_least_stream_bytes(shape: StreamShape, limits: SchedulerLimits) -> int:
    """What a stream takes when its one session has the smallest credit: over `memory_bytes`, nobody can subscribe."""
    return (MIN_CREDIT + compute_production_slots(shape, limits)) * shape.slot_bytes


def admit_session(
    event: Subscribed,
    shape: StreamShape,
    sessions: Sequence[ScheduledSession],
    limits: SchedulerLimits,
    held_over: HeldOverMemory = _NOTHING_HELD_OVER,
) -> AdmissionGrant | AdmissionDenial:
    """The credit of a new session, and of those whose credit has to shrink for it; or why not.

    What its trainer holds of earlier sessions counts within the credit, where memory allows on top of what it asks for.
    """
    if not count_steps_left(0, event.world, shape.batches, event.uneven):
        return AdmissionDenial(
            "usage",
            f"world {event.world} is more than the {format_count(shape.batches, 'batch', 'batches')} of an "
            "epoch: every step would be dropped; "
            'use fewer ranks, a smaller batch_size or uneven="pad"',
        )
    alone = compute_least_stream_bytes(shape, limits)
    if alone > limits.memory_bytes:
        return AdmissionDenial("memory", _format_memory_arithmetic(shape, limits, alone, []))
    room = _compute_free_capacity(sessions, limits, shape, held_over)
    least = max(MIN_CREDIT, held_over.own_slots)
    wanted = clamp_wanted_credit(event) + held_over.own_slots
    shares = _shrink_credits(wanted, least, shape.slot_bytes, sessions, room)
    if shares is None:
        others = sum(session.least_credit * session.shape.slot_bytes for session in sessions)
        needed = limits.memory_bytes - room.free_bytes + least * shape.slot_bytes + others
        text = _format_memory_arithmetic(shape, limits, needed, sessions, held_over)
        return AdmissionDenial("memory", text, ADMISSION_RETRY_S if event.resuming or held_over.apart_slots else None)
    shrunk = {session.id: shares[session.id] for session in sessions if shares[session.id] < session.credit}
    held = {session.id: max(shares[session.id], session.held_count) for session in sessions}
    free = room.subtract_sessions(sessions, held).count_fitting_batches(shape.slot_bytes)
    if free >= least:
        return AdmissionGrant(min(wanted, max(min(free, MIN_CREDIT + held_over.own_slots), free // 2)), shrunk)
    text = f"stream {shape.name!r} fits into memory as soon as trainers give back batches that they hold"
    return AdmissionDenial("memory", text, ADMISSION_RETRY_S, shrunk)


def _compute_free_capacity(
    sessions: Sequence[ScheduledSession], limits: SchedulerLimits, shape: StreamShape, held_over: HeldOverMemory
) -> _FreeCapacity:
    """What the workers, and what is held of ended sessions, leave to the sessions, and to one more, of `shape`."""
    ahead = max(compute_production_slots(each, limits) for each in (shape, *(session.shape for session in sessions)))
    taken = compute_production_bytes(sessions, limits, shape) + held_over.apart_bytes
    return _FreeCapacity(limits.memory_bytes - taken, limits.most_slots - ahead - held_over.apart_slots)


def _shrink_credits(
    wanted: int, lowest_share: int, slot_bytes: int, sessions: Sequence[ScheduledSession], capacity: _FreeCapacity
) -> dict[int, int] | None:
    """The credits of `sessions` that leave room for one more: the largest is halved, the newcomer's before others'.

    None when not even the least for everyone fits into the room.
    """
    shares = {session.id: session.credit for session in sessions}
    least = {session.id: session.least_credit for session in sessions}
    while capacity.subtract_sessions(sessions, shares).count_fitting_batches(slot_bytes) < wanted:
        yielding = [each for each in shares if shares[each] > least[each]]
        largest = max(yielding, key=shares.__getitem__, default=None)
        if wanted > lowest_share and (largest is None or wanted >= shares[largest]):
            wanted = max(lowest_share, wanted // 2)
        elif largest is not None:
            shares[largest] = max(least[largest], shares[largest] // 2)
        else:
            return None
    return shares


def compute_grown_credits(
    sessions: Sequence[ScheduledSession], limits: SchedulerLimits, held_over: HeldOverMemory = _NOTHING_HELD_OVER
) -> dict[int, int]:
    """The credits that may be larger now that somebody has left: to each at most half of what is free beside others."""
    counts = {session.id: max(session.credit, session.held_count) for session in sessions}
    grown = {}
    for session in sessions:
        beside = counts | {session.id: 0}
        room = _compute_free_capacity(sessions, limits, session.shape, held_over).subtract_sessions(sessions, beside)
        credit = min(
            session.wanted_credit + session.count_of_earlier_leases,
            room.count_fitting_batches(session.shape.slot_bytes) // 2,
        )
        if credit > session.credit:
            grown[session.id] = credit
            counts[session.id] = max(credit, counts[session.id])
    return grown


def _format_memory_arithmetic(
    shape: StreamShape,
    limits: SchedulerLimits,
    needed_bytes: int,
    sessions: Sequence[ScheduledSession],
    held_over: HeldOverMemory = _NOTHING_HELD_OVER,
) -> str:
    batch = shape.slot_bytes / MIB
    beside, drop = [], ""
    if sessions:
        beside.append(f"the {format_count(len(sessions), 'session')} already open")
    if held_over.apart_slots:
        beside.append(
            f"the {held_over.apart_bytes / MIB:.1f} MiB of "
            f"{format_count(held_over.apart_slots, 'batch', 'batches')} that trainers still hold of "
            "subscriptions that have ended"
        )
        drop = "drop the arrays and tensors taken from them, keep batch.copy() or images.clone() instead, or "
    others = f" beside {' and '.join(beside)}" if beside else ""
    return (
        f"stream {shape.name!r} does not fit into memory: one batch takes {batch:.1f} MiB; {MIN_CREDIT} for the "
        f"trainer and those in production come to {needed_bytes / MIB:.1f} MiB{others}; memory is "
        f"{limits.memory_bytes / MIB:.1f} MiB: {drop}set memory to at least {-(-needed_bytes // MIB)}MiB, or make "
        "batch_size or image.size smaller"
    )
