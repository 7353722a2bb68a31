"""Files of numbers in every depth, for the readers of mode raw."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import tifffile

Numbers = npt.NDArray[Any]

_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}


def build_numbers(height: int, width: int, channels: int, dtype: str) -> Numbers:
    """Returns numbers that differ in every pixel and channel, and use the whole range of a whole-number dtype."""
    rng = np.random.default_rng(channels)
    if dtype == "float32":
        return rng.normal(0, 100, (height, width, channels)).astype(np.float32)
    return rng.integers(0, np.iinfo(dtype).max + 1, (height, width, channels)).astype(dtype)


def build_png_chunk(kind: bytes, data: bytes) -> bytes:
    """Returns one chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def encode_png(numbers: Numbers, extra: bytes = b"") -> bytes:
    """Returns a PNG of uint8 or uint16 (height, width, 1 to 4), with `extra` chunks before its pixels."""
    height, width, channels = numbers.shape
    depth = numbers.dtype.itemsize * 8
    rows = numbers.astype(numbers.dtype.newbyteorder(">")).reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, depth, _COLOUR_TYPES[channels], 0, 0, 0)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            build_png_chunk(b"IHDR", header),
            extra,
            build_png_chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))),
            build_png_chunk(b"IEND", b""),
        )
    )


def encode_tiff(numbers: Numbers, *, planar: bool = False, **options: Any) -> bytes:
    """Returns a TIFF of (height, width, channels), by tifffile; `planar` stores each channel by itself."""
    file = BytesIO()
    several = numbers.shape[2] > 1
    stored = numbers if several else numbers[:, :, 0]
    if several:
        options["planarconfig"] = "separate" if planar else "contig"
    tifffile.imwrite(
        file,
        np.ascontiguousarray(np.moveaxis(stored, -1, 0)) if planar and several else stored,
        photometric=options.pop("photometric", "minisblack"),
        metadata=None,
        **options,
    )
    return file.getvalue()


def encode_tiff_pages(pages: list[Numbers], **options: Any) -> bytes:
    """Returns a TIFF with a page for each (height, width, channels)."""
    file = BytesIO()
    with tifffile.TiffWriter(file) as writer:
        for page in pages:
            writer.write(
                page if page.shape[2] > 1 else page[:, :, 0], photometric="minisblack", metadata=None, **options
            )
    return file.getvalue()


def encode_npy(numbers: Numbers) -> bytes:
    """Returns an .npy file of the array."""
    file = BytesIO()
    np.save(file, numbers)
    return file.getvalue()
