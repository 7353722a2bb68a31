"""Chooses the decoder of a file by its format.

A data error is never tried with a second decoder, and a missing library has no fallback: both would change pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamd.core.spec import ImageSpec
from streamd.decode import class_numbers, jpeg, pillow
from streamd.decode.geometry import Draw, Geometry
from streamd.decode.jpeg import list_possible_geometries, read_jpeg_geometry
from streamd.decode.raw import decode_raw_into_rows
from streamd.decode.resize import BadFrameError, BadImageError, Row
from streamd.decode.sniff import JPEG_START, detect_format

__all__ = [
    "BadFrameError",
    "BadImageError",
    "DecodedFrames",
    "decode_image",
    "decode_into_rows",
    "decode_sample",
    "list_picture_draws",
    "list_possible_geometries",
    "read_geometry",
]

_OTHER_MODES: Final = frozenset({"RGBA", "index", "raw"})  # in which a JPEG is not served as it is decoded


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
    # Standard case: a JPEG whose pixels are decoded as they are served.
    if image.mode not in _OTHER_MODES and data.startswith(JPEG_START):
        return jpeg.decode_jpeg(data, row, image, draw)
    return decode_into_rows(data, [row], image, [draw])[0]


def read_geometry(data: bytes, image: ImageSpec) -> Geometry:
    """Returns how a file lands without a draw: a JPEG by its header alone, others once they are decoded.

    Raises as `decode_image`.
    """
    is_jpeg = image.mode not in {"index", "raw"} and detect_format(data) == "JPEG"
    known = read_jpeg_geometry(data, image) if is_jpeg else None
    return known or decode_image(data, np.empty(image.picture_shape, image.dtype), image)


def decode_into_rows(
    data: bytes, rows: Sequence[npt.NDArray[Any]], image: ImageSpec, draws: Sequence[Draw | None]
) -> list[Geometry]:
    """Decodes one image file once, and writes what each of `draws` shows of it into the row of the same number.

    Rows and draws are as in `decode_image`, of which there is at least one. Returns how the upright picture lands in
    each row. Raises BadImageError and ConfigError.
    """
    # Without draws, all rows show the same.
    if len(rows) > 1 and all(draw is None for draw in draws):
        geometry = decode_image(data, rows[0], image)
        for row in rows[1:]:
            row[...] = rows[0]
        return [geometry] * len(rows)
    if image.mode == "raw":
        return decode_raw_into_rows(data, rows, image, draws)
    name = detect_format(data)
    if image.mode == "index":
        return class_numbers.decode_class_numbers_into_rows(data, rows, image, name, draws)
    if name != "JPEG":
        return pillow.decode_into_rows_with_pillow(data, rows, image, name, draws)
    if image.mode != "RGBA":
        return (
            [jpeg.decode_jpeg(data, rows[0], image, draws[0])]
            if len(rows) == 1
            else jpeg.decode_jpeg_into_rows(data, rows, image, draws)
        )
    # A JPEG in mode RGBA is opaque where the picture is.
    colours = np.empty((len(rows), image.height, image.width, 3), np.uint8)
    drawn = decode_into_rows(data, [*colours], _build_opaque_image(image), draws)
    for row, pixels, geometry in zip(rows, colours, drawn, strict=True):
        row[:, :, :3] = pixels
        row[:, :, 3] = image.fill
        left, top, right, bottom = geometry.place
        row[top:bottom, left:right, 3] = 255
    return drawn


def _follows_another(named: tuple[str, ImageSpec]) -> bool:
    return named[1].like is not None


@lru_cache(maxsize=16)
def _build_opaque_image(image: ImageSpec) -> ImageSpec:
    return replace(image, mode="RGB", channels=3)


class _DecodedFrame(NamedTuple):
    """A frame that was decoded; `data` is kept, so that no other file has its identity."""

    data: bytes
    pixels: npt.NDArray[Any]
    geometry: Geometry


DecodedFrames = dict[tuple[str, int, Geometry | None], _DecodedFrame]
"""Frames by their image, the identity of their file's bytes, and the geometry that they follow, if any."""


def list_picture_draws(image: ImageSpec, draw: Draw | None) -> list[Draw | None]:
    """Returns the draw of each view of a sample, one row of `draw`; without views the only one."""
    if image.views and isinstance(draw, np.ndarray):
        return [*draw]
    return [draw] * max(1, image.pictures)


def decode_sample(
    blobs: Sequence[bytes | Sequence[bytes]],
    rows: Mapping[str, npt.NDArray[Any]],
    images: Mapping[str, ImageSpec],
    draws: Mapping[str, Draw | None],
    decoded: DecodedFrames | None = None,
) -> dict[str, Geometry]:
    """Decodes the files of one sample, in the order of `images`, into their rows; see `decode_image`.

    Images that follow another one are decoded after it. An image with views is decoded once for all of them; a clip has
    a file for each frame, of which those in `decoded` are copied, and others are added to it. Returns how each image of
    one picture lands in its row. Raises BadImageError, which names the image that is at fault where there are several,
    and is a BadFrameError for a clip.
    """
    landed: dict[str, list[Geometry]] = {}
    files = dict(zip(images, blobs, strict=True))
    for name, image in sorted(images.items(), key=_follows_another):
        followed = None if image.like is None else landed[image.like]
        try:
            # One picture, or all views of it.
            if isinstance(data := files[name], bytes) and image.views:
                shown = followed or list_picture_draws(image, draws[name])
                landed[name] = decode_into_rows(data, [*rows[name]], image, shown)
            elif isinstance(data, bytes):
                landed[name] = [decode_image(data, rows[name], image, followed[0] if followed else draws[name])]
            else:
                landed[name] = _decode_frames(name, data, rows[name], image, followed or [draws[name]], decoded)
        except BadFrameError:
            raise
        except BadImageError as error:
            raise BadImageError(f"{name}: {error}" if len(images) > 1 else str(error)) from error
    return {name: several[0] for name, several in landed.items() if not images[name].pictures}


def _decode_frames(
    name: str,
    files: Sequence[bytes],
    rows: npt.NDArray[Any],
    image: ImageSpec,
    shown: Sequence[Draw | None],
    decoded: DecodedFrames | None,
) -> list[Geometry]:
    """Decodes the frames of a clip: all of them show the part that the first one does.

    `shown` has the draw of the first one, or the geometry of each frame of the clip that this one follows.
    """
    landed: list[Geometry] = []
    for frame, data in enumerate(files):
        draw = shown[frame] if frame < len(shown) else landed[0]
        # A random crop is drawn for the sample, so no other one shows the same part.
        key = None if image.resize == "random_crop" or isinstance(draw, np.ndarray) else (name, id(data), draw)
        known = decoded.get(key) if decoded is not None and key is not None else None
        if known is not None:
            rows[frame] = known.pixels
            landed.append(known.geometry)
            continue
        try:
            landed.append(decode_image(data, rows[frame], image, draw))
        except BadImageError as error:
            raise BadFrameError(name, frame, str(error)) from error
        if decoded is not None and key is not None:
            decoded[key] = _DecodedFrame(data, rows[frame], landed[-1])
    return landed
