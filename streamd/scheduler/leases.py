"""How leases begin and end, and what becomes of the slots: free, kept for others, or never used again.

What lies ready for a session is sent as far as it may be, and an epoch's receipt right behind its last batch.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamd.core.spec import BatchKey
from streamd.limits import KEEP_COST_S, MIN_CREDIT
from streamd.scheduler.actions import Action, Lend, SendBatch, SendReceipt
from streamd.scheduler.admission import SchedulerLimits, regrown
from streamd.scheduler.ended_sessions import EndedSession, EndedSessions
from streamd.scheduler.events import LeaseReleased
from streamd.scheduler.in_flight import Workload
from streamd.scheduler.session import Session
from streamd.scheduler.slot_pool import Entry, Pool


def deliver(session: Session, pool: Pool, actions: list[Action]) -> None:
    """Sends a session all that lies ready for it and that it may have."""
    while True:
        while session.at_epoch_end:
            actions.append(SendReceipt(session.id, session.end_epoch()))
        if session.room <= 0:
            return
        entry = pool.entries.get(session.next_key)
        if entry is None or not entry.ready:
            return
        pool.hold(entry)
        actions.append(SendBatch(session.id, session.send(entry.slot), entry.slot))


class Leases:
    """Works on the window's own `sessions`, `pool` and `load`; `ended` are the sessions of which something is held."""

    def __init__(self, sessions: dict[int, Session], pool: Pool, load: Workload, limits: SchedulerLimits) -> None:
        self.ended = EndedSessions()
        self._sessions = sessions
        self._pool = pool
        self._load = load
        self._limits = limits

    def lose(self, number: int) -> list[Action]:
        """Ends a session and its leases; what it never released may still be mapped: those slots are not used again."""
        session = self.retire(number)
        ended = self.ended.remove(number)
        actions: list[Action] = []
        if ended is not None:
            for slot in ended.leases.values():
                entry = self._pool.release(slot)
                entry.tainted = True
                self.settle(entry)
            ended.leases.clear()
            self._fit_heir(ended, actions)
        if session is not None:
            self.sweep(session.shape.name)
        if session is not None or ended is not None:
            self._regrow(actions)
        return actions

    def close(self, number: int, kept: tuple[int, ...] | None) -> list[Action]:
        """Ends a session; what its trainer holds stays on the books."""
        session = self.retire(number)
        ended = self.ended.get(number)
        actions: list[Action] = []
        if ended is not None and kept is not None:
            over = ended.leases.keys() - set(kept)
            actions += self.release(LeaseReleased(number, tuple(sorted(over))))
        if session is not None:
            self.sweep(session.shape.name)
            self._regrow(actions)
        return actions

    def retire(self, number: int) -> Session | None:
        """Takes a session off the schedule; its leases stay until its trainer gives them back or is gone."""
        session = self._sessions.pop(number, None)
        if session is not None:
            self.ended.add(number, session.shape.slot_bytes, session.leases)
        return session

    def _regrow(self, actions: list[Action]) -> None:
        held_over = self.ended.beside(self._sessions)
        self.lend(regrown(tuple(self._sessions.values()), self._limits, held_over), actions)

    def _fit_heir(self, ended: EndedSession, actions: list[Action]) -> None:
        """Something of an earlier session is free: the one that follows is sent more, within what it asked for."""
        heir = None if ended.heir is None else self._sessions.get(ended.heir)
        if heir is None:
            return
        if not ended.leases:
            heir.earlier = tuple(each for each in heir.earlier if each is not ended)
        credit = max(heir.wanted + heir.held_over, MIN_CREDIT)
        if credit < heir.credit:
            self.lend({heir.id: credit}, actions)
        else:
            deliver(heir, self._pool, actions)

    def lend(self, shares: Mapping[int, int], actions: list[Action]) -> None:
        """Gives sessions another credit than before."""
        for number, credit in shares.items():
            session = self._sessions[number]
            session.credit = credit
            actions.append(Lend(number, credit))
            deliver(session, self._pool, actions)

    def release(self, event: LeaseReleased) -> list[Action]:
        session, ended = self._sessions.get(event.session), self.ended.get(event.session)
        holder = session or ended
        actions: list[Action] = []
        if holder is None:
            return actions
        for number in event.numbers:
            slot = holder.leases.pop(number, None)
            if slot is not None:
                entry = self._pool.release(slot)
                entry.tainted |= number in event.retired
                self.settle(entry)
        if session is not None:
            deliver(session, self._pool, actions)
        elif ended is not None:
            if not ended.leases:
                self.ended.remove(event.session)
            self._fit_heir(ended, actions)
            self._regrow(actions)
        return actions

    def settle(self, entry: Entry) -> None:
        """Frees a batch that nobody holds, or puts it to rest if somebody will want it."""
        if entry.holders or not entry.ready:
            return
        if self._pool.entries.get(entry.key) is entry and self._is_kept(entry.key):
            self._pool.rest(entry)
        else:
            self._pool.discard(entry)

    def _is_kept(self, key: BatchKey) -> bool:
        """Whether somebody wants a batch, or may: where decoding is slow, what all have behind them stays for who comes
        late or comes back, until something else needs its memory."""
        dear = self._load.costs_s.get(key.stream, 0.0) >= KEEP_COST_S
        return any(each.wants(key) or (dear and each.shape.name == key.stream) for each in self._sessions.values())

    def sweep(self, stream: str) -> None:
        for entry in self._pool.of_stream(stream):
            self.settle(entry)
