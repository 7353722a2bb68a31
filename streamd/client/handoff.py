"""Passes batches, receipts and the stream's error from the I/O thread to the training loop, and the cursor back."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from streamd.client.leases import EndedConnection, ReceivedBatch
from streamd.core.spec import Cursor
from streamd.errors import StreamdError
from streamd.ipc.messages import ReceiptDue
from streamd.limits import MAX_CREDIT


class Handoff:
    """State that the I/O thread and the training loop share, guarded by one lock.

    A batch is either taken by the loop or discarded by a reconnection, never both: each happens under the lock.

    An interrupt (Ctrl-C) may arrive anywhere in the loop's thread. threading.Condition is Python code: an interrupt
    within it leaves the lock held for ever, or releases it twice. A `with` statement over the lock itself is entered
    and left in C.
    """

    def __init__(self, cursor: Cursor) -> None:
        self._lock = threading.RLock()
        self._waiters: list[threading.Lock] = []  # one for each waiting thread, held until something changes
        self._received: deque[ReceivedBatch] = deque()
        self._receipts: dict[int, ReceiptDue] = {}
        self._error: StreamdError | None = None
        self._cursor = cursor
        # A delivery of this connection is in `_received` until the loop takes it, then in `_held` until its last view
        # is gone. If a fork happened while it was held, it is also in `_forked`, and moves from there to `_retired`
        # when the parent drops it, since the child's views may last.
        self._held: dict[int, tuple[int, int]] = {}  # (epoch, index) by delivery number
        self._forked: set[int] = set()
        # Bounded: at most this many retired deliveries can be unknown to the daemon.
        self._retired: deque[int] = deque(maxlen=MAX_CREDIT)
        self._forks_begun = 0  # forks in progress: other fork hooks and the loop's own thread may run meanwhile
        self._held_over: Sequence[EndedConnection] = ()  # batches held of these connections count within the credit
        self._connection = 0
        self._is_ended = False  # the connection has ended: batches of it that arrive now are dropped
        self._taken_count = 0
        self.credit = 0
        self.away_since_s: float | None = time.monotonic()

    # --- the I/O thread

    def reset_for_new_connection(self) -> tuple[int, Cursor]:
        """Discards untaken batches, and returns the new connection's number and the cursor at which it begins.

        The cursor is read under the same lock, so no batch can be both taken and delivered again.
        """
        with self._lock:
            self._received.clear()
            self._held.clear()
            self._forked.clear()
            self._retired.clear()
            self._held_over = ()
            self._taken_count = 0
            self._is_ended = False
            self._connection += 1
            return self._connection, self._cursor

    def mark_session_open(self, credit: int, held_over: Sequence[EndedConnection] = ()) -> None:
        """Records that the daemon has admitted the session; batches held of `held_over` count within its credit."""
        with self._lock:
            self.credit, self.away_since_s, self._held_over = credit, None, held_over
            self._wake_all()

    def discard_untaken_batches(self) -> tuple[dict[int, tuple[int, int]], set[int]]:
        """Discards untaken batches and refuses later ones of this connection.

        Returns the deliveries that the loop holds, with (epoch, index) by number, and those that a forked child may
        still see.
        """
        with self._lock:
            self._received.clear()
            self._is_ended = True
            return dict(self._held), self._forked.union(self._retired)

    def list_outstanding_leases(self) -> list[int]:
        """Returns the numbers of all deliveries that the loop holds or may still take, or that a forked child sees."""
        with self._lock:
            return list({*self._held, *self._retired, *(each.number for each in self._received)})

    def set_credit(self, credit: int) -> None:
        """Sets how many batches the loop may hold from now on, and wakes waits, which compare it with what is held."""
        with self._lock:
            self.credit = credit
            self._wake_all()

    def mark_daemon_away(self) -> None:
        with self._lock:
            if self.away_since_s is None:
                self.away_since_s = time.monotonic()
                self._wake_all()

    def put_batches(self, batches: Sequence[ReceivedBatch]) -> None:
        """Queues batches for the loop; drops those of a connection that has ended."""
        if not batches:
            return
        with self._lock:
            if not self._is_ended:
                self._received += [each for each in batches if each.connection == self._connection]
                self._wake_all()

    def put_receipt(self, receipt: ReceiptDue) -> None:
        with self._lock:
            self._receipts[receipt.epoch] = receipt
            self._wake_all()

    def set_error(self, error: StreamdError) -> None:
        with self._lock:
            self._error = self._error or error
            self._wake_all()

    def release_leases(self, connection: int, numbers: list[int]) -> tuple[int, list[int]]:
        """Forgets deliveries whose leases have ended.

        Returns how many batches the loop has taken of the present connection, and which of `numbers` a forked child may
        still see. Numbers of an earlier connection change nothing.
        """
        with self._lock:
            if connection != self._connection:
                return self._taken_count, []
            for number in numbers:
                self._held.pop(number, None)
            retired = [number for number in numbers if number in self._forked]
            self._forked.difference_update(retired)
            self._retired.extend(retired)
            return self._taken_count, retired

    # --- around a fork

    def before_fork(self) -> None:
        """Marks all held deliveries as shared with the child that is about to exist."""
        with self._lock:
            self._forks_begun += 1
            self._forked.update(self._held)

    def after_fork_in_parent(self) -> None:
        """Ends the fork in the parent: the child has no view of batches that the loop takes from now on."""
        with self._lock:
            # The count may be 0: this handoff may have been created between the fork's two hooks.
            self._forks_begun = max(0, self._forks_begun - 1)

    def after_fork_in_child(self) -> None:
        """Drops untaken batches in the child, so that they keep no memory there."""
        # The lock is not taken. It may have been held at the fork by a thread that does not exist in the child, and
        # would then never be released. The child has only this thread, so it needs no lock.
        self._received.clear()

    # --- the loop

    def take_batch(self, after: Cursor, wait_s: float) -> ReceivedBatch | None:
        """Returns the next batch and moves the cursor to `after`; None when none arrives within `wait_s` seconds.

        Batches that arrived before an error are still valid and are returned first. Raises the stream's error.
        """
        if wait_s and not self._received:
            self._wait_for_change(lambda: self._received, wait_s)
        with self._lock:
            if not self._received:
                self._raise_stream_error()
                return None
            # Batch and cursor change under one lock: a reconnection between them would receive this batch again.
            received = self._received.popleft()
            self._cursor = after
            self._taken_count += 1
            self._held[received.number] = (received.header.epoch, received.header.index)
            if self._forks_begun:
                self._forked.add(received.number)
            return received

    def wait_for_receipt(self, epoch: int, wait_s: float) -> ReceiptDue | None:
        """Returns the daemon's receipt of an epoch; None when it does not arrive in time. Raises the stream's error.

        The receipt stays here until `move_cursor` passes its epoch, so an interrupted caller finds it again.
        """
        self._wait_for_change(lambda: epoch in self._receipts, wait_s)
        with self._lock:
            receipt = self._receipts.get(epoch)
            if receipt is None:
                self._raise_stream_error()
            return receipt

    def wait_for_session(self, wait_s: float) -> bool:
        """Waits until the daemon has admitted the session, and returns whether it has. Raises the stream's error."""
        until_s = time.monotonic() + wait_s
        # `_wait_for_change` returns early at every change of the connection's state or credit, hence the loop.
        while self.away_since_s is not None and not self._error and (left_s := until_s - time.monotonic()) > 0:
            self._wait_for_change(lambda: self.away_since_s is None, left_s)
        with self._lock:
            if self.away_since_s is not None:
                self._raise_stream_error()
            return self.away_since_s is None

    @property
    def cursor(self) -> Cursor:
        """The cursor at which the next connection begins."""
        with self._lock:
            return self._cursor

    def move_cursor(self, cursor: Cursor) -> None:
        """Sets the cursor at which the next connection begins, and drops receipts of earlier epochs."""
        with self._lock:
            self._cursor = cursor
            self._receipts = {epoch: due for epoch, due in self._receipts.items() if epoch >= cursor.epoch}

    def close(self, error: StreamdError) -> None:
        """Discards untaken batches, and makes every waiting thread raise `error`."""
        with self._lock:
            self._received.clear()
            self._error = error
            self._wake_all()

    def count_ended_connection_batches(self) -> int:
        """Returns how many batches of ended connections the loop holds; they count within the present credit."""
        with self._lock:
            return sum(len(each.held_batches) for each in self._held_over)

    def list_credit_blocking_batches(self) -> list[tuple[int, int]]:
        """Returns (epoch, index) of each batch that the loop holds if they use up the credit, else an empty list."""
        with self._lock:
            held = [*self._held.values(), *(place for each in self._held_over for place in each.held_batches)]
            return held if self.credit and len(held) >= self.credit else []

    def _wait_for_change(self, is_there: Callable[[], object], wait_s: float) -> None:
        """Waits until `is_there()`, an error, or the end of `wait_s` seconds.

        Also returns when the daemon goes away, comes back or changes the credit, since the caller then has to compute
        its timeout anew.
        """
        before, until_s = (self.away_since_s, self.credit), time.monotonic() + wait_s
        while True:
            # Each round has its own lock, acquired twice: the second acquire sleeps until `_wake_all` releases it. The
            # state is checked and the waiter is added to the list under `_lock`, so a change after the check cannot be
            # missed.
            waiter = threading.Lock()
            waiter.acquire()
            with self._lock:
                left_s = until_s - time.monotonic()
                if is_there() or self._error or (self.away_since_s, self.credit) != before or left_s <= 0:
                    return
                self._waiters.append(waiter)
            try:
                waiter.acquire(timeout=left_s)
            finally:
                # An interrupt here leaves the waiter in the list, where the next change releases it harmlessly.
                with self._lock:
                    if waiter in self._waiters:
                        self._waiters.remove(waiter)

    def _wake_all(self) -> None:
        """Wakes all waiting threads. Must be called with the lock held."""
        # The list is taken and emptied in one step, before the first release. If an interrupt ends the loop below, no
        # later call releases a waiter again, which would raise RuntimeError.
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.release()

    def _raise_stream_error(self) -> None:
        if self._error is not None:
            raise self._error.copy_without_traceback()
