"""The thread that owns a subscription's socket: it alone sends, receives and maps; nobody ever waits for it.

A fork copies every view that the trainer holds, and nobody hears when the child drops its own. So the leases held in
that moment are told to be retired when they end: what lies in their memory stays as it is.
"""

from __future__ import annotations

import _thread
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final

import zmq

from streamd.client.handoff import Handoff
from streamd.client.leases import EndedConnection, Returns, held_over, watch_forks
from streamd.client.session import (
    Do,
    Fail,
    Greet,
    Lent,
    OfferReceipt,
    OpenSocket,
    ReceivedBatch,
    Say,
    Session,
    Unmap,
    grant_size,
)
from streamd.client.sockets import has_input, make_socket
from streamd.client.waiting import say
from streamd.errors import ConnectError, ProtocolError, StreamdError
from streamd.ipc.fd_passing import Lifeline
from streamd.ipc.frames import decode_daemon_frame, encode_frame, split_records
from streamd.ipc.mapping import map_readable
from streamd.ipc.messages import Welcome
from streamd.limits import MAX_SESSIONS

_JOIN_S: Final = 5.0
_FAREWELL_S: Final = 1.0


class IOThread:
    """Runs a `Session` against the world. `start` and `stop` belong to the trainer, the rest to the thread."""

    def __init__(self, endpoint: str, session: Session, handoff: Handoff) -> None:
        self._endpoint = endpoint
        self._session = session
        self._handoff = handoff
        self._returns = Returns()
        self._orders: deque[Callable[[], Iterable[Do]]] = deque()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="streamd-client", daemon=True)
        self._starting: threading.Lock | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._lifeline: Lifeline | None = None
        self._poller: select.epoll | None = None
        self._ends: set[int] = set()  # descriptors that tell of the connection's end
        self._unseen: zmq.Socket[bytes] | None = None  # a monitor that was never looked at
        self._said = True  # something was sent since the socket was last looked at, which may have eaten its news
        self._connection = 0
        self._whose = 0, 0  # boot and session of the connection
        self._is_shared = False  # whether its batches lie in shared memory; the next one may be wished otherwise
        self._pixel_id = ""
        self._maps: dict[int, memoryview] = {}
        self._waited_ns = 0
        watch_forks(self)

    # --- from other threads

    def start(self) -> None:
        self._starting = start_apart(self._thread, self._fail_to_start)

    def _fail_to_start(self, error: RuntimeError) -> None:
        self._handoff.fail(ConnectError(self._endpoint, f"{error}: raise this user's limit on threads (ulimit -u)"))

    def stop(self) -> None:
        """Says goodbye and ends the thread."""
        self.leave()
        join_apart(self._thread, self._starting, _JOIN_S)

    def leave(self) -> None:
        """Says goodbye and ends the thread, in its own time. Also called by the garbage collector, in any thread."""
        self._stopping = True
        self._returns.ring()

    def take_back(self, received: ReceivedBatch) -> None:
        """The last view of a batch is gone. Called by finalisers, in any thread, even within the garbage collector."""
        self._returns.give_back(received.connection, received.number)

    def hurry(self, *, now: bool) -> None:
        """While `now`, every lease that ended is told: the loop waits and the daemon has no credit left to send on."""
        self._returns.hurry(now=now)

    def order(self, order: Callable[[], Iterable[Do]]) -> None:
        """Has the thread call the session."""
        self._orders.append(order)
        self._returns.ring()

    def add_wait(self, waited_ns: int) -> None:
        """Books time that the loop waited."""
        self._waited_ns += waited_ns

    def fork_begins(self) -> None:
        """Called before a fork, in the thread that forks."""
        self._handoff.fork_begins()
        self._returns.fork_begins()

    def fork_ends(self) -> None:
        """Called after a fork, in the parent."""
        self._handoff.fork_ends()

    def forked(self) -> None:
        """Called in the child, where the I/O thread is not: what no view needs is unmapped, the lifelines ended."""
        self._handoff.let_go()
        self._maps.clear()
        if self._lifeline is not None:
            self._lifeline.close()
        self._returns.forked()

    # --- the thread

    def _run(self) -> None:
        self._context = zmq.Context(io_threads=1)
        try:
            while not self._stopping:
                self._turn()
            self._say_goodbye()
        except StreamdError as error:
            self._handoff.fail(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the loop must hear of it and not wait for ever
            self._handoff.fail(ProtocolError(f"the client's I/O thread failed: {type(error).__name__}: {error}"))
        finally:
            self._disconnect(linger_ms=0)
            self._context.term()

    def _say_goodbye(self) -> None:
        """Says goodbye and waits for the daemon to hang up: a lifeline that ends before that looks like death."""
        self._collect()
        held, forked = self._handoff.part()
        farewell = self._session.closed((*held, *forked.difference(held)) if self._is_shared else ())
        self._do(farewell)
        if farewell and self._lifeline is not None:
            self._lifeline.wait_until_closed(_FAREWELL_S)

    def _turn(self) -> None:
        """Waits for the next thing to happen, and deals with it."""
        ready = self._poll()
        if self._returns.bell in ready:
            os.eventfd_read(self._returns.bell)
        if self._socket is not None:
            self._receive()
        if self._returns or self._orders:
            self._collect()
        if not self._ends.isdisjoint(ready):
            self._look_for_end()
        deadline_s = self._session.deadline()
        if deadline_s is not None and time.monotonic() >= deadline_s:
            self._do(self._session.passed(time.monotonic()))
            if self._session.state == "away":
                self._lose()

    def _look_for_end(self) -> None:
        """Whether the connection has ended; called after what had still arrived was read."""
        if (self._monitor is not None and has_input(self._monitor)) or (
            self._lifeline is not None and self._lifeline.has_ended()
        ):
            self._lose()

    def _poll(self) -> list[int]:
        """The descriptors that have something.

        Those of sockets are quiet until the socket was found empty, and tell of news once: each socket is looked at
        before the first wait, and where the last look may have been too early.
        """
        poller = self._poller or self._watch()
        if self._unseen is not None:
            monitor, self._unseen = self._unseen, None
            if has_input(monitor):
                return [monitor.FD]
        if self._said and self._socket is not None and has_input(self._socket):
            return []
        deadline_s = self._session.deadline()
        wait_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        return [descriptor for descriptor, _ in poller.poll(wait_s)]

    def _watch(self) -> select.epoll:
        """Watches what there is; made anew when the connection is."""
        over = self._session.state == "over"  # then the end of the connection is no news, and ends nothing
        self._ends = {self._monitor.FD} if self._monitor is not None and not over else set()
        if self._lifeline is not None and not over:
            self._ends.add(self._lifeline.fileno())
        inputs = {self._socket.FD} if self._socket is not None else set()
        self._said, self._unseen = True, self._monitor
        self._poller = poller = select.epoll()
        for descriptor in (self._returns.bell, *inputs, *self._ends):
            poller.register(descriptor, select.EPOLLIN)
        return poller

    def _unwatch(self) -> None:
        if self._poller is not None:
            self._poller.close()
            self._poller = None

    def _collect(self) -> None:
        """Hears what the loop and the finalisers had to say."""
        numbers = self._returns.gather(self._connection)
        taken, retired = self._handoff.returned(self._connection, numbers)
        waited_ns, self._waited_ns = self._waited_ns, 0
        if numbers and self._session.state == "over" and self._lifeline is not None:
            with suppress(OSError):  # the lifeline's end says as much
                self._lifeline.report_retired(retired)
                self._lifeline.report_dropped(set(numbers).difference(retired))
        elif numbers:
            self._do(self._session.released(numbers, taken, waited_ns, time.monotonic(), retired))
        while self._orders:
            self._do(self._orders.popleft()())

    def _receive(self) -> None:
        socket = self._socket
        self._said = False
        while socket is not None and socket is self._socket and has_input(socket):
            head = socket.recv(zmq.DONTWAIT)
            inline = None
            if self._session.wish.transport == "inline" and socket.getsockopt(zmq.RCVMORE):
                inline = socket.recv(zmq.DONTWAIT, copy=False).buffer
            self._hear(split_records(head), inline)
            if self._session.state == "away":  # it gave this connection up: a daemon that drains waits for the end
                self._lose()

    def _hear(self, frames: Iterable[bytes], inline: memoryview | None) -> None:
        """Takes the frames of one message; the batches among them reach the loop together."""
        batches: list[ReceivedBatch] = []
        for data in frames:
            header, message = decode_daemon_frame(data)
            for do in self._session.heard(header, message, time.monotonic()):
                if isinstance(do, ReceivedBatch):
                    batches += self._with_memory(do, inline)
                    continue
                if isinstance(do, Fail):  # what came before it is the loop's, and is told to be
                    self._handoff.offer(batches)
                    batches = []
                self._do_one(do)
        self._handoff.offer(batches)

    def _do(self, what: Iterable[Do]) -> None:
        for do in what:
            self._do_one(do)

    def _do_one(self, do: Do) -> None:
        match do:
            case Say(header, message):
                self._said = True
                if self._socket is not None:
                    self._socket.send(encode_frame(header, message), zmq.DONTWAIT)
            case OpenSocket():
                self._connect()
            case Greet(welcome):
                self._greet(welcome)
            case Unmap(slots):
                self._unmap(slots)
            case Lent(credit):
                self._returns.worth_ringing = grant_size(credit)
                self._handoff.lend(credit)
            case OfferReceipt() | Fail():
                self._tell_loop(do)

    def _tell_loop(self, do: OfferReceipt | Fail) -> None:
        match do:
            case OfferReceipt(receipt):
                self._handoff.offer_receipt(receipt)
            case Fail(error):
                self._handoff.fail(error)
                self._tell_held()
                self._unwatch()

    def _unmap(self, slots: tuple[int, ...]) -> None:
        for slot in slots:
            self._maps.pop(slot, None)

    def _connect(self) -> None:
        self._disconnect(linger_ms=0)
        if self._context is None:
            return
        self._connection, cursor = self._handoff.begin_connection()
        earlier = [each.whose for each in held_over(self._session.wish.stream)]
        self._session.earlier = tuple(earlier[:MAX_SESSIONS])  # of one daemon there are no more
        self._socket = make_socket(self._context, self._endpoint)
        # libzmq would connect again by itself, as somebody that the daemon does not know: better to hear of it.
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._unwatch()
        self._do(self._session.opened(cursor, time.monotonic()))

    def _greet(self, welcome: Welcome) -> None:
        if welcome.cursor is not None:
            self._handoff.move(welcome.cursor)
        self._whose = self._session.whose
        self._is_shared = welcome.transport == "shared"
        try:
            self._lifeline = Lifeline(welcome.descriptors, welcome.secret)
            self._unwatch()
        except ConnectError as error:
            say(f"{error}")
            self._lose()
            return
        self._returns.worth_ringing = grant_size(welcome.credit)
        self._pixel_id = welcome.spec.pixel_id
        self._handoff.welcome(welcome.credit, self._counted(welcome))

    def _with_memory(self, received: ReceivedBatch, inline: memoryview | None) -> list[ReceivedBatch]:
        """The batch with its memory; none, and the connection lost, where that cannot be had."""
        header = received.header
        try:
            memory = inline if header.inline else self._mapped(header.slot, header.slot_bytes)
        except ConnectError:
            memory = None
        except OSError as error:
            say(f"memory cannot be shared here ({error.strerror}); pixels come by socket now")
            self._session.wish = replace(self._session.wish, transport="inline")
            memory = None
        if memory is None:
            self._lose()
            return []
        ready = received.with_memory(self._connection, memory, self._pixel_id)
        self._returns.expect(ready)
        return [ready]

    def _mapped(self, slot: int, nbytes: int) -> memoryview:
        if slot not in self._maps:
            if self._lifeline is None:
                raise ConnectError("the descriptor socket", "not connected")
            descriptor = self._lifeline.fetch_descriptor(slot)
            try:
                self._maps[slot] = map_readable(descriptor, nbytes)
            finally:
                os.close(descriptor)
        return self._maps[slot]

    # --- what is held when a session ends

    def _counted(self, welcome: Welcome) -> list[EndedConnection]:
        """What of earlier sessions counts within the credit."""
        counted = {(self._whose[0], session) for session in welcome.earlier}
        return [each for each in held_over(self._session.wish.stream) if each.whose in counted]

    def _tell_held(self) -> None:
        """The session is over, by the daemon's word: it is told what the loop may hold of it, as long as it does."""
        if self._lifeline is not None and self._is_shared:
            with suppress(OSError):  # the lifeline's end says as much
                self._lifeline.report_held(self._handoff.outstanding())

    def _part(self, lifeline: Lifeline) -> None:
        """The connection is over: its lifeline ends with the last view of its batches, which may be now."""
        held, forked = self._handoff.part()
        if not self._is_shared:
            held = {}
        elif held or forked:
            with suppress(OSError):  # the daemon is gone: nobody counts any more
                lifeline.report_retired(forked.difference(held))
                lifeline.report_held(held)
        self._hold_over(lifeline, held, forked)

    def _hold_over(self, lifeline: Lifeline, held: dict[int, tuple[int, int]], forked: Collection[int]) -> None:
        if not held:
            lifeline.close()
            return
        stream = self._session.wish.stream
        self._returns.hold_over(self._connection, EndedConnection(lifeline, self._whose, stream, held, forked))

    def _lose(self) -> None:
        self._disconnect(linger_ms=0)
        self._do(self._session.lost(time.monotonic()))
        self._handoff.away()

    def _disconnect(self, *, linger_ms: int) -> None:
        self._maps.clear()
        self._unwatch()
        if self._lifeline is not None:
            self._part(self._lifeline)
            self._lifeline = None
        if self._socket is not None and self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
        if self._socket is not None:
            self._socket.close(linger_ms)
            self._socket = None


# --- starting a thread where an interrupt may fall


def start_apart(thread: threading.Thread, fail: Callable[[RuntimeError], None]) -> threading.Lock:
    """Has another thread start it, which no interrupt reaches, and does not wait for it. `fail` gets why it could not.

    Thread.start itself waits, with Python's own locks: an interrupt (Ctrl-C) comes out of it as a RuntimeError, or
    leaves a lock held that the new thread needs. The lock that is returned is held until the start is over.
    """
    starting = threading.Lock()
    starting.acquire()
    try:
        _thread.start_new_thread(_start, (thread, fail, starting))
    except RuntimeError as error:  # no thread can be started at all
        starting.release()
        fail(error)
    return starting


def _start(thread: threading.Thread, fail: Callable[[RuntimeError], None], starting: threading.Lock) -> None:
    try:
        thread.start()
    except RuntimeError as error:
        fail(error)
    finally:
        starting.release()


def join_apart(thread: threading.Thread, starting: threading.Lock | None, timeout_s: float) -> None:
    """Waits for the end of a thread that was started so; `starting` is None where an interrupt came before."""
    if starting is not None:
        with starting:
            pass
    if thread.is_alive():
        thread.join(timeout_s)
