"""The ends of leases: how they reach the daemon, outlive their session, and are shared with a forked child.

The daemon counts the batches that a loop still holds of an ended session. This process reports their ends on that
session's lifeline, which stays open as long as a view of one of these batches lives here.
"""

from __future__ import annotations

import gc
import os
import select
import selectors
import socket
import sys
import time
import weakref
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from streamd.errors import BatchesHeldError
from streamd.ipc.lifeline import DROPPED, RETIRED, Lifeline
from streamd.ipc.messages import BatchReady
from streamd.limits import MAX_HELD_OVER, REPORT_INTERVAL_S

BatchPlace = tuple[int, int]  # epoch, index

# The ended connections of this process, each from its session's end until its last view is gone. Finalisers in any
# thread remove entries, so readers iterate over a copy.
HELD_OVER_CONNECTIONS: Final[set[EndedConnection]] = set()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ReceivedBatch:
    """A batch for the loop: its number within its connection, the daemon's header, its memory and its pixels' identity.

    The lease ends with the object that holds the memory. Images built over the memory keep that object alive; if an
    interrupt arrives before they are built, the object is collected and the lease ends too.
    """

    number: int
    header: BatchReady
    connection: int
    memory: memoryview = field(default=memoryview(b""), repr=False, compare=False)
    pixel_id: str = ""


class EndedConnection:
    """A connection whose session has ended while the loop still holds batches of it.

    session_key: (boot, session) of the session.
    held: (epoch, index) of each held delivery, by number.
    forked: the numbers of deliveries that a forked child sees too.
    known: the registry that contains this object as long as a delivery is held.
    """

    def __init__(
        self,
        lifeline: Lifeline,
        session_key: tuple[int, int],
        stream: str,
        held: dict[int, BatchPlace],
        forked: Collection[int],
        known: set[EndedConnection] = HELD_OVER_CONNECTIONS,
    ) -> None:
        self.session_key = session_key
        self.stream = stream
        self._lifeline = lifeline
        self._held = held
        self._forked = set(forked)
        self._known = known
        self._is_copy = False  # this process is a forked child, which must not report its parent's leases
        self.keep_alive: object = None  # the LeaseReturns that passes lease ends here; must live as long as the leases
        known.add(self)

    @property
    def held_batches(self) -> list[BatchPlace]:
        """(epoch, index) of each batch that the loop still holds."""
        return list(self._held.values())

    def return_lease(self, number: int) -> None:
        """Reports the end of a lease. Called by finalisers, in any thread, even within the garbage collector.

        Never waits. If a report cannot be sent, because the daemon is gone or stopped, closing the lifeline reports the
        same.
        """
        # One atomic `pop` decides which caller reports: `keep_ended_connection` and a finaliser may bring the same
        # number from two threads.
        if self._held.pop(number, None) is None:
            return
        if not self._is_copy:
            with suppress(OSError):
                self._lifeline.report_leases(RETIRED if number in self._forked else DROPPED, (number,))
        if not self._held:
            self._known.discard(self)
            self._lifeline.close()
            self.keep_alive = None

    def before_fork(self) -> None:
        """Marks all held deliveries as shared with the child, which never reports when it drops its views."""
        self._forked.update(self._held)

    def after_fork_in_child(self) -> None:
        """Stops this copy in the child from reporting leases, which only the parent may do."""
        self._is_copy = True
        self._known.discard(self)
        self._lifeline.close()


def list_ended_connections(stream: str) -> list[EndedConnection]:
    """Returns the ended connections of a stream that this process still holds batches of, oldest first."""
    known = list(HELD_OVER_CONNECTIONS)  # a copy, made in one C call: finalisers may remove entries at any time
    return sorted((each for each in known if each.stream == stream), key=lambda each: each.session_key)


def check_ended_session_limit(stream: str) -> None:
    """Raises BatchesHeldError if this process holds batches of MAX_HELD_OVER ended sessions of the stream.

    Each of them counts as a session at the daemon, which bounds the number of sessions for all trainers together.
    """
    if len(list_ended_connections(stream)) < MAX_HELD_OVER:
        return
    # Reference cycles may keep batches that the loop has dropped, so collect them before raising.
    gc.collect()
    ended = list_ended_connections(stream)
    if len(ended) >= MAX_HELD_OVER:
        places = [place for each in ended for place in each.held_batches]
        raise BatchesHeldError(places, len(places), ended=len(ended))


class LeaseReturns:
    """Collects leases that ended, and wakes the I/O thread through `wake_signal`.

    Methods that finalisers call take no lock and never wait: a finaliser may run in the garbage collector, in a thread
    that already holds any lock.
    """

    def __init__(self) -> None:
        self.wake_threshold = 1  # returned leases that are worth waking the I/O thread for
        self.wake_signal = WakeSignal()
        self._open_leases: dict[tuple[int, int], weakref.ref[ReceivedBatch]] = {}  # by connection and number
        self.returned: deque[tuple[int, int]] = deque()  # (connection, number), appended by finalisers
        self._ended_connections: dict[int, EndedConnection] = {}  # those with held batches, by connection number
        self._reports_at_once = False
        self._next_report_s = time.monotonic() + REPORT_INTERVAL_S  # from then on a single ended lease wakes the thread
        self._is_finalizing = sys.is_finalizing  # the module's own names are gone when the interpreter's end calls it

    def track_lease(self, received: ReceivedBatch) -> None:
        """Starts a lease. It ends with `return_lease`, or when `received` is collected, whichever comes first."""
        # A weak reference: a strong one would make a cycle through `_open_leases`, which keeps this object and its
        # descriptor until the batch dies or the garbage collector runs.
        whose, mine = (received.connection, received.number), weakref.ref(self)

        def give_back(_: object) -> None:
            if (returns := mine()) is not None:
                returns.return_lease(*whose)

        self._open_leases[whose] = weakref.ref(received, give_back)

    def return_lease(self, connection: int, number: int, _kept: object = None) -> None:
        """Ends a lease, once. Called by finalisers, in any thread, even within the garbage collector.

        `_kept` is the batch that a finaliser keeps alive until then.

        Wakes the I/O thread only when enough leases have ended: with fewer, the daemon has credit left, and the next
        batch to arrive wakes the thread anyway. If the loop holds all other batches, `set_immediate_lease_reports`
        makes each lease wake it. A slow loop wakes the thread once a second, so that `streamd status` shows its place.
        """
        # The daemon sees the process's end by itself. JAX, for one, keeps arrays until then.
        if self._is_finalizing() or self._open_leases.pop((connection, number), None) is None:
            return
        self.returned.append((connection, number))
        # Append first, then look for an ended connection. `keep_ended_connection` works in the opposite order, so each
        # lease is seen by at least one of the two, and `EndedConnection.return_lease` reports it once.
        if (ended := self._ended_connections.get(connection)) is not None:
            ended.return_lease(number)
        elif (
            self._reports_at_once
            or len(self.returned) >= self.wake_threshold
            or time.monotonic() >= self._next_report_s
        ):
            self.wake_signal.wake()

    def set_immediate_lease_reports(self, *, now: bool) -> None:
        """Makes every ended lease wake the I/O thread while `now`, since the daemon has no credit left to send on."""
        self._reports_at_once = now
        if now and self.returned:
            self.wake_signal.wake()

    def take_returned_leases(self, connection: int) -> list[int]:
        """Returns the leases of `connection` that have ended; earlier connections report their own on their lifelines.

        Called by the I/O thread only.
        """
        self._next_report_s = time.monotonic() + REPORT_INTERVAL_S
        numbers = []
        while self.returned:
            its_connection, number = self.returned.popleft()
            if its_connection == connection:
                numbers.append(number)
        return numbers

    def keep_ended_connection(self, connection: int, ended: EndedConnection) -> None:
        """Registers a connection that ended while the loop holds batches of it."""
        ended.keep_alive = self
        # A new dict replaces the old one: finalisers read it at any time. After that, leases that ended before it was
        # visible to them are taken from the queue.
        self._ended_connections = {
            each: held for each, held in self._ended_connections.items() if held.held_batches
        } | {connection: ended}
        for number in self.take_returned_leases(connection):
            ended.return_lease(number)


# --- How a thread waits for descriptors and is woken, with what the system has: eventfd and epoll, or less.


class WakeSignal:
    """Wakes a thread that waits for `descriptor`. `wake` never waits, and any thread may call it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        if hasattr(os, "eventfd"):
            self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            # Views that outlive the stream still write to the descriptor, so it closes with the last of them and not
            # when the thread ends. It stays open at the interpreter's exit: the thread still polls it, and its number
            # could be reused.
            weakref.finalize(self, os.close, self.descriptor).atexit = False
            return
        self._waiting, self._socket = socket.socketpair()
        for end in (self._waiting, self._socket):
            end.setblocking(False)
            weakref.finalize(self, end.close).atexit = False  # as above
        self.descriptor = self._waiting.fileno()

    def wake(self) -> None:
        """Makes the descriptor readable."""
        if self._socket is None:
            os.eventfd_write(self.descriptor, 1)
            return
        try:
            self._socket.send(b"\0")
        except BlockingIOError:  # it is readable already
            return

    def clear(self) -> None:
        """Makes the descriptor silent until the next `wake`. Call it when it is readable."""
        if self._socket is None:
            os.eventfd_read(self.descriptor)
        else:
            self._waiting.recv(1 << 16)


class DescriptorPoller:
    """Waits until one of some descriptors is readable."""

    def __init__(self, descriptors: Iterable[int]) -> None:
        self._epoll: select.epoll | None = None
        self._selector: selectors.BaseSelector | None = None
        if hasattr(select, "epoll"):
            self._epoll = select.epoll()
            for descriptor in descriptors:
                self._epoll.register(descriptor, select.EPOLLIN)
            return
        self._selector = selectors.DefaultSelector()
        for descriptor in descriptors:
            self._selector.register(descriptor, selectors.EVENT_READ)

    def poll(self, wait_s: float | None) -> list[int]:
        """Waits up to `wait_s` seconds, without a limit for None, and returns the descriptors that are readable."""
        if self._epoll is not None:
            return [descriptor for descriptor, _ in self._epoll.poll(wait_s)]
        return [key.fd for key, _ in self._selector.select(wait_s)] if self._selector is not None else []

    def close(self) -> None:
        for each in (self._epoll, self._selector):
            if each is not None:
                each.close()
