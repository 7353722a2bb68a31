"""Turns messages into scheduler events, and scheduler actions into messages, tasks and memory."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from streamd.core import log
from streamd.core.counters import DaemonGauge, ProcessStats
from streamd.core.leaky_bucket import LeakyBucket, TimeShares
from streamd.core.status import ClusterStatus, DaemonStatus
from streamd.daemon.batch_sender import BatchSender, ReceiptSender, SpawnTask
from streamd.daemon.descriptor_allowance import DescriptorAllowance
from streamd.daemon.engine.batch_job import BatchJob
from streamd.daemon.engine.engine import BatchEngine
from streamd.daemon.sessions import OWN_USER, Connection, SessionManager, build_unknown_stream_refusal
from streamd.daemon.status_builder import StatusBuilder
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import OtherVersionError, ProtocolError
from streamd.ipc.fd_passing import DescriptorServer, LifelineCallbacks
from streamd.ipc.messages import (
    AskMonitor,
    AskNames,
    AskStats,
    AskStatus,
    AskStreams,
    DaemonMessage,
    Draining,
    FrameHeader,
    Goodbye,
    MonitorAt,
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
    Streams,
    Subscribe,
    build_frame,
    decode_client_frame,
    encode_message,
)
from streamd.ipc.router import FrameSender
from streamd.ipc.slots import SlotStore
from streamd.limits import (
    ANSWER_AGE_S,
    ANSWER_BURST_S,
    ANSWER_SHARE,
    LOOP_BURST_S,
    LOOP_SHARE,
    MAX_NAMES,
    NODE_TASKS_AHEAD,
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
    TimePassed,
    WorkersChanged,
)
from streamd.scheduler.scheduler import Scheduler

# --- Encoded answers to questions that need no session, shared by all who ask: a flood of questions makes few answers.

QueryMessage = AskStreams | AskStats | AskStatus | AskMonitor | AskNames
ReadClock = Callable[[], float]


class AnswerCache:
    """Keeps the last answer of each kind. Lives on the event loop.

    While making answers takes less than ANSWER_SHARE of the time, after a burst of ANSWER_BURST_S, every answer is made
    anew. Beyond that, a kept one is given until it is ANSWER_AGE_S old. `read_clock_s` and `read_spent_s` are the
    monotonic time and the processor time of this thread.
    """

    def __init__(self, read_clock_s: ReadClock = time.monotonic, read_spent_s: ReadClock = time.thread_time) -> None:
        self._read_clock_s, self._read_spent_s = read_clock_s, read_spent_s
        self._answers: dict[type, tuple[bytes, float]] = {}  # each encoded, and when it was made
        self._streams_answer: bytes | None = None
        self._spent = LeakyBucket(ANSWER_SHARE, time_s=read_clock_s())  # seconds spent on answers

    def get_or_make_answer(self, question: QueryMessage, make_answer: Callable[[], bytes]) -> bytes:
        """Returns the encoded answer to a question: the same bytes for all who ask, unless the question has facts."""
        if isinstance(question, (AskMonitor, AskNames)):
            return make_answer()
        if isinstance(question, AskStreams):
            if self._streams_answer is None:
                self._streams_answer = make_answer()
            return self._streams_answer
        # A new answer if time allows, else the one that was kept.
        kind = type(question)
        now_s, kept = self._read_clock_s(), self._answers.get(kind)
        is_spent = self._spent.compute_level(now_s) > ANSWER_BURST_S
        if kept is not None and is_spent and now_s < kept[1] + ANSWER_AGE_S:
            return kept[0]
        began_s = self._read_spent_s()
        encoded = make_answer()
        self._spent.add(self._read_spent_s() - began_s, now_s)
        self._answers[kind] = encoded, now_s
        return encoded

    def forget_streams_answer(self) -> None:
        """Makes the answer to AskStreams anew when it is next asked for. Until then it holds."""
        self._streams_answer = None


# --- Turns messages into scheduler events, and scheduler actions into messages, tasks and memory.

_NO_MONITOR_TEXT: Final = (
    "this daemon has no dashboard: give its configuration a line such as `monitor: 127.0.0.1:9191` and restart it"
)


class Dispatcher:
    """Connects the router, the scheduler and the engine. Lives on the event loop's thread.

    `_handle_scheduler_events` alone changes the scheduler, and never awaits: events are handled one after the other.
    """

    waits_for_data: Final = True  # it requests these batches again when the data return

    def __init__(
        self,
        streams: dict[str, ServedStream],
        *,
        scheduler: Scheduler,
        engine: BatchEngine,
        slots: SlotStore,
        router: FrameSender,
        stats: ProcessStats,
        status_builder: StatusBuilder,
        spawn: SpawnTask,
        allowance: DescriptorAllowance,
        monitor: MonitorAt | None = None,
    ) -> None:
        self._streams = streams
        self._scheduler = scheduler
        self._engine = engine
        self._slots = slots
        self._router = router
        self.stats = stats
        self._status_builder = status_builder
        self._monitor = monitor
        self._answers = AnswerCache()
        boot = self._boot = int.from_bytes(os.urandom(7), "little") + 1
        self._unreachable_sessions: list[int] = []
        on_unreachable = self._on_session_unreachable
        sender = self._batch_sender = BatchSender(router, slots, stats, status_builder, boot, on_unreachable)
        self.batch_preview = sender.preview
        self._receipt_sender = ReceiptSender(sender, status_builder, spawn, self._send_receipt, on_unreachable)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s: float | None = None
        self._is_draining = self._is_closed = False
        self._loop_shares = TimeShares(OWN_USER, LOOP_SHARE, LOOP_BURST_S)
        released, paired = self._on_batches_released, self._status_builder.set_process
        callbacks = LifelineCallbacks(self._on_session_lost, self._on_session_closed, released, paired)
        self.descriptor_server = DescriptorServer(
            self._slots.open_readable, callbacks, allowance.max_lifeline_connections, self.charge_user
        )
        self._session_manager = SessionManager(
            streams,
            self.descriptor_server,
            status_builder,
            allowance,
            send_to_session=self._send_to_session,
            send_without_session=self._send_without_session,
        )
        self._connections = self._session_manager.connections
        engine.set_listener(self)

    @property
    def streams(self) -> Mapping[str, ServedStream]:
        """The streams that are served now, by name."""
        return self._streams

    @property
    def session_count(self) -> int:
        return len(self._connections)

    @property
    def is_producing(self) -> bool:
        """Whether batches are under way."""
        return self._scheduler.producing_count > 0

    @property
    def finished_work_count(self) -> int:
        """How many tasks were done and workers replaced so far; it changes while work progresses."""
        return self.stats.find_stage_times("engine", "idle").count + self._engine.worker_death_count

    def build_status(self) -> DaemonStatus:
        """Returns the status of the daemon as of now."""
        return self._status_builder.build_status(
            self._scheduler, time.monotonic(), slots=len(self._slots), is_draining=self._is_draining
        )

    def collect_stats_values(self) -> dict[str, dict[str, float]]:
        """Returns the counters, times and present gauges that a client gets for `stats`, by group and name."""
        gauges: dict[DaemonGauge, float] = {
            "sessions": len(self._connections),
            "memory_used_bytes": self._scheduler.used_bytes,
            "slots": len(self._slots),
            "producing": self._scheduler.producing_count,
            "slot_wait_s": self._scheduler.slot_wait_s,
        }
        numbers = self.stats.values_by_group()
        numbers["daemon"] = dict(gauges.items())
        numbers["rules"] = dict(self._scheduler.checks_by_rule.items())
        return numbers

    async def wait_until_no_sessions(self, interrupt: asyncio.Event) -> None:
        """Returns when the last session has ended, or `interrupt` is set."""
        await self._session_manager.wait_until_no_sessions(interrupt)

    async def close(self) -> None:
        """Closes the lifelines, and drops queued batches, due receipts and the timer. No event is handled after it."""
        self._is_closed = True
        self.descriptor_server.close()
        self._batch_sender.close()
        if self._timer is not None:
            self._timer.cancel()
        await self._receipt_sender.close()

    # --- events

    def handle_frame(self, identity: bytes, data: bytes, user: int = OWN_USER) -> bool:
        """Handles one frame of a client of `user`, and returns whether it was due: see GateListener."""
        try:
            header, message = decode_client_frame(data)
        except ProtocolError as error:
            self.stats.add_count("wire", "malformed")
            log.warning("wire.malformed", str(error))
            if isinstance(error, OtherVersionError):  # the frame around the refusal names our version
                self._send_without_session(identity, Refused("usage", str(error)))
            return False
        match message:
            case Progress() | ReceiptSeen() | Goodbye() | Ping():
                connection = self._connections.find_by_identity(identity)
                if connection is not None and header.boot == self._boot and header.session == connection.session:
                    return self._handle_session_message(connection, message)
                # The session does not exist, or is not this connection's. A goodbye gets no answer.
                self.stats.add_count("wire", "stale")
                if not isinstance(message, Goodbye):
                    frame = build_frame(FrameHeader(header.boot, header.session, 0), encode_message(NoSession()))
                    self._router.send_frame(identity, frame)
            case Subscribe():
                # A connection has one session at a time. Only this boot's sessions count as earlier ones, since batches
                # of an earlier daemon take no memory of this one.
                before = self._connections.find_by_identity(identity)
                if before is not None:
                    self._on_session_closed(before.session, None, "it subscribed again")
                earlier = tuple(session for boot, session in message.earlier if boot == self._boot)
                event = self._session_manager.validate_and_add_connection(
                    identity,
                    message,
                    is_draining=self._is_draining,
                    earlier_sessions=earlier,
                    ended_users=[each.user for each in self._scheduler.ended_sessions.values()],
                    user=user,
                )
                if event is not None:
                    self._handle_scheduler_events(event)
            case AskStreams() | AskStats() | AskStatus() | AskMonitor() | AskNames():
                answer = self._answers.get_or_make_answer(message, lambda: encode_message(self._answer_query(message)))
                self._router.send_frame(identity, build_frame(FrameHeader(self._boot, 0, 0), answer))
        return False

    def _answer_query(self, question: QueryMessage) -> DaemonMessage:
        """Returns the answer to a question that needs no session, as of now."""
        match question:
            case AskStreams():
                return Streams({name: stream.spec for name, stream in self._streams.items()})
            case AskStats():
                return Stats(self.collect_stats_values())
            case AskStatus():
                return StatusNow(self.build_status())
            case AskMonitor():
                return self._monitor or Refused("usage", _NO_MONITOR_TEXT)
            case AskNames(name, sample_ids):
                stream = self._streams.get(name)
                if stream is None:
                    return build_unknown_stream_refusal(name, self._streams)
                if len(sample_ids) > MAX_NAMES:
                    text = f"{len(sample_ids)} names were requested at once; ask for at most {MAX_NAMES}"
                    return Refused("usage", text)
                last = stream.spec.samples - 1
                strange = next((each for each in sample_ids if not 0 <= each <= last), None)
                if strange is not None:
                    return Refused("usage", f"stream {name!r} has sample ids 0 to {last}, not {strange}")
                return Names(tuple(map(stream.format_file_name, sample_ids)))

    def _handle_session_message(self, connection: Connection, message: Progress | ReceiptSeen | Goodbye | Ping) -> bool:
        """Handles a message of a session, and returns whether it was due."""
        match message:
            case Progress():
                session, released, waited_s = connection.session, message.released, message.waited_ns / 1e9
                # No number is looked at before it is known that there can be so many leases: a frame has room for
                # thousands.
                if not len(message.retired) <= len(released) <= connection.lease_count:
                    self.stats.add_count("wire", "malformed")
                    log.warning(
                        "wire.malformed",
                        f"a trainer released {len(released)} batches, {len(message.retired)} of them still mapped, but "
                        f"has {connection.lease_count}: its report is dropped",
                        session=session,
                    )
                    return False
                connection.lease_count -= len(released)
                times = self.stats.find_stage_times(f"stream.{connection.stream.spec.name}", "client_wait")
                times.add_runs(waited_s, len(released))
                self._status_builder.on_progress(session, message.taken, waited_s, time.monotonic())
                self._handle_scheduler_events(
                    LeaseReleased(session, released, message.retired),
                    ProgressReported(session, message.taken),
                    CreditGranted(session, message.upto),
                )
                return bool(released)
            case ReceiptSeen(epoch, digest, ok, timing):
                self._status_builder.on_epoch_received(connection.session, epoch, timing, time.monotonic())
                note = log.info if ok else log.error
                text = "epoch accounted for" if ok else "the trainer's account of the epoch does not add up"
                name, number = connection.stream.spec.name, connection.session
                note(
                    "receipt.ok" if ok else "receipt.bad", text, stream=name, session=number, epoch=epoch, digest=digest
                )
                self.stats.add_count(f"stream.{name}", "receipts_ok" if ok else "receipts_bad")
                self._session_manager.log_finished_epochs(
                    self._status_builder.epoch_tracker.confirm_epoch_received(
                        connection.session, epoch, timing, time.monotonic()
                    )
                )
                connection.confirmed_receipts += 1
                return connection.confirmed_receipts <= connection.receipts
            case Ping():
                # The pong counts the batches that were sent, so those still queued are sent before it.
                self._batch_sender.send_queued_batches()
                # The client gets the state of its session as the daemon has it.
                scheduled = next((each for each in self._scheduler.sessions if each.id == connection.session), None)
                if scheduled is not None:
                    sent, upto, done = scheduled.sent, scheduled.upto, scheduled.released_count
                    paused = self._status_builder.is_stream_paused(connection.stream.spec.name)
                    self._send_to_session(connection, Pong(sent, upto, done, connection.receipts, paused))
                self._handle_scheduler_events()
            case Goodbye(kept):
                self._on_session_closed(connection.session, kept, "said goodbye")
        return False

    # The methods of GateListener, which documents when each is called.

    def charge_user(self, user: int, took_s: float) -> float:
        return self._loop_shares.charge(user, took_s, time.monotonic())

    def adopt_lifeline(self, connection: socket.socket, secret: bytes) -> None:
        self.descriptor_server.adopt_connection(connection, secret)

    def on_client_unreachable(self, identity: bytes) -> None:
        if connection := self._connections.find_by_identity(identity):
            self._on_session_unreachable(connection.session)

    def on_gate_ended(self, prefix: bytes) -> None:
        for connection in self._connections.list_connections():
            if connection.identity.startswith(prefix):
                self._on_session_unreachable(connection.session)

    # The methods of EngineListener, which documents when each is called.

    def on_batches_filled(self, jobs: Sequence[BatchJob]) -> None:
        # The sender has to know each batch first: the call at the end may decide to send it at once.
        now_s = time.monotonic()
        for job in jobs:
            self._batch_sender.add_filled_batch(job)
            self._status_builder.on_batch_produced(job, now_s)
        self._status_builder.on_slot_wait(self._scheduler.slot_wait_s, now_s)
        self._handle_scheduler_events(*[BatchProduced(job.slot, job.busy_s) for job in jobs], is_fresh=True)

    def on_batch_failed(self, job: BatchJob, reason: str) -> None:
        self._handle_scheduler_events(ProductionFailed(job.slot, reason))

    def on_data_missing(self, stream: str, reason: str, jobs: Sequence[BatchJob]) -> None:
        """Pauses a stream whose data are missing. Its trainers wait until the data return."""
        self._status_builder.set_stream_paused(stream, reason)
        self._handle_scheduler_events(StreamPaused(stream, tuple(job.slot for job in jobs)))

    def on_data_returned(self, stream: str) -> None:
        self._status_builder.set_stream_paused(stream, None)
        self._handle_scheduler_events(StreamResumed(stream))

    def on_worker_lost(self) -> None:
        self._status_builder.on_worker_died(time.monotonic())

    def on_cluster_changed(self, cluster: ClusterStatus) -> None:
        """Records the nodes, and has the scheduler count with their decode processes."""
        self._status_builder.set_cluster(cluster)
        self._handle_scheduler_events(WorkersChanged(max(1, cluster.workers), NODE_TASKS_AHEAD))

    def _on_session_lost(self, session: int, reason: str) -> None:
        """Ends a session whose trainer cannot report any more which batches it holds."""
        # A forked child may still read the slots that the session leased, so the scheduler drops them and never reuses
        # them.
        if self._session_manager.end_session(session, reason) or session in self._scheduler.ended_sessions:
            self._handle_scheduler_events(SessionLost(session))

    def _on_session_closed(self, session: int, kept: tuple[int, ...] | None, reason: str) -> None:
        """Ends a session. Its trainer still holds the deliveries `kept`; None stands for all that it may hold."""
        if (
            self._session_manager.end_session(session, reason, hang_up=False)
            or session in self._scheduler.ended_sessions
        ):
            self._handle_scheduler_events(SessionClosed(session, kept))
        self._close_session_lifeline(session)

    def _on_batches_released(self, session: int, numbers: tuple[int, ...], retired: tuple[int, ...]) -> None:
        """Releases batches that the trainer of an ended session has dropped, as it reports on its lifeline."""
        ended = self._scheduler.ended_sessions.get(session)
        if ended is not None and ended.leases.keys().isdisjoint(numbers):
            return  # they were released before; every release of an ended session computes all credits anew
        self._handle_scheduler_events(LeaseReleased(session, numbers, retired))
        if self._connections.find_by_session(session) is None:
            self._close_session_lifeline(session)

    def _close_session_lifeline(self, session: int) -> None:
        """Closes the lifeline of an ended session, unless its trainer still holds batches of it."""
        # A half-closed lifeline shows the trainer the end, and still carries its reports of dropped batches. Without a
        # lifeline no report can come, so the session is lost.
        if session not in self._scheduler.ended_sessions:
            self.descriptor_server.close_session(session)
        elif not self.descriptor_server.half_close_session(session):
            self._handle_scheduler_events(SessionLost(session))

    def drain_sessions(self) -> None:
        """Stops production, and tells all trainers to subscribe to the next daemon."""
        self._is_draining = True
        self._handle_scheduler_events(DrainRequested())
        for connection in self._connections.list_connections():
            self._send_to_session(connection, Draining())
        self._handle_scheduler_events()

    def replace_stream_ending_sessions(self, name: str, stream: ServedStream | None, reason: str) -> None:
        """Replaces the stream `name`, or removes it (None). Its sessions end, and their trainers get the reason."""
        # The sessions, the queries and the status share this mapping, so it is changed in place.
        if stream is None:
            del self._streams[name]
        else:
            self._streams[name] = stream
        self._answers.forget_streams_answer()
        self._handle_scheduler_events(StreamChanged(name, stream.stream_shape if stream else None, reason))
        self._status_builder.on_stream_changed(name)

    def replace_stream_keeping_sessions(self, stream: ServedStream) -> None:
        """Replaces a stream by one that trainers cannot tell from it. Its sessions continue."""
        self._streams[stream.spec.name] = stream
        self._answers.forget_streams_answer()

    def set_reload_failed(self, *, failed: bool) -> None:
        """Records whether the last reload left a part of the configuration unserved; the status reports it."""
        self._status_builder.reload_failed = failed

    # --- actions

    def _on_session_unreachable(self, session: int) -> None:
        """Marks a session whose client cannot be reached. It ends after the event under way, or after this callback."""
        # Ending it is a scheduler event of its own, which must not begin in the middle of another's actions.
        self._unreachable_sessions.append(session)
        asyncio.get_running_loop().call_soon(self._handle_scheduler_events)

    def _handle_scheduler_events(self, *events: Event, is_fresh: bool = False) -> None:
        """Handles events that arrived together, with one decision. `is_fresh`: all report batches just decoded."""
        # Workers report until they have ended, which is after `close`, when no task may start any more.
        if self._is_closed:
            return
        if events:
            now_s = time.monotonic()
            self._perform_scheduler_actions(self._scheduler.handle_events(events, now_s), now_s, is_fresh=is_fresh)
        self._batch_sender.send_queued_or_delay(is_fresh=is_fresh)
        # The end of a session sends messages to others, which may find more clients unreachable.
        while self._unreachable_sessions:
            self._on_session_closed(self._unreachable_sessions.pop(), None, "it cannot be reached, or does not read")
        # This runs after every event, while the deadline seldom changes: an equal one keeps its timer.
        deadline_s = self._scheduler.next_deadline_s()
        if deadline_s == self._timer_due_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_due_s = None, deadline_s
        if deadline_s is not None:
            delay_s = max(0.0, deadline_s - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_deadline_timer)

    def _perform_scheduler_actions(self, actions: list[Action], now_s: float, *, is_fresh: bool) -> None:
        for action in actions:
            match action:
                case SendBatch(session, number, slot):
                    if connection := self._connections.find_by_session(session):
                        connection.lease_count += 1
                        batch = self._batch_sender.queue_delivery(connection, number, slot, is_awaited=is_fresh)
                        self._status_builder.epoch_tracker.on_batch_sent(
                            session, connection.rank, batch.key, now_s, is_first=batch.deliveries == 1
                        )
                case ProduceBatch():
                    self._produce_batch(action)
                case SendReceipt(session, cursor):
                    if connection := self._connections.find_by_session(session):
                        self._receipt_sender.add_due_receipt(connection, cursor)
                case DropSlots(slots, may_be_read):
                    # The workers come first: commands queued for them may carry the descriptors that are closed next.
                    self._engine.unmap_slots_in_workers(slots)
                    for slot in slots:
                        self._slots.drop_slot(slot, is_erased=slot not in may_be_read)
                    self._batch_sender.remove_batches_in_slots(slots)
                    for session, gone in self.descriptor_server.forget_slots(slots):
                        if connection := self._connections.find_by_session(session):
                            self._send_to_session(connection, SlotsGone(gone))
                case AdmitSession() | SetCredit() | RefuseSession() | StopStream():
                    self._session_manager.apply_session_action(action, now_s)
                case LogWarning(text):
                    log.warning("window.warning", text)

    def _produce_batch(self, action: ProduceBatch) -> None:
        try:
            self._slots.ensure_slot(action.slot, action.slot_bytes)
        except OSError as error:
            # The scheduler's actions are being performed now, so the denial is an event of a later turn.
            reason = f"no memory for another batch of {action.slot_bytes} bytes: {error.strerror}"
            if error.errno == errno.EFBIG:
                reason += "; its process may write no file so large: raise ulimit -f, or LimitFSIZE= of its unit"
            asyncio.get_running_loop().call_soon(self._handle_scheduler_events, SlotDenied(action.slot, reason))
            return
        self._engine.produce_batch(action.key, action.slot, action.slot_bytes)

    def _send_receipt(self, connection: Connection, receipt: ReceiptDue) -> None:
        self._send_to_session(connection, receipt)
        self._handle_scheduler_events()

    def _send_to_session(self, connection: Connection, message: DaemonMessage) -> None:
        header = FrameHeader(self._boot, connection.session, 0)
        if not self._router.send_frame(connection.identity, build_frame(header, encode_message(message))):
            self._on_session_unreachable(connection.session)

    def _send_without_session(self, identity: bytes, message: DaemonMessage) -> None:
        self._router.send_frame(identity, build_frame(FrameHeader(self._boot, 0, 0), encode_message(message)))

    def _on_deadline_timer(self) -> None:
        self._timer_due_s = None
        self._handle_scheduler_events(TimePassed())
