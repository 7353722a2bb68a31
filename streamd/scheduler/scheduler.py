"""The scheduler's decision: takes every event that concerns trainers, batches or memory, and returns actions.

Nothing here waits or locks: the daemon's event loop makes every call, and performs the actions after the call returns.
A call from within the performing of actions would let later actions refer to slots that are gone, so a failure found
there becomes an event of its own afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from streamd.core.spec import BatchKey, StreamShape
from streamd.core.text import format_count
from streamd.limits import KEEP_COST_S, KEEP_STEPS, TASKS_AHEAD_PER_WORKER, WORK_BESIDE_OTHERS_S
from streamd.scheduler import fair_share
from streamd.scheduler.admission import (
    AdmissionDenial,
    SchedulerLimits,
    admit_session,
    compute_batches_ahead,
    compute_grown_credits,
    compute_production_slots,
    compute_session_bytes,
    compute_tasks_per_worker,
)
from streamd.scheduler.events import (
    Action,
    AdmitSession,
    BatchProduced,
    CreditGranted,
    DrainRequested,
    DropSlots,
    Event,
    LeaseReleased,
    LogWarning,
    ProduceBatch,
    ProductionFailed,
    ProgressReported,
    RefuseSession,
    SendBatch,
    SendReceipt,
    SessionClosed,
    SessionLost,
    SetCredit,
    SlotDenied,
    StopStream,
    StreamChanged,
    StreamPaused,
    StreamResumed,
    Subscribed,
    TimePassed,
    WorkersChanged,
)
from streamd.scheduler.fair_share import SessionsByBatch
from streamd.scheduler.invariants import InvariantChecker, InvariantRule
from streamd.scheduler.memory_shares import SlotHolding
from streamd.scheduler.session import EndedSession, ScheduledSession, move_start_to_live_sessions
from streamd.scheduler.slot_pool import BatchDemand, SlotEntry, SlotPool

_DROP_IDLE_SLOTS_S: Final = 30.0  # without a session for this long, empty slots are dropped
_SLOT_RETRY_S: Final = 5.0  # after the host had no memory for a slot; trainers that hold one each may need another


class Scheduler:
    """The sessions, and the batches that are held or in production for them.

    `limits` bounds the bytes and the number of all slots together. Its number of workers bounds how much is in
    production at a time.
    """

    def __init__(self, shapes: Iterable[StreamShape], limits: SchedulerLimits) -> None:
        self._shapes = {shape.name: shape for shape in shapes}
        self._invariant_checker = InvariantChecker(
            self._shapes.values(),
            limits.memory_bytes,
            limits.own_user,
            lambda: compute_session_bytes(self.sessions, self._workload.limits),
        )
        self._pool = SlotPool(limits.memory_bytes, configured_slots=limits.most_slots, most_slots=limits.most_slots)
        self._sessions = SessionTable()
        self._demand = BatchDemand(
            lambda: [session.next_key for session in self._sessions.values()], self._compute_batch_urgency
        )
        self._workload = Workload(self._shapes.values(), limits)
        self._lease_manager = LeaseManager(self._sessions, self._pool, self._workload)
        self._shares = fair_share.DecodeShares(limits.own_user)
        self._idle_since_s: float | None = None
        self._slot_retry_s: float | None = None  # when to create slots again after the host refused one
        self._is_draining = False
        self._slots_short_since_s: float | None = None
        self.slot_wait_s = 0.0  # in all, in which a batch within a session's credit waited for memory

    # --- state that callers may read

    @property
    def sessions(self) -> tuple[ScheduledSession, ...]:
        return tuple(self._sessions.values())

    @property
    def used_bytes(self) -> int:
        return self._pool.used_bytes

    @property
    def ended_sessions(self) -> Mapping[int, EndedSession]:
        """The ended sessions of which trainers still hold batches, by number."""
        return self._lease_manager.ended_sessions

    @property
    def producing_count(self) -> int:
        return len(self._workload)

    @property
    def checks_by_rule(self) -> dict[InvariantRule, int]:
        """How often each rule was found to hold."""
        return self._invariant_checker.checks_by_rule

    # --- events in, actions out

    def handle_events(self, events: Sequence[Event], now_s: float) -> list[Action]:
        """Handles one or more events that arrived together, at a monotonic time in seconds.

        Returns actions in the order in which they must be performed. Raises BrokenRuleError, after which the scheduler
        must not be used any more.
        """
        actions: list[Action] = []
        for number, event in enumerate(events, 1):
            answer = self._apply_event(event, now_s)
            # Production is decided once, after the last event: only then is it known which slots are free and which
            # batches are wanted. The checker still sees each event with its own answer, so a broken rule names the
            # event that broke it. Slots are dropped last, when no other action of the answer can need them.
            if number == len(events):
                self._start_batches(answer, now_s)
            if self._pool.dropped_slots:
                answer.append(DropSlots(tuple(self._pool.dropped_slots), tuple(self._pool.read_slots)))
                self._pool.dropped_slots.clear()
                self._pool.read_slots.clear()
            self._invariant_checker.check_event(event, answer, self._pool.used_bytes)
            actions += answer
        # The daemon is idle while it has empty slots and no session.
        if self._sessions or not any(self._pool.free_slots.values()):
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now_s
        return actions

    def next_deadline_s(self) -> float | None:
        """Returns the monotonic time in seconds at which TimePassed is due; None if at no time.

        Every event may change it.
        """
        if self._idle_since_s is None:
            return self._slot_retry_s
        idle_s = self._idle_since_s + _DROP_IDLE_SLOTS_S
        return idle_s if self._slot_retry_s is None else min(idle_s, self._slot_retry_s)

    def _apply_event(self, event: Event, now_s: float) -> list[Action]:  # noqa: C901, PLR0911, PLR0912 - one line an event
        match event:
            case CreditGranted(session, upto):
                return self._grant_credit(session, upto)
            case LeaseReleased():
                return self._lease_manager.release_leases(event)
            case BatchProduced(slot, busy_s):
                return self._finish_batch(slot, busy_s, now_s)
            case ProgressReported(session, taken):
                if found := self._sessions.get(session):
                    found.record_progress(taken)
                return []
            case Subscribed():
                return self._admit_session(event, now_s)
            case SessionLost(session):
                return self._lease_manager.end_session(session, (), is_lost=True)
            case SessionClosed(session, kept):
                return self._lease_manager.end_session(session, kept)
            case ProductionFailed(slot, reason):
                stream = self._pool.by_slot[slot].key.stream
                return self._stop_stream(stream, reason, changed=False) if self._abandon_batch(slot) else []
            case SlotDenied(slot, reason):
                return self._handle_denied_slot(slot, reason, now_s)
            case StreamChanged(stream, shape, reason):
                return self._change_stream(stream, shape, reason)
            case StreamPaused(stream, slots):
                return self._pause_stream(stream, slots)
            case StreamResumed(stream):
                self._workload.set_paused(stream, is_paused=False)
                return []
            case WorkersChanged(workers, tasks_ahead):
                # Credits that sessions have stay; the next subscription counts with the new limits.
                limits = replace(self._workload.limits, workers=workers, tasks_ahead=tasks_ahead)
                self._workload.change_limits(limits)
                return []
            case DrainRequested():
                self._is_draining = True
                return []
            case TimePassed():
                if self._idle_since_s is not None and now_s >= self._idle_since_s + _DROP_IDLE_SLOTS_S:
                    self._pool.drop_free_slots()
                if self._slot_retry_s is not None and now_s >= self._slot_retry_s:
                    self._slot_retry_s, self._pool.most_slots = None, self._pool.configured_slots
                return []

    # --- sessions

    def _admit_session(self, event: Subscribed, now_s: float) -> list[Action]:
        # The daemon has checked that the stream exists. It changes its own table of streams together with this one, in
        # one turn of its loop.
        shape = self._shapes[event.stream]
        # What its trainer holds of sessions that have ended counts within the credit of the first session that names
        # them. A credit counts batches and not bytes, so batches of another size cannot count within it.
        earlier = {
            number: each
            for number in event.earlier
            if (each := self.ended_sessions.get(number)) is not None
            and each.counted_in is None
            and (each.user, each.slot_bytes) == (event.user, shape.slot_bytes)
        }
        ended = self._lease_manager.list_uncounted_holdings(except_for=earlier)
        own_slots = sum(len(each.leases) for each in earlier.values())
        answer = admit_session(event, shape, self.sessions, self._workload.limits, ended, own_slots)
        actions: list[Action] = []
        # A denial may shrink credits too: the trainers then release batches, and the new session fits when it retries.
        if answer.shrunk_credits:
            actions.append(
                LogWarning(
                    f"memory is short: sessions {list(answer.shrunk_credits)} get fewer batches to make room for "
                    "another session"
                )
            )
            self._lease_manager.set_credits(answer.shrunk_credits, actions)
        if isinstance(answer, AdmissionDenial):
            return [*actions, RefuseSession(event.session, answer.refusal, answer.text, answer.retry_s)]
        if event.live:
            event = move_start_to_live_sessions(event, self.sessions)
        session = ScheduledSession.from_subscription(event, shape, answer.credit)
        session.earlier_sessions.extend(earlier.values())
        self._sessions.add_session(session)
        self._shares.forget_absent_users(self.sessions, now_s)
        for each in session.earlier_sessions:
            each.counted_in = session
        # A client must know of its session before the session's first batch arrives.
        actions.append(AdmitSession(session.id, answer.credit, event.cursor if event.live else None, tuple(earlier)))
        send_ready_batches(session, self._pool, actions)
        # Sessions begin that waited for as many sessions as the stream now has.
        there = self._sessions.list_of_stream(shape.name)
        for waiting in there:
            if 0 < waiting.gathering_count <= len(there):
                waiting.gathering_count = 0
                send_ready_batches(waiting, self._pool, actions)
        return actions

    def _grant_credit(self, number: int, upto: int) -> list[Action]:
        actions: list[Action] = []
        session = self._sessions.get(number)
        if session is not None and upto > session.upto:
            session.upto = upto
            send_ready_batches(session, self._pool, actions)
        return actions

    # --- batches

    def _finish_batch(self, slot: int, busy_s: float, now_s: float) -> list[Action]:
        entry = self._pool.mark_batch_whole(slot)
        self._workload.finish_batch(slot, entry.started_s, now_s, busy_s)
        actions: list[Action] = []
        # An entry without its key holds a batch of a stream that was replaced while the batch was in production.
        if self._pool.entries.get(entry.key) is entry:
            # Sent before it is cached or discarded: a batch that a session has leased is neither.
            for session in self._sessions.list_of_stream(entry.key.stream):
                if session.next_key == entry.key:
                    send_ready_batches(session, self._pool, actions)
            self._lease_manager.cache_or_discard_batch(entry)
        else:
            self._pool.discard_batch(entry)
        return actions

    def _abandon_batch(self, slot: int) -> bool:
        """Drops a batch in production, and its slot, since a worker may still write there.

        Returns whether the batch was of the stream as it is now.
        """
        self._workload.remove_batch(slot)
        entry = self._pool.by_slot[slot]
        wanted = self._pool.entries.get(entry.key) is entry
        entry.may_stay_mapped = True
        self._pool.discard_batch(entry)
        return wanted

    def _pause_stream(self, stream: str, slots: Iterable[int]) -> list[Action]:
        """Abandons the batches in production in `slots`. They are made again when the stream resumes.

        Whole batches are still sent.
        """
        self._workload.set_paused(stream, is_paused=True)
        for slot in slots:
            key = self._pool.by_slot[slot].key
            if self._abandon_batch(slot):
                for session in self._sessions.list_of_stream(stream):
                    session.forget_batch(key)
        return []

    def _handle_denied_slot(self, slot: int, reason: str, now_s: float) -> list[Action]:
        """Uses only the existing slots for _SLOT_RETRY_S: cached batches are evicted, as when memory is short.

        Stops the stream if there is no slot at all.
        """
        self._slot_retry_s = now_s + _SLOT_RETRY_S
        self._workload.remove_batch(slot)
        entry = self._pool.by_slot[slot]
        if not self._pool.remove_denied_slot(entry):
            return self._stop_stream(entry.key.stream, reason, changed=False)
        for session in self._sessions.list_of_stream(entry.key.stream):
            session.forget_batch(entry.key)
        return [
            LogWarning(f"{reason}: limited to {format_count(self._pool.most_slots, 'slot')}, for {_SLOT_RETRY_S:g} s")
        ]

    def _change_stream(self, stream: str, shape: StreamShape | None, reason: str) -> list[Action]:
        actions = self._stop_stream(stream, reason, changed=True)
        # Stopping has discarded all whole batches without leases. The others, leased or in production, are of the old
        # stream: without a key none of them can be sent to a session of the new one. Their slots stay in use until
        # production or the last lease ends.
        for entry in self._pool.entries_of_stream(stream):
            del self._pool.entries[entry.key]
        if shape is None:
            self._shapes.pop(stream, None)
            self._workload.remove_stream(stream)
        else:
            self._shapes[stream] = shape
            self._workload.put_stream(shape)
        return actions

    def _stop_stream(self, stream: str, reason: str, *, changed: bool) -> list[Action]:
        ended = list(self._sessions.list_of_stream(stream))
        # All sessions are retired before any batch is looked at, since a batch is cached for the sessions that exist.
        # Their leases go on: the trainers still hold those batches and will release them.
        for session in ended:
            self._lease_manager.retire_session(session.id)
        self._lease_manager.cache_or_discard_stream_batches(stream)
        return [StopStream(stream, tuple(session.id for session in ended), reason, changed)]

    # --- after every event

    def _start_batches(self, actions: list[Action], now_s: float) -> None:
        """Begins batches until the workers have enough: those wanted now, then, if memory allows, later ones."""
        full: set[BatchKey] = set()  # batches for which there is no memory now
        starved = False  # whether one of them lies within a session's credit
        self._workload.has_sessions_of_several_streams = self._sessions.stream_count > 1
        if self._workload.take_note_of_grown_horizons():
            for session in self._sessions.values():
                session.is_resting = False
        # Each turn begins a batch, which fills the workers, or adds one to `full`: the loop ends. The groups are
        # collected anew in each turn, since a batch that was begun is known, and its sessions then want the next one.
        while not self._is_draining and not self._workload.is_full:
            wishes = self._sessions.values(), self._workload.count_batches_ahead, self._pool.entries.__contains__
            near, in_reach = fair_share.find_near_batches(*wishes)
            near = self._filter_startable_batches(near, full)
            # Batches far ahead are looked for only where they count: most sessions have one that nobody makes now.
            # While a batch within a session's credit has no slot, nothing is made ahead: it would take the next slot
            # that is freed.
            is_idle = not near and not starved
            groups = self._filter_startable_batches(fair_share.find_far_batches(*wishes), full) if is_idle else near
            if not groups:
                break
            if len(groups) == 1:
                key, lost_s = next(iter(groups)), 0.0
            else:
                costs_s = self._workload.batch_costs_s
                chasing = fair_share.choose_sessions_to_catch_up(self.sessions, self._pool.entries, costs_s, now_s)
                key, lost_s = self._shares.choose_batch(groups, chasing, costs_s, now_s)
            action = self._start_batch(key, groups[key], now_s, modest=key not in in_reach)
            if action is None:
                full.add(key)
                starved = starved or key in in_reach
                continue
            actions.append(action)
            if lost_s:
                for session in fair_share.waiting_sessions(near, key):
                    session.catch_up_cost_s += lost_s
        # A shortage is measured from one decision to the next: what held at the last one held until now.
        if self._slots_short_since_s is not None:
            self.slot_wait_s += now_s - self._slots_short_since_s
        self._slots_short_since_s = now_s if starved else None
        self._workload.set_memory_scarce(is_scarce=starved)

    def _filter_startable_batches(self, groups: SessionsByBatch, full: set[BatchKey]) -> SessionsByBatch:
        return {
            key: members
            for key, members in groups.items()
            if key not in full and self._workload.can_fill_another_batch(key.stream)
        }

    def _start_batch(
        self, key: BatchKey, members: Sequence[ScheduledSession], now_s: float, *, modest: bool
    ) -> ProduceBatch | None:
        """Allocates a slot and begins a batch. Returns None if there is no slot, or none that a `modest` batch may use.

        A modest batch lies beyond every session's credit, and evicts only batches that are wanted later than itself.
        """
        shape = members[0].shape
        entry = self._pool.allocate_slot(key, shape.slot_bytes, self._demand, is_modest=modest)
        # Batches may have been evicted even if no slot was found.
        if self._pool.evicted_keys:
            for evicted in self._pool.evicted_keys:
                for session in self._sessions.list_of_stream(evicted.stream):
                    session.forget_batch(evicted)
            self._pool.evicted_keys.clear()
        if entry is None:
            return None
        entry.started_s = now_s
        self._shares.charge_sessions(members, self._workload.estimate_batch_work_s(shape))
        self._workload.start_batch(shape, entry.slot)
        return ProduceBatch(key, entry.slot, shape.slot_bytes)

    def _compute_batch_urgency(self, key: BatchKey) -> float:
        """Returns minus the number of steps until a session wants the batch; minus infinity if none wants it."""
        distances = (session.count_steps_until_batch(key) for session in self._sessions.list_of_stream(key.stream))
        return -min((distance for distance in distances if distance is not None), default=float("inf"))


# --- Begins and ends leases, and decides what becomes of their slots: free, kept for other sessions, or never used
# again.
#
# Whole batches are sent to a session as far as its credit allows. An epoch's receipt follows its last batch directly.


def send_ready_batches(session: ScheduledSession, pool: SlotPool, actions: list[Action]) -> None:
    """Sends a session its next batches, as long as they are whole and its credit allows; appends to `actions`."""
    session.is_resting = False
    while True:
        # The receipt needs no credit, so it comes before the check of credit. A session may begin where its epoch has
        # no step left: it gets that epoch's receipt before its first batch.
        while session.is_waiting_at_epoch_end:
            actions.append(SendReceipt(session.id, session.finish_epoch()))
        if session.sendable_count <= 0:
            return
        entry = pool.entries.get(session.next_key)
        if entry is None or not entry.is_whole:
            return
        pool.lease_batch(entry)
        actions.append(SendBatch(session.id, session.lease_next_batch(entry.slot), entry.slot))


class LeaseManager:
    """Ends leases and sessions, on the scheduler's own `sessions`, `pool` and `workload`.

    A slot whose batch has no lease left is in one of three states: cached for sessions that want the batch, free for
    another batch, or dropped, if a process may still map it (`may_stay_mapped`).
    """

    def __init__(self, sessions: SessionTable, pool: SlotPool, workload: Workload) -> None:
        self.ended_sessions: dict[int, EndedSession] = {}
        self._sessions = sessions
        self._pool = pool
        self._workload = workload

    def end_session(self, number: int, kept: tuple[int, ...] | None, *, is_lost: bool = False) -> list[Action]:
        """Ends a session. The deliveries `kept`, None for all, stay leased; the others are released.

        The slots that a session which `is_lost` never released may still be mapped: they are not reused. A forked child
        of an own user's trainer may go on reading them. Another user's process is not trusted to be gone: the memory of
        such slots is given back, whoever maps it, since nobody would count it any more.

        The session may have ended before; then only its leases end.
        """
        # Retired first: a batch that only this session wanted is then discarded, not cached, when its lease ends.
        session = self.retire_session(number)
        ended = self.ended_sessions.get(number)
        actions: list[Action] = []
        if ended is not None and kept is not None:
            over = ended.leases.keys() - set(kept)
            # Set before the leases end, since the end of the last one decides whether its slot is free or dropped.
            for slot in ended.leases.values() if is_lost else ():
                lent = self._pool.by_slot[slot]
                lent.may_stay_mapped = True
                lent.may_be_read |= ended.user == self._workload.limits.own_user
            actions += self.release_leases(LeaseReleased(number, tuple(sorted(over))))
        if session is not None:
            self._cache_or_discard_batches_of(session)
            if ended is None or kept is None:  # otherwise `release_leases` has let credits grow
                self._grow_credits(actions)
        return actions

    def retire_session(self, number: int) -> ScheduledSession | None:
        """Removes a session from the schedule and returns it, None if there is none of this number.

        Its leases stay until its trainer releases them or dies.
        """
        session = self._sessions.remove_session(number)
        if session is not None:
            for each in session.earlier_sessions:
                each.counted_in = None
            if session.leases:
                self.ended_sessions[number] = EndedSession(session.user, session.shape.slot_bytes, session.leases)
        return session

    def list_uncounted_holdings(self, except_for: Container[int] = ()) -> list[SlotHolding]:
        """Returns what is held of ended sessions that count in no running session's credit, less `except_for`."""
        return [
            SlotHolding(each.user, each.slot_bytes, len(each.leases))
            for number, each in self.ended_sessions.items()
            if each.counted_in is None and number not in except_for
        ]

    def _grow_credits(self, actions: list[Action]) -> None:
        sessions = tuple(self._sessions.values())
        grown = compute_grown_credits(sessions, self._workload.limits, self.list_uncounted_holdings())
        self.set_credits(grown, actions)

    def set_credits(self, session_credits: Mapping[int, int], actions: list[Action]) -> None:
        """Sets credits, session -> credit, reports them to the sessions, and sends what they now allow."""
        for number, credit in session_credits.items():
            session = self._sessions[number]
            session.credit = credit
            actions.append(SetCredit(number, credit))
            send_ready_batches(session, self._pool, actions)

    def release_leases(self, event: LeaseReleased) -> list[Action]:
        """Ends the leases that a trainer reports, of a session or of one that has ended."""
        # A release may arrive after its session was lost, and may repeat a number: both are ignored.
        session, ended = self._sessions.get(event.session), self.ended_sessions.get(event.session)
        holder = session or ended
        actions: list[Action] = []
        if holder is None:
            return actions
        for number in event.numbers:
            slot = holder.leases.pop(number, None)
            if slot is not None:
                entry = self._pool.release_lease(slot)
                if number in event.retired:
                    entry.may_stay_mapped = entry.may_be_read = True
                self.cache_or_discard_batch(entry)
        if session is not None:
            send_ready_batches(session, self._pool, actions)
        elif ended is not None:
            counting = ended.counted_in
            if not ended.leases:
                del self.ended_sessions[event.session]
                if counting is not None:
                    counting.earlier_sessions.remove(ended)
            # The credit in which they counted shrinks to what its session requested, plus what is still held. If it
            # stays as it is, the session is sent more.
            if counting is not None:
                credit = counting.wanted_credit + counting.count_of_earlier_leases
                if credit < counting.credit:
                    self.set_credits({counting.id: credit}, actions)
                else:
                    send_ready_batches(counting, self._pool, actions)
            self._grow_credits(actions)
        return actions

    def cache_or_discard_batch(self, entry: SlotEntry) -> None:
        """Caches a whole batch without leases if a session may want it, and discards it otherwise."""
        if entry.lease_count or not entry.is_whole:
            return
        # An entry without its key holds a batch of a stream that was replaced. The key may stand for another batch by
        # now. Any other is cached if a session wants it soon, or a later one may.
        key = entry.key
        if self._pool.entries.get(key) is entry and (
            self._is_kept_for_later(key.stream)
            or any(each.wants_batch(key, KEEP_STEPS) for each in self._sessions.list_of_stream(key.stream))
        ):
            self._pool.cache_batch(entry)
        else:
            self._pool.discard_batch(entry)

    def _is_kept_for_later(self, stream: str) -> bool:
        """Whether batches behind all cursors stay too, for a session that starts late or returns.

        They stay where they are expensive, until their memory is needed.
        """
        return self._workload.is_expensive(stream) and bool(self._sessions.list_of_stream(stream))

    def _cache_or_discard_batches_of(self, ended: ScheduledSession) -> None:
        """Decides again about the batches that a session wanted which has ended."""
        stream = ended.shape.name
        if self._is_kept_for_later(stream):
            return  # all that is cached stays, and there may be thousands
        if not self._sessions.list_of_stream(stream):
            self.cache_or_discard_stream_batches(stream)
            return
        for entry in self._pool.entries_of_stream(stream):
            if not entry.lease_count and ended.wants_batch(entry.key, KEEP_STEPS):
                self.cache_or_discard_batch(entry)

    def cache_or_discard_stream_batches(self, stream: str) -> None:
        """Decides again about every batch of a stream, after its last session has ended."""
        for entry in self._pool.entries_of_stream(stream):
            self.cache_or_discard_batch(entry)


# --- The sessions, by number and by stream.
#
# One user may have a quarter of all sessions. What happens to one batch must not cost a look at each of them, so it is
# asked of the sessions of its stream alone.


class SessionTable(dict[int, ScheduledSession]):
    """The sessions by number, in the order in which they came. Changed by `add_session` and `remove_session` alone."""

    def __init__(self) -> None:
        super().__init__()
        self._by_stream: dict[str, dict[int, ScheduledSession]] = {}

    @property
    def stream_count(self) -> int:
        """The number of streams that have a session."""
        return len(self._by_stream)

    def list_of_stream(self, stream: str) -> Collection[ScheduledSession]:
        """Returns the sessions of a stream, in the order in which they came."""
        return self._by_stream[stream].values() if stream in self._by_stream else ()

    def add_session(self, session: ScheduledSession) -> None:
        """Adds a session, whose number is new."""
        self[session.id] = session
        self._by_stream.setdefault(session.shape.name, {})[session.id] = session

    def remove_session(self, number: int) -> ScheduledSession | None:
        """Removes a session and returns it; None if there is none of this number."""
        session = self.pop(number, None)
        if session is not None:
            name = session.shape.name
            del self._by_stream[name][number]
            if not self._by_stream[name]:
                del self._by_stream[name]
        return session


# --- Counts the batches in production and measures their cost; from both follows how much more workers can be given.


_COST_SMOOTHING: Final = 0.1
_UNKNOWN_TASK_S: Final = 0.01  # what workers are taken to spend on a task of a stream that they have not decoded yet


@dataclass(slots=True, eq=False)
class _StreamWorkload:
    """A stream's part of the workload. A worker holds `tasks_per_worker` tasks of it, in `batches_ahead` batches.

    Beside sessions of other streams it holds `tasks_beside_others`. Where memory is scarce, a worker holds
    TASKS_AHEAD_PER_WORKER tasks, in `least_batches_ahead` batches.
    """

    shape: StreamShape
    most_batches: int  # batches in production
    batches_running: int = 0
    tasks_per_worker: int = TASKS_AHEAD_PER_WORKER
    tasks_beside_others: int = TASKS_AHEAD_PER_WORKER
    batches_ahead: int = 0
    least_batches_ahead: int = 0
    is_paused: bool = False
    task_work_s: float = 0.0  # what workers spend on a task; 0 while that is not known


class Workload:
    """Counts batches and tasks as they begin and end. `limits` bounds how many are filled at a time."""

    def __init__(self, shapes: Iterable[StreamShape], limits: SchedulerLimits) -> None:
        self.limits = limits
        self._streams: dict[str, _StreamWorkload] = {}
        # By slot: the stream as it was when the batch was begun. Its name may stand for another stream by now, and what
        # was counted on one must be taken off the same.
        self._streams_by_slot: dict[int, _StreamWorkload] = {}
        self._tasks_running: dict[_StreamWorkload, int] = {}  # of streams that have any
        self._last_done_s = 0.0
        self.batch_costs_s: dict[str, float] = {}  # of a batch, with all workers at work
        # While this is true, a batch within a session's credit waits for a slot, and no worker is given more tasks than
        # it needs to go on.
        self.is_memory_scarce = False
        self._have_horizons_grown = False
        self.has_sessions_of_several_streams = False
        for shape in shapes:
            self.put_stream(shape)

    def __len__(self) -> int:
        """The number of batches in production."""
        return len(self._streams_by_slot)

    def put_stream(self, shape: StreamShape) -> None:
        """Adds a stream, or replaces the one of its name; the new one is not paused."""
        stream = self._streams[shape.name] = _StreamWorkload(shape, most_batches=1)
        self._apply_limits(stream)

    def change_limits(self, limits: SchedulerLimits) -> None:
        """Bounds what is filled at a time anew, as when workers join or leave. Batches in production go on."""
        self.limits = limits
        for stream in self._streams.values():
            self._apply_limits(stream)

    def _apply_limits(self, stream: _StreamWorkload) -> None:
        shape, limits = stream.shape, self.limits
        most = stream.most_batches = compute_production_slots(shape, limits)
        stream.least_batches_ahead = min(most, compute_batches_ahead(shape, limits.workers, TASKS_AHEAD_PER_WORKER))
        stream.batches_ahead = 0
        self._update_tasks_per_worker(stream)

    def remove_stream(self, name: str) -> None:
        """Removes a stream. Its batches in production are counted until they end."""
        self._streams.pop(name, None)

    def set_paused(self, name: str, *, is_paused: bool) -> None:
        """Lets no batch of a stream begin until it is resumed or replaced, or lets them begin again."""
        self._streams[name].is_paused = is_paused

    # --- how much more

    @property
    def is_full(self) -> bool:
        """Whether the workers have as many tasks as they can be given.

        A task takes up the more of a worker the fewer of its kind a worker may have. So a long task waits for no short
        ones to be done that nobody else would begin meanwhile.
        """
        if self.is_memory_scarce:
            return sum(self._tasks_running.values()) >= self.limits.workers * TASKS_AHEAD_PER_WORKER
        if self.has_sessions_of_several_streams:
            taken = sum(tasks / stream.tasks_beside_others for stream, tasks in self._tasks_running.items())
        else:
            taken = sum(tasks / stream.tasks_per_worker for stream, tasks in self._tasks_running.items())
        return taken >= self.limits.workers

    def can_fill_another_batch(self, stream: str) -> bool:
        """Whether one more batch of this stream may be filled at a time."""
        known = self._streams[stream]
        return known.batches_running < known.most_batches and not known.is_paused

    def take_note_of_grown_horizons(self) -> bool:
        """Returns whether production may look further ahead of any stream than when this was asked last."""
        grown, self._have_horizons_grown = self._have_horizons_grown, False
        return grown

    def set_memory_scarce(self, *, is_scarce: bool) -> None:
        """Records whether a batch within a session's credit waits for a slot."""
        self._have_horizons_grown |= self.is_memory_scarce and not is_scarce
        self.is_memory_scarce = is_scarce

    def count_batches_ahead(self, stream: str) -> int:
        """Returns how many batches beyond a session's credit production looks ahead."""
        known = self._streams[stream]
        return known.least_batches_ahead if self.is_memory_scarce else known.batches_ahead

    # --- begin and end of a batch

    def start_batch(self, shape: StreamShape, slot: int) -> None:
        """Counts a batch that goes into production in `slot`."""
        stream = self._streams[shape.name]
        stream.batches_running += 1
        self._tasks_running[stream] = self._tasks_running.get(stream, 0) + shape.tasks
        self._streams_by_slot[slot] = stream

    def estimate_batch_work_s(self, shape: StreamShape) -> float:
        """Returns how long workers are busy with one batch, all their times added."""
        return (self._streams[shape.name].task_work_s or _UNKNOWN_TASK_S) * shape.tasks

    def is_expensive(self, stream: str) -> bool:
        """Whether a batch of a stream costs so much that it is kept for sessions that want it later."""
        cost_s, known = self.batch_costs_s.get(stream, 0.0), self._streams.get(stream)
        if known is not None and known.task_work_s:
            # Where the daemon itself is short of time, batches are finished late, and cost the workers no more.
            cost_s = min(cost_s, known.task_work_s * known.shape.tasks / self.limits.workers)
        return cost_s >= KEEP_COST_S

    def finish_batch(self, slot: int, started_s: float, now_s: float, busy_s: float = 0.0) -> None:
        """Uncounts a batch that is whole, and updates what a batch of its stream costs. `busy_s` of 0 is unknown."""
        stream = self.remove_batch(slot)
        if busy_s > 0:
            task_s = busy_s / stream.shape.tasks
            known_work_s = stream.task_work_s or task_s
            stream.task_work_s = known_work_s + _COST_SMOOTHING * (task_s - known_work_s)
        # Several batches are in production at a time. Only the time since the last one was finished is this batch's
        # own; the time since its start would count the same seconds for each of them.
        name, cost_s = stream.shape.name, now_s - max(started_s, self._last_done_s)
        known_s = self.batch_costs_s.get(name, cost_s)
        self.batch_costs_s[name] = known_s + _COST_SMOOTHING * (cost_s - known_s)
        self._last_done_s = now_s
        self._update_tasks_per_worker(stream)

    def remove_batch(self, slot: int) -> _StreamWorkload:
        """Uncounts a batch whose production has ended, with or without a result; returns its stream."""
        stream = self._streams_by_slot.pop(slot)
        stream.batches_running -= 1
        self._tasks_running[stream] -= stream.shape.tasks
        if not self._tasks_running[stream]:
            del self._tasks_running[stream]
        return stream

    def _update_tasks_per_worker(self, stream: _StreamWorkload) -> None:
        """Adjusts how many tasks a worker is given to what a task costs."""
        shape = stream.shape
        task_s = self.batch_costs_s.get(shape.name, 0.0) * self.limits.workers / shape.tasks
        depth = compute_tasks_per_worker(task_s, self.limits.tasks_ahead)
        # What the worker itself takes counts here: another stream's batch would wait for so much.
        stream.tasks_beside_others = min(
            depth, compute_tasks_per_worker(stream.task_work_s, self.limits.tasks_ahead, WORK_BESIDE_OTHERS_S)
        )
        # This runs for every batch, but the depth rarely changes. Under new limits there are no `batches_ahead` yet.
        if depth != stream.tasks_per_worker or not stream.batches_ahead:
            stream.tasks_per_worker = depth
            self._have_horizons_grown = True
            stream.batches_ahead = min(stream.most_batches, compute_batches_ahead(shape, self.limits.workers, depth))
