"""A daemon in virtual time: the real Window, with what service, peers, engine and slots do around it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final

from stage import Stage
from synthetic import SLOT_BYTES, Slot
from virtual_network import Lifeline
from virtual_time import Process

from streamd.limits import TASK_ATTEMPTS, TASKS_AHEAD_PER_WORKER, WORKER_RESPAWN_S
from streamd.messages import (
    BatchReady,
    ClientMessage,
    DaemonMessage,
    Draining,
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
from streamd.spec import Cursor
from streamd.window import Window
from streamd.window.actions import Action, Admit, DropSlots, Produce, Refuse, SendBatch, SendReceipt, StopStream, Warn
from streamd.window.admission import ahead_slots
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
    Subscribed,
    TimePassed,
)
from streamd.wire import Header

_PAIR_S: Final = 10.0  # as the descriptor server waits for a lifeline
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


@dataclass(slots=True, eq=False)
class Job:
    """A batch with a worker. `deaths` of workers it has seen; `attempt` tells live workers from dead ones."""

    action: Produce
    pixels: int
    deaths: int = 0
    attempt: int = 0


class Daemon:
    """One boot. Its process may be stopped and killed; then another one takes the endpoint."""

    def __init__(self, boot: int, stage: Stage) -> None:
        self.boot = boot
        self.process = Process(stage.agenda)
        self.draining = False
        self.slots: dict[int, Slot] = {}
        self.running: list[Job] = []
        self.peers: dict[int, Peer] = {}
        self.on_empty: Callable[[], None] = lambda: None
        self._data, self._hardware = stage.data, stage.hardware
        self._agenda, self._rng, self._story, self._network = stage.agenda, stage.rng, stage.story, stage.network
        self._memory = self._hardware.slots * SLOT_BYTES
        self.window = Window([self._data.shape], memory=self._memory, workers=self._hardware.workers)
        self._speaking: dict[int, Peer] = {}
        self._numbers = count(1)
        self._queue: deque[Job] = deque()
        self._ready: dict[int, BatchReady] = {}
        self._unreachable: list[int] = []
        self._timer_s: float | None = None
        self._events = 0
        self._gone: set[int] = set()

    def __str__(self) -> str:
        return f"daemon {self.boot}"

    # --- what comes in

    def receive(self, identity: int, header: Header, message: ClientMessage) -> None:
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

    def _correct(self, identity: int, header: Header, message: ClientMessage) -> None:
        self._story.counts["stale frames at the daemon"] += 1
        if not isinstance(message, Goodbye):
            self._network.tell(identity, Header(header.boot, header.session, 0), NoSession())

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
            case Goodbye():
                self._depart(peer.session, "said goodbye")
                self._happen(SessionClosed(peer.session))

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
            peer.lifeline = lifeline

    def lose(self, session: int, reason: str) -> None:
        if self._depart(session, reason):
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
        """The stream is served anew: the same order, other pixels."""
        self._data.renew()
        self._happen(StreamChanged(self._data.spec.name, self._data.shape))

    # --- what is done about it

    def _happen(self, *events: Event) -> None:
        for event in events:
            self._act(self.window.handle(event, self._agenda.now_s))
        while self._unreachable:
            self.lose(self._unreachable.pop(), "it cannot be reached")
        self._check()
        self._set_timer()

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case SendBatch():
                    self._send_batch(action)
                case Produce():
                    self._produce(action)
                case SendReceipt(session, cursor):
                    self.process.after(self._rng.random() * 0.005, self._send_receipt, session, cursor)
                case DropSlots(slots):
                    self._drop(slots)
                case Admit(session, credit, cursor):
                    self._welcome(session, credit, cursor)
                case Refuse():
                    self._refuse(action)
                case StopStream() | Warn():
                    self._announce(action)

    def _send_batch(self, action: SendBatch) -> None:
        peer = self.peers.get(action.session)
        if peer is not None:
            header = Header(self.boot, action.session, action.number)
            self._reach(peer, header, self._ready[action.slot])

    def _send_receipt(self, session: int, cursor: Cursor) -> None:
        peer = self.peers.get(session)
        if peer is not None:
            dropped = max(0, self._data.spec.samples - cursor.base * self._data.spec.batch_size)
            peer.receipts += 1
            self._send(peer, ReceiptDue(cursor.epoch, self._data.digest(cursor), dropped))
            self._happen()

    def _send(self, peer: Peer, message: DaemonMessage) -> None:
        self._reach(peer, Header(self.boot, peer.session, 0), message)

    def _reach(self, peer: Peer, header: Header, message: DaemonMessage) -> None:
        if not self._network.tell(peer.identity, header, message):
            self._unreachable.append(peer.session)

    def _tell(self, identity: int, message: DaemonMessage) -> None:
        self._network.tell(identity, Header(self.boot, 0, 0), message)

    def _set_timer(self) -> None:
        deadline_s = self.window.deadline()
        if deadline_s is not None and deadline_s != self._timer_s:
            self.process.after(max(0.0, deadline_s - self._agenda.now_s), self._time_passed, deadline_s)
        self._timer_s = deadline_s

    def _time_passed(self, deadline_s: float) -> None:
        if deadline_s == self._timer_s:
            self._timer_s = None
            self._happen(TimePassed())

    # --- sessions

    def _subscribe(self, identity: int, wish: Subscribe) -> None:
        earlier = self._speaking.get(identity)
        if earlier is not None:
            self.lose(earlier.session, "it subscribed anew")
        refusal = self._objection(wish)
        if refusal is not None:
            self._tell(identity, refusal)
            return
        session = next(self._numbers)
        self.peers[session] = self._speaking[identity] = Peer(identity, session)
        at, resuming = wish.cursor, wish.resuming
        told = (wish.stream, wish.rank, wish.world, wish.uneven, wish.epochs, at, wish.credit, resuming)
        self._happen(Subscribed(session, *told, wish.live, wish.together))

    def _objection(self, wish: Subscribe) -> Refused | None:
        if self.draining:
            return Refused("busy", "this daemon is going away", _DRAINING_RETRY_S)
        if wish.order_id not in {None, self._data.spec.order_id}:
            return Refused("token", "another order")
        return None

    def _welcome(self, session: int, credit: int, cursor: Cursor | None) -> None:
        peer = self.peers.get(session)
        if peer is None:
            return
        self._story.note(str(self), "session {} begins with credit {}", session, credit)
        peer.most = credit
        self.process.after(_PAIR_S, self._give_up, session)
        self._send(peer, Welcome(self._data.spec, credit, "shared", "lifelines", b"", cursor))

    def _give_up(self, session: int) -> None:
        peer = self.peers.get(session)
        if peer is not None and peer.lifeline is None:
            self.lose(session, "it did not open its lifeline")

    def _refuse(self, action: Refuse) -> None:
        peer = self._remove(action.session)
        if peer is not None:
            self._tell(peer.identity, Refused(action.why, action.text, action.retry_s))

    def _announce(self, action: StopStream | Warn) -> None:
        if isinstance(action, Warn):
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

    def _depart(self, session: int, reason: str) -> bool:
        peer = self._remove(session)
        if peer is None:
            return False
        self._story.note(str(self), "session {} ends: {}", session, reason)
        if peer.lifeline is not None:
            self._network.hang_up(peer.lifeline)
        if not self.peers:
            self.on_empty()
        return True

    # --- memory and workers

    def _produce(self, action: Produce) -> None:
        slot = self.slots.get(action.slot)
        if slot is None:
            self._story.require("a serial is never used again", action.slot not in self._gone, "{}", action)
            slot = self.slots[action.slot] = Slot()
            slot.serial = action.slot
        self._story.require(
            "what somebody sees is never rewritten", not slot.watchers, "slot {} for {}", slot.serial, action.key
        )
        slot.blank()
        self._queue.append(Job(action, self._data.pixels))
        self._work()

    def _work(self) -> None:
        while self._queue and len(self.running) < self._hardware.workers:
            job = self._queue.popleft()
            self.running.append(job)
            effort = self._rng.random()
            decode_s = self._hardware.decode_s * (0.5 + effort if effort < 0.97 else 20)
            self.process.after(decode_s, self._decoded, job, job.attempt)

    def _decoded(self, job: Job, attempt: int) -> None:
        """A worker has gone through a batch: verdicts are on disk before the batch goes on, or it is resolved again."""
        if attempt != job.attempt:
            return
        key = job.action.key
        if found := self._data.condemn(key.epoch, key.index):
            self._story.counts["samples condemned"] += len(found)
            self._story.note(str(self), "samples {} of {}:{} are bad", found, key.epoch, key.index)
            self.process.after(self._hardware.decode_s, self._decoded, job, attempt)
            return
        self.running.remove(job)
        self._fill(job)
        self._happen(BatchProduced(key, job.action.slot))
        self._work()

    def _fill(self, job: Job) -> None:
        key, serial = job.action.key, job.action.slot
        ids, marks = self._data.resolved(key.epoch, key.index)
        self.slots[serial].write(key.epoch, key.index, job.pixels, ids)
        bad = self._data.bad_rows(key.epoch, key.index, marks) if self._data.verdicts else ()
        self._ready[serial] = BatchReady(key.epoch, key.index, ids.size, serial, SLOT_BYTES, inline=False, bad=bad)

    def kill_worker(self) -> bool:
        """One dies at its work; whether there was one."""
        if not self.running:
            return False
        job = self._rng.choice(self.running)
        self._story.counts["batches begun again"] += 1
        job.deaths += 1
        job.attempt += 1
        if job.deaths < TASK_ATTEMPTS:
            self.slots[job.action.slot].blank()
            self.running.remove(job)
            self.process.after(WORKER_RESPAWN_S, self._again, job)
        else:
            self.fail_production(job)
        return True

    def _again(self, job: Job) -> None:
        self._queue.appendleft(job)
        self._work()

    def fail_production(self, job: Job) -> None:
        """For a reason that is no sample's: the stream stops."""
        self.running.remove(job)
        job.attempt += 1
        self._happen(ProductionFailed(job.action.key, job.action.slot, "the disk is gone"))
        self._work()

    def _drop(self, serials: tuple[int, ...]) -> None:
        for serial in serials:
            del self.slots[serial]
            self._ready.pop(serial, None)
            self._gone.add(serial)
        for peer in list(self.peers.values()):
            self._send(peer, SlotsGone(serials))

    # --- rules that hold after every event

    def _check(self) -> None:
        slots = len(self.slots)
        within = slots * SLOT_BYTES == self.window.used_bytes <= self._memory
        self._story.require("memory stays within its bound", within, "{} slots of {}", slots, self._hardware.slots)
        self._events += 1
        if self._events % _LOOK_EVERY:
            return
        leases = sum(len(session.leases) for session in self.window.sessions)
        holders = sum(entry.holders for entry in self.window._pool.by_slot.values())
        self._story.require("what is held is held by a session", leases == holders, "{}, not {}", leases, holders)
        tasks = self.window.producing * self._data.tasks
        if not self.draining and tasks < self._hardware.workers * TASKS_AHEAD_PER_WORKER:
            self._check_no_worker_idles()

    def _check_no_worker_idles(self) -> None:
        window, shape = self.window, self._data.shape
        entries = window._pool.by_slot.values()
        left = self._hardware.slots - sum(not entry.ready or entry.holders > 0 for entry in entries)
        most = ahead_slots(shape, self._hardware.workers, self._memory)
        known = window._pool.entries
        missing = [key for each in window.sessions for key in each.ahead(each.room) if key not in known]
        self._story.require(
            "no worker idles while somebody wants a batch and memory allows",
            not missing or not left or window.producing >= most,
            "{} is not produced, {} slots are left",
            missing[:1],
            left,
        )
