"""Pictures of samples for the dashboard: the next batch that is sent, with its labels, and bad samples.

A batch is drawn in a thread. The file of a bad sample may crash its decoder, so thumbnails of bad samples are drawn by
a worker that serves no batch.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec
from PIL import Image

from streamd.core import log
from streamd.core.counters import ProcessStats
from streamd.core.display import BatchDisplay, ShownPicture, format_batch_heading, scale_size
from streamd.core.sampler import PAD_ID
from streamd.daemon.batch_sender import BatchPreview, Preview
from streamd.daemon.streams.served_stream import ServedStream
from streamd.decode.drawn_picture import draw_shown_picture
from streamd.errors import StreamdError
from streamd.ipc.worker_messages import PICTURE, DrawThumbnail, OpenStream, WorkerDied
from streamd.limits import MAX_THUMBNAILS, SHOWN_S, THUMBNAIL_S
from streamd.supervisor.worker_process import RestartingWorker

_FRESH_S: Final = 1.0  # requests within this time receive the same batch
_MAX_SIDE_PIXELS: Final = 224  # of a picture on the page; larger pictures are reduced
_PICTURE_GAP_PIXELS: Final = 4  # between the pictures of a sample
_GAP_COLOUR: Final = (128, 128, 128)
_LOSSLESS_SIDE_PIXELS: Final = 64  # up to this size pictures are sent without loss, since each pixel is visible
_JPEG_QUALITY: Final = 88
_DEFAULT_SUBSAMPLING: Final = -1  # that of the encoder


class _BatchDrawing(NamedTuple):
    """The drawing of a batch: `encoded_view` is its result; `preview` becomes None when it is done, to free memory."""

    preview: Preview | None
    started_s: float
    encoded_view: asyncio.Future[bytes]


class BatchDrawer:
    """Draws a batch of each stream at most once a second, however many pages show it.

    Used by the event loop's thread; the drawing itself runs in the executor.
    """

    def __init__(self, batch_preview: BatchPreview, stats: ProcessStats) -> None:
        self._batch_preview = batch_preview
        self._stats = stats
        self._drawings: dict[str, _BatchDrawing] = {}

    async def draw_next_sent_batch(self, stream: str) -> bytes | None:
        """Returns the next batch of a stream that is sent, or one just sent, as JSON; None if none is sent for long."""
        drawing = self._drawings.get(stream)
        if drawing is None or time.monotonic() >= drawing.started_s + _FRESH_S:
            try:
                async with asyncio.timeout(SHOWN_S):
                    preview = await self._batch_preview.wait_for_preview(stream)
            except TimeoutError:
                return None
            # Another request that waited for this batch may have started its drawing.
            drawing = self._drawings.get(stream)
            if drawing is None or drawing.preview is not preview:
                self._stats.add_count("dashboard", "drawn")
                # In a thread: drawing takes some milliseconds, in which the event loop must serve trainers.
                page = asyncio.get_running_loop().run_in_executor(None, encode_batch_view, preview)
                drawing = self._drawings[stream] = _BatchDrawing(preview, time.monotonic(), page)
                page.add_done_callback(partial(self._on_batch_drawn, stream))
        # Shielded: several requests await one drawing, and one that is cancelled must not cancel it for the others.
        return await asyncio.shield(drawing.encoded_view)

    def _on_batch_drawn(self, stream: str, encoded_view: asyncio.Future[bytes]) -> None:
        # Retrieves the error: if all requests are gone, asyncio would report it as unhandled, which ends the daemon.
        error = None if encoded_view.cancelled() else encoded_view.exception()
        if error is not None:
            log.warning("monitor.failed", "a batch could not be drawn", stream=stream, error=error)
        if self._drawings[stream].encoded_view is encoded_view:
            self._drawings[stream] = self._drawings[stream]._replace(preview=None)


def encode_batch_view(preview: Preview) -> bytes:
    """Draws the first rows of a batch and returns them as JSON for the page, whose `shapes.js` has its form."""
    batch = preview.first_rows
    display = BatchDisplay(batch, len(batch))
    samples = [
        {
            "picture": encode_pictures(display.build_row(row)),
            "labels": caption.labels,
            "sample_id": caption.sample_id,
            "file": "" if caption.sample_id == PAD_ID else preview.stream.format_file_name(caption.sample_id),
            "mark": caption.mark,
            "weight": caption.weight,
            "bad": None if caption.bad is None else {"file": caption.bad.file, "reason": caption.bad.reason},
        }
        for row, caption in enumerate(display.captions)
    ]
    return msgspec.json.encode(
        {
            "stream": batch.spec.name,
            "epoch": batch.epoch,
            "index": batch.index,
            "rows": preview.row_count,
            "heading": " · ".join([format_batch_heading(batch, preview.sample_count), *display.notes]),
            "samples": samples,
        }
    )


def encode_pictures(pictures: Sequence[ShownPicture]) -> str:
    """Returns the pictures of a sample side by side as one data URL, which a page shows without another request."""
    sizes = [scale_size(shown.plan.size, min(_MAX_SIDE_PIXELS, max(shown.plan.size))) for shown in pictures]
    width = sum(wide for _, wide in sizes) + _PICTURE_GAP_PIXELS * (len(sizes) - 1)
    together = Image.new("RGB", (width, max(high for high, _ in sizes)), _GAP_COLOUR)
    x = 0
    for shown, size in zip(pictures, sizes, strict=True):
        together.paste(draw_shown_picture(shown, size), (x, 0))
        x += size[1] + _PICTURE_GAP_PIXELS
    kind = "png" if max(together.size) <= _LOSSLESS_SIDE_PIXELS else "jpeg"
    # Outlines are a pixel wide, so pictures that have any keep their colours at full resolution.
    subsampling = 0 if any(shown.is_drawn_on for shown in pictures) else _DEFAULT_SUBSAMPLING
    file = BytesIO()
    together.save(file, kind, quality=_JPEG_QUALITY, subsampling=subsampling)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


class _SampleList(NamedTuple):
    """The list in which sample ids count; after a reload another list may lie at the same path."""

    manifest_path: str
    content_id: str


class _ThumbnailKey(NamedTuple):
    sample_list: _SampleList
    sample_id: int


class ThumbnailCache:
    """Draws thumbnails of bad samples, with one worker at a time for each list, and keeps the last MAX_THUMBNAILS.

    Used by the event loop's thread alone. Thumbnails that are requested while a worker runs are drawn together by the
    next one.
    """

    def __init__(self) -> None:
        self._pictures_by_key: dict[_ThumbnailKey, bytes] = {}
        self._requested_keys: defaultdict[_SampleList, list[_ThumbnailKey]] = defaultdict(list)
        # A lock lives as long as a request holds it or waits for it. Only its holder may run a worker for its list.
        self._locks: WeakValueDictionary[_SampleList, asyncio.Lock] = WeakValueDictionary()
        # Workers whose process was killed and does not end, since it waits for a disk or a server that is gone.
        self._hanging_workers: dict[_SampleList, RestartingWorker[bytes]] = {}

    async def get_or_draw_thumbnail(self, stream: ServedStream, sample_id: int) -> bytes:
        """Returns a thumbnail as a JPEG, empty where nothing can be drawn."""
        key = _ThumbnailKey(_SampleList(str(stream.manifest_path), stream.spec.content_id), sample_id)
        if key not in self._pictures_by_key:
            self._requested_keys[key.sample_list].append(key)
            turn = self._locks.setdefault(key.sample_list, asyncio.Lock())
            async with turn:
                # Draws all keys that were requested while another request held the lock. This request's own key is
                # added again: another request may have taken it from the list, and been cancelled before it was drawn.
                keys = list(dict.fromkeys([*self._requested_keys.pop(key.sample_list, []), key]))
                # Where the last process of this list still hangs at its files, another one would hang, too.
                hanging = self._hanging_workers.get(key.sample_list)
                if hanging is None or not hanging.is_running:
                    if hanging is not None:
                        await self._hanging_workers.pop(key.sample_list).stop()
                    await self._draw_missing_thumbnails(stream, key.sample_list, keys)
        return self._pictures_by_key.get(key, b"")

    async def _draw_missing_thumbnails(
        self, stream: ServedStream, sample_list: _SampleList, keys: list[_ThumbnailKey]
    ) -> None:
        """Draws the thumbnails of `keys` that are not kept, with another process after each one that ends early.

        The sample at which a process ends has an empty thumbnail. If the process hangs, the rest are not drawn.
        """
        # Labels may be large, and no picture depends on them or on normalization.
        spec = replace(stream.spec, labels={}, normalize="none")
        worker = RestartingWorker(PICTURE, [OpenStream(0, sample_list.manifest_path, spec)])
        try:
            for key in keys:
                if key in self._pictures_by_key:
                    continue
                picture: bytes | WorkerDied = b""
                try:
                    async with asyncio.timeout(THUMBNAIL_S):
                        picture = await worker.run_task(DrawThumbnail(0, key.sample_id))
                # It takes too long, or the list was replaced or its folder is gone: the next sample gets a process of
                # its own.
                except (TimeoutError, StreamdError):
                    if not await self._end_process(sample_list, worker):
                        break
                self._pictures_by_key[key] = picture if isinstance(picture, bytes) else b""
        finally:
            # Also reached when the request is cancelled. The caller holds the list's lock until the process has ended
            # or is known to hang, so no second process is started for the list.
            await self._end_process(sample_list, worker)
        # The dict keeps the order of insertion, so the oldest thumbnails go.
        for key in list(self._pictures_by_key)[:-MAX_THUMBNAILS]:
            del self._pictures_by_key[key]

    async def _end_process(self, sample_list: _SampleList, worker: RestartingWorker[bytes]) -> bool:
        """Kills the process of a worker, and returns whether it has ended; if not, its list is known to hang."""
        if sample_list in self._hanging_workers:
            return False
        try:
            async with asyncio.timeout(THUMBNAIL_S):
                await worker.stop()
        except TimeoutError:
            self._hanging_workers[sample_list] = worker
            return False
        return True
