"""The batch now leaving, as pictures with labels, for a page."""

from __future__ import annotations

import asyncio
import base64
import time
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from streamd.core import log
from streamd.core.captions import Caption, build_captions, format_heading_with_count
from streamd.core.counters import ProcessStats
from streamd.core.sampler import PAD_ID
from streamd.daemon.monitor.batch_preview import Glimpse, Leaving
from streamd.decode.pil_image import build_pil_image
from streamd.limits import SHOWN_S

_FRESH_S: Final = 1.0  # who asks within so long sees what the last one saw
_LONGEST: Final = 224  # pixels of a picture on the page; larger ones are reduced
_EXACT: Final = 64  # pictures up to here travel without loss, for each of their pixels is seen
_QUALITY: Final = 88


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why another sample, or none, stands in a row."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One row: `picture` is a data address; `mark` and `bad` as in core.captions, `file` empty for no sample."""

    picture: str
    labels: tuple[str, ...]
    sample_id: int
    file: str
    mark: str
    weight: float
    bad: Verdict | None


@dataclass(frozen=True, slots=True)
class Shown:
    """A batch of `rows`, the first of them as `samples`."""

    stream: str
    epoch: int
    index: int
    rows: int
    heading: str
    samples: list[Sample]


class _Drawing(NamedTuple):
    """A batch that is drawn, or has been: then it is let go."""

    glimpse: Glimpse | None
    began_s: float
    page: asyncio.Future[bytes]


class Pictures:
    """Draws a batch of a stream once a second at most, however many look."""

    def __init__(self, leaving: Leaving, stats: ProcessStats) -> None:
        self._leaving = leaving
        self._stats = stats
        self._drawings: dict[str, _Drawing] = {}

    async def next(self, stream: str) -> bytes | None:
        """The next batch of a stream that leaves, as JSON, or one that has just left; None when none did for long."""
        drawing = self._drawings.get(stream)
        if drawing is None or time.monotonic() >= drawing.began_s + _FRESH_S:
            try:
                async with asyncio.timeout(SHOWN_S):
                    glimpse = await self._leaving.next(stream)
            except TimeoutError:
                return None
            drawing = self._drawn(stream, glimpse)
        return await asyncio.shield(drawing.page)

    def _drawn(self, stream: str, glimpse: Glimpse) -> _Drawing:
        """What becomes of a batch, which another may have seen as well."""
        drawing = self._drawings.get(stream)
        if drawing is None or drawing.glimpse is not glimpse:
            self._stats.add_count("dashboard", "drawn")
            # In a thread, for it takes some milliseconds, which belong to trainers.
            page = asyncio.get_running_loop().run_in_executor(None, _json, glimpse)
            drawing = self._drawings[stream] = _Drawing(glimpse, time.monotonic(), page)
            page.add_done_callback(partial(self._let_go, stream))
        return drawing

    def _let_go(self, stream: str, page: asyncio.Future[bytes]) -> None:
        # An error that nobody is left to hear of would end the daemon.
        error = None if page.cancelled() else page.exception()
        if error is not None:
            log.warning("monitor.failed", "a batch could not be drawn", stream=stream, error=error)
        if self._drawings[stream].page is page:
            self._drawings[stream] = self._drawings[stream]._replace(glimpse=None)


def _json(glimpse: Glimpse) -> bytes:
    return msgspec.json.encode(shown(glimpse))


def shown(glimpse: Glimpse) -> Shown:
    """A batch with its first pictures."""
    batch = glimpse.first
    told = build_captions(batch, len(batch))
    samples = [_sample(glimpse, batch.images[row], caption) for row, caption in enumerate(told)]
    heading = format_heading_with_count(batch, glimpse.samples)
    return Shown(batch.spec.name, batch.epoch, batch.index, glimpse.rows, heading, samples)


def _sample(glimpse: Glimpse, image: npt.NDArray[np.uint8], caption: Caption) -> Sample:
    bad = caption.bad
    return Sample(
        data_address(image),
        caption.labels,
        caption.sample_id,
        "" if caption.sample_id == PAD_ID else glimpse.stream.format_file_name(caption.sample_id),
        caption.mark,
        caption.weight,
        None if bad is None else Verdict(bad.file, bad.reason),
    )


def data_address(image: npt.NDArray[np.uint8]) -> str:
    """An image (H, W, C) as a page shows it without asking for more."""
    kind = "png" if max(image.shape[:2]) <= _EXACT else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(encoded(image, kind)).decode()}"


def encoded(image: npt.NDArray[np.uint8], kind: str) -> bytes:
    """An image (H, W, C) as a file of a kind, reduced if it is large."""
    picture = build_pil_image(image)
    picture.thumbnail((_LONGEST, _LONGEST))
    file = BytesIO()
    picture.save(file, kind.upper(), quality=_QUALITY)
    return file.getvalue()
