"""Decodes one file into a row of numbers as they are stored: PNG, TIFF or .npy, chosen by its content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from streamd.core.spec import ImageSpec
from streamd.decode.geometry import Draw, Geometry, draw_geometry
from streamd.decode.raw.npy import NPY_MAGIC, read_raw_npy
from streamd.decode.raw.picture import Numbers, RawForm, RawPicture
from streamd.decode.raw.planes import resize_numbers
from streamd.decode.raw.png import read_raw_png
from streamd.decode.raw.tiff import read_raw_tiff
from streamd.decode.resize import BadImageError
from streamd.decode.sniff import detect_format

_READERS: Final[dict[str, Callable[[bytes, RawForm], RawPicture]]] = {"PNG": read_raw_png, "TIFF": read_raw_tiff}


def decode_raw_image(data: bytes, row: Numbers, image: ImageSpec, draw: Draw | None = None) -> Geometry:
    """Reads a file into `row`, (height, width, channels) of the dtype of `image`; see `decode_image`."""
    return decode_raw_into_rows(data, [row], image, [draw])[0]


def decode_raw_into_rows(
    data: bytes, rows: Sequence[Numbers], image: ImageSpec, draws: Sequence[Draw | None]
) -> list[Geometry]:
    """Reads a file once, and writes what each of `draws` shows of it into the row of the same number."""
    picture = read_raw_picture(data, RawForm(image.channels, image.dtype))
    numbers = picture.turn_upright()
    size, orientation = picture.upright_size, picture.orientation
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
