"""Samples as a page shows them: the batch now leaving, with its labels, and what can still be seen of bad samples.

The batch is drawn in a thread. The files of bad samples may crash a decoder: so it runs in a process that may end.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec
import numpy as np
import numpy.typing as npt

from streamd.core import log
from streamd.core.captions import Caption, build_captions, format_heading_with_count
from streamd.core.counters import ProcessStats
from streamd.core.sampler import PAD_ID
from streamd.daemon.monitor.batch_preview import BatchPreview, Preview
from streamd.daemon.streams.served_stream import ServedStream
from streamd.decode.pil_image import build_pil_image
from streamd.ipc.thumbnail_messages import LENGTH_PREFIX, ThumbnailRequest
from streamd.limits import MAX_THUMBNAILS, SHOWN_S, THUMBNAIL_S, WORKER_ENVIRONMENT

_FRESH_S: Final = 1.0  # who asks within so long sees what the last one saw
_MAX_SIDE_PIXELS: Final = 224  # pixels of a picture on the page; larger ones are reduced
_LOSSLESS_SIDE_PIXELS: Final = 64  # pictures up to here travel without loss, for each of their pixels is seen
_JPEG_QUALITY: Final = 88
_COMMAND: Final = (sys.executable, "-P", "-m", "streamd.worker.thumbnail_process")


@dataclass(frozen=True, slots=True)
class BadRowView:
    """Why another sample, or none, stands in a row."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class SampleView:
    """One row: `picture` is a data address; `mark` and `bad` as in core.captions, `file` empty for no sample."""

    picture: str
    labels: tuple[str, ...]
    sample_id: int
    file: str
    mark: str
    weight: float
    bad: BadRowView | None


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch of `rows`, the first of them as `samples`."""

    stream: str
    epoch: int
    index: int
    rows: int
    heading: str
    samples: list[SampleView]


class _BatchDrawing(NamedTuple):
    """A batch that is drawn, or has been: then it is let go."""

    preview: Preview | None
    started_s: float
    encoded_view: asyncio.Future[bytes]


class BatchDrawer:
    """Draws a batch of a stream once a second at most, however many look."""

    def __init__(self, batch_preview: BatchPreview, stats: ProcessStats) -> None:
        self._batch_preview = batch_preview
        self._stats = stats
        self._drawings: dict[str, _BatchDrawing] = {}

    async def draw_next_sent_batch(self, stream: str) -> bytes | None:
        """The next batch of a stream that leaves, as JSON, or one that has just left; None when none did for long."""
        drawing = self._drawings.get(stream)
        if drawing is None or time.monotonic() >= drawing.started_s + _FRESH_S:
            try:
                async with asyncio.timeout(SHOWN_S):
                    preview = await self._batch_preview.wait_for_preview(stream)
            except TimeoutError:
                return None
            drawing = self._get_or_start_drawing(stream, preview)
        return await asyncio.shield(drawing.encoded_view)

    def _get_or_start_drawing(self, stream: str, preview: Preview) -> _BatchDrawing:
        """What becomes of a batch, which another may have seen as well."""
        drawing = self._drawings.get(stream)
        if drawing is None or drawing.preview is not preview:
            self._stats.add_count("dashboard", "drawn")
            # In a thread, for it takes some milliseconds, which belong to trainers.
            page = asyncio.get_running_loop().run_in_executor(None, _encode_batch_view, preview)
            drawing = self._drawings[stream] = _BatchDrawing(preview, time.monotonic(), page)
            page.add_done_callback(partial(self._on_batch_drawn, stream))
        return drawing

    def _on_batch_drawn(self, stream: str, encoded_view: asyncio.Future[bytes]) -> None:
        # An error that nobody is left to hear of would end the daemon.
        error = None if encoded_view.cancelled() else encoded_view.exception()
        if error is not None:
            log.warning("monitor.failed", "a batch could not be drawn", stream=stream, error=error)
        if self._drawings[stream].encoded_view is encoded_view:
            self._drawings[stream] = self._drawings[stream]._replace(preview=None)


def _encode_batch_view(preview: Preview) -> bytes:
    return msgspec.json.encode(build_batch_view(preview))


def build_batch_view(preview: Preview) -> BatchView:
    """A batch with its first pictures."""
    batch = preview.first_rows
    told = build_captions(batch, len(batch))
    samples = [_build_sample_view(preview, batch.images[row], caption) for row, caption in enumerate(told)]
    heading = format_heading_with_count(batch, preview.sample_count)
    return BatchView(batch.spec.name, batch.epoch, batch.index, preview.row_count, heading, samples)


def _build_sample_view(preview: Preview, image: npt.NDArray[np.uint8], caption: Caption) -> SampleView:
    bad = caption.bad
    return SampleView(
        encode_image_data_url(image),
        caption.labels,
        caption.sample_id,
        "" if caption.sample_id == PAD_ID else preview.stream.format_file_name(caption.sample_id),
        caption.mark,
        caption.weight,
        None if bad is None else BadRowView(bad.file, bad.reason),
    )


def encode_image_data_url(image: npt.NDArray[np.uint8]) -> str:
    """An image (H, W, C) as a page shows it without asking for more."""
    kind = "png" if max(image.shape[:2]) <= _LOSSLESS_SIDE_PIXELS else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(encode_reduced_image(image, kind)).decode()}"


def encode_reduced_image(image: npt.NDArray[np.uint8], kind: str) -> bytes:
    """An image (H, W, C) as a file of a kind, reduced if it is large."""
    picture = build_pil_image(image)
    picture.thumbnail((_MAX_SIDE_PIXELS, _MAX_SIDE_PIXELS))
    file = BytesIO()
    picture.save(file, kind.upper(), quality=_JPEG_QUALITY)
    return file.getvalue()


class _SampleList(NamedTuple):
    """What numbers mean: a list at its place may be another after a reload."""

    manifest_path: str
    content_id: str


class _ThumbnailKey(NamedTuple):
    sample_list: _SampleList
    sample_id: int


class _HangingProcessError(Exception):
    """A process does not end though it was killed: it waits for a disk or a server that is gone."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__(process.pid)
        self.process = process


class ThumbnailCache:
    """Draws those of a list one after the other, what is asked for meanwhile together, and keeps the last."""

    def __init__(self) -> None:
        self._pictures_by_key: dict[_ThumbnailKey, bytes] = {}
        self._requested_keys: defaultdict[_SampleList, list[_ThumbnailKey]] = defaultdict(list)
        self._locks: WeakValueDictionary[_SampleList, asyncio.Lock] = WeakValueDictionary()
        self._hanging_processes: dict[_SampleList, asyncio.subprocess.Process] = {}

    async def get_or_draw_thumbnail(self, stream: ServedStream, sample_id: int) -> bytes:
        """A JPEG; empty where nothing can be seen."""
        key = _ThumbnailKey(_SampleList(str(stream.manifest_path), stream.spec.content_id), sample_id)
        if key not in self._pictures_by_key:
            self._requested_keys[key.sample_list].append(key)
            turn = self._locks.setdefault(key.sample_list, asyncio.Lock())
            async with turn:
                # Its own besides: whoever took it along may have gone before it was drawn.
                keys = list(dict.fromkeys([*self._requested_keys.pop(key.sample_list, []), key]))
                if not self._has_hanging_process(key.sample_list):
                    await self._draw_missing_thumbnails(stream, key.sample_list, keys)
        return self._pictures_by_key.get(key, b"")

    def _has_hanging_process(self, sample_list: _SampleList) -> bool:
        """Whether the last process still waits for its files: another one would as well."""
        if sample_list in self._hanging_processes and self._hanging_processes[sample_list].returncode is not None:
            del self._hanging_processes[sample_list]
        return sample_list in self._hanging_processes

    async def _draw_missing_thumbnails(
        self, stream: ServedStream, sample_list: _SampleList, keys: list[_ThumbnailKey]
    ) -> None:
        """A process for as many as it lives for; the one that it ends at has no picture, nor, if it hangs, the rest."""
        left = [key for key in keys if key not in self._pictures_by_key]
        while left and sample_list not in self._hanging_processes:
            drawn: list[bytes] = []
            try:
                async for picture in _draw_in_subprocess(stream, [key.sample_id for key in left]):
                    drawn.append(picture)  # noqa: PERF401 - what came before an error is kept
                drawn += [b""] * (len(drawn) < len(left))
            except _HangingProcessError as error:
                self._hanging_processes[sample_list] = error.process
            self._pictures_by_key.update(zip(left, drawn, strict=False))
            left = left[len(drawn) :]
        for key in list(self._pictures_by_key)[:-MAX_THUMBNAILS]:
            del self._pictures_by_key[key]


async def _draw_in_subprocess(stream: ServedStream, ids: list[int]) -> AsyncIterator[bytes]:
    """A picture a sample, as long as the process that draws them lives. Raises _HangingProcessError."""
    process = await asyncio.create_subprocess_exec(
        *_COMMAND, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **WORKER_ENVIRONMENT},
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
    spec = replace(stream.spec, labels={}, normalize="none")  # which may be large, and no picture depends on them
    try:
        process.stdin.write(msgspec.json.encode(ThumbnailRequest(str(stream.manifest_path), spec, ids)))
        process.stdin.close()
        with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            for _ in ids:
                async with asyncio.timeout(THUMBNAIL_S):
                    length = LENGTH_PREFIX.unpack(await process.stdout.readexactly(LENGTH_PREFIX.size))[0]
                    picture = await process.stdout.readexactly(length)
                yield picture
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await _wait_for_process_exit(process)


async def _wait_for_process_exit(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(THUMBNAIL_S):
            await process.wait()
    except TimeoutError:
        raise _HangingProcessError(process) from None
