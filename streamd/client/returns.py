"""The leases of one subscription that ended, in whichever thread, on their way to the thread that tells the daemon."""

from __future__ import annotations

import os
import weakref
from collections import deque

from streamd.client.held_over import EndedConnection
from streamd.client.session import ReceivedBatch


class Returns:
    """`bell` wakes the I/O thread. Whatever is called by finalisers neither locks nor waits."""

    def __init__(self) -> None:
        self.worth_ringing = 1
        self.bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Views that outlive the stream still ring it, so it closes with the last of them, not with the thread.
        # At the interpreter's end the thread still polls it, and its number may be another file's by then.
        weakref.finalize(self, os.close, self.bell).atexit = False
        self._lent: dict[tuple[int, int], weakref.ref[ReceivedBatch]] = {}  # by connection and number
        self._returned: deque[tuple[int, int]] = deque()  # (connection, number), appended by finalisers
        self._ended: dict[int, EndedConnection] = {}  # by connection: those of which the loop holds something
        self._hurried = False

    def __bool__(self) -> bool:
        return bool(self._returned)

    def ring(self) -> None:
        os.eventfd_write(self.bell, 1)

    def expect(self, received: ReceivedBatch) -> None:
        """A lease begins; it ends when it is given back, or else with the batch."""
        whose, mine = (received.connection, received.number), weakref.ref(self)

        def give_back(_: object) -> None:
            if (returns := mine()) is not None:
                returns.give_back(*whose)

        self._lent[whose] = weakref.ref(received, give_back)

    def give_back(self, connection: int, number: int) -> None:
        """A lease ended, which counts once. Called by finalisers, in any thread, even within the garbage collector.

        Rings only for as many as are worth telling: with fewer returned there is credit left at the daemon, and the
        next batch to arrive wakes the thread anyway; unless the loop holds the rest, see `hurry`.
        """
        if self._lent.pop((connection, number), None) is None:
            return
        self._returned.append((connection, number))
        # Asked after that: a connection that ends is noted first, then what lies here is looked through.
        if (ended := self._ended.get(connection)) is not None:
            ended.give_back(number)
        elif self._hurried or len(self._returned) >= self.worth_ringing:
            self.ring()

    def hurry(self, *, now: bool) -> None:
        """While `now`, every lease that ended is told: the loop waits and the daemon has no credit left to send on."""
        self._hurried = now
        if now and self._returned:
            self.ring()

    def gather(self, connection: int) -> list[int]:
        """The leases of this connection that have ended; those of earlier ones are told by themselves."""
        numbers = []
        while self._returned:
            its_connection, number = self._returned.popleft()
            if its_connection == connection:
                numbers.append(number)
        return numbers

    def hold_over(self, connection: int, ended: EndedConnection) -> None:
        """A connection is over, of which the loop holds something."""
        ended.keeps = self
        self._ended = {each: held for each, held in self._ended.items() if held.held} | {connection: ended}
        for number in self.gather(connection):
            ended.give_back(number)

    def fork_begins(self) -> None:
        """Called before a fork, in the thread that forks."""
        for ended in list(self._ended.values()):
            ended.fork_begins()

    def forked(self) -> None:
        """Called in the child."""
        for ended in self._ended.values():
            ended.forked()
