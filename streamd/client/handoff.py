"""Between the I/O thread and the training loop: batches, receipts and the one error; back comes the loop's cursor."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from streamd.client.leases import EndedConnection
from streamd.client.session import ReceivedBatch
from streamd.core.spec import Cursor
from streamd.errors import StreamdError
from streamd.ipc.messages import ReceiptDue
from streamd.limits import MAX_CREDIT


class Handoff:
    """Guarded by one lock: what the loop takes and what a reconnection discards must never overlap.

    An interrupt (Ctrl-C) may fall anywhere into the loop. In threading.Condition, which is Python code, it leaves the
    lock held for ever, or has it released twice. A `with` over the lock itself is taken and left within C.
    """

    def __init__(self, cursor: Cursor) -> None:
        self._lock = threading.RLock()
        self._waiters: list[threading.Lock] = []  # each held until something changes
        self._received: deque[ReceivedBatch] = deque()
        self._receipts: dict[int, ReceiptDue] = {}
        self._error: StreamdError | None = None
        self._cursor = cursor
        self._held: dict[int, tuple[int, int]] = {}
        self._forked: set[int] = set()  # deliveries that a forked child may see for as long as it likes
        # Of these, those that the loop has dropped: the daemon may not have heard of so many yet, and of no more.
        self._retired: deque[int] = deque(maxlen=MAX_CREDIT)
        self._forks_begun = 0  # that have begun and not ended: other hooks run in between, and the loop in its thread
        self._held_over: Sequence[EndedConnection] = ()  # what is held of them counts within the credit
        self._connection = 0
        self._is_ended = False  # the connection has ended: what came with it and was not taken is no batch any more
        self._taken_count = 0
        self.credit = 0
        self.away_since_s: float | None = time.monotonic()

    # --- the I/O thread

    def reset_for_new_connection(self) -> tuple[int, Cursor]:
        """Discards what the loop has not taken; the new connection's number, and the cursor it begins at."""
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
        """The session stands; what is held of `held_over` ones counts within its credit."""
        with self._lock:
            self.credit, self.away_since_s, self._held_over = credit, None, held_over
            self._wake_all()

    def discard_untaken_batches(self) -> tuple[dict[int, tuple[int, int]], set[int]]:
        """Discards what the loop has not taken; what it holds of this connection, and what a child may see of it."""
        with self._lock:
            self._received.clear()
            self._is_ended = True
            return dict(self._held), self._forked.union(self._retired)

    def list_outstanding_leases(self) -> list[int]:
        """All deliveries that the loop holds or may still take, or that a child of it sees."""
        with self._lock:
            return list({*self._held, *self._retired, *(each.number for each in self._received)})

    def set_credit(self, credit: int) -> None:
        """The loop may hold so many batches from now on."""
        with self._lock:
            self.credit = credit
            self._wake_all()

    def mark_daemon_away(self) -> None:
        with self._lock:
            if self.away_since_s is None:
                self.away_since_s = time.monotonic()
                self._wake_all()

    def put_batches(self, batches: Sequence[ReceivedBatch]) -> None:
        """Batches for the loop, those of a connection that has ended by now excepted."""
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
        """Leases ended; how many batches the loop has taken of this connection, and which leases a child has too."""
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
        """The child will have views of what the loop holds now."""
        with self._lock:
            self._forks_begun += 1
            self._forked.update(self._held)

    def after_fork_in_parent(self) -> None:
        """In the parent: what the loop takes from now on no child has."""
        with self._lock:
            # One that began before there was this handoff is none of its own.
            self._forks_begun = max(0, self._forks_begun - 1)

    def after_fork_in_child(self) -> None:
        """In the child, which has one thread: what nobody there can take keeps no memory."""
        self._received.clear()

    # --- the loop

    def take_batch(self, after: Cursor, wait_s: float) -> ReceivedBatch | None:
        """The next batch, with the cursor moved to `after`; None when none came in time. Raises the stream's error.

        Batches that came before an error are taken first: they are as good as any.
        """
        if wait_s and not self._received:
            self._wait_for_change(lambda: self._received, wait_s)
        with self._lock:
            if not self._received:
                self._raise_stream_error()
                return None
            received = self._received.popleft()
            self._cursor = after
            self._taken_count += 1
            self._held[received.number] = (received.header.epoch, received.header.index)
            if self._forks_begun:
                self._forked.add(received.number)
            return received

    def wait_for_receipt(self, epoch: int, wait_s: float) -> ReceiptDue | None:
        """The daemon's word on an epoch; None when it did not come in time. Raises the stream's error.

        It stays here until the loop has moved on: an interrupt that falls between costs nothing.
        """
        self._wait_for_change(lambda: epoch in self._receipts, wait_s)
        with self._lock:
            receipt = self._receipts.get(epoch)
            if receipt is None:
                self._raise_stream_error()
            return receipt

    def wait_for_session(self, wait_s: float) -> bool:
        """Whether the session stands; raises the reason when it never will."""
        until_s = time.monotonic() + wait_s
        while self.away_since_s is not None and not self._error and (left_s := until_s - time.monotonic()) > 0:
            self._wait_for_change(lambda: self.away_since_s is None, left_s)
        with self._lock:
            if self.away_since_s is not None:
                self._raise_stream_error()
            return self.away_since_s is None

    @property
    def cursor(self) -> Cursor:
        """Where the next connection begins."""
        with self._lock:
            return self._cursor

    def move_cursor(self, cursor: Cursor) -> None:
        """Sets where the next connection begins; words on epochs before that are not needed any more."""
        with self._lock:
            self._cursor = cursor
            self._receipts = {epoch: due for epoch, due in self._receipts.items() if epoch >= cursor.epoch}

    def close(self, error: StreamdError) -> None:
        """What the loop has not taken is let go, and whoever waits for it hears why."""
        with self._lock:
            self._received.clear()
            self._error = error
            self._wake_all()

    def count_ended_connection_batches(self) -> int:
        """How many batches the loop holds of connections that have ended, within the credit of this one."""
        with self._lock:
            return sum(len(each.held_batches) for each in self._held_over)

    def list_credit_blocking_batches(self) -> list[tuple[int, int]]:
        """(epoch, index) of the batches that the loop took and still holds, when they are all its credit."""
        with self._lock:
            held = [*self._held.values(), *(place for each in self._held_over for place in each.held_batches)]
            return held if self.credit and len(held) >= self.credit else []

    def _wait_for_change(self, is_there: Callable[[], object], wait_s: float) -> None:
        """Also ends when the daemon goes away, is back or lends another number: the caller's patience counts anew."""
        before, until_s = (self.away_since_s, self.credit), time.monotonic() + wait_s
        while True:
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
                self._remove_waiter(waiter)

    def _remove_waiter(self, waiter: threading.Lock) -> None:
        """It waits no longer. One that an interrupt leaves behind here is released by the next change, for nobody."""
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake_all(self) -> None:
        """Called with the lock held. Nothing is called between taking the list and emptying it, see above."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.release()

    def _raise_stream_error(self) -> None:
        if self._error is not None:
            raise self._error
