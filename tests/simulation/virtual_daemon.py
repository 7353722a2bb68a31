"""A daemon in virtual time: the real Window, with what service and peers do around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final

from stage import Hardware, Stage
from story import Story
from support.scheduler_driver import missing_batches
from synthetic import SLOT_BYTES
from virtual_engine import VirtualEngine
from virtual_network import Lifeline
from virtual_time import Process

from streamd.core.spec import Cursor, StreamShape
from streamd.ipc.messages import (
    ClientMessage,
    CreditNow,
    DaemonMessage,
    Draining,
    FrameHeader,
    Goodbye,
    NoSession,
    Ping,
    Pong,
    Progress,
    ReceiptDue,
    ReceiptSeen,
    Refused,
    SlotsGone,
    Stopped,
    Subscribe,
    Welcome,
)
from streamd.limits import PAIR_S, TASKS_AHEAD_PER_WORKER
from streamd.scheduler.admission import SchedulerLimits, compute_production_slots
from streamd.scheduler.events import (
    Action,
    AdmitSession,
    CreditGranted,
    DrainRequested,
    DropSlots,
    Event,
    LeaseReleased,
    LogWarning,
    ProduceBatch,
    ProgressReported,
    RefuseSession,
    SendBatch,
    SendReceipt,
    SessionClosed,
    SessionLost,
    SetCredit,
    StopStream,
    StreamChanged,
    Subscribed,
    TimePassed,
)
from streamd.scheduler.scheduler import Scheduler

_DRAINING_RETRY_S: Final = 0.2
_LOOK_EVERY: Final = 16  # events between two looks at whether a worker idles


@dataclass(slots=True, eq=False)
class Peer:
    """A client with a session, as the daemon knows it."""

    identity: int
    session: int
    lifeline: Lifeline | None = None
    receipts: int = 0
    most: int = 0  # deliveries that it may have been granted by now
    lent: int = 0  # the most that it was lent at a time


class Daemon:
    """One boot. Its process may be stopped and killed; then another one takes the endpoint."""

    def __init__(self, boot: int, stage: Stage) -> None:
        self.boot = boot
        self.process = Process(stage.agenda)
        self.draining = False
        self.peers: dict[int, Peer] = {}
        self.on_empty: Callable[[], None] = lambda: None
        self._data, self._hardware = stage.data, stage.hardware
        self._agenda, self._rng, self._story, self._network = stage.agenda, stage.rng, stage.story, stage.network
        memory = self._hardware.slots * SLOT_BYTES
        self.window = Scheduler([self._data.shape], SchedulerLimits(memory, self._hardware.workers))
        self.engine = VirtualEngine(stage, self.process, self._happen)
        self._speaking: dict[int, Peer] = {}
        self._lifelines: dict[int, Lifeline] = {}
        self._numbers = count(1)
        self._unreachable: list[int] = []
        self._timer_s: float | None = None
        self._events = 0

    def __str__(self) -> str:
        return f"daemon {self.boot}"

    # --- what comes in

    def receive(self, identity: int, header: FrameHeader, message: ClientMessage) -> None:
        """As Service.receive."""
        match message:
            case Subscribe():
                self._subscribe(identity, message)
            case Progress() | ReceiptSeen() | Goodbye() | Ping():
                peer = self._speaking.get(identity)
                if peer is not None and (header.boot, header.session) == (self.boot, peer.session):
                    self._hear(peer, message)
                else:
                    self._correct(identity, header, message)

    def _correct(self, identity: int, header: FrameHeader, message: ClientMessage) -> None:
        self._story.counts["stale frames at the daemon"] += 1
        if not isinstance(message, Goodbye):
            self._network.tell(identity, FrameHeader(header.boot, header.session, 0), NoSession())

    def _hear(self, peer: Peer, message: Progress | ReceiptSeen | Goodbye | Ping) -> None:
        match message:
            case Progress(upto, released, taken, _, retired):
                peer.most += len(released)
                self._story.counts["leases retired"] += len(retired)
                granted = self._network.hostile or upto <= peer.most
                self._story.require("no more is granted than was given back", granted, "{}: {}", peer.most, message)
                self._happen(
                    LeaseReleased(peer.session, released, retired),
                    ProgressReported(peer.session, taken),
                    CreditGranted(peer.session, upto),
                )
            case ReceiptSeen():
                pass
            case Ping():
                self._answer(peer)
                self._happen()
            case Goodbye(kept):
                self.parted(peer.session, kept, "said goodbye")

    def _answer(self, peer: Peer) -> None:
        session = next((each for each in self.window.sessions if each.id == peer.session), None)
        if session is not None:
            released = session.sent - len(session.leases)
            self._send(peer, Pong(session.sent, session.upto, released, peer.receipts))

    def pair(self, lifeline: Lifeline) -> None:
        """A client opens its lifeline."""
        peer = self.peers.get(lifeline.session)
        if peer is None:
            self._network.hang_up(lifeline)
        else:
            peer.lifeline = self._lifelines[peer.session] = lifeline

    def lose(self, session: int, reason: str) -> None:
        if self._depart(session, reason) or session in self.window.ended_sessions:
            self._happen(SessionLost(session))
        self._lifelines.pop(session, None)

    def parted(self, session: int, kept: tuple[int, ...] | None, reason: str) -> None:
        """As Service._parted."""
        if self._depart(session, reason, hang_up=False) or session in self.window.ended_sessions:
            self._happen(SessionClosed(session, kept))
        self._see_off(session)

    def dropped(self, session: int, numbers: tuple[int, ...], retired: tuple[int, ...]) -> None:
        """As Service._dropped."""
        self._story.counts["batches dropped after their session"] += session in self.window.ended_sessions
        self._happen(LeaseReleased(session, numbers, retired))
        if session not in self.peers:
            self._see_off(session)

    def _see_off(self, session: int) -> None:
        lifeline = self._lifelines.get(session)
        if session not in self.window.ended_sessions:
            if lifeline is not None:
                del self._lifelines[session]
                self._network.hang_up(lifeline)
        elif lifeline is not None and lifeline.open:
            self._network.shut(lifeline)
        else:
            self._happen(SessionLost(session))

    def drain(self) -> None:
        self.draining = True
        self._happen(DrainRequested())
        for peer in list(self.peers.values()):
            self._send(peer, Draining())
        self._happen()
        if not self.peers:
            self.on_empty()

    def change(self) -> None:
        """The stream is served again: the same order, other pixels."""
        self._data.renew()
        self._happen(StreamChanged(self._data.spec.name, self._data.shape))

    # --- what is done about it

    def _happen(self, *events: Event) -> None:
        if events:
            self._act(self.window.handle_events(events, self._agenda.now_s))
        while self._unreachable:
            self.parted(self._unreachable.pop(), None, "it cannot be reached")
        self._check()
        self._set_timer()

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case SendBatch():
                    self._send_batch(action)
                case ProduceBatch():
                    self.engine.produce(action)
                case SendReceipt(session, cursor):
                    self.process.after(self._rng.random() * 0.005, self._send_receipt, session, cursor)
                case DropSlots(slots):
                    self._drop(slots)
                case AdmitSession():
                    self._welcome(action)
                case SetCredit(session, credit):
                    self._lend(session, credit)
                case RefuseSession():
                    self._refuse(action)
                case StopStream() | LogWarning():
                    self._announce(action)

    def _send_batch(self, action: SendBatch) -> None:
        peer = self.peers.get(action.session)
        if peer is not None:
            header = FrameHeader(self.boot, action.session, action.number)
            self._reach(peer, header, self.engine.ready[action.slot])

    def _send_receipt(self, session: int, cursor: Cursor) -> None:
        peer = self.peers.get(session)
        if peer is not None:
            dropped = max(0, self._data.spec.samples - cursor.next_base_index * self._data.spec.batch_size)
            peer.receipts += 1
            self._send(peer, ReceiptDue(cursor.epoch, self._data.digest(cursor), dropped))
            self._happen()

    def _send(self, peer: Peer, message: DaemonMessage) -> None:
        self._reach(peer, FrameHeader(self.boot, peer.session, 0), message)

    def _reach(self, peer: Peer, header: FrameHeader, message: DaemonMessage) -> None:
        if not self._network.tell(peer.identity, header, message):
            self._unreachable.append(peer.session)

    def _tell(self, identity: int, message: DaemonMessage) -> None:
        self._network.tell(identity, FrameHeader(self.boot, 0, 0), message)

    def _set_timer(self) -> None:
        deadline_s = self.window.next_deadline_s()
        if deadline_s is not None and deadline_s != self._timer_s:
            self.process.after(max(0.0, deadline_s - self._agenda.now_s), self._time_passed, deadline_s)
        self._timer_s = deadline_s

    def _time_passed(self, deadline_s: float) -> None:
        if deadline_s == self._timer_s:
            self._timer_s = None
            self._happen(TimePassed())

    # --- sessions

    def _subscribe(self, identity: int, wish: Subscribe) -> None:
        before = self._speaking.get(identity)
        if before is not None:
            self.parted(before.session, None, "it subscribed again")
        refusal = self._objection(wish)
        if refusal is not None:
            self._tell(identity, refusal)
            return
        session = next(self._numbers)
        self.peers[session] = self._speaking[identity] = Peer(identity, session)
        at, resuming = wish.cursor, wish.resuming
        told = (wish.stream, wish.rank, wish.world, wish.uneven, wish.epochs, at, wish.credit, resuming)
        earlier = tuple(number for boot, number in wish.earlier if boot == self.boot)
        user = self._network.find_user(identity)
        self._happen(Subscribed(session, *told, wish.live, wish.together, earlier, user))

    def _objection(self, wish: Subscribe) -> Refused | None:
        if self.draining:
            return Refused("busy", "this daemon is shutting down", _DRAINING_RETRY_S)
        if wish.order_id not in {None, self._data.spec.order_id}:
            return Refused("token", "another order")
        return None

    def _welcome(self, action: AdmitSession) -> None:
        session, credit = action.session, action.credit
        peer = self.peers.get(session)
        if peer is None:
            return
        self._story.note(str(self), "session {} begins with credit {}", session, credit)
        peer.most = peer.lent = credit
        self.process.after(PAIR_S, self._give_up, session)
        spec, cursor = self._data.spec, action.cursor
        self._send(peer, Welcome(b"", spec, credit, "shared", cursor, action.earlier))

    def _lend(self, session: int, credit: int) -> None:
        peer = self.peers.get(session)
        if peer is not None:
            self._story.note(str(self), "session {} is lent {} from now on", session, credit)
            peer.most += max(0, credit - peer.lent)
            peer.lent = max(peer.lent, credit)
            self._send(peer, CreditNow(credit))

    def _give_up(self, session: int) -> None:
        peer = self.peers.get(session)
        if peer is not None and peer.lifeline is None:
            self.lose(session, "it did not open its lifeline")

    def _refuse(self, action: RefuseSession) -> None:
        peer = self._remove(action.session)
        if peer is not None:
            self._tell(peer.identity, Refused(action.refusal, action.text, action.retry_s))

    def _announce(self, action: StopStream | LogWarning) -> None:
        if isinstance(action, LogWarning):
            return
        for session in action.sessions:
            peer = self.peers.get(session)
            if peer is not None:
                self._send(peer, Stopped(action.reason, action.changed))
                self._remove(session)

    def _remove(self, session: int) -> Peer | None:
        peer = self.peers.pop(session, None)
        if peer is not None:
            self._speaking.pop(peer.identity, None)
        return peer

    def _depart(self, session: int, reason: str, *, hang_up: bool = True) -> bool:
        peer = self._remove(session)
        if peer is None:
            return False
        self._story.note(str(self), "session {} ends: {}", session, reason)
        if peer.lifeline is not None and hang_up:
            self._network.hang_up(peer.lifeline)
        if not self.peers:
            self.on_empty()
        return True

    def _drop(self, serials: tuple[int, ...]) -> None:
        self.engine.drop(serials)
        for peer in list(self.peers.values()):
            self._send(peer, SlotsGone(serials))

    def _check(self) -> None:
        """Rules that hold after every event; the dear ones now and then."""
        check_memory(self._story, self.window, len(self.engine.slots), self._hardware)
        self._events += 1
        if self._events % _LOOK_EVERY == 0:
            check_holders(self._story, self.window)
            if not self.draining:
                check_no_worker_idles(self._story, self.window, self._data.shape, self._hardware)


# --- rules over the window that its own ledger does not know, looked at from outside


def check_memory(story: Story, window: Scheduler, slots: int, hardware: Hardware) -> None:
    """There are as many slots as are accounted for, and no more than fit."""
    within = slots * SLOT_BYTES == window.used_bytes <= hardware.slots * SLOT_BYTES
    story.require("memory stays within its bound", within, "{} slots of {}", slots, hardware.slots)


def check_holders(story: Story, window: Scheduler) -> None:
    """Every lease is a session's, or was and its trainer holds it: none is left by one that is gone."""
    ended = sum(len(each.leases) for each in window.ended_sessions.values())
    leases = ended + sum(len(session.leases) for session in window.sessions)
    holders = sum(entry.lease_count for entry in window._pool.by_slot.values())
    story.require("what is held is held by a session", leases == holders, "{}, not {}", leases, holders)


def check_no_worker_idles(story: Story, window: Scheduler, shape: StreamShape, hardware: Hardware) -> None:
    """Whoever has credit and wants a batch that nobody has gets a worker, if there is one, and memory."""
    if window.producing_count * shape.tasks >= hardware.workers * TASKS_AHEAD_PER_WORKER:
        return
    entries = window._pool.by_slot.values()
    left = hardware.slots - sum(not entry.is_whole or entry.lease_count > 0 for entry in entries)
    most = compute_production_slots(shape, SchedulerLimits(hardware.slots * SLOT_BYTES, hardware.workers))
    missing = [key for session in window.sessions for key in missing_batches(window, session)]
    story.require(
        "no worker idles while somebody wants a batch and memory allows",
        not missing or not left or window.producing_count >= most,
        "{} is not produced, {} slots are left",
        missing[:1],
        left,
    )
