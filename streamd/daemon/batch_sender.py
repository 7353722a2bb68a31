"""Sends batches: encodes each header once for all sessions, and lets fresh batches wait a moment for others.

A trainer that waits for every batch wakes for each one, and on a busy host a wake-up costs the trainer and the decoders
about as much as a dozen decoded rows. So a batch that was just decoded waits up to SEND_COMPANY_S for others, as a
network card coalesces interrupts. Only trainers that wait for the decoders see this delay; batches that lay ready leave
at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from streamd.client.batch import Batch, build_leased_batch
from streamd.core import log
from streamd.core.counters import ProcessStats
from streamd.core.epoch_timing import BatchEffort
from streamd.core.sampler import PAD_ID
from streamd.core.slot_layout import compute_layout
from streamd.core.spec import BatchKey, Cursor, StreamSpec
from streamd.daemon.engine.batch_job import BatchJob
from streamd.daemon.sessions import OWN_USER, Connection
from streamd.daemon.status_builder import StatusBuilder
from streamd.daemon.streams.expected_digests import ExpectedDigests
from streamd.daemon.streams.served_stream import ServedStream, count_dropped_samples
from streamd.ipc.messages import BatchReady, FrameHeader, ReceiptDue, build_frame, bundle_records, encode_message
from streamd.ipc.router import FrameSender
from streamd.ipc.slots import SlotStore
from streamd.limits import MAX_OPEN_EPOCHS, SEND_COMPANY_CREDIT, SEND_COMPANY_S, SHOWN_BYTES, SHOWN_ROWS

_FULL_QUEUE_BATCHES: Final = 4  # a queue of so many batches is sent at once
_MAX_MESSAGE_BATCHES: Final = 64  # in one message


@dataclass(slots=True, eq=False)
class OutgoingBatch:
    """A complete batch in its slot, with its message encoded once for all sessions.

    `samples` counts the rows that are not padding; `effort` is what decoding took. `awaited_by` are the sessions that
    had room for it before it was decoded; `deliveries` is how many sessions it was queued for. `was_sent` is True once
    it was sent to one of them.
    """

    key: BatchKey
    message: BatchReady
    encoded: bytes
    samples: int
    effort: BatchEffort
    awaited_by: set[int] = field(default_factory=set)
    deliveries: int = 0
    was_sent: bool = False


_NumberedBatch = tuple[int, OutgoingBatch]  # number in the session, batch


class BatchSender:
    """Queues batches for connections, and flushes the queue at once or after a moment. Lives on the event loop.

    `preview` gets each batch that is sent. `on_unreachable` is called with the session that a batch could not be sent
    to.
    """

    def __init__(
        self,
        router: FrameSender,
        slots: SlotStore,
        stats: ProcessStats,
        status_builder: StatusBuilder,
        boot: int,
        on_unreachable: Callable[[int], None],
    ) -> None:
        self._router = router
        self._slots = slots
        self._stats = stats
        self._status_builder = status_builder
        self.preview = BatchPreview(slots)
        self._boot = boot
        self._on_unreachable = on_unreachable
        self._batches: dict[int, OutgoingBatch] = {}  # by slot
        self._queue: list[tuple[Connection, _NumberedBatch]] = []
        self._has_new = False  # something is queued that `send_queued_or_delay` has not seen
        self._timer: asyncio.TimerHandle | None = None

    def add_filled_batch(self, job: BatchJob) -> None:
        """Encodes the message of a batch that now lies in its slot."""
        key, slot = job.key, job.slot
        bad = job.stream.list_bad_rows(key.epoch, key.index, job.row_status)
        rows = job.delivered_ids
        message = BatchReady(key.epoch, key.index, int(rows.size), slot, job.slot_bytes, inline=False, bad=bad)
        effort = BatchEffort(job.waited_s, job.busy_s - job.waited_s, job.busy_fraction)
        samples = int(np.count_nonzero(rows != PAD_ID))
        self._batches[slot] = OutgoingBatch(key, message, encode_message(message), samples, effort)

    def remove_batches_in_slots(self, slots: Iterable[int]) -> None:
        """Forgets the batches in these slots, which are being dropped."""
        for slot in slots:
            self._batches.pop(slot, None)

    def queue_delivery(
        self, connection: Connection, number: int, slot: int, *, is_awaited: bool = False
    ) -> OutgoingBatch:
        """Queues the batch in a slot as delivery `number` of a session, and returns it.

        `is_awaited`: the session had to wait for its decoding.
        """
        batch = self._batches[slot]
        batch.deliveries += 1
        if is_awaited:
            batch.awaited_by.add(connection.session)
        self._queue.append((connection, (number, batch)))
        self._has_new = True
        return batch

    def send_queued_or_delay(self, *, is_fresh: bool) -> None:
        """Sends the queued batches, or lets them wait. Only batches that were just decoded (`is_fresh`) wait."""
        # This is called after every event. Batches that already wait keep waiting for the timer.
        if not self._has_new:
            return
        self._has_new = False
        if is_fresh:
            # They may wait while too few are queued to fill a message, and all their connections have credit to spare.
            slots = {batch.message.slot for _, (_, batch) in self._queue}
            has_spare_credit = all(each.credit >= SEND_COMPANY_CREDIT for each, _ in self._queue)
            if len(slots) < _FULL_QUEUE_BATCHES and has_spare_credit:
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(SEND_COMPANY_S, self.send_queued_batches)
                return
        self.send_queued_batches()

    def send_queued_batches(self) -> None:
        """Sends all queued batches, to each connection in the order in which they were queued."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        queue, self._queue = self._queue, []
        connections = {connection.session: connection for connection, _ in queue}
        deliveries: dict[int, list[_NumberedBatch]] = {session: [] for session in connections}
        for connection, delivery in queue:
            deliveries[connection.session].append(delivery)
        for session, connection in connections.items():
            # The effort of decoding counts for the batches that the connection had to wait for. The slot of one may be
            # free by now, or hold another batch.
            batches = [batch for _, batch in deliveries[session]]
            awaited = [batch for batch in batches if connection.session in batch.awaited_by]
            connection.supply_counter.add_batches(
                len(batches), [batch.effort for batch in awaited if self._batches.get(batch.message.slot) is batch]
            )
            for start in range(0, len(deliveries[session]), _MAX_MESSAGE_BATCHES):
                self._send_to_connection(connection, deliveries[session][start : start + _MAX_MESSAGE_BATCHES])

    def _send_to_connection(self, connection: Connection, deliveries: Sequence[_NumberedBatch]) -> None:
        """Sends batches to one client, unless it is gone."""
        # The session may have ended while its batches were queued.
        if connection.is_gone:
            return
        started_s = time.monotonic()
        batches = [batch for _, batch in deliveries]
        # A queued batch is leased by the session, so its slot is stable unless the client released the batch before it
        # was sent. No client of ours does that.
        if any(self._batches.get(batch.message.slot) is not batch for batch in batches):
            self._on_unreachable(connection.session)
            return
        if self.preview.has_waiters:
            self.preview.on_batch_sent(connection.stream, batches[-1].message)
        if connection.transport == "shared":
            # One message names the slots of all batches.
            frames = [
                build_frame(FrameHeader(self._boot, connection.session, number), batch.encoded)
                for number, batch in deliveries
            ]
            is_reached = self._router.send_frame(connection.identity, bundle_records(frames))
        else:
            # The pixels themselves, one message a batch, as long as the client can be reached.
            is_reached = all(
                self._router.send_frame(
                    connection.identity,
                    build_frame(
                        FrameHeader(self._boot, connection.session, number),
                        encode_message(msgspec.structs.replace(batch.message, slot=0, inline=True)),
                    ),
                    self._slots.map_slot(batch.message.slot),
                )
                for number, batch in deliveries
            )
        if not is_reached:
            self._on_unreachable(connection.session)
        now_s = time.monotonic()
        group, samples = f"stream.{connection.stream.spec.name}", sum([each.samples for each in batches])
        first_sent = 0
        for batch in batches:
            first_sent += not batch.was_sent
            batch.was_sent = True
        sent = [(batch.key.epoch, batch.samples) for batch in batches]
        self._status_builder.on_batches_sent(connection.session, sent, now_s, first_sent=first_sent)
        if first_sent:
            self._stats.add_count(f"stream.{batches[0].key.stream}", "first_sent", first_sent)
        self._stats.find_stage_times(group, "send").add_runs(now_s - started_s, len(batches))
        self._stats.add_count(group, "sent_samples", samples)

    def close(self) -> None:
        """Drops the queued batches."""
        if self._timer is not None:
            self._timer.cancel()
        self._queue.clear()


# --- Sends receipts: each session gets its own one after the other, when their digests have been computed.

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

    async def close(self) -> None:
        """Ends the threads and the worker that compute digests."""
        await self._expected_digests.close()

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
            connection.receipts += 1
            # The supply counts batches when they are sent, so the epoch's last ones go first.
            self._batch_sender.send_queued_batches()
            dropped = count_dropped_samples(connection.stream, cursor)
            self._status_builder.epoch_tracker.on_epoch_sent(connection.session, connection.stream.spec, cursor)
            supply = connection.supply_counter.take_and_reset_supply()
            self._send_receipt(connection, ReceiptDue(cursor.epoch, digest, dropped, supply))


# --- Copies the next batch that is sent, for requests that wait to show it. Without such a request it costs nothing.


@dataclass(frozen=True, slots=True)
class Preview:
    """A batch of `row_count` rows as it went to a trainer; `first_rows` is a copy of its first ones.

    `sample_count` counts its rows that are not padding.
    """

    stream: ServedStream
    first_rows: Batch
    row_count: int
    sample_count: int


class BatchPreview:
    """Hands the next batch of a stream to all requests that wait for it. Used by the event loop's thread alone."""

    def __init__(self, slots: SlotStore) -> None:
        self._slots = slots
        self._waiters: dict[str, list[asyncio.Future[Preview]]] = {}

    @property
    def has_waiters(self) -> bool:
        """Whether a request waits for a batch of any stream."""
        return bool(self._waiters)

    async def wait_for_preview(self, stream: str) -> Preview:
        """Returns the next batch of a stream that is sent; waits as long as that takes."""
        waiter: asyncio.Future[Preview] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(stream, []).append(waiter)
        try:
            return await waiter
        finally:
            # A cancelled request would otherwise leave its waiter behind, and the next batch would be copied for
            # nobody.
            waiting = self._waiters.get(stream, [])
            if waiter in waiting:
                waiting.remove(waiter)
                if not waiting:
                    del self._waiters[stream]

    def cancel_waiters(self) -> None:
        """Cancels all waiting requests."""
        for waiter in [each for waiting in self._waiters.values() for each in waiting]:
            waiter.cancel()

    def on_batch_sent(self, stream: ServedStream, ready: BatchReady) -> None:
        """Hands a copy of a batch that is being sent to the requests that wait for its stream.

        The slot is leased to a trainer, so nothing writes to it during the copy.
        """
        waiting = [each for each in self._waiters.pop(stream.spec.name, []) if not each.done()]
        if not waiting:
            return
        try:
            spec, rows = stream.spec, compute_preview_row_count(stream.spec, ready.rows)
            # The first rows of each tensor lie at its beginning, so one copy for each tensor is enough.
            lies, first = compute_layout(spec, ready.rows), compute_layout(spec, rows)
            memory = np.empty(first.size_bytes, np.uint8).data
            for there, here in zip(lies.all_tensors, first.all_tensors, strict=True):
                self._slots.copy_slot_bytes(
                    ready.slot, memory[here.offset : here.offset + here.size_bytes], there.offset
                )
            ids = np.empty(ready.rows, np.int64)
            self._slots.copy_slot_bytes(ready.slot, ids.data.cast("B"), lies.sample_ids.offset)
            bad = tuple(each for each in ready.bad if each.row < rows)
            message = msgspec.structs.replace(ready, rows=rows, bad=bad)
            batch = build_leased_batch(memory, first, message, spec, token=str, on_return=lambda: None)
            shown = Preview(stream, batch, ready.rows, int(np.count_nonzero(ids != PAD_ID)))
        except Exception as error:  # noqa: BLE001 - showing a batch must never keep it from its trainer
            log.warning("monitor.failed", "a batch cannot be shown", stream=stream.spec.name, error=error)
            for waiter in waiting:
                waiter.cancel()
        else:
            for waiter in waiting:
                waiter.set_result(shown)


def compute_preview_row_count(spec: StreamSpec, rows: int) -> int:
    """Returns how many of a batch's rows are copied: SHOWN_ROWS or SHOWN_BYTES, but at least one row."""
    return max(1, min(rows, SHOWN_ROWS, SHOWN_BYTES // spec.sample_bytes))
