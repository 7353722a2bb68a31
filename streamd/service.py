"""The daemon's middle: messages become window events, window actions become messages, tasks and memory."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from streamd import logs
from streamd.accounts import Accounts, dropped_samples
from streamd.deliveries import Deliveries
from streamd.descriptors import DescriptorServer
from streamd.engines.local import LocalEngine, Reporter
from streamd.engines.production import Production
from streamd.errors import OtherVersionError, ProtocolError
from streamd.messages import (
    AskNames,
    AskStats,
    AskStatus,
    AskStreams,
    ClientMessage,
    DaemonMessage,
    Draining,
    Goodbye,
    Names,
    NoSession,
    Ping,
    Pong,
    Progress,
    ReceiptDue,
    ReceiptSeen,
    Refused,
    SlotsGone,
    Stats,
    StatusNow,
    Stopped,
    Streams,
    Subscribe,
    Welcome,
)
from streamd.objections import names_objection, objection
from streamd.overview import Overview
from streamd.peers import Peer, Peers
from streamd.served import ServedStream
from streamd.server import Server
from streamd.slots import SlotStore
from streamd.spec import Cursor
from streamd.stats import Stats as Numbers
from streamd.window import Window
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
    Subscribed,
    TimePassed,
)
from streamd.wire import Header, body, frame, unpack_client

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class Service:
    """Everything that happens between the sockets. Lives on the event loop's thread."""

    def __init__(
        self,
        streams: Mapping[str, ServedStream],
        *,
        window: Window,
        engine: LocalEngine,
        slots: SlotStore,
        server: Server,
        stats: Numbers,
        overview: Overview,
        spawn: Spawn,
    ) -> None:
        self._streams = streams
        self._window = window
        self._engine = engine
        self._slots = slots
        self._server = server
        self._stats = stats
        self._overview = overview
        self._spawn = spawn
        self._boot = int.from_bytes(os.urandom(7), "little") + 1
        self._session_numbers = itertools.count(1)
        self._peers = Peers()
        self._accounts = Accounts()
        self._unreachable: list[int] = []
        self._deliveries = Deliveries(server, slots, stats, self._boot, self._unreachable.append)
        self._timer: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        self._draining = False
        self.descriptors = DescriptorServer(slots.open_readable, self._lost)
        engine.report_to(Reporter(self._produced, self._failed))

    @property
    def sessions(self) -> int:
        return len(self._peers)

    async def empty(self, hurry: asyncio.Event) -> None:
        """Returns when the last session has ended, or `hurry` is set."""
        if len(self._peers):
            waits = [asyncio.ensure_future(self._emptied.wait()), asyncio.ensure_future(hurry.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    def close(self) -> None:
        """Ends the lifelines and the timer; nothing is heard from now on."""
        self.descriptors.close()
        self._deliveries.close()
        if self._timer is not None:
            self._timer.cancel()

    # --- what happens

    def receive(self, identity: bytes, data: bytes) -> None:
        """One frame of a client."""
        try:
            header, message = unpack_client(data)
        except ProtocolError as error:
            self._stats.count("wire", "malformed")
            logs.warning("wire.malformed", str(error))
            if isinstance(error, OtherVersionError):  # whatever is said, the frame around it names our version
                self._tell(identity, Refused("usage", str(error)))
            return
        match message:
            case AskStreams():
                self._tell(identity, Streams({name: stream.spec for name, stream in self._streams.items()}))
            case AskStats():
                self._tell(identity, Stats(self._numbers()))
            case AskStatus():
                status = self._overview.status(self._window, time.monotonic(), draining=self._draining)
                self._tell(identity, StatusNow(status))
            case AskNames():
                self._tell(identity, self._names(message))
            case Subscribe():
                self._subscribe(identity, message)
            case Progress() | ReceiptSeen() | Goodbye() | Ping():
                peer = self._peers.speaking(identity)
                if peer is not None and (header.boot, header.session) == (self._boot, peer.session):
                    self._hear(peer, message)
                else:
                    self._correct(identity, header, message)

    def _correct(self, identity: bytes, header: Header, message: ClientMessage) -> None:
        """A frame of a session that is none, or not this connection's: whoever believes in it is told."""
        self._stats.count("wire", "stale")
        if not isinstance(message, Goodbye):
            self._server.send(identity, frame(Header(header.boot, header.session, 0), body(NoSession())))

    def _names(self, question: AskNames) -> Names | Refused:
        refusal = names_objection(question, self._streams)
        if refusal is not None:
            return refusal
        stream = self._streams[question.stream]
        return Names(tuple(stream.file(sample_id) for sample_id in question.sample_ids))

    def _hear(self, peer: Peer, message: Progress | ReceiptSeen | Goodbye | Ping) -> None:
        match message:
            case Progress(upto, released, taken, waited_ns, retired):
                self._stats.time(f"stream.{peer.stream.spec.name}", "client_wait", waited_ns / 1e9, len(released))
                self._happen(
                    LeaseReleased(peer.session, released, retired),
                    ProgressReported(peer.session, taken),
                    CreditGranted(peer.session, upto),
                )
            case ReceiptSeen(epoch, digest, ok):
                note = logs.info if ok else logs.error
                text = "epoch accounted for" if ok else "the trainer's account of the epoch does not add up"
                note(
                    "receipt.ok" if ok else "receipt.bad",
                    text,
                    stream=peer.stream.spec.name,
                    session=peer.session,
                    epoch=epoch,
                    digest=digest,
                )
                self._stats.count(f"stream.{peer.stream.spec.name}", "receipts_ok" if ok else "receipts_bad")
            case Ping():
                self._deliveries.send_all()
                self._answer(peer)
                self._happen()
            case Goodbye():
                self._depart(peer.session, "said goodbye")
                self._happen(SessionClosed(peer.session))

    def _answer(self, peer: Peer) -> None:
        """Tells a client its session as it is here."""
        session = next((each for each in self._window.sessions if each.id == peer.session), None)
        if session is not None:
            released = session.sent - len(session.leases)
            self._send(peer, Pong(session.sent, session.upto, released, peer.receipts))

    def _produced(self, production: Production) -> None:
        self._deliveries.prepare(production)
        self._overview.produced(production, time.monotonic())
        self._happen(BatchProduced(production.key, production.slot))

    def _failed(self, production: Production, reason: str) -> None:
        self._happen(ProductionFailed(production.key, production.slot, reason))

    def _lost(self, session: int, reason: str) -> None:
        if self._depart(session, reason):
            self._happen(SessionLost(session))

    def _depart(self, session: int, reason: str, *, hang_up: bool = True) -> bool:
        peer = self._peers.remove(session)
        self._overview.ended(session, time.monotonic())
        if hang_up:
            self.descriptors.forget(session)
        if peer is not None:
            logs.info("session.ended", reason, stream=peer.stream.spec.name, session=session)
            if not len(self._peers):
                self._emptied.set()
        return peer is not None

    def drain(self) -> None:
        """Produces nothing more and tells everyone to come back to the next daemon."""
        self._draining = True
        self._happen(DrainRequested())
        for peer in self._peers.all():
            self._send(peer, Draining())
        self._happen()

    # --- what is done about it

    def _happen(self, *events: Event) -> None:
        for event in events:
            now_s = time.monotonic()
            self._act(self._window.handle(event, now_s), now_s)
        self._deliveries.settle(fresh=all(isinstance(event, BatchProduced) for event in events))
        while self._unreachable:
            self._lost(self._unreachable.pop(), "it cannot be reached, or does not read")
        self._set_timer()

    def _act(self, actions: list[Action], now_s: float) -> None:
        for action in actions:
            match action:
                case SendBatch(session):
                    if peer := self._peers.of(session):
                        self._overview.sent(session, peer.stream.spec.rows(action.key.index), now_s)
                        self._deliveries.add(peer, action)
                case Produce():
                    self._produce(action)
                case SendReceipt(session, cursor):
                    self._spawn(self._send_receipt(session, cursor))
                case DropSlots(slots):
                    self._drop(slots)
                case Admit():
                    self._welcome(action, now_s)
                case Refuse():
                    self._refuse(action)
                case StopStream() | Warn():
                    self._announce(action)

    def _produce(self, action: Produce) -> None:
        try:
            self._slots.writable(action.slot, action.slot_bytes)
        except OSError as error:
            reason = f"no memory for a batch of {action.slot_bytes} bytes: {error.strerror}"
            asyncio.get_running_loop().call_soon(self._happen, ProductionFailed(action.key, action.slot, reason))
            return
        self._engine.produce(action.key, action.slot, action.slot_bytes)

    async def _send_receipt(self, session: int, cursor: Cursor) -> None:
        peer = self._peers.of(session)
        if peer is None:
            return
        digest = await self._accounts.digest(peer.stream, cursor)
        peer.receipts += 1
        self._send(peer, ReceiptDue(cursor.epoch, digest, dropped_samples(peer.stream, cursor)))
        self._happen()

    def _drop(self, slots: tuple[int, ...]) -> None:
        self._engine.drop(slots)
        for slot in slots:
            self._slots.drop(slot)
        self._deliveries.forget(slots)
        for peer in self._peers.all():
            if peer.transport == "shared":
                self._send(peer, SlotsGone(slots))

    def _send(self, peer: Peer, message: DaemonMessage) -> None:
        header = Header(self._boot, peer.session, 0)
        if not self._server.send(peer.identity, frame(header, body(message))):
            self._unreachable.append(peer.session)

    def _tell(self, identity: bytes, message: DaemonMessage) -> None:
        self._server.send(identity, frame(Header(self._boot, 0, 0), body(message)))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_s = self._window.deadline()
        if deadline_s is not None:
            delay_s = max(0.0, deadline_s - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._happen, TimePassed())

    # --- sessions

    def _subscribe(self, identity: bytes, wish: Subscribe) -> None:
        earlier = self._peers.speaking(identity)
        if earlier is not None:
            self._lost(earlier.session, "it subscribed anew")
        refusal = objection(wish, self._streams, sessions=len(self._peers), draining=self._draining)
        if refusal is not None:
            self._tell(identity, refusal)
            return
        session = next(self._session_numbers)
        stream = self._streams[wish.stream]
        self._peers.add(Peer(identity, session, stream, wish.transport, wish.rank, wish.world))
        self._happen(
            Subscribed(
                session,
                wish.stream,
                wish.rank,
                wish.world,
                wish.uneven,
                wish.epochs,
                wish.cursor,
                wish.credit,
                wish.resuming,
                wish.live,
                wish.together,
            )
        )

    def _welcome(self, action: Admit, now_s: float) -> None:
        session, credit = action.session, action.credit
        peer = self._peers.of(session)
        if peer is None:
            return
        peer.credit = credit
        self._overview.began(session, (peer.stream.spec.name, peer.rank, peer.world), now_s)
        secret = self.descriptors.expect(session)
        where = self._server.descriptors
        logs.info(
            "session.began",
            "a trainer subscribed",
            stream=peer.stream.spec.name,
            session=session,
            rank=f"{peer.rank}/{peer.world}",
            credit=credit,
            transport=peer.transport,
        )
        self._send(peer, Welcome(peer.stream.spec, credit, peer.transport, where, secret, action.cursor))

    def _refuse(self, action: Refuse) -> None:
        peer = self._peers.remove(action.session)
        if peer is not None:
            logs.warning("session.refused", action.text, stream=peer.stream.spec.name)
            self._tell(peer.identity, Refused(action.why, action.text, action.retry_s))

    def _announce(self, action: StopStream | Warn) -> None:
        if isinstance(action, Warn):
            logs.warning("window.warning", action.text)
            return
        if not action.sessions:
            return  # each batch that was in production fails by itself; the first has ended the sessions and said why
        logs.error("stream.stopped", action.reason, stream=action.stream)
        for session in action.sessions:
            peer = self._peers.of(session)
            if peer is not None:
                self._send(peer, Stopped(action.reason, action.changed))
                # It hangs up itself when it has read why: the end of its lifeline could overtake the message.
                self._depart(session, "its stream stopped", hang_up=False)

    # --- numbers

    def _numbers(self) -> dict[str, dict[str, float]]:
        self._stats.gauge("daemon", "sessions", len(self._peers))
        self._stats.gauge("daemon", "memory_used_bytes", self._window.used_bytes)
        self._stats.gauge("daemon", "slots", len(self._slots))
        self._stats.gauge("daemon", "producing", self._window.producing)
        self._stats.gauge("daemon", "slot_wait_s", self._window.slot_wait_s)
        return self._stats.read()
