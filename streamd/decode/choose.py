"""Which decoder a file gets.

There is no second decoder after a data error and no fallback when a library is missing: both would change pixels.
"""

from __future__ import annotations

from streamd.decode import jpeg, pillow
from streamd.decode.resize import BadImageError, Row
from streamd.spec import ImageSpec

__all__ = ["BadImageError", "decode_into"]

_PILLOW_FORMATS = ((b"\x89PNG\r\n\x1a\n", "PNG"), (b"BM", "BMP"))


def _format_of(data: bytes) -> str:
    if data[:3] == b"\xff\xd8\xff":
        return "JPEG"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    for magic, name in _PILLOW_FORMATS:
        if data.startswith(magic):
            return name
    raise BadImageError(
        "an empty file" if not data else f"neither JPEG, PNG, WebP nor BMP: it begins with {data[:4]!r}"
    )


def decode_into(data: bytes, row: Row, image: ImageSpec) -> None:
    """Decodes one image file into `row`, (height, width, channels) uint8, C-contiguous.

    Raises BadImageError when the bytes are at fault. What a failed decode leaves in the row is undefined.
    """
    name = _format_of(data)
    if name == "JPEG":
        jpeg.decode_into(data, row, image)
    else:
        pillow.decode_into(data, row, image, name)
