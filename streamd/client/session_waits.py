"""How a loop waits for what a session brings: the next batch, and the daemon's word at an epoch's end."""

from __future__ import annotations

import time
from collections.abc import Callable

from streamd.client.handoff import Handoff
from streamd.client.io_thread import IOThread
from streamd.client.session import ClientSession, ReceivedBatch
from streamd.client.waiting import AbsenceReporter, WaitPolicy
from streamd.core.spec import Cursor
from streamd.ipc.messages import ReceiptDue
from streamd.limits import PROGRESS_DELAY_S

DescribePlace = Callable[[], str]  # where the stream goes on, for a line on stderr


class SessionWaits:
    """The waits of one session. Each belongs to the loop's thread."""

    def __init__(
        self,
        endpoint: str,
        session: ClientSession,
        handoff: Handoff,
        io_thread: IOThread,
        patience_s: float | None,
        reporter: AbsenceReporter,
    ) -> None:
        self._endpoint = endpoint
        self._session = session
        self._handoff = handoff
        self._io_thread = io_thread
        self._patience_s = patience_s
        self._reporter = reporter

    def wait_for_batch(self, after: Cursor, describe_place: DescribePlace) -> ReceivedBatch:
        """The next batch, with the cursor moved to `after`. Raises the stream's error, or why the wait cannot end."""
        waiting = self._begin_wait("batch", describe_place, self._session.describe_daemon_wait)
        self._io_thread.set_immediate_lease_reports(now=bool(self._handoff.list_credit_blocking_batches()))
        try:
            if (received := self._handoff.take_batch(after, PROGRESS_DELAY_S)) is not None:
                return received
            # The daemon may have shrunk the credit since: what was returned is told now, worth a message or not.
            self._io_thread.set_immediate_lease_reports(now=True)
            while (received := self._handoff.take_batch(after, waiting.next_wait_s())) is None:
                waiting.check_wait_can_end()
        finally:
            self._io_thread.set_immediate_lease_reports(now=False)
            waiting.end_wait()
        return received

    def wait_for_receipt(self, epoch: int, describe_place: DescribePlace) -> ReceiptDue:
        """The daemon's word on an epoch whose batches were all taken. Raises as above."""
        waiting = self._begin_wait(f"receipt of epoch {epoch}", describe_place, for_batch=False)
        try:
            while (due := self._handoff.wait_for_receipt(epoch, waiting.next_wait_s())) is None:
                waiting.check_wait_can_end()
        finally:
            waiting.end_wait()
        return due

    def _begin_wait(
        self,
        wanted: str,
        describe_place: DescribePlace,
        describe_awaited: Callable[[], str] = str,
        *,
        for_batch: bool = True,
    ) -> WaitPolicy:
        session = self._session
        return WaitPolicy(
            self._handoff,
            self._endpoint,
            self._patience_s,
            self._ping_daemon,
            describe_awaited,
            describe_refusal=lambda: session.refusal or "",
            describe_place=describe_place,
            wanted=f"{wanted} of stream {session.subscription.stream!r}",
            reporter=self._reporter,
            for_batch=for_batch,
        )

    def _ping_daemon(self) -> None:
        self._io_thread.queue_session_call(lambda: self._session.ping_daemon(time.monotonic()))
