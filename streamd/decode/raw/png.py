"""The numbers of a PNG: by Pillow, and where Pillow would cut 16 bits to 8, by OpenCV, which reads them by libpng."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import BytesIO
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
from PIL import Image

from streamd.decode.exif import UPRIGHT, parse_orientation
from streamd.decode.pillow import read_with_pillow
from streamd.decode.raw.picture import Numbers, RawForm, RawPicture, check_raw_form
from streamd.decode.resize import BadImageError, check_image_size

cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # what it prints about a file has no file's name


class _StoredPixels(NamedTuple):
    """How a PNG stores its pixels. `scale` is what Pillow multiplies levels of fewer than 8 bits by."""

    channels: int
    bits: int = 8
    scale: int = 1


_UINT8: Final = np.dtype(np.uint8)
_UINT16: Final = np.dtype(np.uint16)
_DEEP: Final = 16
_STORED: Final = {  # by Pillow's name of the stored pixels
    "1": _StoredPixels(1),
    "L;2": _StoredPixels(1, scale=85),
    "L;4": _StoredPixels(1, scale=17),
    "L": _StoredPixels(1),
    "LA": _StoredPixels(2),
    "RGB": _StoredPixels(3),
    "RGBA": _StoredPixels(4),
    "I;16B": _StoredPixels(1, _DEEP),
    "LA;16B": _StoredPixels(2, _DEEP),
    "RGB;16B": _StoredPixels(3, _DEEP),
    "RGBA;16B": _StoredPixels(4, _DEEP),
}
_PLANES_OF_OPENCV: Final = {1: [0], 2: [0, 3], 3: [2, 1, 0], 4: [2, 1, 0, 3]}  # it has blue first, and no grey-alpha
_CHUNK: Final = struct.Struct(">I4s")
_CHUNKS_START: Final = 8  # behind the signature
_CHECKSUM_BYTES: Final = 4
_ANIMATION: Final = b"acTL"
_EXIF: Final = b"eXIf"


def read_raw_png(data: bytes, form: RawForm) -> RawPicture:
    """Returns the levels of a PNG as they are stored: those of 1, 2 and 4 bits as uint8, those of 16 as uint16.

    A transparent colour and a colour space change no level. Raises BadImageError, MemoryError.
    """
    return read_with_pillow(data, "PNG", lambda each: _read_levels(each, form))


def _read_levels(data: bytes, form: RawForm) -> RawPicture:
    with Image.open(BytesIO(data), formats=("PNG",)) as picture:
        check_image_size(picture.height, picture.width)
        name = str(picture.tile[0].args) if picture.tile else ""
        if name.startswith("P"):
            raise BadImageError(
                "a PNG with a palette, whose numbers are no levels: use mode: index to keep them, or mode: RGB"
            )
        stored = _STORED.get(name)
        if stored is None:
            raise BadImageError(f"a PNG whose pixels are stored as {name or 'nothing'}: save it again")
        dtype = _UINT16 if stored.bits == _DEEP else _UINT8
        check_raw_form(form, picture.height, picture.width, stored.channels, dtype)
        if stored.bits == _DEEP:
            return _read_deep(data, (picture.height, picture.width, stored.channels))
        picture.load()
        exif = picture.info.get("exif")
        numbers = np.array(picture, dtype=np.uint8).reshape(picture.height, picture.width, stored.channels)
        return RawPicture(
            numbers // np.uint8(stored.scale) if stored.scale > 1 else numbers,
            parse_orientation(exif) if isinstance(exif, bytes) else UPRIGHT,
        )


def _read_deep(data: bytes, shape: tuple[int, int, int]) -> RawPicture:
    chunks = dict(_iterate_chunks(data))
    if _ANIMATION in chunks:
        raise BadImageError("an animation of 16 bits per channel: save its picture as a PNG of its own")
    try:
        found = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        if error.code == cv2.Error.StsNoMem:
            raise MemoryError(str(error)) from error
        raise BadImageError("a damaged PNG: its pixels cannot be decoded") from error
    if found is None:
        raise BadImageError("a damaged PNG: its pixels cannot be decoded")
    return RawPicture(_pick_planes(found, shape), parse_orientation(chunks[_EXIF]) if chunks.get(_EXIF) else UPRIGHT)


def _pick_planes(found: Any, shape: tuple[int, int, int]) -> Numbers:
    """Returns the stored channels of what OpenCV decoded, which adds some for grey with alpha and transparency."""
    planes: Numbers = found.reshape(*found.shape[:2], -1)
    picked = _PLANES_OF_OPENCV[shape[2]]
    if planes.dtype != np.uint16 or planes.shape[:2] != shape[:2] or planes.shape[2] <= max(picked):
        raise BadImageError(f"a PNG that decodes to {planes.dtype} {planes.shape}: save it again")
    return planes[:, :, picked]


def _iterate_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the name of each chunk, with its content if that is EXIF data."""
    at = _CHUNKS_START
    while at + _CHUNK.size <= len(data):
        length, name = _CHUNK.unpack_from(data, at)
        start = at + _CHUNK.size
        yield name, data[start : start + length] if name == _EXIF else b""
        at = start + length + _CHECKSUM_BYTES
