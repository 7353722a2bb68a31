"""Images that need no decoding, since arrays hold their numbers: how they land in a row, and what makes them bad.

An image of an array is resized as a PNG of the same numbers would be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.spec import ImageSpec, PixelId, compute_identity
from streamd.decode.class_numbers import place_class_numbers
from streamd.decode.geometry import Draw, Geometry, Size, compute_fixed_geometry, draw_geometry
from streamd.decode.raw.planes import resize_numbers
from streamd.decode.resize import BadFrameError, BadImageError, build_pil_image, resize_picture

Numbers = npt.NDArray[Any]  # (height, width, channels), as a store gives them

_PROBE_SIZES: Final = ((48, 64), (37, 29), (150, 200), (7, 90))
_MIXER: Final = 2654435761  # a product with it has bits that look random in its upper half


def place_stored_image(numbers: Numbers, row: Numbers, image: ImageSpec, draw: Draw | None = None) -> Geometry:
    """Writes an image of an array into `row`, of the shape and dtype of `image`, and returns how it lands there.

    `draw` is that of `decode_image`. Raises BadImageError for class numbers that the row does not hold.
    """
    geometry = draw_geometry(image, (numbers.shape[0], numbers.shape[1]), draw)
    if image.mode == "raw":
        resize_numbers(row, numbers, geometry, image.fill)
    elif image.mode == "index":
        place_class_numbers(numbers[:, :, 0], row, geometry, image.fill)
    else:
        resize_picture(row, build_pil_image(numbers), geometry, image.fill)
    return geometry


def place_stored_pictures(
    name: str, numbers: Numbers, rows: Sequence[Numbers], image: ImageSpec, draws: Sequence[Draw | None]
) -> list[Geometry]:
    """Writes all views or frames of the image `name` into the row of the same number; see `place_stored_image`.

    `numbers` has a picture for each frame, or one that all views show; its first axis has length 1 then. Raises
    BadFrameError if a frame is at fault.
    """
    pictures = [*numbers] * (1 if image.frames else len(rows))
    landed: list[Geometry] = []
    for picture, row, draw in zip(pictures, rows, draws, strict=True):
        # All frames show the part that the first one does, which a random crop has drawn.
        shown = landed[0] if image.frames and landed and not isinstance(draw, Geometry) else draw
        try:
            landed.append(place_stored_image(picture, row, image, shown))
        except BadImageError as error:
            if not image.frames:
                raise
            raise BadFrameError(name, len(landed), str(error)) from error
    return landed


def find_fixed_geometries(images: Mapping[str, ImageSpec], stored: Mapping[str, Size]) -> dict[str, Geometry | None]:
    """Returns how images of arrays of these sizes land, by name; None for those that are cropped at random."""
    fixed: dict[str, Geometry | None] = {}
    for name, image in images.items():
        leader = name if image.like is None else image.like
        geometry = None if image.resize == "random_crop" else compute_fixed_geometry(images[leader], stored[leader])
        fixed[name] = geometry if geometry is None or leader == name else draw_geometry(image, stored[name], geometry)
    return fixed


def is_shown_whole(geometry: Geometry | None) -> bool:
    """Whether an image is served pixel by pixel, as it is stored."""
    return geometry is not None and geometry.is_unresized and geometry.is_whole_row


def compute_array_pixel_id(images: Mapping[str, ImageSpec], stored: Mapping[str, Size]) -> PixelId:
    """Returns the identity of the pixels of samples whose images are arrays, of these (height, width).

    Images that are served as they are stored depend on no library. The others have a digest of resized numbers.
    """
    fixed = find_fixed_geometries(images, stored)
    parts = [
        part
        for name, image in images.items()
        for part in (
            name,
            image.describe_pixels(),
            *stored[name],
            "" if is_shown_whole(fixed[name]) else _compute_probe_digest(image),
        )
    ]
    return PixelId(compute_identity("streamd array images 1", *parts))


@lru_cache(maxsize=64)
def _compute_probe_digest(image: ImageSpec) -> str:
    row = np.empty(image.picture_shape, image.dtype)  # all views show the same picture
    digest = hashlib.blake2b(digest_size=16)
    for numbers in _build_probe_numbers(image):
        place_stored_image(numbers, row, image)
        digest.update(row.data)
    return digest.hexdigest()


def _build_probe_numbers(image: ImageSpec) -> Iterator[Numbers]:
    bits = 8 * min(2, np.dtype(image.dtype).itemsize)
    for height, width in _PROBE_SIZES:
        places = np.arange(height * width * image.channels, dtype=np.uint32).reshape(height, width, image.channels)
        yield ((places * np.uint32(_MIXER)) >> np.uint32(32 - bits)).astype(image.dtype)
