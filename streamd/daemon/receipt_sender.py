"""Sends receipts: each session gets its own one after the other, when their digests have been computed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from streamd.core.spec import Cursor
from streamd.daemon.batch_sender import BatchSender
from streamd.daemon.sessions import OWN_USER, Connection
from streamd.daemon.status_builder import StatusBuilder
from streamd.daemon.streams.expected_digests import ExpectedDigests
from streamd.daemon.streams.served_stream import count_dropped_samples
from streamd.ipc.messages import ReceiptDue
from streamd.limits import MAX_OPEN_EPOCHS

SpawnTask = Callable[[Coroutine[Any, Any, None]], object]


class ReceiptSender:
    """Computes and sends the receipts that are due. `send_receipt` sends one. Lives on the event loop.

    A session waits for one digest at a time, so a user waits for no more digests than it has sessions. A trainer needs
    the receipt of an epoch before it goes on: `on_overrun` gets a session that takes ever more epochs without them.
    """

    def __init__(
        self,
        batch_sender: BatchSender,
        status_builder: StatusBuilder,
        spawn: SpawnTask,
        send_receipt: Callable[[Connection, ReceiptDue], None],
        on_overrun: Callable[[int], None],
    ) -> None:
        self._expected_digests = ExpectedDigests(OWN_USER)
        self._batch_sender = batch_sender
        self._status_builder = status_builder
        self._spawn = spawn
        self._send_receipt = send_receipt
        self._on_overrun = on_overrun

    def close(self) -> None:
        """Ends the thread that computes digests."""
        self._expected_digests.close()

    def add_due_receipt(self, connection: Connection, cursor: Cursor) -> None:
        """Sends the receipt of an epoch that ended at `cursor`, after those that are due before it."""
        if len(connection.due_receipts) >= MAX_OPEN_EPOCHS:
            self._on_overrun(connection.session)
            return
        connection.due_receipts.append(cursor)
        if len(connection.due_receipts) == 1:
            self._spawn(self._send_due_receipts(connection))

    async def _send_due_receipts(self, connection: Connection) -> None:
        # Other events are handled while a thread computes a digest. The session may end meanwhile: its receipts are
        # dropped then, and so are digests of which nothing was computed yet.
        while connection.due_receipts and not connection.is_gone:
            cursor = connection.due_receipts[0]
            digest = await self._expected_digests.compute_digest(
                connection.stream, cursor, user=connection.user, is_wanted=lambda: not connection.is_gone
            )
            if digest is None or connection.is_gone:
                return
            connection.due_receipts.popleft()
            self._build_and_send_receipt(connection, cursor, digest)

    def _build_and_send_receipt(self, connection: Connection, cursor: Cursor, digest: str) -> None:
        connection.receipts += 1
        # The supply counts batches when they are sent, so the epoch's last ones go first.
        self._batch_sender.send_queued_batches()
        dropped = count_dropped_samples(connection.stream, cursor)
        self._status_builder.epoch_tracker.on_epoch_sent(connection.session, connection.stream.spec, cursor)
        supply = connection.supply_counter.take_and_reset_supply()
        self._send_receipt(connection, ReceiptDue(cursor.epoch, digest, dropped, supply))
