"""Smooth pictures for the decoders' tests: a lossy file or a resampling changes them by a few levels only."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from streamd.core.spec import ImageSpec
from streamd.decode.decoders import decode_image

Pixels = npt.NDArray[np.uint8]


def smooth(height: int, width: int) -> Image.Image:
    """An RGB picture whose four corners differ, so that every turn of it shows."""
    down, across = np.linspace(0, 1, height)[:, None], np.linspace(0, 1, width)[None, :]
    planes = [255 * down + 0 * across, 0 * down + 255 * across, 255 * (1 - down) * (1 - across)]
    return Image.fromarray(np.rint(np.stack(planes, axis=2)).astype(np.uint8))


def encoded(picture: Image.Image, name: str = "JPEG", **options: Any) -> bytes:
    """A file of the picture; JPEG at quality 95 unless told otherwise."""
    if name == "JPEG":
        options.setdefault("quality", 95)
    file = BytesIO()
    picture.save(file, name, **options)
    return file.getvalue()


def png(depth: int, colour: int, rows: list[bytes], size: tuple[int, int], transparent: bytes = b"") -> bytes:
    """A PNG of rows that are packed already, of any (height, width): for kinds that Pillow does not write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", size[1], size[0], depth, colour, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows), 9))
    transparency = chunk(b"tRNS", transparent) if transparent else b""
    return b"\x89PNG\r\n\x1a\n" + header + transparency + pixels + chunk(b"IEND", b"")


def decoded(data: bytes, image: ImageSpec) -> Pixels:
    """What the pipeline makes of a file; rows begin as 77s, so that what is left unwritten shows."""
    row = np.full(image.shape, 77, dtype=np.uint8)
    decode_image(data, row, image)
    return row


def apart(one: npt.ArrayLike | Image.Image, other: npt.ArrayLike | Image.Image) -> int:
    """The largest difference between two pictures, in grey levels."""
    levels = [np.asarray(each).astype(np.int64) for each in (one, other)]
    return int(np.abs(levels[0] - levels[1]).max())
