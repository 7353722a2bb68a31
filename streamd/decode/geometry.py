"""How a picture lands in a row: the part of it that is shown, and the rectangle of the row where that part lies.

A geometry is drawn once a sample. Other images of the sample, boxes and points follow it, in proportion where their
pictures differ in size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import floor
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import Ids, compute_uniforms
from streamd.core.spec import ONLY_IMAGE, ImageSpec

# --- Draws the box of a random crop for (seed, epoch, sample), so that a batch made again shows the same crops.
#
# The recipe is that of ImageNet training, as in torchvision's RandomResizedCrop (`get_params`; Szegedy et al., "Going
# Deeper with Convolutions", CVPR 2015): ten pairs of an area and an aspect ratio are drawn, and the first pair that
# fits is used. If none fits, the crop is the largest centred part with an allowed ratio.

CropDraw = npt.NDArray[np.float64]  # the numbers of one sample, (NUMBERS_DRAWN,) in [0, 1); one row for each view

_TRIES: Final = 10
_NUMBERS: Final = 4  # for each try: area, ratio, top, left
NUMBERS_DRAWN: Final = _TRIES * _NUMBERS
_ROOTS: Final = 32  # bits of a number that determine a ratio: far finer than a pixel


@dataclass(frozen=True, slots=True)
class Crop:
    """A part of a picture, in whole pixels."""

    left: int
    top: int
    width: int
    height: int

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom."""
        return self.left, self.top, self.left + self.width, self.top + self.height


def compute_random_crop_draws(
    image: ImageSpec, seed: int, epoch: int, ids: Ids, name: str = ONLY_IMAGE, *, is_first: bool = True
) -> Sequence[CropDraw | None]:
    """Returns the numbers drawn in `epoch` for each sample of `ids`; None for each if `image` draws none.

    Those of an image with views are (views, NUMBERS_DRAWN). Every other image of a sample, and every other view, has
    numbers of its own; those of the first view of the first image depend on no `name`.
    """
    if image.resize != "random_crop" or image.like is not None:
        return [None] * len(ids)
    first = "crop" if is_first else f"crop {name}"
    if not image.views:
        return list(compute_uniforms(seed, epoch, ids, NUMBERS_DRAWN, first))
    purposes = [first, *(f"crop {name} view {view}" for view in range(1, image.views))]
    return list(np.stack([compute_uniforms(seed, epoch, ids, NUMBERS_DRAWN, each) for each in purposes], axis=1))


def compute_sample_draws(
    images: Mapping[str, ImageSpec], seed: int, epoch: int, ids: Ids
) -> dict[str, Sequence[CropDraw | None]]:
    """Returns the numbers of `compute_random_crop_draws` for each image of the samples, by its name."""
    return {
        name: compute_random_crop_draws(image, seed, epoch, ids, name, is_first=not number)
        for number, (name, image) in enumerate(images.items())
    }


def compute_crop(height: int, width: int, image: ImageSpec, draw: CropDraw) -> Crop:
    """Returns the crop that `draw` takes of an upright picture of `height` by `width` pixels."""
    least, most = image.ratio
    roots = _compute_repeated_square_roots(most / least)
    for area, ratio, top, left in draw.reshape(_TRIES, _NUMBERS).tolist():
        part = height * width * (image.scale[0] + (image.scale[1] - image.scale[0]) * area)
        # The ratio is even in the logarithm: least * (most / least) ** ratio. In binary, base ** 0.b1b2b3... is the
        # product of the square roots whose bits are set.
        bits = int(ratio * (1 << _ROOTS))
        across = least * math.prod(root for place, root in enumerate(roots) if bits >> place & 1)
        wide, high = round(math.sqrt(part * across)), round(math.sqrt(part / across))
        if 0 < wide <= width and 0 < high <= height:
            return Crop(int(left * (width - wide + 1)), int(top * (height - high + 1)), wide, high)
    # No draw fits into the picture: the largest part in its middle of an allowed ratio.
    wide, high = width, height
    if width / height < least:
        high = max(1, round(width / least))
    elif width / height > most:
        wide = max(1, round(height * most))
    return Crop((width - wide) // 2, (height - high) // 2, wide, high)


@lru_cache(maxsize=64)
def _compute_repeated_square_roots(base: float) -> tuple[float, ...]:
    """Returns base ** 2**-32, ..., base ** (1/4), base ** (1/2).

    Square roots are equal to the last bit on every processor and in every C library; exp and pow are not.
    """
    roots = [math.sqrt(base)]
    while len(roots) < _ROOTS:
        roots.append(math.sqrt(roots[-1]))
    return tuple(reversed(roots))


# --- How a picture lands in a row: the part of it that is shown, and the rectangle of the row where that part lies.

Size = tuple[int, int]  # height, width in pixels
Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels of a picture
PixelBox = tuple[int, int, int, int]  # left, top, right, bottom, in whole pixels
Points = npt.NDArray[np.float64]  # (n, 2): x, y

UPRIGHT: Final = 1
SIDEWAYS: Final = 5  # orientations of 5 and above exchange height and width
_ROUNDED_PIXELS: Final = 1  # by which a size may miss the proportions of another
_CROPS: Final = frozenset({"crop", "random_crop"})


@dataclass(frozen=True, slots=True)
class Geometry:
    """`box` of an upright picture of `source` pixels lands in `place` of a row of `target` pixels.

    `place` is the whole row, except for pad. Pixel edges are whole numbers: the middle of the first pixel is at 0.5.
    `is_cut` means that a picture is cut at whole pixels, those of `pixel_box`, before it is resized, as random crops
    are. `orientation`, 1 to 8 as in EXIF, is how the file stores the picture: labels may have been drawn before the
    turn.
    """

    source: Size
    box: Box
    target: Size
    place: PixelBox
    is_cut: bool = False
    orientation: int = UPRIGHT

    @property
    def place_size(self) -> Size:
        """The (height, width) of `place`."""
        left, top, right, bottom = self.place
        return bottom - top, right - left

    @property
    def is_unresized(self) -> bool:
        """Whether the whole picture is shown, pixel by pixel."""
        whole: Box = (0, 0, self.source[1], self.source[0])
        return self.box == whole and self.source == self.place_size

    @property
    def is_whole_row(self) -> bool:
        """Whether `place` is the whole row."""
        return self.place_size == self.target

    @property
    def pixel_box(self) -> PixelBox:
        """The box to the nearest whole pixels of the picture, of which it keeps at least one."""
        left, top, right, bottom = self.box
        first_column, last_column = _round_span(left, right, self.source[1])
        first_row, last_row = _round_span(top, bottom, self.source[0])
        return first_column, first_row, last_column, last_row

    def scale_to_source(self, size: Size) -> Geometry:
        """Returns the same part of a picture of another `size` (height, width), in proportion on each axis."""
        if size == self.source:
            return self
        (left, top, right, bottom), (height, width) = self.box, self.source
        # Each edge is a product divided once, so that an edge in the middle of a pixel is exactly there. Rounding must
        # not move an edge beyond the picture, where a decoder would find no pixel.
        box = (
            left * size[1] / width,
            top * size[0] / height,
            min(right * size[1] / width, size[1]),
            min(bottom * size[0] / height, size[0]),
        )
        return replace(self, source=size, box=box)

    def scale_to_target(self, size: Size) -> Geometry:
        """Returns the same part for a row of another `size` (height, width); `place` keeps at least one pixel."""
        if size == self.target:
            return self
        left, top, right, bottom = self.place
        (rows, columns), (height, width) = self.target, size
        first_column, last_column = _round_span(left * width / columns, right * width / columns, width)
        first_row, last_row = _round_span(top * height / rows, bottom * height / rows, height)
        return replace(self, target=size, place=(first_column, first_row, last_column, last_row))

    def with_orientation(self, orientation: int) -> Geometry:
        """Returns the same geometry for a file that stores the picture in this orientation."""
        return self if orientation == self.orientation else replace(self, orientation=orientation)

    @property
    def stored_size(self) -> Size:
        """The (height, width) that the file stores, before the picture is turned upright."""
        return self.source[::-1] if self.orientation >= SIDEWAYS else self.source

    def map_points(self, points: npt.ArrayLike) -> Points:
        """Returns where points (n, 2) of x and y of the picture lie in the row, in its pixels, float64 (n, 2).

        Points that are not shown lie outside of `place`.
        """
        left, top, right, bottom = self.box
        height, width = self.place_size
        scale = np.array([width / (right - left), height / (bottom - top)])
        given = np.asarray(points, dtype=np.float64)
        mapped: Points = (given - np.array([left, top])) * scale + np.array(self.place[:2], dtype=np.float64)
        return mapped


Draw = CropDraw | Geometry


def draw_geometry(image: ImageSpec, size: Size, draw: Draw | None = None) -> Geometry:
    """Returns the geometry of `image` for an upright picture of `size` (height, width) pixels.

    `draw` holds the sample's numbers from `compute_random_crop_draws`, or is the geometry of the picture that this one
    follows. Without it the middle is shown where `resize` is random_crop.
    """
    if draw is None:
        return compute_fixed_geometry(image, size)
    if isinstance(draw, Geometry):
        return draw.scale_to_source(size).scale_to_target((image.height, image.width))
    crop = compute_crop(*size, image, draw)
    return Geometry(size, crop.box, (image.height, image.width), (0, 0, image.width, image.height), is_cut=True)


@lru_cache(maxsize=256)
def compute_fixed_geometry(image: ImageSpec, size: Size) -> Geometry:
    """Returns the geometry of `image` without a draw. A data set has few sizes, so those of its pictures are kept."""
    height, width = size
    whole: Box = (0, 0, width, height)
    target = image.height, image.width
    if image.resize in _CROPS:
        # The largest centred part with the target's proportions, in fractions of pixels.
        scale = min(height / target[0], width / target[1])
        high, wide = target[0] * scale, target[1] * scale
        # Rounding may make the box a hair larger than the picture, and Pillow refuses offsets below 0.
        near, above = max(0.0, (width - wide) / 2), max(0.0, (height - high) / 2)
        box = near, above, near + wide, above + high
        return Geometry(size, box, target, (0, 0, image.width, image.height))
    if image.resize != "pad":
        return Geometry(size, whole, target, (0, 0, image.width, image.height))
    rows, columns = compute_covering_size(height, width, image)
    top, left = (image.height - rows) // 2, (image.width - columns) // 2
    return Geometry(size, whole, target, (left, top, left + columns, top + rows))


@lru_cache(maxsize=256)
def compute_landed_geometry(image: ImageSpec, decoded: Size, size: Size) -> Geometry:
    """Returns how a picture of `size` lands without a draw if it was `decoded` to fewer pixels, in its own pixels."""
    return compute_fixed_geometry(image, decoded).scale_to_source(size)


def compute_covering_size(height: int, width: int, image: ImageSpec) -> Size:
    """Returns the (height, width) that a reduced decode must not fall below."""
    if image.resize == "stretch":
        return image.height, image.width
    scales = (image.height / height, image.width / width)
    scale = max(scales) if image.resize in _CROPS else min(scales)
    return max(1, round(height * scale)), max(1, round(width * scale))


def find_leader(name: str, images: Mapping[str, ImageSpec]) -> str | None:
    """Returns the image to which image `name` belongs: the one it is like, or for a mask the first that is none."""
    image = images[name]
    if image.like is not None or image.mode != "index":
        return image.like
    return next((other for other, each in images.items() if each.mode != "index"), None)


def are_in_proportion(one: Size, other: Size) -> bool:
    """Whether one size, scaled to the height or the width of the other, is as large to the pixel.

    The smaller one counts, since it was rounded to whole pixels when it was made of the larger one.
    """
    small, large = sorted((one, other))
    height, width = large[0] * small[1] / large[1], large[1] * small[0] / large[0]
    return abs(height - small[0]) <= _ROUNDED_PIXELS or abs(width - small[1]) <= _ROUNDED_PIXELS


def _round_span(begin: float, end: float, length: int) -> tuple[int, int]:
    """Rounds a span on a line of `length` pixels to whole pixels, half a pixel up; it keeps at least one."""
    first = min(floor(begin + 0.5), length - 1)
    return first, max(first + 1, floor(end + 0.5))
