"""Copies the next batch that is sent, for requests that wait to show it. Without such a request it costs nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
import numpy as np

from streamd.client.batch import Batch, build_leased_batch
from streamd.core import log
from streamd.core.sampler import PAD_ID
from streamd.core.slot_layout import compute_layout
from streamd.core.spec import StreamSpec
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.messages import BatchReady
from streamd.ipc.slots import SlotStore
from streamd.limits import SHOWN_BYTES, SHOWN_ROWS


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
            shown = self._copy_preview_from_slot(stream, ready)
        except Exception as error:  # noqa: BLE001 - showing a batch must never keep it from its trainer
            log.warning("monitor.failed", "a batch cannot be shown", stream=stream.spec.name, error=error)
            for waiter in waiting:
                waiter.cancel()
        else:
            for waiter in waiting:
                waiter.set_result(shown)

    def _copy_preview_from_slot(self, stream: ServedStream, ready: BatchReady) -> Preview:
        spec, rows = stream.spec, compute_preview_row_count(stream.spec, ready.rows)
        # The first rows of each tensor lie at its beginning, so one copy for each tensor is enough.
        lies, first = compute_layout(spec, ready.rows), compute_layout(spec, rows)
        memory = np.empty(first.size_bytes, np.uint8).data
        for there, here in zip(lies.all_tensors, first.all_tensors, strict=True):
            self._slots.copy_slot_bytes(ready.slot, memory[here.offset : here.offset + here.size_bytes], there.offset)
        ids = np.empty(ready.rows, np.int64)
        self._slots.copy_slot_bytes(ready.slot, ids.data.cast("B"), lies.sample_ids.offset)
        message = msgspec.structs.replace(ready, rows=rows, bad=tuple(each for each in ready.bad if each.row < rows))
        batch = build_leased_batch(memory, first, message, spec, token=str, on_return=lambda: None)
        return Preview(stream, batch, ready.rows, int(np.count_nonzero(ids != PAD_ID)))


def compute_preview_row_count(spec: StreamSpec, rows: int) -> int:
    """Returns how many of a batch's rows are copied: SHOWN_ROWS or SHOWN_BYTES, but at least one row."""
    return max(1, min(rows, SHOWN_ROWS, SHOWN_BYTES // spec.sample_bytes))
