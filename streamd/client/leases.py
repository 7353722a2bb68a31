"""Leases: those that ended, on their way to the daemon; those that outlive their session; those that a child shares.

The daemon counts what a loop still holds of a session that has ended, and hears on that session's lifeline when it is
free. The lifeline stays open as long as a view of its batches lives in this process.
"""

from __future__ import annotations

import gc
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from streamd.client.session import ReceivedBatch
from streamd.errors import BatchesHeldError
from streamd.ipc.fd_passing import Lifeline
from streamd.limits import MAX_HELD_OVER, REPORT_INTERVAL_S

BatchPlace = tuple[int, int]  # epoch, index

# Those of this process, from a session's end to that of its last view.
HELD_OVER_CONNECTIONS: Final[set[EndedConnection]] = set()


class EndedConnection:
    """The deliveries `held` of session `whose` (boot, session), by number. `forked`: a child sees them as well.

    It is one of `known` as long as something of it is held.
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
        self._is_copy = False
        self.keep_alive: object = None  # what hears of the ends of its leases, which has to live as long as they do
        known.add(self)

    @property
    def held_batches(self) -> list[BatchPlace]:
        """(epoch, index) of what the loop has of it."""
        return list(self._held.values())

    def return_lease(self, number: int) -> None:
        """A lease ended. Called by finalisers, in any thread, even within the garbage collector: it never waits.

        A word that does not get through, since the daemon is gone or stopped, is said by the end of the lifeline.
        """
        if self._held.pop(number, None) is None:
            return
        if not self._is_copy:
            with suppress(OSError):
                if number in self._forked:
                    self._lifeline.report_retired_leases((number,))
                else:
                    self._lifeline.report_dropped_leases((number,))
        if not self._held:
            self._known.discard(self)
            self._lifeline.close()
            self.keep_alive = None

    def before_fork(self) -> None:
        """A child will have views of all that is held now; nobody hears when it drops them."""
        self._forked.update(self._held)

    def after_fork_in_child(self) -> None:
        """In the child, which says nothing of what its parent holds."""
        self._is_copy = True
        self._known.discard(self)
        self._lifeline.close()


def list_ended_connections(stream: str) -> list[EndedConnection]:
    """All of a stream's that this process has now."""
    known = list(HELD_OVER_CONNECTIONS)  # a copy: made without a pause, while finalisers take some out
    return sorted((each for each in known if each.stream == stream), key=lambda each: each.session_key)


def check_ended_session_limit(stream: str) -> None:
    """Raises BatchesHeldError where this process holds batches of as many ended sessions as one trainer may have.

    Each counts as a session at the daemon, of which there are so many for all trainers together.
    """
    if len(list_ended_connections(stream)) < MAX_HELD_OVER:
        return
    gc.collect()
    ended = list_ended_connections(stream)
    if len(ended) >= MAX_HELD_OVER:
        places = [place for each in ended for place in each.held_batches]
        raise BatchesHeldError(places, len(places), ended=len(ended))


class LeaseReturns:
    """`wake_descriptor` wakes the I/O thread. Whatever is called by finalisers neither locks nor waits."""

    def __init__(self) -> None:
        self.wake_threshold = 1
        self.wake_descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Views that outlive the stream still ring it, so it closes with the last of them, not with the thread.
        # At the interpreter's end the thread still polls it, and its number may be another file's by then.
        weakref.finalize(self, os.close, self.wake_descriptor).atexit = False
        self._open_leases: dict[tuple[int, int], weakref.ref[ReceivedBatch]] = {}  # by connection and number
        self._returned: deque[tuple[int, int]] = deque()  # (connection, number), appended by finalisers
        # By connection: those of which the loop holds something.
        self._ended_connections: dict[int, EndedConnection] = {}
        self._reports_at_once = False
        self._next_report_s = (
            time.monotonic() + REPORT_INTERVAL_S
        )  # when a lease that ended is worth a report by itself

    def __bool__(self) -> bool:
        return bool(self._returned)

    def wake_thread(self) -> None:
        os.eventfd_write(self.wake_descriptor, 1)

    def track_lease(self, received: ReceivedBatch) -> None:
        """A lease begins; it ends when it is given back, or else with the batch."""
        whose, mine = (received.connection, received.number), weakref.ref(self)

        def give_back(_: object) -> None:
            if (returns := mine()) is not None:
                returns.return_lease(*whose)

        self._open_leases[whose] = weakref.ref(received, give_back)

    def return_lease(self, connection: int, number: int) -> None:
        """A lease ended, which counts once. Called by finalisers, in any thread, even within the garbage collector.

        Rings only for as many as are worth telling: with fewer returned there is credit left at the daemon, and the
        next batch to arrive wakes the thread anyway; unless the loop holds the rest, see `set_immediate_lease_reports`.
        A slow loop rings once a second, so that people who look at the daemon see where it is.
        """
        if self._open_leases.pop((connection, number), None) is None:
            return
        self._returned.append((connection, number))
        # Asked after that: a connection that ends is noted first, then what lies here is looked through.
        if (ended := self._ended_connections.get(connection)) is not None:
            ended.return_lease(number)
        elif (
            self._reports_at_once
            or len(self._returned) >= self.wake_threshold
            or time.monotonic() >= self._next_report_s
        ):
            self.wake_thread()

    def set_immediate_lease_reports(self, *, now: bool) -> None:
        """While `now`, every lease that ended is told: the loop waits and the daemon has no credit left to send on."""
        self._reports_at_once = now
        if now and self._returned:
            self.wake_thread()

    def take_returned_leases(self, connection: int) -> list[int]:
        """The leases of this connection that have ended; those of earlier ones are told by themselves."""
        self._next_report_s = time.monotonic() + REPORT_INTERVAL_S
        numbers = []
        while self._returned:
            its_connection, number = self._returned.popleft()
            if its_connection == connection:
                numbers.append(number)
        return numbers

    def keep_ended_connection(self, connection: int, ended: EndedConnection) -> None:
        """A connection is over, of which the loop holds something."""
        ended.keep_alive = self
        self._ended_connections = {
            each: held for each, held in self._ended_connections.items() if held.held_batches
        } | {connection: ended}
        for number in self.take_returned_leases(connection):
            ended.return_lease(number)

    def before_fork(self) -> None:
        """Called before a fork, in the thread that forks."""
        for ended in list(self._ended_connections.values()):
            ended.before_fork()

    def after_fork_in_child(self) -> None:
        """Called in the child."""
        for ended in self._ended_connections.values():
            ended.after_fork_in_child()


# --- around a fork


class ForkObserver(Protocol):
    """What is told of forks."""

    def before_fork(self) -> None: ...

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None: ...


_fork_observers: Final[set[weakref.ref[ForkObserver]]] = set()


def observe_forks(observer: ForkObserver) -> None:
    """From now on it is told of each fork: before, in the thread that forks, and after, in the parent or the child."""
    _fork_observers.add(weakref.ref(observer, _fork_observers.discard))


def _call_fork_observers(call: Callable[[ForkObserver], None]) -> None:
    for reference in list(_fork_observers):  # a copy: made without a pause, while others come and go
        one = reference()
        if one is not None:
            call(one)


if hasattr(os, "register_at_fork"):  # Windows, where the client works over TCP, has no fork
    os.register_at_fork(
        before=partial(_call_fork_observers, lambda one: one.before_fork()),
        after_in_parent=partial(_call_fork_observers, lambda one: one.after_fork_in_parent()),
        after_in_child=partial(_call_fork_observers, lambda one: one.after_fork_in_child()),
    )
