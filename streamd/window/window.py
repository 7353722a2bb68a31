"""The decision: every event that concerns trainers, batches or memory comes in here, and what to do comes out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from streamd.limits import TASKS_AHEAD_PER_WORKER
from streamd.spec import BatchKey
from streamd.window import schedule
from streamd.window.actions import (
    Action,
    Admit,
    DropSlots,
    Produce,
    Refuse,
    SendBatch,
    SendReceipt,
    StopStream,
    Warn,
)
from streamd.window.admission import Denial, admit, ahead_slots
from streamd.window.events import (
    BatchProduced,
    CreditGranted,
    DrainRequested,
    Event,
    LeaseReleased,
    ProductionFailed,
    ProgressReported,
    SessionClosed,
    SessionLost,
    StreamChanged,
    StreamShape,
    Subscribed,
    TimePassed,
)
from streamd.window.pool import Entry, Pool
from streamd.window.sessions import Session

_COST_SMOOTHING: Final = 0.1
_IDLE_S: Final = 30.0  # with nobody here for so long, empty slots go back to the host


class Window:
    """The batches now held, and everyone who wants them.

    `memory` in bytes bounds all slots together; `workers` bounds how much is in production at a time.
    """

    def __init__(self, shapes: Iterable[StreamShape], *, memory: int, workers: int) -> None:
        self._shapes = {shape.name: shape for shape in shapes}
        self._workers = workers
        self._pool = Pool(memory)
        self._sessions: dict[int, Session] = {}
        self._producing: dict[BatchKey, float] = {}  # since when
        self._tasks = 0
        self._cost_s: dict[str, float] = {}
        self._last_done_s = 0.0
        self._turn = 0.0
        self._idle_since_s: float | None = None
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
    def producing(self) -> int:
        return len(self._producing)

    @property
    def slot_wait_s(self) -> float:
        """How long, in all, a session's wish within its credit has waited for memory."""
        return self._slot_wait_s

    # --- the way in

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Takes one event at a monotonic time; returns what to do, in order."""
        actions = self._take(event, now_s)
        self._deliver(actions)
        self._fill(actions, now_s)
        if self._pool.dropped:
            actions.append(DropSlots(tuple(self._pool.dropped)))
            self._pool.dropped.clear()
        self._note_idleness(now_s)
        return actions

    def deadline(self) -> float | None:
        """When TimePassed is due, if nothing else happens before."""
        return None if self._idle_since_s is None else self._idle_since_s + _IDLE_S

    def _take(self, event: Event, now_s: float) -> list[Action]:  # noqa: C901, PLR0911 - one line an event
        match event:
            case CreditGranted(session, upto):
                if found := self._sessions.get(session):
                    found.upto = max(found.upto, upto)
                return []
            case LeaseReleased(session, numbers):
                return self._release(session, numbers)
            case BatchProduced(key, slot):
                return self._produced(key, slot, now_s)
            case ProgressReported(session, taken):
                if found := self._sessions.get(session):
                    found.taken = max(found.taken, taken)
                return []
            case Subscribed():
                return self._subscribe(event)
            case SessionLost(session) | SessionClosed(session):
                return self._end(session)
            case ProductionFailed(key, slot, reason):
                return self._failed(key, slot, reason)
            case StreamChanged(stream, shape):
                return self._changed(stream, shape)
            case DrainRequested():
                self._draining = True
                return []
            case TimePassed():
                self._give_back(now_s)
                return []

    # --- sessions

    def _subscribe(self, event: Subscribed) -> list[Action]:
        shape = self._shapes[event.stream]
        before = {each.id: each.credit for each in self.sessions}
        verdict = admit(event, shape, self.sessions, self._workers, self._pool.memory)
        shrunk = [each.id for each in self.sessions if each.credit < before[each.id]]
        warnings = [Warn(f"memory is short: sessions {shrunk} hold fewer batches for another's sake")] if shrunk else []
        if isinstance(verdict, Denial):
            return [*warnings, Refuse(event.session, verdict.why, verdict.text, verdict.retry_s)]
        session = Session.of(event, shape, verdict)
        self._sessions[session.id] = session
        return [*warnings, Admit(session.id, verdict)]

    def _end(self, number: int) -> list[Action]:
        session = self._sessions.pop(number, None)
        if session is not None:
            self._abandon(session)
            self._sweep(session.shape.name)
        return []

    def _abandon(self, session: Session) -> None:
        """Ends a session's leases; what it never released may still be mapped, so those slots are not used again."""
        for slot in session.leases.values():
            self._pool.release(slot).tainted = True
        session.leases.clear()

    def _release(self, number: int, deliveries: tuple[int, ...]) -> list[Action]:
        session = self._sessions.get(number)
        if session is None:
            return []
        for delivery in deliveries:
            slot = session.leases.pop(delivery, None)
            if slot is not None:
                self._settle(self._pool.release(slot))
        return []

    def _settle(self, entry: Entry) -> None:
        """Frees a batch that nobody holds and nobody will want."""
        if entry.ready and not entry.holders and not any(each.wants(entry.key) for each in self._sessions.values()):
            self._pool.discard(entry)

    def _sweep(self, stream: str) -> None:
        for entry in self._pool.of_stream(stream):
            self._settle(entry)

    # --- batches

    def _produced(self, key: BatchKey, slot: int, now_s: float) -> list[Action]:
        entry = self._pool.by_slot[slot]
        self._note_cost(key.stream, self._finish(key), now_s)
        entry.ready = True
        actions: list[Action] = []
        self._deliver(actions)
        self._settle(entry)
        return actions

    def _finish(self, key: BatchKey) -> float:
        """Takes a batch out of production; returns when it went in."""
        shape = self._shapes.get(key.stream)
        self._tasks -= shape.tasks if shape else 0
        return self._producing.pop(key)

    def _note_cost(self, stream: str, started_s: float, now_s: float) -> None:
        cost_s = now_s - max(started_s, self._last_done_s)
        known_s = self._cost_s.get(stream, cost_s)
        self._cost_s[stream] = known_s + _COST_SMOOTHING * (cost_s - known_s)
        self._last_done_s = now_s

    def _failed(self, key: BatchKey, slot: int, reason: str) -> list[Action]:
        self._finish(key)
        entry = self._pool.by_slot[slot]
        entry.tainted = True
        self._pool.discard(entry)
        return self._stop(key.stream, reason, changed=False)

    def _changed(self, stream: str, shape: StreamShape | None) -> list[Action]:
        actions = self._stop(stream, "its configuration changed", changed=True)
        if shape is None:
            self._shapes.pop(stream, None)
        else:
            self._shapes[stream] = shape
        return actions

    def _stop(self, stream: str, reason: str, *, changed: bool) -> list[Action]:
        ended = [session for session in self.sessions if session.shape.name == stream]
        for session in ended:
            del self._sessions[session.id]
            self._abandon(session)
        self._sweep(stream)
        return [StopStream(stream, tuple(session.id for session in ended), reason, changed)]

    # --- after every event

    def _deliver(self, actions: list[Action]) -> None:
        """Sends every session all that lies ready for it and that it may have."""
        for session in self._sessions.values():
            _close_epochs(session, actions)
            while session.room > 0:
                key = session.next_key
                entry = self._pool.entries.get(key)
                if entry is None or not entry.ready:
                    break
                entry.holders += 1
                actions.append(SendBatch(session.id, session.send(entry.slot), key, entry.slot))
                _close_epochs(session, actions)

    def _fill(self, actions: list[Action], now_s: float) -> None:
        """Gives the workers what they can take: first what is wanted, then what will be."""
        ahead = False
        while self._tasks < self._workers * TASKS_AHEAD_PER_WORKER and not self._draining:
            wish = self._next_wish(now_s, ahead=ahead)
            if wish is not None:
                action = self._start(wish, now_s, ahead=ahead)
                if action is not None:
                    actions.append(action)
                    continue
            if ahead:
                return
            ahead = True

    def _next_wish(self, now_s: float, *, ahead: bool) -> schedule.Wish | None:
        sessions = self.sessions
        reach = self._far_reach if ahead else _near_reach
        groups = schedule.wishes(sessions, reach, self._pool.entries.__contains__)
        if len(groups) <= 1:
            return groups[0] if groups else None
        cost_s = max(self._cost_s.values(), default=0.0)
        pairs = schedule.chasers(sessions, self._pool.entries.__contains__, cost_s, now_s)
        wish = schedule.choose(groups, [follower for follower, _ in pairs], self._turn)
        for follower, leader in pairs:
            if follower in wish[1] and leader not in wish[1]:
                leader.lost_s += cost_s
        return wish

    def _far_reach(self, session: Session) -> int:
        return session.room + ahead_slots(session.shape, self._workers, self._pool.memory)

    def _start(self, wish: schedule.Wish, now_s: float, *, ahead: bool) -> Produce | None:
        key, members = wish
        shape = members[0].shape
        if len(self._producing) >= ahead_slots(shape, self._workers, self._pool.memory):
            return None
        entry = self._pool.place(key, shape.slot_bytes, self._worth, floor=self._worth(key) if ahead else None)
        if not ahead:
            self._note_starvation(entry is None, now_s)
        if entry is None:
            return None
        self._turn = schedule.charge(members, self._turn)
        self._producing[key] = now_s
        self._tasks += shape.tasks
        return Produce(key, entry.slot, shape.slot_bytes)

    def _worth(self, key: BatchKey) -> float:
        """How soon a batch is wanted: the nearer to any cursor, the more."""
        distances = (session.distance(key) for session in self._sessions.values() if session.shape.name == key.stream)
        return -min((distance for distance in distances if distance is not None), default=float("inf"))

    # --- rest

    def _note_starvation(self, starved: bool, now_s: float) -> None:
        if self._starved_since_s is not None:
            self._slot_wait_s += now_s - self._starved_since_s
        self._starved_since_s = now_s if starved else None

    def _note_idleness(self, now_s: float) -> None:
        if self._sessions or not any(self._pool.free.values()):
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now_s

    def _give_back(self, now_s: float) -> None:
        if self._idle_since_s is not None and now_s >= self._idle_since_s + _IDLE_S:
            self._pool.drop_free()


def _near_reach(session: Session) -> int:
    return session.room


def _close_epochs(session: Session, actions: list[Action]) -> None:
    while session.at_epoch_end:
        actions.append(SendReceipt(session.id, session.end_epoch()))
