"""Files that a folder of pictures may hold, and that are made to break what decodes them."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Final

from PIL import Image
from support.faulty_data import picture, spoil
from support.smooth_pictures import png

from streamd.limits import GIB, MIB

_SCANS: Final = 100_000
_TEXTS: Final = 10_000
_SIGNATURE_AND_HEADER: Final = 33  # of a PNG


def add_damaged(folder: Path) -> None:
    """Adds truncated, empty and odd files."""
    spoil(folder)
    odd = picture((16, 16), 1)
    odd.convert("CMYK").save(folder / "cat" / "cmyk.jpg")
    odd.convert("P").save(folder / "cat" / "palette.png")
    Image.new("I;16", (16, 16)).save(folder / "dog" / "deep.png")


def add_bombs(folder: Path) -> None:
    """Adds files that are small, and whose pixels, texts or scans are not."""
    black = png(8, 2, [bytes(24)] * 8, (8, 8))
    files = {
        "header.png": png(8, 2, [bytes(99)], (30_000, 30_000)),
        "large.png": png(8, 2, [bytes(99)], (12_000, 12_000)),
        "text.png": _add_chunks(black, [_chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(8 * MIB)))]),
        "texts.png": _add_chunks(black, [_chunk(b"tEXt", b"k\0v")] * _TEXTS),
        "huge.webp": _build_huge_webp(),
        "scans.jpg": _build_jpeg_of_scans(),
    }
    for name, data in files.items():
        (folder / "dog" / name).write_bytes(data)


def add_posing(folder: Path) -> None:
    """Adds files of other formats under names of pictures, and one that says to be 10 GiB large."""
    files = {
        "eps.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n",
        "pdf.jpg": b"%PDF-1.7\n",
        "svg.jpg": b'<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"/>',
        "heic.jpg": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
        "elf.jpg": b"\x7fELF" + bytes(60),
    }
    for name, data in files.items():
        (folder / "dog" / name).write_bytes(data)
    with (folder / "dog" / "sparse.jpg").open("wb") as file:
        file.truncate(10 * GIB)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _add_chunks(picture: bytes, chunks: list[bytes]) -> bytes:
    return picture[:_SIGNATURE_AND_HEADER] + b"".join(chunks) + picture[_SIGNATURE_AND_HEADER:]


def _build_huge_webp() -> bytes:
    """A lossless WebP of 16383 x 16383 pixels, whose data end after the header."""
    data = b"\x2f" + struct.pack("<I", 16382 | 16382 << 14) + bytes(60)
    body = b"WEBPVP8L" + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _build_jpeg_of_scans() -> bytes:
    """A progressive JPEG whose last scan comes again and again."""
    file = io.BytesIO()
    picture((16, 16), 2).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * _SCANS + data[-2:]
