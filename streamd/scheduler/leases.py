"""How leases begin and end, and what becomes of the slots: free, kept for others, or never used again.

What lies ready for a session is sent as far as it may be, and an epoch's receipt right behind its last batch.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamd.core.spec import BatchKey
from streamd.limits import KEEP_COST_S, MIN_CREDIT
from streamd.scheduler.actions import Action, SendBatch, SendReceipt, SetCredit
from streamd.scheduler.admission import SchedulerLimits, compute_grown_credits
from streamd.scheduler.ended_sessions import EndedSession, EndedSessions
from streamd.scheduler.events import LeaseReleased
from streamd.scheduler.in_flight import Workload
from streamd.scheduler.session import ScheduledSession
from streamd.scheduler.slot_pool import SlotEntry, SlotPool


def send_ready_batches(session: ScheduledSession, pool: SlotPool, actions: list[Action]) -> None:
    """Sends a session all that lies ready for it and that it may have."""
    while True:
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
    """Works on the scheduler's own `sessions`, `pool` and `workload`; `ended` are the sessions of which something is
    held.
    """

    def __init__(
        self, sessions: dict[int, ScheduledSession], pool: SlotPool, workload: Workload, limits: SchedulerLimits
    ) -> None:
        self.ended_sessions = EndedSessions()
        self._sessions = sessions
        self._pool = pool
        self._workload = workload
        self._limits = limits

    def end_lost_session(self, number: int) -> list[Action]:
        """Ends a session and its leases; what it never released may still be mapped: those slots are not used again."""
        session = self.retire_session(number)
        ended = self.ended_sessions.remove_session(number)
        actions: list[Action] = []
        if ended is not None:
            for slot in ended.leases.values():
                entry = self._pool.release_lease(slot)
                entry.may_stay_mapped = True
                self.cache_or_discard_batch(entry)
            ended.leases.clear()
            self._update_successor_credit_and_send(ended, actions)
        if session is not None:
            self.cache_or_discard_stream_batches(session.shape.name)
        if session is not None or ended is not None:
            self._grow_credits(actions)
        return actions

    def end_closed_session(self, number: int, kept: tuple[int, ...] | None) -> list[Action]:
        """Ends a session; what its trainer holds stays on the books."""
        session = self.retire_session(number)
        ended = self.ended_sessions.get(number)
        actions: list[Action] = []
        if ended is not None and kept is not None:
            over = ended.leases.keys() - set(kept)
            actions += self.release_leases(LeaseReleased(number, tuple(sorted(over))))
        if session is not None:
            self.cache_or_discard_stream_batches(session.shape.name)
            self._grow_credits(actions)
        return actions

    def retire_session(self, number: int) -> ScheduledSession | None:
        """Takes a session off the schedule; its leases stay until its trainer gives them back or is gone."""
        session = self._sessions.pop(number, None)
        if session is not None:
            self.ended_sessions.add_session(number, session.shape.slot_bytes, session.leases)
        return session

    def _grow_credits(self, actions: list[Action]) -> None:
        held_over = self.ended_sessions.compute_held_over_memory(self._sessions)
        self.set_credits(compute_grown_credits(tuple(self._sessions.values()), self._limits, held_over), actions)

    def _update_successor_credit_and_send(self, ended: EndedSession, actions: list[Action]) -> None:
        """Something of an earlier session is free: the one that follows is sent more, within what it asked for."""
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
        """Gives sessions another credit than before."""
        for number, credit in session_credits.items():
            session = self._sessions[number]
            session.credit = credit
            actions.append(SetCredit(number, credit))
            send_ready_batches(session, self._pool, actions)

    def release_leases(self, event: LeaseReleased) -> list[Action]:
        session, ended = self._sessions.get(event.session), self.ended_sessions.get(event.session)
        holder = session or ended
        actions: list[Action] = []
        if holder is None:
            return actions
        for number in event.numbers:
            slot = holder.leases.pop(number, None)
            if slot is not None:
                entry = self._pool.release_lease(slot)
                entry.may_stay_mapped |= number in event.retired
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
        """Frees a batch that nobody holds, or puts it to rest if somebody will want it."""
        if entry.lease_count or not entry.is_whole:
            return
        if self._pool.entries.get(entry.key) is entry and self._is_worth_caching(entry.key):
            self._pool.cache_batch(entry)
        else:
            self._pool.discard_batch(entry)

    def _is_worth_caching(self, key: BatchKey) -> bool:
        """Whether somebody wants a batch, or may: where decoding is slow, what all have behind them stays for who comes
        late or comes back, until something else needs its memory."""
        dear = self._workload.batch_costs_s.get(key.stream, 0.0) >= KEEP_COST_S
        return any(
            each.wants_batch(key) or (dear and each.shape.name == key.stream) for each in self._sessions.values()
        )

    def cache_or_discard_stream_batches(self, stream: str) -> None:
        for entry in self._pool.entries_of_stream(stream):
            self.cache_or_discard_batch(entry)
