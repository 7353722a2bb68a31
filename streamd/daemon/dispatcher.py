"""The daemon's middle: messages become window events, window actions become messages, tasks and memory."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from streamd.core import log
from streamd.core.counters import ProcessStats as Numbers
from streamd.core.spec import Cursor
from streamd.core.status import DaemonStatus
from streamd.daemon.batch_sender import BatchSender
from streamd.daemon.descriptor_allowance import Allowance
from streamd.daemon.engine.batch_job import BatchJob
from streamd.daemon.engine.engine import LocalEngine
from streamd.daemon.expected_digests import Accounts, dropped_samples
from streamd.daemon.monitor.batch_preview import Leaving
from streamd.daemon.router import Server
from streamd.daemon.sessions import Peer, Reception
from streamd.daemon.status_builder import Answers, Overview
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import OtherVersionError, ProtocolError
from streamd.ipc.fd_passing import DescriptorServer, LifelineCallbacks
from streamd.ipc.frames import FrameHeader, build_frame, decode_client_frame, encode_message
from streamd.ipc.messages import (
    AskMonitor,
    AskNames,
    AskStats,
    AskStatus,
    AskStreams,
    ClientMessage,
    DaemonMessage,
    Draining,
    Goodbye,
    MonitorAt,
    NoSession,
    Ping,
    Pong,
    Progress,
    ReceiptDue,
    ReceiptSeen,
    Refused,
    SlotsGone,
    Subscribe,
)
from streamd.ipc.slots import SlotStore
from streamd.scheduler import Window
from streamd.scheduler.actions import (
    Action,
    Admit,
    DropSlots,
    Lend,
    Produce,
    Refuse,
    SendBatch,
    SendReceipt,
    StopStream,
    Warn,
)
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
    TimePassed,
)

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class Service:
    """Everything that happens between the sockets. Lives on the event loop's thread."""

    waits_for_data: Final = True  # its trainers do, so it asks the engine again for batches whose data return

    def __init__(
        self,
        streams: dict[str, ServedStream],
        *,
        window: Window,
        engine: LocalEngine,
        slots: SlotStore,
        server: Server,
        stats: Numbers,
        overview: Overview,
        spawn: Spawn,
        allowance: Allowance,
        monitor: MonitorAt | None = None,
    ) -> None:
        self._streams = streams
        self._window = window
        self._engine = engine
        self._slots = slots
        self._server = server
        self._stats = stats
        self._overview = overview
        self._spawn = spawn
        self._answers = Answers(streams, window, slots, stats, overview, monitor)
        self._boot = int.from_bytes(os.urandom(7), "little") + 1
        self._accounts = Accounts()
        self._unreachable: list[int] = []
        self.leaving = Leaving(slots)
        self._batch_sender = BatchSender(server, slots, stats, overview, self.leaving, self._boot, self._miss)
        self._timer: asyncio.TimerHandle | None = None
        self._due_s: float | None = None  # when it rings
        self._draining = False
        news = LifelineCallbacks(self._lost, self._parted, self._dropped)
        self.descriptors = DescriptorServer(slots.open_readable, news, allowance.lifelines)
        self._reception = Reception(
            streams, self.descriptors, server.descriptors, overview, allowance, send=self._send, tell=self._tell
        )
        self._peers = self._reception.peers
        engine.report_to(self)

    @property
    def streams(self) -> Mapping[str, ServedStream]:
        """What is served now, by name."""
        return self._streams

    @property
    def sessions(self) -> int:
        return len(self._peers)

    @property
    def is_asked(self) -> bool:
        """Whether batches are under way."""
        return self._window.producing > 0

    @property
    def moves(self) -> int:
        """How often something has come of work: tasks that were done, workers that were replaced."""
        return self._stats.stage_times("engine", "idle").count + self._engine.restarts

    def status(self) -> DaemonStatus:
        """How it is doing now."""
        return self._overview.status(self._window, time.monotonic(), draining=self._draining)

    def numbers(self) -> dict[str, dict[str, float]]:
        """What a client is told who asks for the numbers of stats."""
        return self._answers.numbers(len(self._peers))

    async def empty(self, hurry: asyncio.Event) -> None:
        """Returns when the last session has ended, or `hurry` is set."""
        await self._reception.empty(hurry)

    def close(self) -> None:
        """Ends the lifelines and the timer; nothing is heard from now on."""
        self.descriptors.close()
        self._batch_sender.close()
        if self._timer is not None:
            self._timer.cancel()

    # --- what happens

    def receive(self, identity: bytes, data: bytes) -> None:
        """One frame of a client."""
        try:
            header, message = decode_client_frame(data)
        except ProtocolError as error:
            self._stats.add_count("wire", "malformed")
            log.warning("wire.malformed", str(error))
            if isinstance(error, OtherVersionError):  # whatever is said, the frame around it names our version
                self._tell(identity, Refused("usage", str(error)))
            return
        match message:
            case Progress() | ReceiptSeen() | Goodbye() | Ping():
                connection = self._peers.speaking(identity)
                if connection is not None and header.boot == self._boot and header.session == connection.session:
                    self._hear(connection, message)
                else:
                    self._correct(identity, header, message)
            case Subscribe():
                self._subscribe(identity, message)
            case AskStreams() | AskStats() | AskStatus() | AskMonitor() | AskNames():
                answer = self._answers.to(message, sessions=len(self._peers), draining=self._draining)
                self._tell(identity, answer)

    def _correct(self, identity: bytes, header: FrameHeader, message: ClientMessage) -> None:
        """A frame of a session that is none, or not this connection's: whoever believes in it is told."""
        self._stats.add_count("wire", "stale")
        if not isinstance(message, Goodbye):
            self._server.send(
                identity, build_frame(FrameHeader(header.boot, header.session, 0), encode_message(NoSession()))
            )

    def _hear(self, connection: Peer, message: Progress | ReceiptSeen | Goodbye | Ping) -> None:
        match message:
            case Progress(upto, released, taken, waited_ns, retired):
                self._stats.add_stage_runs(
                    f"stream.{connection.stream.spec.name}", "client_wait", waited_ns / 1e9, len(released)
                )
                self._happen(
                    LeaseReleased(connection.session, released, retired),
                    ProgressReported(connection.session, taken),
                    CreditGranted(connection.session, upto),
                )
            case ReceiptSeen(epoch, digest, ok, timing):
                if timing is not None:
                    self._overview.timed(connection.session, timing)
                note = log.info if ok else log.error
                text = "epoch accounted for" if ok else "the trainer's account of the epoch does not add up"
                note(
                    "receipt.ok" if ok else "receipt.bad",
                    text,
                    stream=connection.stream.spec.name,
                    session=connection.session,
                    epoch=epoch,
                    digest=digest,
                )
                self._stats.add_count(f"stream.{connection.stream.spec.name}", "receipts_ok" if ok else "receipts_bad")
                self._reception.conclude(
                    self._overview.epochs.confirmed(connection.session, epoch, timing, time.monotonic())
                )
            case Ping():
                self._batch_sender.flush()
                self._answer(connection)
                self._happen()
            case Goodbye(kept):
                self._parted(connection.session, kept, "said goodbye")

    def _answer(self, connection: Peer) -> None:
        """Tells a client its session as it is here."""
        session = next((each for each in self._window.sessions if each.id == connection.session), None)
        if session is not None:
            released = session.sent - len(session.leases)
            paused = self._overview.is_paused(connection.stream.spec.name)
            self._send(connection, Pong(session.sent, session.upto, released, connection.receipts, paused))

    # As the engine's listener: EngineListener says when each is called.

    def on_batches_filled(self, jobs: Sequence[BatchJob]) -> None:
        now_s = time.monotonic()
        for job in jobs:
            self._batch_sender.add_batch(job)
            self._overview.produced(job, now_s)
        self._happen(*[BatchProduced(job.slot) for job in jobs], fresh=True)

    def on_batch_failed(self, job: BatchJob, reason: str) -> None:
        self._happen(ProductionFailed(job.slot, reason))

    def on_data_missing(self, stream: str, reason: str, jobs: Sequence[BatchJob]) -> None:
        """The data of a stream are away: its trainers wait until they are there again."""
        self._overview.paused(stream, reason)
        self._happen(StreamPaused(stream, tuple(job.slot for job in jobs)))

    def on_data_returned(self, stream: str) -> None:
        self._overview.resumed(stream)
        self._happen(StreamResumed(stream))

    def on_worker_lost(self) -> None:
        self._overview.died(time.monotonic())

    def _subscribe(self, identity: bytes, wish: Subscribe) -> None:
        before = self._peers.speaking(identity)
        if before is not None:
            self._parted(before.session, None, "it subscribed anew")
        earlier = tuple(session for boot, session in wish.earlier if boot == self._boot)
        ended = len(self._window.ended)
        event = self._reception.ask(identity, wish, draining=self._draining, earlier=earlier, ended=ended)
        if event is not None:
            self._happen(event)

    def _lost(self, session: int, reason: str) -> None:
        """Nobody will say any more what becomes of its memory."""
        if self._reception.depart(session, reason) or session in self._window.ended:
            self._happen(SessionLost(session))

    def _parted(self, session: int, kept: tuple[int, ...] | None, reason: str) -> None:
        """A session is over; of its batches its trainer holds `kept`, None for whichever they may be."""
        if self._reception.depart(session, reason, hang_up=False) or session in self._window.ended:
            self._happen(SessionClosed(session, kept))
        self._see_off(session)

    def _dropped(self, session: int, numbers: tuple[int, ...], retired: tuple[int, ...]) -> None:
        """A trainer holds these batches no longer, which it says where its session is over."""
        self._happen(LeaseReleased(session, numbers, retired))
        if self._peers.of(session) is None:
            self._see_off(session)

    def _see_off(self, session: int) -> None:
        """A session that is over keeps its lifeline as long as something of it is held."""
        if session not in self._window.ended:
            self.descriptors.close_session(session)
        elif not self.descriptors.half_close_session(session):
            self._happen(SessionLost(session))

    def drain(self) -> None:
        """Produces nothing more and tells everyone to come back to the next daemon."""
        self._draining = True
        self._happen(DrainRequested())
        for connection in self._peers.all():
            self._send(connection, Draining())
        self._happen()

    def change(self, name: str, stream: ServedStream | None, why: str) -> None:
        """From now on `name` is another stream, or none; who reads what it was until now is told why that ends."""
        if stream is None:
            del self._streams[name]
        else:
            self._streams[name] = stream
        self._happen(StreamChanged(name, stream.shape if stream else None, why))
        self._overview.changed(name, time.monotonic())

    def renew(self, stream: ServedStream) -> None:
        """Serves a stream that nobody can tell from the one of its name; sessions go on."""
        self._streams[stream.spec.name] = stream

    def reloaded(self, *, failed: bool) -> None:
        """The configuration was read again; `failed`: something of it is not served, which its status tells."""
        self._overview.reloaded(failed=failed)

    # --- what is done about it

    def _miss(self, session: int) -> None:
        """A session could not be sent something: it ends with the event under way, or right after this callback."""
        self._unreachable.append(session)
        asyncio.get_running_loop().call_soon(self._happen)

    def _happen(self, *events: Event, fresh: bool = False) -> None:
        """What came together is answered together; `fresh`: batches that were just decoded, and nothing else."""
        if events:
            now_s = time.monotonic()
            self._act(self._window.handle_all(events, now_s), now_s, fresh=fresh)
        self._batch_sender.flush_or_wait(is_fresh=fresh)
        while self._unreachable:
            self._parted(self._unreachable.pop(), None, "it cannot be reached, or does not read")
        self._set_timer()

    def _act(self, actions: list[Action], now_s: float, *, fresh: bool) -> None:
        for action in actions:
            match action:
                case SendBatch(session, number, slot):
                    if connection := self._peers.of(session):
                        batch = self._batch_sender.queue(connection, number, slot, is_awaited=fresh)
                        self._overview.epochs.sent(session, connection.rank, batch.key, now_s)
                case Produce():
                    self._produce(action)
                case SendReceipt(session, cursor):
                    self._spawn(self._send_receipt(session, cursor))
                case DropSlots(slots):
                    self._drop(slots)
                case Admit() | Lend() | Refuse() | StopStream():
                    self._reception.tell(action, now_s)
                case Warn(text):
                    log.warning("window.warning", text)

    def _produce(self, action: Produce) -> None:
        try:
            self._slots.ensure_slot(action.slot, action.slot_bytes)
        except OSError as error:
            reason = f"no memory for another batch of {action.slot_bytes} bytes: {error.strerror}"
            asyncio.get_running_loop().call_soon(self._happen, SlotDenied(action.slot, reason))
            return
        self._engine.produce(action.key, action.slot, action.slot_bytes)

    async def _send_receipt(self, session: int, cursor: Cursor) -> None:
        connection = self._peers.of(session)
        if connection is None:
            return
        digest = await self._accounts.digest(connection.stream, cursor)
        connection.receipts += 1
        self._batch_sender.flush()  # the epoch's last batches belong to its supply
        dropped = dropped_samples(connection.stream, cursor)
        self._overview.epochs.ended(session, connection.stream.spec, cursor)
        self._send(connection, ReceiptDue(cursor.epoch, digest, dropped, connection.supplying.take_supply()))
        self._happen()

    def _drop(self, slots: tuple[int, ...]) -> None:
        self._engine.drop(slots)
        for slot in slots:
            self._slots.drop_slot(slot)
        self._batch_sender.forget_slots(slots)
        for connection in self._peers.all():
            if connection.transport == "shared":
                self._send(connection, SlotsGone(slots))

    def _send(self, connection: Peer, message: DaemonMessage) -> None:
        header = FrameHeader(self._boot, connection.session, 0)
        if not self._server.send(connection.identity, build_frame(header, encode_message(message))):
            self._miss(connection.session)

    def _tell(self, identity: bytes, message: DaemonMessage) -> None:
        self._server.send(identity, build_frame(FrameHeader(self._boot, 0, 0), encode_message(message)))

    def _set_timer(self) -> None:
        deadline_s = self._window.deadline()
        if deadline_s == self._due_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due_s = None, deadline_s
        if deadline_s is not None:
            delay_s = max(0.0, deadline_s - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._due_s = None
        self._happen(TimePassed())
