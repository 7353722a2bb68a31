"""Computes whether one more session fits into memory, and its credit; formats the reason when it does not fit.

No session gets more than half of the free memory, and what each session gets beyond MIN_CREDIT comes out of a first
part of the memory: a trainer that is stopped may hold its batches for ever, and the next session still needs room. What
one user may take is bounded too (`memory_shares`), and a session of a user with a share lowers the credit of that
user's sessions only, but where its first batches find no memory otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from streamd.core.spec import StreamShape, count_steps_left
from streamd.core.text import format_count, format_user
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
from streamd.scheduler.events import Subscribed
from streamd.scheduler.memory_shares import CreditBounds, MemoryRoom, MemoryShares, SlotHolding, sum_holdings
from streamd.scheduler.session import ScheduledSession, clamp_wanted_credit

ADMISSION_RETRY_S = 0.5  # sessions end and leases return at any time
_NOTHING: Final = MemoryRoom(0, 0)


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What all sessions share: the bytes and the number of all slots together, and the workers that fill them.

    A worker needs `tasks_ahead` tasks to be at work without a pause: more where they come to it over a network.
    `own_user` is the uid that the daemon runs as. Its sessions are bounded by the memory alone, and not by a share.
    """

    memory_bytes: int
    workers: int
    most_slots: int = MAX_SLOTS
    own_user: int = 0
    tasks_ahead: int = TASKS_AHEAD_PER_WORKER


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
class _CreditRequest:
    """What a subscription wants: `least` and `wanted` batches, of which `already_held` are there already."""

    user: int
    slot_bytes: int
    least: int
    wanted: int
    already_held: int


@dataclass(frozen=True, slots=True)
class _Occupancy:
    """The running sessions, what is held of `ended` ones beside their credits, and how memory is divided."""

    shares: MemoryShares
    sessions: Sequence[ScheduledSession]
    ended: Sequence[SlotHolding]

    def list_holdings(self, counts: Mapping[int, int]) -> list[SlotHolding]:
        """Returns all holdings if each session has `counts[session.id]` slots."""
        live = [SlotHolding(each.user, each.shape.slot_bytes, counts[each.id]) for each in self.sessions]
        return [*self.ended, *live]

    def bound_credit(self, request: _CreditRequest, counts: Mapping[int, int]) -> CreditBounds:
        """Returns the bounds of the new session's credit if each other session has `counts[session.id]` slots."""
        return self.shares.bound_credit(
            request.user, request.slot_bytes, self.list_holdings(counts), request.already_held
        )


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


def compute_tasks_per_worker(
    task_s: float, least: int = TASKS_AHEAD_PER_WORKER, work_ahead_s: float = WORK_AHEAD_S
) -> int:
    """Returns how many tasks a worker holds at a time, at least `least`, if one takes `task_s` seconds.

    0: no task was measured yet. `work_ahead_s` is the most work that they are, if they are more.
    """
    wanted = int(work_ahead_s / task_s) if task_s > 0 else least
    return max(least, min(MAX_TASKS_AHEAD, wanted))


def compute_least_stream_bytes(shape: StreamShape, limits: SchedulerLimits) -> int:
    """Returns the bytes that a stream takes when its only session has the smallest credit.

    If they exceed `memory_bytes`, no trainer can subscribe to the stream.
    """
    return (MIN_CREDIT + compute_production_slots(shape, limits)) * shape.slot_bytes


def compute_session_bytes(sessions: Sequence[ScheduledSession], limits: SchedulerLimits) -> int:
    """Returns the bytes that `sessions`, at least one, may take together: what production leaves."""
    return _divide_memory(sessions, limits, sessions[0].shape).total.byte_count


def admit_session(
    event: Subscribed,
    shape: StreamShape,
    sessions: Sequence[ScheduledSession],
    limits: SchedulerLimits,
    ended: Sequence[SlotHolding] = (),
    own_slots: int = 0,
) -> AdmissionGrant | AdmissionDenial:
    """Returns the credit of a new session and the credits that shrink for it, or the reason for a refusal.

    Batches that its trainer holds of earlier sessions, `own_slots`, count within the credit. They are added to the
    credit that it requests, as far as memory allows. `ended` is what else is held of ended sessions in nobody's credit.
    """
    if not count_steps_left(0, event.world, shape.batches, event.uneven):
        return AdmissionDenial(
            "usage",
            f"world {event.world} is more than the {format_count(shape.batches, 'batch', 'batches')} of an "
            "epoch: every step would be dropped; "
            'use fewer ranks, a smaller batch_size or uneven="pad"',
        )
    least_bytes = compute_least_stream_bytes(shape, limits)
    if least_bytes > limits.memory_bytes:
        return AdmissionDenial("memory", _format_memory_arithmetic(shape, limits, least_bytes))
    # Batches that the trainer holds of earlier sessions occupy memory whether or not it is admitted, so a credit below
    # their number would save nothing.
    least, wanted = max(MIN_CREDIT, own_slots), clamp_wanted_credit(event) + own_slots
    request = _CreditRequest(event.user, shape.slot_bytes, least, wanted, own_slots)
    occupancy = _Occupancy(_divide_memory(sessions, limits, shape), sessions, ended)
    new_credits = _shrink_credits(request, occupancy)
    if new_credits is None:
        text = _explain_lack_of_room(request, occupancy, shape, limits)
        return AdmissionDenial("memory", text, ADMISSION_RETRY_S if event.resuming or ended else None)
    shrunk = {session.id: new_credits[session.id] for session in sessions if new_credits[session.id] < session.credit}
    # A credit shrinks at once, but a session that holds more batches keeps them until its trainer drops them. So what
    # counts now is the larger of the two, and the new session may have to come again although the credits would allow
    # it.
    bounds = occupancy.bound_credit(request, _count_held_slots(sessions, new_credits))
    if bounds.admits(request.least):
        return AdmissionGrant(bounds.limit_credit(request.wanted, request.least), shrunk)
    # The credits leave room, and batches that trainers still hold do not.
    shares, where = occupancy.shares, "memory"
    if bounds.by_memory < request.least:
        detail = _format_kept_memory(shares, shape)
    else:
        counts = _count_held_slots(occupancy.sessions, {each.id: each.credit for each in occupancy.sessions})
        share = max(0, shares.compute_user_share(request.user, occupancy.list_holdings(counts)).byte_count)
        where = f"the share of {format_user(request.user)}"
        detail = (
            f" (this user may take {share / MIB:.1f} MiB of {shares.total.byte_count / MIB:.1f} MiB for all trainers)"
        )
    text = f"stream {shape.name!r} fits into {where} as soon as trainers give back batches that they hold{detail}"
    return AdmissionDenial("memory", text, ADMISSION_RETRY_S, shrunk)


def _divide_memory(sessions: Sequence[ScheduledSession], limits: SchedulerLimits, shape: StreamShape) -> MemoryShares:
    """Returns how sessions and users divide what production leaves, if `shape` is among the streams in use."""
    shapes = {session.shape.name: session.shape for session in sessions} | {shape.name: shape}
    # The most that workers fill at a time.
    production = _NOTHING
    for each in shapes.values():
        slots = compute_production_slots(each, limits)
        production = production.at_least(MemoryRoom(slots * each.slot_bytes, slots))
    total = MemoryRoom(limits.memory_bytes, limits.most_slots) - production
    return MemoryShares(total, max(each.slot_bytes for each in shapes.values()), limits.own_user)


def _count_held_slots(sessions: Sequence[ScheduledSession], new_credits: Mapping[int, int]) -> dict[int, int]:
    """Returns how many slots each session occupies: its credit, or what it holds beyond one that shrank."""
    return {session.id: max(new_credits[session.id], session.held_count) for session in sessions}


def _shrink_credits(request: _CreditRequest, occupancy: _Occupancy) -> dict[int, int] | None:
    """Returns credits of the sessions that leave room for one more.

    The largest credit is halved repeatedly; of equal ones, the new session's goes first. Returns None if not even the
    least credit of every session that may yield makes room.
    """
    new_credits = {session.id: session.credit for session in occupancy.sessions}
    least = {session.id: session.least_credit for session in occupancy.sessions}
    wanted = request.wanted
    # Each turn lowers `wanted` or one credit, and neither goes below its least: the loop ends.
    while not (bounds := occupancy.bound_credit(request, new_credits)).allows(wanted, request.least):
        is_starved = wanted == request.least > bounds.by_memory
        yielding = [
            session.id
            for session in _list_yielding_sessions(request, occupancy, is_starved=is_starved)
            if new_credits[session.id] > least[session.id]
        ]
        largest = max(yielding, key=new_credits.__getitem__, default=None)
        if wanted > request.least and (largest is None or wanted >= new_credits[largest]):
            wanted = max(request.least, wanted // 2)
        elif largest is not None:
            new_credits[largest] = max(least[largest], new_credits[largest] // 2)
        else:
            return None
    return new_credits


def _list_yielding_sessions(
    request: _CreditRequest, occupancy: _Occupancy, *, is_starved: bool
) -> Sequence[ScheduledSession]:
    """Returns the sessions whose credit may shrink for the new one.

    A user with a share that opens many sessions must not cost others their credit: it costs its own sessions theirs.
    Only where there is no memory for the least credit (`is_starved`) do all yield.
    """
    if is_starved or not occupancy.shares.is_divided_for(request.user):
        return occupancy.sessions
    return [session for session in occupancy.sessions if session.user == request.user]


def compute_grown_credits(
    sessions: Sequence[ScheduledSession], limits: SchedulerLimits, ended: Sequence[SlotHolding] = ()
) -> dict[int, int]:
    """Returns the credits that may grow, session -> credit: each at most half of what the other sessions leave free.

    `ended` is what is held of ended sessions in nobody's credit.
    """
    # What a session holds beyond a credit that shrank still occupies memory, so it counts too.
    counts = {session.id: max(session.credit, session.held_count) for session in sessions}
    grown: dict[int, int] = {}
    if not sessions:
        return grown
    occupancy = _Occupancy(_divide_memory(sessions, limits, sessions[0].shape), sessions, ended)
    for session in sessions:
        already_held = session.count_of_earlier_leases
        wanted = session.wanted_credit + already_held
        if session.credit >= wanted:
            continue
        request = _CreditRequest(session.user, session.shape.slot_bytes, 0, wanted, already_held)
        credit = occupancy.bound_credit(request, counts | {session.id: 0}).limit_credit(wanted, request.least)
        if credit > session.credit:
            grown[session.id] = credit
            counts[session.id] = max(credit, counts[session.id])
    return grown


def _explain_lack_of_room(
    request: _CreditRequest, occupancy: _Occupancy, shape: StreamShape, limits: SchedulerLimits
) -> str:
    """Returns the arithmetic of the rule that leaves no room, with every credit that may shrink at its least."""
    shares, least = occupancy.shares, {session.id: session.least_credit for session in occupancy.sessions}
    yielding = {each.id for each in _list_yielding_sessions(request, occupancy, is_starved=False)}
    partly = {each.id: least[each.id] if each.id in yielding else each.credit for each in occupancy.sessions}
    for counts in (partly, least):
        holdings = occupancy.list_holdings(counts)
        if occupancy.bound_credit(request, counts).by_memory >= request.least:
            break
    else:
        new = SlotHolding(request.user, request.slot_bytes, request.least)
        needed = limits.memory_bytes - shares.total.byte_count + sum_holdings([*holdings, new]).byte_count
        held = sum_holdings(occupancy.ended)
        arithmetic = _format_memory_arithmetic(shape, limits, needed, len(occupancy.sessions), held)
        return arithmetic + _format_kept_memory(shares, shape)
    # The memory has room, and the share of the user has none. Of more memory, production takes an eighth, the daemon's
    # own user another, and an eighth of the rest is kept for other users: more than half reaches the share.
    mine = sum_holdings(each for each in holdings if each.user == request.user).byte_count
    share = max(0, shares.compute_user_share(request.user, holdings).byte_count)
    left = max(0, shares.compute_left_to_user(request.user, holdings).byte_count)
    least_bytes = request.least * shape.slot_bytes
    needed = limits.memory_bytes + 2 * (mine + least_bytes - share) + shape.slot_bytes
    return (
        f"stream {shape.name!r} does not fit into the share of {format_user(request.user)}: one batch takes "
        f"{shape.slot_bytes / MIB:.1f} MiB; {request.least} batches for the trainer take {least_bytes / MIB:.1f} MiB, "
        f"and other trainers of this user have {mine / MIB:.1f} MiB; the daemon's own user and all others leave "
        f"{left / MIB:.1f} MiB of {shares.total.byte_count / MIB:.1f} MiB to this user, which may take "
        f"{share / MIB:.1f} MiB of it and leaves the rest to users to come: close subscriptions of this user that are "
        f"not needed, drop arrays and tensors taken from batches of ended ones, or set memory to at least "
        f"{-(-needed // MIB)}MiB"
    )


def _format_kept_memory(shares: MemoryShares, shape: StreamShape) -> str:
    """Returns how many trainers find room in any case, for the end of a refusal."""
    trainers = format_count(shares.count_sessions_kept(shape.slot_bytes), "trainer")
    return (
        f" ({shares.kept.byte_count / MIB:.1f} of the {shares.total.byte_count / MIB:.1f} MiB for all trainers are "
        f"kept for the first {MIN_CREDIT} batches of each, which is room for {trainers} of this stream, whatever "
        "each of them holds)"
    )


def _format_memory_arithmetic(
    shape: StreamShape,
    limits: SchedulerLimits,
    needed_bytes: int,
    session_count: int = 0,
    ended: MemoryRoom = _NOTHING,
) -> str:
    batch = shape.slot_bytes / MIB
    beside, drop = [], ""
    if session_count:
        beside.append(f"the {format_count(session_count, 'session')} already open")
    if ended.slot_count:
        held = format_count(ended.slot_count, "batch", "batches")
        beside.append(
            f"the {ended.byte_count / MIB:.1f} MiB of {held} that trainers still hold of subscriptions that have ended"
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
