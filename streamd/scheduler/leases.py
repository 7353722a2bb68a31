"""Begins and ends leases, and decides what becomes of their slots: free, kept for other sessions, or never used again.

Whole batches are sent to a session as far as its credit allows. An epoch's receipt follows its last batch directly.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamd.core.spec import BatchKey
from streamd.limits import KEEP_STEPS, MIN_CREDIT
from streamd.scheduler.actions import Action, SendBatch, SendReceipt, SetCredit
from streamd.scheduler.admission import SchedulerLimits, compute_grown_credits
from streamd.scheduler.ended_sessions import EndedSession, EndedSessions
from streamd.scheduler.events import LeaseReleased
from streamd.scheduler.in_flight import Workload
from streamd.scheduler.session import ScheduledSession
from streamd.scheduler.session_table import SessionTable
from streamd.scheduler.slot_pool import SlotEntry, SlotPool


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

    def __init__(self, sessions: SessionTable, pool: SlotPool, workload: Workload, limits: SchedulerLimits) -> None:
        self.ended_sessions = EndedSessions()
        self._sessions = sessions
        self._pool = pool
        self._workload = workload
        self._limits = limits

    def change_limits(self, limits: SchedulerLimits) -> None:
        """Uses other limits when credits grow from now on."""
        self._limits = limits

    def end_lost_session(self, number: int) -> list[Action]:
        """Ends a session and its leases. The slots that it never released may still be mapped: they are not reused.

        A forked child of an own user's trainer may go on reading them. Another user's process is not trusted to be
        gone: the memory of such slots is given back, whoever maps it, since nobody would count it any more.

        The session may have ended before; then only its leases end.
        """
        session = self.retire_session(number)
        ended = self.ended_sessions.remove_session(number)
        actions: list[Action] = []
        if ended is not None:
            for slot in ended.leases.values():
                entry = self._pool.release_lease(slot)
                # Set before the batch is cached or discarded, since that decides whether the slot is free or dropped.
                entry.may_stay_mapped = True
                entry.may_be_read |= ended.user == self._limits.own_user
                self.cache_or_discard_batch(entry)
            # A successor counts the leases of this same object within its credit, so the ones that have ended are
            # removed from it.
            ended.leases.clear()
            self._update_successor_credit_and_send(ended, actions)
        if session is not None:
            self._cache_or_discard_batches_of(session)
        if session is not None or ended is not None:
            self._grow_credits(actions)
        return actions

    def end_closed_session(self, number: int, kept: tuple[int, ...] | None) -> list[Action]:
        """Ends a session. The deliveries `kept`, None for all, stay leased; the others are released."""
        # Retired first: a batch that only this session wanted is then discarded, not cached, when its lease ends.
        session = self.retire_session(number)
        ended = self.ended_sessions.get(number)
        actions: list[Action] = []
        if ended is not None and kept is not None:
            over = ended.leases.keys() - set(kept)
            actions += self.release_leases(LeaseReleased(number, tuple(sorted(over))))
        if session is not None:
            self._cache_or_discard_batches_of(session)
            self._grow_credits(actions)
        return actions

    def retire_session(self, number: int) -> ScheduledSession | None:
        """Removes a session from the schedule and returns it, None if there is none of this number.

        Its leases stay until its trainer releases them or dies.
        """
        session = self._sessions.remove_session(number)
        if session is not None:
            self.ended_sessions.add_session(number, session.shape.slot_bytes, session.leases, session.user)
        return session

    def _grow_credits(self, actions: list[Action]) -> None:
        held_over = self.ended_sessions.compute_held_over_memory(self._sessions)
        self.set_credits(compute_grown_credits(tuple(self._sessions.values()), self._limits, held_over), actions)

    def _update_successor_credit_and_send(self, ended: EndedSession, actions: list[Action]) -> None:
        """Updates the credit of an ended session's successor after leases of the ended session were released.

        The credit included those leases. It shrinks to what the successor requested, plus what is still held; if it
        stays as it is, the successor is sent more.
        """
        heir = None if ended.successor is None else self._sessions.get(ended.successor)
        if heir is None:
            return
        if not ended.leases:
            heir.earlier_sessions = tuple(each for each in heir.earlier_sessions if each is not ended)
        credit = max(heir.wanted_credit + heir.count_of_earlier_leases, MIN_CREDIT)
        if credit < heir.credit:
            self.set_credits({heir.id: credit}, actions)
        else:
            send_ready_batches(heir, self._pool, actions)

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
            if not ended.leases:
                self.ended_sessions.remove_session(event.session)
            self._update_successor_credit_and_send(ended, actions)
            self._grow_credits(actions)
        return actions

    def cache_or_discard_batch(self, entry: SlotEntry) -> None:
        """Caches a whole batch without leases if a session may want it, and discards it otherwise."""
        if entry.lease_count or not entry.is_whole:
            return
        # An entry without its key holds a batch of a stream that was replaced. The key may stand for another batch by
        # now.
        if self._pool.entries.get(entry.key) is entry and self._is_worth_caching(entry.key):
            self._pool.cache_batch(entry)
        else:
            self._pool.discard_batch(entry)

    def _is_worth_caching(self, key: BatchKey) -> bool:
        """Whether a session wants a batch soon, or a later one may."""
        if self._is_kept_for_later(key.stream):
            return True
        return any(each.wants_batch(key, KEEP_STEPS) for each in self._sessions.list_of_stream(key.stream))

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
