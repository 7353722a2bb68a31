"""The decision: every event that concerns trainers, batches or memory comes in here, and what to do comes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from streamd.core.spec import BatchKey, StreamShape
from streamd.scheduler import fair_share
from streamd.scheduler.actions import (
    Action,
    Admit,
    DropSlots,
    Produce,
    Refuse,
    StopStream,
    Warn,
)
from streamd.scheduler.admission import Denial, SchedulerLimits, admit
from streamd.scheduler.ended_sessions import EndedSession
from streamd.scheduler.events import (
    BatchProduced,
    CreditGranted,
    DrainRequested,
    Event,
    LeaseReleased,
    ProductionFailed,
    ProgressReported,
    SessionClosed,
    SessionLost,
    SlotDenied,
    StreamChanged,
    StreamPaused,
    StreamResumed,
    Subscribed,
    TimePassed,
)
from streamd.scheduler.fair_share import Groups
from streamd.scheduler.in_flight import Workload
from streamd.scheduler.invariants import Ledger, Rule
from streamd.scheduler.leases import Leases, deliver
from streamd.scheduler.session import Session, joined
from streamd.scheduler.slot_pool import Demand, Pool

_IDLE_S: Final = 30.0  # with nobody here for so long, empty slots go back to the host
_DENIED_S: Final = 5.0  # after the host had no room for a slot; trainers that hold one each may need more to go on


class Window:
    """The batches now held, and everyone who wants them.

    `limits` bounds all slots together, in bytes and in number, and by its workers what is in production at a time.
    """

    def __init__(self, shapes: Iterable[StreamShape], limits: SchedulerLimits) -> None:
        self._shapes = {shape.name: shape for shape in shapes}
        self._ledger = Ledger(self._shapes.values(), limits.memory_bytes)
        self._limits = limits
        self._pool = Pool(limits.memory_bytes, bound=limits.most_slots, most_slots=limits.most_slots)
        self._sessions: dict[int, Session] = {}
        self._demand = Demand(self._cursors, self._worth)
        self._load = Workload(self._shapes.values(), limits)
        self._leases = Leases(self._sessions, self._pool, self._load, limits)
        self._turn = 0.0
        self._idle_since_s: float | None = None
        self._ask_again_s: float | None = None  # whether the host has room for more slots by then
        self._draining = False
        self._starved_since_s: float | None = None
        self._slot_wait_s = 0.0

    # --- what others may see

    @property
    def sessions(self) -> tuple[Session, ...]:
        return tuple(self._sessions.values())

    @property
    def used_bytes(self) -> int:
        return self._pool.used

    @property
    def ended(self) -> Mapping[int, EndedSession]:
        """The sessions that have ended while their trainers hold batches of them."""
        return self._leases.ended

    @property
    def producing(self) -> int:
        return len(self._load)

    @property
    def slot_wait_s(self) -> float:
        """How long, in all, a session's wish within its credit has waited for memory."""
        return self._slot_wait_s

    @property
    def checks(self) -> dict[Rule, int]:
        """How often each rule was found to hold."""
        return self._ledger.checks

    # --- the way in

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Takes one event at a monotonic time; returns what to do, in order. Raises BrokenRuleError."""
        return self.handle_all((event,), now_s)

    def handle_all(self, events: Sequence[Event], now_s: float) -> list[Action]:
        """Takes events that came together, one at least; what is produced next is decided once, after the last."""
        actions: list[Action] = []
        for number, event in enumerate(events, 1):
            answer = self._take(event, now_s)
            if number == len(events):
                self._fill(answer, now_s)
            if self._pool.dropped:
                answer.append(DropSlots(tuple(self._pool.dropped)))
                self._pool.dropped.clear()
            self._ledger.enter(event, answer, self._pool.used)
            actions += answer
        self._note_idleness(now_s)
        return actions

    def deadline(self) -> float | None:
        """When TimePassed is due, if nothing else happens before."""
        if self._idle_since_s is None:
            return self._ask_again_s
        idle_s = self._idle_since_s + _IDLE_S
        return idle_s if self._ask_again_s is None else min(idle_s, self._ask_again_s)

    def _take(self, event: Event, now_s: float) -> list[Action]:  # noqa: C901, PLR0911, PLR0912 - one line an event
        match event:
            case CreditGranted(session, upto):
                return self._grant(session, upto)
            case LeaseReleased():
                return self._leases.release(event)
            case BatchProduced(slot):
                return self._produced(slot, now_s)
            case ProgressReported(session, taken):
                if found := self._sessions.get(session):
                    found.progressed(taken)
                return []
            case Subscribed():
                return self._subscribe(event)
            case SessionLost(session):
                return self._leases.lose(session)
            case SessionClosed(session, kept):
                return self._leases.close(session, kept)
            case ProductionFailed(slot, reason):
                return self._failed(slot, reason)
            case SlotDenied(slot, reason):
                return self._denied(slot, reason, now_s)
            case StreamChanged(stream, shape, reason):
                return self._changed(stream, shape, reason)
            case StreamPaused(stream, slots):
                return self._pause(stream, slots)
            case StreamResumed(stream):
                self._load.resume(stream)
                return []
            case DrainRequested():
                self._draining = True
                return []
            case TimePassed():
                self._give_back(now_s)
                return []

    # --- sessions

    def _subscribe(self, event: Subscribed) -> list[Action]:
        shape = self._shapes[event.stream]
        earlier = self._leases.ended.inherited(event, shape, self._sessions)
        held_over = self._leases.ended.beside(self._sessions, earlier)
        answer = admit(event, shape, self.sessions, self._limits, held_over)
        actions: list[Action] = []
        if answer.shrunk:
            actions.append(
                Warn(f"memory is short: sessions {list(answer.shrunk)} get fewer batches for another's sake")
            )
            self._leases.lend(answer.shrunk, actions)
        if isinstance(answer, Denial):
            return [*actions, Refuse(event.session, answer.why, answer.text, answer.retry_s)]
        if event.live:
            event = joined(event, self.sessions)
        session = Session.of(event, shape, answer.credit, tuple(earlier.values()))
        self._sessions[session.id] = session
        for each in session.earlier:
            each.heir = session.id
        actions.append(Admit(session.id, answer.credit, event.cursor if event.live else None, tuple(earlier)))
        deliver(session, self._pool, actions)
        self._gather(shape.name, actions)
        return actions

    def _gather(self, stream: str, actions: list[Action]) -> None:
        """Lets those begin who waited for as many as are there now."""
        there = [session for session in self.sessions if session.shape.name == stream]
        for session in there:
            if 0 < session.together <= len(there):
                session.together = 0
                deliver(session, self._pool, actions)

    def _grant(self, number: int, upto: int) -> list[Action]:
        actions: list[Action] = []
        session = self._sessions.get(number)
        if session is not None and upto > session.upto:
            session.upto = upto
            deliver(session, self._pool, actions)
        return actions

    # --- batches

    def _produced(self, slot: int, now_s: float) -> list[Action]:
        entry = self._pool.finish(slot)
        self._load.finish_batch(slot, entry.started_s, now_s)
        actions: list[Action] = []
        if self._pool.entries.get(entry.key) is entry:
            for session in self._sessions.values():
                if session.next_key == entry.key:
                    deliver(session, self._pool, actions)
            self._leases.settle(entry)
        else:
            self._pool.discard(entry)
        return actions

    def _failed(self, slot: int, reason: str) -> list[Action]:
        stream = self._pool.by_slot[slot].key.stream
        return self._stop(stream, reason, changed=False) if self._give_up(slot) else []

    def _give_up(self, slot: int) -> bool:
        """What is in production in a slot comes to nothing, and a worker may still write there; was it wanted?"""
        self._load.abandon_batch(slot)
        entry = self._pool.by_slot[slot]
        wanted = self._pool.entries.get(entry.key) is entry
        entry.tainted = True
        self._pool.discard(entry)
        return wanted

    def _pause(self, stream: str, slots: Iterable[int]) -> list[Action]:
        """What lies whole is still sent; the rest is begun again, from nothing, when the stream goes on."""
        self._load.pause(stream)
        for slot in slots:
            key = self._pool.by_slot[slot].key
            if self._give_up(slot):
                for session in self._sessions.values():
                    session.forget(key)
        return []

    def _denied(self, slot: int, reason: str, now_s: float) -> list[Action]:
        """Goes on with the slots there are for a while: what nobody holds gives way, as where memory is short."""
        self._ask_again_s = now_s + _DENIED_S
        self._load.abandon_batch(slot)
        entry = self._pool.by_slot[slot]
        if not self._pool.forgo(entry):
            return self._stop(entry.key.stream, reason, changed=False)
        for session in self._sessions.values():
            session.forget(entry.key)
        return [Warn(f"{reason}: no more than the {self._pool.most_slots} slots there are, for {_DENIED_S:g} s")]

    def _changed(self, stream: str, shape: StreamShape | None, reason: str) -> list[Action]:
        actions = self._stop(stream, reason, changed=True)
        for entry in self._pool.of_stream(stream):
            self._pool.disown(entry)  # what is still in production shows the old stream
        if shape is None:
            self._shapes.pop(stream, None)
            self._load.remove(stream)
        else:
            self._shapes[stream] = shape
            self._load.put(shape)
        return actions

    def _stop(self, stream: str, reason: str, *, changed: bool) -> list[Action]:
        ended = [session for session in self.sessions if session.shape.name == stream]
        for session in ended:
            self._leases.retire(session.id)
        self._leases.sweep(stream)
        return [StopStream(stream, tuple(session.id for session in ended), reason, changed)]

    # --- after every event

    def _fill(self, actions: list[Action], now_s: float) -> None:
        """Gives the workers what they can take: what is wanted, then, if nobody waits for memory, what will be."""
        full: set[BatchKey] = set()  # what there is no memory for now
        starved = False
        while not self._draining and not self._load.is_full:
            near, far, in_reach = fair_share.find_wanted_batches(
                self._sessions.values(), self._load.ahead, self._pool.entries.__contains__
            )
            near = self._startable(near, full)
            groups = near or ({} if starved else self._startable(far, full))
            if not groups:
                break
            key, lost_s = self._choose_batch(groups, now_s)
            if not self._load.has_room(key.stream):
                break
            action = self._start_batch(key, groups[key], now_s, modest=key not in in_reach)
            if action is None:
                full.add(key)
                starved = starved or key in in_reach
                continue
            actions.append(action)
            if lost_s:
                for session in fair_share.waiting_sessions(near, key):
                    session.lost_s += lost_s
        self._note_starvation(starved, now_s)

    def _startable(self, groups: Groups, full: set[BatchKey]) -> Groups:
        return {key: members for key, members in groups.items() if key not in full and self._load.has_slots(key.stream)}

    def _choose_batch(self, groups: Groups, now_s: float) -> tuple[BatchKey, float]:
        if len(groups) == 1:
            return next(iter(groups)), 0.0
        chasing = fair_share.chasers(self.sessions, self._pool.entries, self._load.costs_s, now_s)
        return fair_share.choose_batch(groups, chasing, self._load.costs_s, self._turn)

    def _start_batch(self, key: BatchKey, members: Sequence[Session], now_s: float, *, modest: bool) -> Produce | None:
        """Finds a slot and begins; None when there is none, or none that a `modest` batch may have."""
        shape = members[0].shape
        entry = self._pool.place(key, shape.slot_bytes, self._demand, modest=modest)
        if self._pool.evicted:
            self._forget_evicted()
        if entry is None:
            return None
        entry.started_s = now_s
        self._turn = fair_share.charge(members, self._turn)
        self._load.start_batch(shape, entry.slot)
        return Produce(key, entry.slot, shape.slot_bytes)

    def _forget_evicted(self) -> None:
        for evicted in self._pool.evicted:
            for session in self._sessions.values():
                session.forget(evicted)
        self._pool.evicted.clear()

    def _cursors(self) -> list[BatchKey]:
        return [session.next_key for session in self._sessions.values()]

    def _worth(self, key: BatchKey) -> float:
        """How soon a batch is wanted: the nearer to any cursor, the more."""
        distances = (session.distance(key) for session in self._sessions.values() if session.shape.name == key.stream)
        return -min((distance for distance in distances if distance is not None), default=float("inf"))

    # --- rest

    def _note_starvation(self, starved: bool, now_s: float) -> None:
        if self._starved_since_s is not None:
            self._slot_wait_s += now_s - self._starved_since_s
        self._starved_since_s, self._load.scarce = now_s if starved else None, starved

    def _note_idleness(self, now_s: float) -> None:
        if self._sessions or not any(self._pool.free.values()):
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now_s

    def _give_back(self, now_s: float) -> None:
        if self._idle_since_s is not None and now_s >= self._idle_since_s + _IDLE_S:
            self._pool.drop_free()
        if self._ask_again_s is not None and now_s >= self._ask_again_s:
            self._ask_again_s, self._pool.most_slots = None, self._pool.bound
