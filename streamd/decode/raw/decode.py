"""Decodes one file into a row of numbers as they are stored: PNG, TIFF or .npy, chosen by its content."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from math import prod
from tokenize import TokenError
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
from numpy.lib import format as npy
from PIL import Image

from streamd.core.spec import ImageSpec
from streamd.decode.geometry import UPRIGHT, Draw, Geometry, draw_geometry
from streamd.decode.pillow import PNG_EXIF, iterate_png_chunks, parse_orientation, read_with_pillow
from streamd.decode.raw.picture import Numbers, RawForm, RawPicture, check_raw_form, resize_numbers
from streamd.decode.raw.tiff import read_raw_tiff
from streamd.decode.resize import BadImageError, check_image_size
from streamd.decode.sniff import detect_format

# --- The numbers of a PNG: by Pillow, and where Pillow would cut 16 bits to 8, by OpenCV, which reads them by libpng.

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
_ANIMATION: Final = b"acTL"


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
    chunks = dict(iterate_png_chunks(data))
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
    # The stored channels: OpenCV adds some for grey with alpha and for transparency.
    planes: Numbers = found.reshape(*found.shape[:2], -1)
    picked = _PLANES_OF_OPENCV[shape[2]]
    if planes.dtype != np.uint16 or planes.shape[:2] != shape[:2] or planes.shape[2] <= max(picked):
        raise BadImageError(f"a PNG that decodes to {planes.dtype} {planes.shape}: save it again")
    exif = data[chunks[PNG_EXIF]] if PNG_EXIF in chunks else b""
    return RawPicture(planes[:, :, picked], parse_orientation(exif) if exif else UPRIGHT)


# --- Decodes one file into a row of numbers as they are stored: PNG, TIFF or .npy, chosen by its content.

_READERS: Final[dict[str, Callable[[bytes, RawForm], RawPicture]]] = {"PNG": read_raw_png, "TIFF": read_raw_tiff}


def decode_raw_into_rows(
    data: bytes, rows: Sequence[Numbers], image: ImageSpec, draws: Sequence[Draw | None]
) -> list[Geometry]:
    """Reads a file once, and writes what each of `draws` shows of it into the row of the same number.

    Rows are (height, width, channels) of the dtype of `image`. Returns how the upright picture lands in each; see
    `decode_image`.
    """
    picture = read_raw_picture(data, RawForm(image.channels, image.dtype))
    numbers = picture.turn_upright()
    size, orientation = (numbers.shape[0], numbers.shape[1]), picture.orientation
    drawn = [draw_geometry(image, size, draw).with_orientation(orientation) for draw in draws]
    for row, geometry in zip(rows, drawn, strict=True):
        resize_numbers(row, numbers, geometry, image.fill)
    return drawn


def read_raw_picture(data: bytes, form: RawForm) -> RawPicture:
    """Returns the numbers of a file as they are stored.

    Raises BadImageError if the bytes are at fault, or hold other channels than expected; MissingExtraError if a TIFF
    needs libraries that are not installed.
    """
    if data.startswith(NPY_MAGIC):
        return read_raw_npy(data, form)
    name = detect_format(data)
    reader = _READERS.get(name)
    if reader is None:
        raise BadImageError(f"a {name}, whose numbers are no measurements: mode raw reads PNG, TIFF and .npy")
    return reader(data, form)


# --- Pictures that are arrays of NumPy, each in a file of its own.


NPY_MAGIC: Final = b"\x93NUMPY"
_MAX_HEADER_CHARS: Final = 4096  # of a header's text, which is parsed as Python; that of a plain array has 128
_HEADER_ERRORS: Final = (
    *(ValueError, TypeError, SyntaxError, LookupError, OverflowError, RecursionError, MemoryError),
    TokenError,  # from a header that looks as if Python 2 had written it
)
_GREY, _COLOUR = 2, 3  # dimensions


def read_raw_npy(data: bytes, form: RawForm) -> RawPicture:
    """Returns the array of an .npy file: (height, width), or (height, width, channels), or the channels first.

    Where the channels may be first or last, they are last. Raises BadImageError.
    """
    file = BytesIO(data)
    try:
        version = npy.read_magic(file)
        parse = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that Python 2 wrote the header
            shape, in_columns, dtype = parse(file, max_header_size=_MAX_HEADER_CHARS)
    except _HEADER_ERRORS as error:
        raise BadImageError("a damaged .npy file: its header cannot be read; write it with np.save") from error
    if len(shape) not in {_GREY, _COLOUR} or min(shape) < 1:
        raise BadImageError(
            f"its array has the shape {shape}: save (height, width, channels), (channels, height, width) or (height, "
            "width)"
        )
    first, second, last = shape if len(shape) == _COLOUR else (*shape, 1)
    is_channels_first = len(shape) == _COLOUR and last != form.channels and first == form.channels
    height, width, channels = (second, last, first) if is_channels_first else (first, second, last)
    check_raw_form(form, height, width, channels, dtype)
    if len(data) - file.tell() < prod(shape) * dtype.itemsize:
        raise BadImageError("an .npy file that is truncated before its numbers end")
    stored = np.frombuffer(data, dtype, prod(shape), file.tell()).reshape(shape, order="F" if in_columns else "C")
    whole = stored.reshape(height, width, 1) if len(shape) == _GREY else stored
    numbers: np.ndarray[Any, Any] = np.moveaxis(whole, 0, -1) if is_channels_first else whole
    return RawPicture(numbers.astype(dtype.newbyteorder("="), copy=False))
