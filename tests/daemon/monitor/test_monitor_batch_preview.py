"""Previews of sent batches: viewers get the first rows, and without viewers nothing is copied."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from support.opened_streams import Serve

from streamd.core.sampler import PAD_ID, BadRow
from streamd.core.slot_layout import compute_layout
from streamd.daemon.batch_sender import BatchPreview, Preview, compute_preview_row_count
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.messages import BatchReady
from streamd.ipc.slots import SlotStore
from streamd.limits import SHOWN_BYTES, SHOWN_ROWS

ROWS = SHOWN_ROWS + 3
BAD = BadRow(0, 5, "cat/0005.jpg", "a damaged JPEG", "substituted")
LATER = BadRow(SHOWN_ROWS, 6, "cat/0006.jpg", "a damaged JPEG", "substituted")
READY = BatchReady(2, 3, ROWS, 7, 0, inline=False, bad=(BAD, LATER))


@pytest.fixture
def stream(serve_images: Serve) -> ServedStream:
    served = serve_images({"cat": 20})
    return replace(served, spec=replace(served.spec, batch_size=ROWS))


@pytest.fixture
def slots(stream: ServedStream) -> Iterator[SlotStore]:
    """Slot 7 holds a batch whose every row is of values of its own, the last one without a sample."""
    store, lies = SlotStore(), compute_layout(stream.spec, ROWS)
    descriptor = store.ensure_slot(7, lies.size_bytes)
    memory = np.zeros(lies.size_bytes, np.uint8)
    lies.images.build_array_in_memory(memory.data)[:] = np.arange(1, ROWS + 1, dtype=np.uint8).reshape(-1, 1, 1, 1)
    lies.sample_ids.build_array_in_memory(memory.data)[:] = [*range(100, 99 + ROWS), PAD_ID]
    lies.weights.build_array_in_memory(memory.data)[:] = np.arange(ROWS)
    lies.labels["label"].build_array_in_memory(memory.data)[:] = np.arange(200, 200 + ROWS)
    os.pwrite(descriptor, memory.data, 0)
    yield store
    store.close()


async def ask(batch_preview: BatchPreview, stream: str = "train") -> asyncio.Task[Preview]:
    """Starts a wait for a preview."""
    asked = asyncio.ensure_future(batch_preview.wait_for_preview(stream))
    await asyncio.sleep(0)
    return asked


async def test_a_viewer_gets_the_first_rows_of_the_next_batch(stream: ServedStream, slots: SlotStore) -> None:
    batch_preview = BatchPreview(slots)
    asked = await ask(batch_preview)
    batch_preview.on_batch_sent(stream, READY)
    preview = await asked
    batch = preview.first_rows
    assert (batch.epoch, batch.index, batch.bad) == (2, 3, (BAD,))
    assert (preview.row_count, preview.sample_count) == (ROWS, ROWS - 1)
    assert batch.images[:, 0, 0, 0].tolist() == list(range(1, SHOWN_ROWS + 1))
    assert batch.sample_ids.tolist() == list(range(100, 100 + SHOWN_ROWS))
    assert batch.weights.tolist() == list(range(SHOWN_ROWS))
    assert batch.labels["label"].tolist() == list(range(200, 200 + SHOWN_ROWS))


@pytest.mark.parametrize(
    ("rows", "side", "shown"), [(5, 8, 5), (4096, 8, SHOWN_ROWS), (32, 1024, SHOWN_BYTES // (3 << 20)), (8, 4000, 1)]
)
def test_fewer_large_images_are_copied(stream: ServedStream, rows: int, side: int, shown: int) -> None:
    image = replace(stream.spec.image, height=side, width=side)
    assert compute_preview_row_count(replace(stream.spec, images={"image": image}), rows) == shown


async def test_a_batch_that_cannot_be_copied_cancels_its_viewers(stream: ServedStream) -> None:
    batch_preview = BatchPreview(SlotStore())
    asked = await ask(batch_preview)
    batch_preview.on_batch_sent(stream, READY)
    await asyncio.wait({asked})
    assert asked.cancelled()
    assert not batch_preview.has_waiters


async def test_all_viewers_get_the_same_preview(stream: ServedStream, slots: SlotStore) -> None:
    batch_preview = BatchPreview(slots)
    asked = [await ask(batch_preview), await ask(batch_preview)]
    awaited = [batch_preview.has_waiters]
    batch_preview.on_batch_sent(stream, READY)
    first, second = await asyncio.gather(*asked)
    assert [*awaited, batch_preview.has_waiters] == [True, False]
    assert first is second


async def test_all_viewers_are_cancelled_at_the_end(slots: SlotStore) -> None:
    batch_preview = BatchPreview(slots)
    asked = [await ask(batch_preview), await ask(batch_preview, "other")]
    batch_preview.cancel_waiters()
    await asyncio.wait(asked)
    assert [each.cancelled() for each in asked] == [True, True]
    assert not batch_preview.has_waiters


async def test_without_viewers_nothing_is_copied(
    stream: ServedStream, slots: SlotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    monkeypatch.setattr(slots, "copy_slot_bytes", lambda *arguments: read.append(arguments))
    batch_preview = BatchPreview(slots)
    batch_preview.on_batch_sent(stream, READY)
    asked = await ask(batch_preview, "other")
    batch_preview.on_batch_sent(stream, READY)
    asked.cancel()
    await asyncio.wait({asked})
    assert not batch_preview.has_waiters
    asked = await ask(batch_preview)
    asked.cancel()
    batch_preview.on_batch_sent(stream, READY)  # in the same turn: the wait is over, and has not been told yet
    await asyncio.wait({asked})
    assert read == []
