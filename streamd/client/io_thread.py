"""The thread that owns a subscription's socket: only it sends, receives and maps memory.

Other threads give it work through queues and an eventfd, and do not wait for it, except in `stop`.

A fork copies every view that the trainer holds, and the child does not report when it drops its own. So leases that are
held at a fork are reported as retired when they end: the daemon never writes to their memory again.
"""

from __future__ import annotations

import _thread
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final

import numpy as np
import zmq
from msgspec.structs import replace

from streamd.client.handoff import Handoff
from streamd.client.leases import (
    HELD_OVER_CONNECTIONS,
    DescriptorPoller,
    EndedConnection,
    LeaseReturns,
    ReceivedBatch,
    list_ended_connections,
)
from streamd.client.session import (
    ClientAction,
    ClientSession,
    FailStream,
    OpenSocket,
    SendMessage,
    compute_leases_per_report,
)
from streamd.client.sockets import (
    KEY_REFUSAL,
    CurveKeys,
    UnreachableError,
    find_connect_address,
    has_socket_input,
    is_key_refused,
    open_dealer_socket,
    open_loss_monitor,
)
from streamd.client.waiting import print_stderr_line
from streamd.errors import ConnectError, ProtocolError, StreamdError
from streamd.ipc.endpoint import descriptor_socket_path, socket_path
from streamd.ipc.lifeline import DROPPED, RETIRED, STILL_HELD, Lifeline
from streamd.ipc.mapping import PRIVATE_WANTED, drop_private_pages, map_private, map_readable
from streamd.ipc.messages import (
    PIECE_MARK,
    BatchReady,
    CreditNow,
    ReceiptDue,
    SlotsGone,
    Welcome,
    decode_daemon_frame,
    encode_frame,
    split_records,
)
from streamd.limits import ANSWER_TIMEOUT_S, MAX_SESSIONS

_JOIN_TIMEOUT_S: Final = 5.0
_GOODBYE_TIMEOUT_S: Final = 1.0
_IO_THREADS: Final[set[weakref.ref[IOThread]]] = set()  # of this process, which are called around each fork


class IOThread:
    """Performs the actions of a `ClientSession`: sockets, clock and shared memory.

    The loop's thread calls `start` and `stop`. The methods under "from other threads" never touch the socket or the
    session; everything else runs in the I/O thread.
    """

    def __init__(self, endpoint: str, session: ClientSession, handoff: Handoff, curve: CurveKeys | None = None) -> None:
        self._endpoint = endpoint
        self._curve = curve
        self._session = session
        self._handoff = handoff
        self.returns = LeaseReturns()
        # Appended by any thread and taken by the I/O thread, which alone changes the session. A deque needs no lock.
        self._calls: deque[Callable[[], Iterable[ClientAction]]] = deque()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run_thread, name="streamd-client", daemon=True)
        self._start_lock: threading.Lock | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._lifeline: Lifeline | None = None
        self._poller: DescriptorPoller | None = None
        self._end_descriptors: set[int] = set()  # readable when the connection may have ended
        self._unchecked_monitor: zmq.Socket[bytes] | None = None  # a new monitor, whose events were never read
        self._has_sent = True  # a send since the socket's events were last read may have consumed their notification
        self._address = ""  # of the present connection
        self._arriving = ArrivingPixels()
        self._connection = 0
        self._session_key = 0, 0  # boot and session of the connection
        self._is_shared = False  # batches of this connection are in shared memory; the next may request otherwise
        self._pixel_id = ""
        self._mapped_slots: dict[int, memoryview] = {}
        self.loop_waited_ns = 0  # since the last report; the loop adds to it
        _IO_THREADS.add(weakref.ref(self, _IO_THREADS.discard))

    # --- from other threads

    def start(self) -> None:
        def set_start_error(error: RuntimeError) -> None:
            self._handoff.set_error(
                ConnectError(self._endpoint, f"{error}: raise this user's limit on threads (ulimit -u)")
            )

        self._start_lock = start_thread_in_helper(self._thread, set_start_error)

    def stop(self) -> None:
        """Asks the thread to send a goodbye and end, and waits up to 5 s for its end."""
        self.request_stop()
        join_started_thread(self._thread, self._start_lock, _JOIN_TIMEOUT_S)

    def request_stop(self) -> None:
        """Asks the thread to send a goodbye and end, without waiting. The garbage collector calls it in any thread."""
        # The flag is set before the thread is woken, so the thread sees it when it wakes.
        self._is_stopping = True
        self.returns.wake_signal.wake()

    def build_lease_end(self, received: ReceivedBatch) -> Callable[[], None]:
        """Returns what ends the lease of a batch. Finalisers call it in any thread, even within the garbage collector.

        It keeps `received` alive, whose end would end the lease. It does not reach this object: the batch's arrays
        refer to it, and the garbage collector sees no references of arrays, so it would never collect a batch that is
        in a cycle with its stream.
        """
        return partial(self.returns.return_lease, received.connection, received.number, received)

    def queue_session_call(self, call: Callable[[], Iterable[ClientAction]]) -> None:
        """Queues a call of the session for the I/O thread, which performs the actions that the call returns."""
        self._calls.append(call)
        self.returns.wake_signal.wake()

    def wait_for_queued_calls(self, timeout_s: float) -> None:
        """Waits until the thread has sent what was queued so far, no longer than `timeout_s`."""
        done = threading.Event()

        def mark_done() -> Iterable[ClientAction]:
            done.set()
            return ()

        # Calls are made in their order, so everything queued before this one is sent by then.
        self.queue_session_call(mark_done)
        done.wait(timeout_s)

    def before_fork(self) -> None:
        """Called before a fork, in the thread that forks."""
        self._handoff.before_fork()

    def after_fork_in_parent(self) -> None:
        """Called after a fork, in the parent."""
        self._handoff.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        """Called after a fork, in the child: unmaps memory that no view needs, and closes the child's lifelines."""
        # The I/O thread does not exist in the child, so this cannot race with it. The socket is left alone: libzmq's
        # own threads are missing too.
        self._handoff.after_fork_in_child()
        self._mapped_slots.clear()
        if self._lifeline is not None:
            self._lifeline.close()

    # --- the thread

    def _run_thread(self) -> None:
        self._context = zmq.Context(io_threads=1)
        try:
            while not self._is_stopping:
                self._handle_next_event()
            # Leases that have ended are reported first, so that the goodbye names only deliveries that are still held.
            self._process_returned_leases()
            held, forked = self._handoff.discard_untaken_batches()
            farewell = self._session.close_session((*held, *forked.difference(held)) if self._is_shared else ())
            self._perform_actions(farewell)
            # The daemon closes the lifeline when it has read the goodbye. If this side closed it first, the daemon
            # would take that for the death of this process.
            if farewell and self._lifeline is not None:
                self._lifeline.wait_until_closed(_GOODBYE_TIMEOUT_S)
        except StreamdError as error:
            self._handoff.set_error(error)
        except Exception as error:  # noqa: BLE001 - any error must reach the loop, which would else wait for ever
            self._handoff.set_error(ProtocolError(f"the client's I/O thread failed: {type(error).__name__}: {error}"))
        finally:
            # Without a lifeline nothing waits for the daemon to read the goodbye, which the kernel has yet to get.
            self._close_connection(linger_ms=0 if self._curve is None else int(_GOODBYE_TIMEOUT_S * 1000))
            self._context.term()

    def _handle_next_event(self) -> None:
        """Waits until a descriptor is ready or a deadline is due, and handles it."""
        ready = self._wait_for_ready_descriptors()
        # The signal is cleared before the queues are read: a lease that ends after they were emptied wakes again.
        if self.returns.wake_signal.descriptor in ready:
            self.returns.wake_signal.clear()
        if self._socket is not None:
            self._receive_messages()
        if self.returns.returned or self._calls:
            self._process_returned_leases()
        # After the messages were read: batches that arrived before the connection ended are valid.
        if not self._end_descriptors.isdisjoint(ready):
            if self._monitor is not None and has_socket_input(self._monitor):
                if is_key_refused(self._monitor):
                    self._session.refusal = KEY_REFUSAL
                self._drop_connection()
            elif self._lifeline is not None and self._lifeline.has_ended():
                self._drop_connection()
        deadline_s = self._session.next_deadline_s()
        if deadline_s is not None and time.monotonic() >= deadline_s:
            self._perform_actions(self._session.handle_deadline(time.monotonic()))
            if self._session.state == "away":
                self._drop_connection()

    def _wait_for_ready_descriptors(self) -> list[int]:
        """Waits until the session's next deadline at most, and returns the descriptors that are ready.

        libzmq's descriptors are edge-triggered, and silent until a read of the socket's events has found it empty. So
        the events of each socket are read before the first wait, and again after each send.
        """
        # The poller has the descriptors of the present connection, and is closed whenever these change.
        if self._poller is None:
            over = self._session.state == "over"  # then the connection's end changes nothing and is not watched
            self._end_descriptors = {self._monitor.FD} if self._monitor is not None and not over else set()
            if self._lifeline is not None and not over:
                self._end_descriptors.add(self._lifeline.fileno())
            inputs = {self._socket.FD} if self._socket is not None else set()
            self._has_sent, self._unchecked_monitor = True, self._monitor
            self._poller = DescriptorPoller((self.returns.wake_signal.descriptor, *inputs, *self._end_descriptors))
        if self._unchecked_monitor is not None:
            monitor, self._unchecked_monitor = self._unchecked_monitor, None
            if has_socket_input(monitor):
                return [monitor.FD]
        if self._has_sent and self._socket is not None and has_socket_input(self._socket):
            return []
        deadline_s = self._session.next_deadline_s()
        wait_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        return self._poller.poll(wait_s)

    def _close_poller(self) -> None:
        if self._poller is not None:
            self._poller.close()
            self._poller = None

    def _process_returned_leases(self) -> None:
        """Reports leases that have ended, and makes the queued calls of the session."""
        numbers = self.returns.take_returned_leases(self._connection)
        taken, retired = self._handoff.release_leases(self._connection, numbers)
        waited_ns, self.loop_waited_ns = self.loop_waited_ns, 0
        # A session that is over takes no more Progress; the daemon then counts leases by the lifeline's reports.
        if numbers and self._session.state == "over" and self._lifeline is not None:
            with suppress(OSError):  # closing the lifeline reports the same
                self._lifeline.report_leases(RETIRED, retired)
                self._lifeline.report_leases(DROPPED, set(numbers).difference(retired))
        elif numbers:
            self._perform_actions(
                self._session.handle_released_leases(numbers, taken, waited_ns, time.monotonic(), retired)
            )
        while self._calls:
            self._perform_actions(self._calls.popleft()())

    def _receive_messages(self) -> None:
        socket = self._socket
        # Reset before the events are read: answers that are sent from within the loop below set it again.
        self._has_sent = False
        # Handling a message may close this socket, which ends the loop.
        while socket is not None and socket is self._socket and has_socket_input(socket):
            head = socket.recv(zmq.DONTWAIT)
            if self._session.subscription.transport == "inline" and socket.getsockopt(zmq.RCVMORE):
                piece = socket.recv(zmq.DONTWAIT, copy=False).buffer
                self._session.note_arrival(time.monotonic())
                # A batch is handled once its pixels are complete.
                if head == PIECE_MARK:
                    if (complete := self._arriving.add_piece(piece)) is not None:
                        self._handle_frames([complete[0]], complete[1])
                elif (pixels := self._arriving.begin_batch(head, piece)) is not None:
                    self._handle_frames([head], pixels)
            else:
                self._handle_frames(split_records(head), None)
            # The session has given this connection up. It is closed now, since a draining daemon waits for its end.
            if self._session.state == "away":
                self._drop_connection()

    def _handle_frames(self, frames: Iterable[bytes], inline: memoryview | None) -> None:
        """Handles the frames of one message, and hands their batches to the loop together, for one wake-up."""
        batches: list[ReceivedBatch] = []
        for data in frames:
            header, message = decode_daemon_frame(data)
            for do in self._session.handle_message(header, message, time.monotonic()):
                if isinstance(do, BatchReady):
                    if (received := self._map_batch_memory(header.number, do, inline)) is not None:
                        batches.append(received)
                    continue
                # Batches before the failure belong to the loop. They are handed over first, because performing the
                # failure reports the leases that the loop may hold.
                if isinstance(do, FailStream):
                    self._handoff.put_batches(batches)
                    batches = []
                self._perform_action(do)
        self._handoff.put_batches(batches)

    def _perform_actions(self, actions: Iterable[ClientAction]) -> None:
        for do in actions:
            self._perform_action(do)

    def _perform_action(self, action: ClientAction) -> None:
        match action:
            case SendMessage(header, message):
                self._has_sent = True
                if self._socket is not None:
                    self._socket.send(encode_frame(header, message), zmq.DONTWAIT)
            case OpenSocket():
                self._open_connection()
            case Welcome():
                self._accept_welcome(action)
            case SlotsGone(slots):
                for slot in slots:
                    self._mapped_slots.pop(slot, None)
            case CreditNow(credit):
                self.returns.wake_threshold = compute_leases_per_report(credit, self._session.subscription.transport)
                self._handoff.set_credit(credit)
            case ReceiptDue():
                self._handoff.put_receipt(action)
            case FailStream(error):
                self._handoff.set_error(error)
                # The daemon has ended the session for good, and the loop may still hold batches of it. The lifeline
                # stays open, and reports each of these leases as it ends.
                if self._lifeline is not None and self._is_shared:
                    with suppress(OSError):  # closing the lifeline reports the same
                        self._lifeline.report_leases(STILL_HELD, self._handoff.list_outstanding_leases())
                self._close_poller()

    def _open_connection(self) -> None:
        self._close_connection(linger_ms=0)
        if self._context is None:
            return
        self._connection, cursor = self._handoff.reset_for_new_connection()
        earlier = [each.session_key for each in list_ended_connections(self._session.subscription.stream)]
        if self._curve is not None and self._session_key[0]:
            earlier = [self._session_key]  # no lifeline shows the daemon that this session has ended
        self._session.held_sessions = tuple(earlier[:MAX_SESSIONS])  # one daemon has no more sessions than this
        try:
            wake = self.returns.wake_signal.descriptor
            self._address = find_connect_address(self._endpoint, ANSWER_TIMEOUT_S, wake)
        except UnreachableError as error:
            self._session.handle_unreachable(error.refusal, time.monotonic())
            self._handoff.mark_daemon_away()
            return
        self._socket = open_dealer_socket(self._context, self._address, self._curve)
        # libzmq would reconnect by itself, with a new identity that the daemon does not know. The monitor reports the
        # loss, so that this thread opens a new socket and subscribes again.
        self._monitor = open_loss_monitor(self._socket)
        self._close_poller()
        self._perform_actions(self._session.handle_opened(cursor, time.monotonic()))

    def _accept_welcome(self, welcome: Welcome) -> None:
        # The loop is told last (`mark_session_open`): when it sees the session open, cursor and lifeline are in place.
        if welcome.cursor is not None:
            self._handoff.move_cursor(welcome.cursor)
        self._session_key = self._session.session_key
        self._is_shared = welcome.transport == "shared"
        try:
            # A gate that sends pixels keeps the lifeline itself, and gives no secret away.
            if welcome.secret:
                path = descriptor_socket_path(socket_path(self._address))
                self._lifeline = Lifeline(path, welcome.secret)
            self._close_poller()
        except ConnectError as error:
            print_stderr_line(f"{error}")
            self._drop_connection()
            return
        self.returns.wake_threshold = compute_leases_per_report(welcome.credit, self._session.subscription.transport)
        self._pixel_id = welcome.spec.pixel_id
        # Batches held of these ended sessions count within the new session's credit at the daemon.
        counted = {(self._session_key[0], session) for session in welcome.earlier}
        ended = list_ended_connections(self._session.subscription.stream)
        self._handoff.mark_session_open(welcome.credit, [each for each in ended if each.session_key in counted])

    def _map_batch_memory(self, number: int, header: BatchReady, inline: memoryview | None) -> ReceivedBatch | None:
        """Returns the batch with its memory mapped; returns None and drops the connection if mapping fails.

        If this process cannot map memory at all, later connections request pixels inline.
        """
        try:
            memory = inline if header.inline else self._map_slot(header.slot, header.slot_bytes)
        except ConnectError:
            memory = None
        except OSError as error:
            print_stderr_line(f"memory cannot be shared here ({error.strerror}); pixels come by socket now")
            self._session.subscription = replace(self._session.subscription, transport="inline")
            memory = None
        if memory is None:
            self._drop_connection()
            return None
        received = ReceivedBatch(number, header, self._connection, memory, self._pixel_id)
        # The lease is tracked before the loop can see the batch, so an interrupt in the loop cannot lose it.
        self.returns.track_lease(received)
        return received

    def _map_slot(self, slot: int, nbytes: int) -> memoryview:
        """Returns the memory of a slot, which shows its present batch. Raises ConnectError, OSError."""
        is_private = PRIVATE_WANTED.is_set()
        if is_private and slot in self._mapped_slots and not drop_private_pages(self._mapped_slots[slot]):
            del self._mapped_slots[slot]
        if slot not in self._mapped_slots:
            if self._lifeline is None:
                raise ConnectError("the descriptor socket", "not connected")
            descriptor = self._lifeline.fetch_descriptor(slot)
            # The mapping keeps the memory alive, so the descriptor is closed and counts against no limit.
            try:
                self._mapped_slots[slot] = (map_private if is_private else map_readable)(descriptor, nbytes)
            finally:
                os.close(descriptor)
        return self._mapped_slots[slot]

    # --- the end of a connection

    def _drop_connection(self) -> None:
        self._close_connection(linger_ms=0)
        self._perform_actions(self._session.handle_lost(time.monotonic()))
        self._handoff.mark_daemon_away()

    def _close_connection(self, *, linger_ms: int) -> None:
        # Views keep their slot's mapping alive: clearing this dict unmaps only slots that no view needs.
        self._mapped_slots.clear()
        self._arriving.forget_batch()
        self._close_poller()
        if self._lifeline is not None:
            # What the loop still holds is reported. Discard first: from here on the loop takes no batch of this
            # connection, so the report is complete.
            held, forked = self._handoff.discard_untaken_batches()
            if not self._is_shared:
                held = {}
            elif held or forked:
                with suppress(OSError):  # the daemon is gone, and its accounts with it
                    self._lifeline.report_leases(RETIRED, forked.difference(held))
                    self._lifeline.report_leases(STILL_HELD, held)
            # The lifeline is closed when the last view is gone.
            if held:
                stream = self._session.subscription.stream
                ended = EndedConnection(self._lifeline, self._session_key, stream, held, forked)
                self.returns.keep_ended_connection(self._connection, ended)
            else:
                self._lifeline.close()
            self._lifeline = None
        if self._socket is not None and self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
        if self._socket is not None:
            self._socket.close(linger_ms)
            self._socket = None


def _call_around_fork(
    call_thread: Callable[[IOThread], None], call_ended: Callable[[EndedConnection], None] = lambda _: None
) -> None:
    for reference in list(_IO_THREADS):  # a copy, made in one C call: other threads add and remove theirs
        one = reference()
        if one is not None:
            call_thread(one)
    for ended in list(HELD_OVER_CONNECTIONS):  # as above
        call_ended(ended)


if hasattr(os, "register_at_fork"):  # Windows, where the client works over TCP, has no fork
    os.register_at_fork(
        before=partial(_call_around_fork, lambda one: one.before_fork(), EndedConnection.before_fork),
        after_in_parent=partial(_call_around_fork, lambda one: one.after_fork_in_parent()),
        after_in_child=partial(
            _call_around_fork, lambda one: one.after_fork_in_child(), EndedConnection.after_fork_in_child
        ),
    )


# --- Puts the pixels of a batch together, which arrive in pieces, each in a message of its own behind the batch's
# header.
#
# Messages of a connection keep their order, so the pieces that arrive belong to the header before them.


class ArrivingPixels:
    """The batch of one connection whose pixels have begun to arrive. Used by the I/O thread."""

    def __init__(self) -> None:
        self._frame: bytes | None = None
        self._memory = memoryview(b"")
        self._filled = 0

    def begin_batch(self, frame: bytes, piece: memoryview) -> memoryview | None:
        """Takes a batch's frame and its first piece. Returns the pixels if that is all of them, else None.

        Raises ProtocolError for a frame of anything else.
        """
        _, message = decode_daemon_frame(frame)
        if not isinstance(message, BatchReady) or self._frame is not None or len(piece) > message.slot_bytes:
            raise ProtocolError("pixels arrived that belong to no batch")
        if len(piece) == message.slot_bytes:
            return piece
        # Memory of malloc's, which gives the pages of one batch to the next; bytearray would fill it with zeros first.
        self._frame, self._memory, self._filled = frame, np.empty(message.slot_bytes, np.uint8).data, len(piece)
        self._memory[: len(piece)] = piece
        return None

    def add_piece(self, piece: memoryview) -> tuple[bytes, memoryview] | None:
        """Takes the next piece. Returns the batch's frame and its pixels when they are complete, else None.

        Raises ProtocolError for more pixels than the batch has.
        """
        start, frame, memory = self._filled, self._frame, self._memory
        self._filled += len(piece)
        if frame is None or self._filled > len(memory):
            raise ProtocolError("more pixels arrived than their batch has")
        memory[start : self._filled] = piece
        if self._filled < len(memory):
            return None
        self.forget_batch()
        return frame, memory.toreadonly()

    def forget_batch(self) -> None:
        """Drops what has arrived of a batch: its connection has ended."""
        self._frame, self._memory = None, memoryview(b"")


# --- Starts threads where an interrupt may fall.


def start_thread_in_helper(thread: threading.Thread, on_error: Callable[[RuntimeError], None]) -> threading.Lock:
    """Starts `thread` from a helper thread, which no interrupt reaches, and does not wait for it.

    Thread.start itself waits on Python's own locks: an interrupt (Ctrl-C) leaves it as a RuntimeError, or leaves a lock
    held that the new thread needs. Returns a lock that is held until the start has succeeded or failed. `on_error`
    receives the error if the thread cannot be started; it may be called in the helper thread.
    """
    starting = threading.Lock()
    starting.acquire()

    def run_start() -> None:
        try:
            thread.start()
        except RuntimeError as error:
            on_error(error)
        finally:
            starting.release()

    try:
        _thread.start_new_thread(run_start, ())
    except RuntimeError as error:  # not even the helper thread can be started
        starting.release()
        on_error(error)
    return starting


def join_started_thread(thread: threading.Thread, starting: threading.Lock | None, timeout_s: float) -> None:
    """Waits up to `timeout_s` for the end of a thread that `start_thread_in_helper` started.

    `starting` is the lock that it returned, or None if an interrupt came before the assignment.
    """
    # A thread that has not started yet is not alive, so the end of the start is awaited first.
    if starting is not None:
        with starting:
            pass
    if thread.is_alive():
        thread.join(timeout_s)
