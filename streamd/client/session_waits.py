"""A loop's waits in one session: for the next batch, and for the receipt at an epoch's end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from streamd.client.handoff import Handoff
from streamd.client.io_thread import IOThread
from streamd.client.session import ClientSession, ReceivedBatch
from streamd.client.waiting import AbsenceReporter, WaitPolicy
from streamd.core.spec import Cursor
from streamd.ipc.messages import ReceiptDue
from streamd.limits import PROGRESS_DELAY_S

DescribePlace = Callable[[], str]  # returns where the stream continues, for a line on stderr


@dataclass(frozen=True, slots=True)
class SessionWaits:
    """Waits for batches and receipts of one session. Used by the loop's thread only."""

    endpoint: str
    session: ClientSession
    handoff: Handoff
    io_thread: IOThread
    patience_s: float | None
    reporter: AbsenceReporter

    def wait_for_batch(self, after: Cursor, describe_place: DescribePlace) -> ReceivedBatch:
        """Returns the next batch and moves the cursor to `after`.

        Raises the stream's error, BatchesHeldError if the loop holds all the credit, or ConnectError when patience is
        over.
        """
        waiting = self._begin_wait("batch", describe_place, self.session.describe_daemon_wait)
        self.io_thread.set_immediate_lease_reports(now=bool(self.handoff.list_credit_blocking_batches()))
        try:
            if (received := self.handoff.take_batch(after, PROGRESS_DELAY_S)) is not None:
                return received
            # The daemon may have reduced the credit meanwhile, so ended leases are now reported however few they are.
            self.io_thread.set_immediate_lease_reports(now=True)
            while (received := self.handoff.take_batch(after, waiting.next_wait_s())) is None:
                waiting.check_wait_can_end()
        finally:
            self.io_thread.set_immediate_lease_reports(now=False)
            waiting.end_wait()
        return received

    def wait_for_receipt(self, epoch: int, describe_place: DescribePlace) -> ReceiptDue:
        """Returns the receipt of an epoch whose batches were all taken. Raises like `wait_for_batch`.

        Batches that the loop holds do not delay a receipt, so they raise no error here.
        """
        waiting = self._begin_wait(f"receipt of epoch {epoch}", describe_place, for_batch=False)
        try:
            while (due := self.handoff.wait_for_receipt(epoch, waiting.next_wait_s())) is None:
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
        session = self.session
        return WaitPolicy(
            self.handoff,
            self.endpoint,
            self.patience_s,
            self._ping_daemon,
            describe_awaited,
            describe_refusal=lambda: session.refusal or "",
            describe_place=describe_place,
            wanted=f"{wanted} of stream {session.subscription.stream!r}",
            reporter=self.reporter,
            for_batch=for_batch,
        )

    def _ping_daemon(self) -> None:
        # The session belongs to the I/O thread, so the ping is queued and not sent from here.
        self.io_thread.queue_session_call(lambda: self.session.ping_daemon(time.monotonic()))
