"""Computes whether one more session fits into memory, and its credit; formats the reason when it does not fit.

No session gets more than half of the free memory. A trainer that is stopped may hold its batches for ever, and the
next session still needs room.
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
    """What all sessions share: the bytes and the number of all slots together, and the workers that fill them."""

    memory_bytes: int
    workers: int
    most_slots: int = MAX_SLOTS


@dataclass(frozen=True, slots=True)
class AdmissionGrant:
    """A new session's credit, and the smaller credits of sessions that make room for it: session -> credit."""

    credit: int
    shrunk_credits: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class AdmissionDenial:
    """Why a session is not admitted.

    The credits of other sessions shrink (session -> credit) only if the new session will then fit after `retry_s`.
    """

    refusal: Refusal
    text: str
    retry_s: float | None = None
    shrunk_credits: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _FreeCapacity:
    """What sessions may use: bytes, and slots, since each slot is a descriptor in the daemon and in every worker."""

    free_bytes: int
    free_slots: int

    def subtract_sessions(self, sessions: Sequence[ScheduledSession], counts: Mapping[int, int]) -> _FreeCapacity:
        """Returns what is left when each session has `counts[session.id]` slots; it may be negative."""
        taken = sum(counts[session.id] * session.shape.slot_bytes for session in sessions)
        return _FreeCapacity(self.free_bytes - taken, self.free_slots - sum(counts.values()))

    def count_fitting_batches(self, slot_bytes: int) -> int:
        """Returns how many batches of `slot_bytes` fit."""
        return min(self.free_bytes // slot_bytes, self.free_slots)


def compute_production_slots(shape: StreamShape, limits: SchedulerLimits) -> int:
    """Returns how many slots production may fill at a time; at least 1.

    The number gives each worker two tasks, or up to eight if their slots take no more than an eighth of the memory.
    It leaves MIN_CREDIT slots for a session and takes at most half of all slots.
    """
    least, most = (
        compute_batches_ahead(shape, limits.workers, tasks) for tasks in (TASKS_AHEAD_PER_WORKER, MAX_TASKS_AHEAD)
    )
    wanted = max(least, min(most, limits.memory_bytes // AHEAD_SHARE // shape.slot_bytes))
    return max(1, min(wanted, limits.memory_bytes // shape.slot_bytes - MIN_CREDIT, limits.most_slots // 2))


def compute_batches_ahead(shape: StreamShape, workers: int, tasks: int) -> int:
    """Returns the number of batches that give each worker `tasks` tasks, plus one."""
    return -(-workers * tasks // shape.tasks) + 1


def compute_tasks_per_worker(task_s: float) -> int:
    """Returns how many tasks a worker holds at a time if one takes `task_s` seconds; 0: no task was measured yet."""
    wanted = int(WORK_AHEAD_S / task_s) if task_s > 0 else TASKS_AHEAD_PER_WORKER
    return max(TASKS_AHEAD_PER_WORKER, min(MAX_TASKS_AHEAD, wanted))


def compute_production_bytes(sessions: Sequence[ScheduledSession], limits: SchedulerLimits, shape: StreamShape) -> int:
    """Returns the most bytes that workers fill at a time, for `shape` and the streams of all sessions."""
    shapes = {session.shape.name: session.shape for session in sessions} | {shape.name: shape}
    return max(compute_production_slots(each, limits) * each.slot_bytes for each in shapes.values())


def compute_least_stream_bytes(shape: StreamShape, limits: SchedulerLimits) -> int:
    """Returns the bytes that a stream takes when its only session has the smallest credit.

    If they exceed `memory_bytes`, no trainer can subscribe to the stream.
    """
    return (MIN_CREDIT + compute_production_slots(shape, limits)) * shape.slot_bytes


def admit_session(
    event: Subscribed,
    shape: StreamShape,
    sessions: Sequence[ScheduledSession],
    limits: SchedulerLimits,
    held_over: HeldOverMemory = _NOTHING_HELD_OVER,
) -> AdmissionGrant | AdmissionDenial:
    """Returns the credit of a new session and the credits that shrink for it, or the reason for a refusal.

    Batches that its trainer holds of earlier sessions count within the credit. They are added to the credit that it
    requests, as far as memory allows.
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
    # Batches that the trainer holds of earlier sessions occupy memory whether or not it is admitted, so a credit below
    # their number would save nothing.
    least = max(MIN_CREDIT, held_over.own_slots)
    wanted = clamp_wanted_credit(event) + held_over.own_slots
    shares = _shrink_credits(wanted, least, shape.slot_bytes, sessions, room)
    if shares is None:
        others = sum(session.least_credit * session.shape.slot_bytes for session in sessions)
        needed = limits.memory_bytes - room.free_bytes + least * shape.slot_bytes + others
        text = _format_memory_arithmetic(shape, limits, needed, sessions, held_over)
        return AdmissionDenial("memory", text, ADMISSION_RETRY_S if event.resuming or held_over.apart_slots else None)
    shrunk = {session.id: shares[session.id] for session in sessions if shares[session.id] < session.credit}
    # A credit shrinks at once, but a session that holds more batches keeps them until its trainer drops them. So what
    # counts now is the larger of the two, and the new session may have to come again although the credits would allow
    # it.
    held = {session.id: max(shares[session.id], session.held_count) for session in sessions}
    free = room.subtract_sessions(sessions, held).count_fitting_batches(shape.slot_bytes)
    if free >= least:
        return AdmissionGrant(min(wanted, max(min(free, MIN_CREDIT + held_over.own_slots), free // 2)), shrunk)
    text = f"stream {shape.name!r} fits into memory as soon as trainers give back batches that they hold"
    return AdmissionDenial("memory", text, ADMISSION_RETRY_S, shrunk)


def _compute_free_capacity(
    sessions: Sequence[ScheduledSession], limits: SchedulerLimits, shape: StreamShape, held_over: HeldOverMemory
) -> _FreeCapacity:
    """Returns what sessions may use, one more of `shape` among them.

    Production and the batches held of ended sessions are subtracted.
    """
    ahead = max(compute_production_slots(each, limits) for each in (shape, *(session.shape for session in sessions)))
    taken = compute_production_bytes(sessions, limits, shape) + held_over.apart_bytes
    return _FreeCapacity(limits.memory_bytes - taken, limits.most_slots - ahead - held_over.apart_slots)


def _shrink_credits(
    wanted: int, lowest_share: int, slot_bytes: int, sessions: Sequence[ScheduledSession], capacity: _FreeCapacity
) -> dict[int, int] | None:
    """Returns credits of `sessions` that leave room for one more session.

    The largest credit is halved repeatedly; of equal ones, the new session's goes first. Returns None if not even the
    least credit of every session fits.
    """
    shares = {session.id: session.credit for session in sessions}
    least = {session.id: session.least_credit for session in sessions}
    # Each turn lowers `wanted` or one share, and neither goes below its least: the loop ends.
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
    """Returns the credits that may grow, session -> credit: each at most half of what the other sessions leave free."""
    # What a session holds beyond a credit that shrank still occupies memory, so it counts too.
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
            f"the {held_over.apart_bytes / MIB:.1f} MiB of {format_count(held_over.apart_slots, 'batch', 'batches')} "
            "that trainers still hold of subscriptions that have ended"
        )
        drop = (
            "drop the arrays and tensors taken from those batches and keep batch.copy() or images.clone() instead, or "
        )
    others = f" together with {' and '.join(beside)}" if beside else ""
    return (
        f"stream {shape.name!r} does not fit into memory: one batch takes {batch:.1f} MiB; {MIN_CREDIT} batches for "
        f"the trainer, plus the batches that are being filled, take {needed_bytes / MIB:.1f} MiB{others}, but memory "
        f"is limited to {limits.memory_bytes / MIB:.1f} MiB: {drop}set memory to at least "
        f"{-(-needed_bytes // MIB)}MiB, or make batch_size or image.size smaller"
    )
