"""Decodes one file into a row of numbers as they are stored: PNG, TIFF or .npy, chosen by its content."""

from __future__ import annotations

from collections.abc import Callable
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
    picture = read_raw_picture(data, RawForm(image.channels, image.dtype))
    geometry = draw_geometry(image, picture.upright_size, draw)
    resize_numbers(row, picture.turn_upright(), geometry, image.fill)
    return geometry


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
