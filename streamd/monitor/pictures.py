"""The batch now leaving, as pictures with labels, for a page."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from io import BytesIO
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from streamd.client.captions import Caption, captions, heading
from streamd.leaving import Glimpse, Leaving
from streamd.limits import SHOWN_ROWS, SHOWN_S
from streamd.plan import PAD_ID
from streamd.stats import Stats

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
    """One row: `picture` is a data address; `mark` and `bad` as in client.captions, `file` empty for no sample."""

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


class Pictures:
    """Draws a batch once, however many look at it."""

    def __init__(self, leaving: Leaving, stats: Stats) -> None:
        self._leaving = leaving
        self._stats = stats
        self._drawing: tuple[Glimpse, asyncio.Future[bytes]] | None = None

    async def next(self, stream: str) -> bytes | None:
        """The next batch of a stream that leaves, as JSON; None when there was none for a while."""
        try:
            async with asyncio.timeout(SHOWN_S):
                glimpse = await self._leaving.next(stream)
        except TimeoutError:
            return None
        if self._drawing is None or self._drawing[0] is not glimpse:
            # In a thread, for it takes some milliseconds, which belong to trainers.
            self._stats.count("dashboard", "drawn")
            self._drawing = glimpse, asyncio.get_running_loop().run_in_executor(None, _json, glimpse)
        return await asyncio.shield(self._drawing[1])


def _json(glimpse: Glimpse) -> bytes:
    return msgspec.json.encode(shown(glimpse))


def shown(glimpse: Glimpse) -> Shown:
    """A batch with its first pictures."""
    batch = glimpse.batch
    told = captions(batch, SHOWN_ROWS)
    samples = [_sample(glimpse, batch.images[row], caption) for row, caption in enumerate(told)]
    return Shown(batch.spec.name, batch.epoch, batch.index, len(batch), heading(batch), samples)


def _sample(glimpse: Glimpse, image: npt.NDArray[np.uint8], caption: Caption) -> Sample:
    bad = caption.bad
    return Sample(
        data_address(image),
        caption.labels,
        caption.sample_id,
        "" if caption.sample_id == PAD_ID else glimpse.stream.file(caption.sample_id),
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
    picture = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
    picture.thumbnail((_LONGEST, _LONGEST))
    file = BytesIO()
    picture.save(file, kind.upper(), quality=_QUALITY)
    return file.getvalue()
