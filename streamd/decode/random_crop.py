"""Draws the box of a random crop for (seed, epoch, sample), so that a batch made again shows the same crops.

The recipe is that of ImageNet training, as in torchvision's RandomResizedCrop (`get_params`; Szegedy et al., "Going
Deeper with Convolutions", CVPR 2015): ten pairs of an area and an aspect ratio are drawn, and the first pair that fits
is used. If none fits, the crop is the largest centred part with an allowed ratio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.core.sample_rng import compute_uniforms
from streamd.core.sampler import Ids
from streamd.core.spec import ONLY_IMAGE, ImageSpec

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
    for area, ratio, top, left in draw.reshape(_TRIES, _NUMBERS).tolist():
        part = height * width * (image.scale[0] + (image.scale[1] - image.scale[0]) * area)
        across = _interpolate_in_logarithm(*image.ratio, ratio)
        wide, high = round(math.sqrt(part * across)), round(math.sqrt(part / across))
        if 0 < wide <= width and 0 < high <= height:
            return Crop(int(left * (width - wide + 1)), int(top * (height - high + 1)), wide, high)
    return _compute_middle_crop(height, width, image)


def _interpolate_in_logarithm(low: float, high: float, number: float) -> float:
    """Interpolates between `low` and `high`, evenly in the logarithm: low * (high / low) ** number."""
    # base ** 0.b1b2b3... in binary is the product of the square roots whose bits are set.
    bits = int(number * (1 << _ROOTS))
    return low * math.prod(
        root for place, root in enumerate(_compute_repeated_square_roots(high / low)) if bits >> place & 1
    )


@lru_cache(maxsize=64)
def _compute_repeated_square_roots(base: float) -> tuple[float, ...]:
    """Returns base ** 2**-32, ..., base ** (1/4), base ** (1/2).

    Square roots are equal to the last bit on every processor and in every C library; exp and pow are not.
    """
    roots = [math.sqrt(base)]
    while len(roots) < _ROOTS:
        roots.append(math.sqrt(roots[-1]))
    return tuple(reversed(roots))


def _compute_middle_crop(height: int, width: int, image: ImageSpec) -> Crop:
    least, most = image.ratio
    wide, high = width, height
    if width / height < least:
        high = max(1, round(width / least))
    elif width / height > most:
        wide = max(1, round(height * most))
    return Crop((width - wide) // 2, (height - high) // 2, wide, high)
