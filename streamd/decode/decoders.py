"""Chooses the decoder of a file by its format.

A data error is never tried with a second decoder, and a missing library has no fallback: both would change pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from streamd.core.spec import ImageSpec
from streamd.decode import class_numbers, jpeg, pillow
from streamd.decode.geometry import Draw, Geometry
from streamd.decode.raw.decode import decode_raw_image
from streamd.decode.resize import BadImageError, Row
from streamd.decode.sniff import detect_format

__all__ = ["BadImageError", "decode_image", "decode_sample"]


def decode_image(data: bytes, row: Row, image: ImageSpec, draw: Draw | None = None) -> Geometry:
    """Decodes one image file into `row`, C-contiguous, of the image's shape: uint8 (height, width, channels).

    In mode index it holds class numbers, uint8 or uint16 (height, width).

    Where `image` is cropped at random, `draw` holds the sample's numbers from `compute_random_crop_draws`. Without
    them the middle is shown, as with `resize: crop`: this is the part to show to a trained model. If `draw` is the
    geometry of another picture of the sample, this one shows the same part, in proportion.

    Returns how the upright picture lands in the row, for the labels and images that follow it.

    Raises BadImageError if the bytes are at fault, ConfigError if this Pillow was built without the format. After an
    error the contents of the row are undefined.
    """
    if image.mode == "raw":
        return decode_raw_image(data, row, image, draw)
    name = detect_format(data)
    if image.mode == "index":
        return class_numbers.decode_class_numbers(data, row, image, name, draw)
    if name == "JPEG":
        if image.mode == "RGBA":
            return _decode_opaque(data, row, image, draw)
        return jpeg.decode_jpeg(data, row, image, draw)
    return pillow.decode_with_pillow(data, row, image, name, draw)


def decode_sample(
    blobs: Sequence[bytes],
    rows: Mapping[str, npt.NDArray[Any]],
    images: Mapping[str, ImageSpec],
    draws: Mapping[str, Draw | None],
) -> dict[str, Geometry]:
    """Decodes the files of one sample, in the order of `images`, into their rows; see `decode_image`.

    Images that follow another one are decoded after it. Returns how each lands in its row. Raises BadImageError, which
    names the image that is at fault where there are several.
    """
    landed: dict[str, Geometry] = {}
    files = dict(zip(images, blobs, strict=True))
    for name, image in sorted(images.items(), key=_follows_another):
        draw = draws[name] if image.like is None else landed[image.like]
        try:
            landed[name] = decode_image(files[name], rows[name], image, draw)
        except BadImageError as error:
            raise BadImageError(f"{name}: {error}" if len(images) > 1 else str(error)) from error
    return landed


def _follows_another(named: tuple[str, ImageSpec]) -> bool:
    return named[1].like is not None


def _decode_opaque(data: bytes, row: Row, image: ImageSpec, draw: Draw | None) -> Geometry:
    """Decodes a JPEG into a row of mode RGBA: opaque where the picture is."""
    colours = np.empty((image.height, image.width, 3), np.uint8)
    geometry = jpeg.decode_jpeg(data, colours, _build_opaque_image(image), draw)
    row[:, :, :3] = colours
    row[:, :, 3] = image.fill
    left, top, right, bottom = geometry.place
    row[top:bottom, left:right, 3] = 255
    return geometry


@lru_cache(maxsize=16)
def _build_opaque_image(image: ImageSpec) -> ImageSpec:
    return replace(image, mode="RGB", channels=3)
