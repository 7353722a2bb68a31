"""Which arrays hold images, in whatever file they are, and how their numbers become pixels. Pure.

Numbers other than uint8 need a range: the two numbers that become 0 and 255. It is never guessed, since a range guessed
from some images would distort the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.text import format_count
from streamd.dataset.manifest.types import StorageFormat
from streamd.dataset.sources import ArrayForm, ClassNumbers
from streamd.errors import ConfigError

PixelRange = tuple[float, float]
ImageShape = tuple[int, int, int]  # height, width, channels

INSPECTED_IMAGES: Final = 64  # images whose numbers a message shows
_OUTLIER_FRACTION: Final = 0.1  # of all numbers; clipped outliers are expected to be fewer
_CHANNELS: Final = (1, 3)
_GREY, _COLOUR = 3, 4  # dimensions
_RAW_DTYPES: Final = frozenset({"uint8", "uint16", "float32"})
_NUMBER_KINDS: Final = "biuf"  # of dtypes
_WHOLE_KINDS: Final = "biu"
_USUAL_RANGES: Final[tuple[PixelRange, ...]] = ((0, 1), (-1, 1), (0, 255), (0, 65535))


def inspect_image_array(
    what: str,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    stored: StorageFormat,
    read_first: Callable[[], npt.NDArray[Any]],
    raw: ArrayForm | None = None,
) -> tuple[ImageShape, StorageFormat]:
    """Returns the shape of an array's images as they are served, and their format: `stored`, completed from the array.

    `what` names the array in messages, with its key. `read_first` reads its first INSPECTED_IMAGES images. With `raw`
    it holds numbers that are no pixels of 8 bits, and no range counts. Raises ConfigError for an array that holds no
    images, or other numbers than `raw` says, or numbers that need a range and have none.
    """
    fact = f"{what} holds {dtype} {tuple(shape)}"
    if dtype.kind == "O":
        raise ConfigError(
            f"{fact}, rows of any length; if they are encoded images, write them to files and use kind folder"
        )
    if dtype.kind not in _NUMBER_KINDS:
        raise ConfigError(f"{fact}; pixels are numbers: save them as uint8, 0-255")
    if isinstance(raw, ClassNumbers):
        if dtype.kind not in _WHOLE_KINDS:
            raise ConfigError(f"{fact}; class numbers are whole numbers: save them as uint8 or uint16")
        if len(shape) not in {_GREY, _COLOUR} or 0 in shape or (len(shape) == _COLOUR and shape[3] != 1):
            raise ConfigError(
                f"{fact}; class numbers have the shape (n, height, width) or (n, height, width, 1): one number a pixel"
            )
        return (shape[1], shape[2], 1), StorageFormat(stored.store, stored.place, dtype.str)
    served, channels_first = _interpret_image_shape(fact, shape, _CHANNELS if raw is None else (raw.channels,))
    if raw is not None:
        found = dtype.newbyteorder("=").name
        if found != raw.dtype:
            remedy = f"write dtype: {found}" if found in _RAW_DTYPES else f"save it as {raw.dtype}"
            raise ConfigError(f"{fact}, but image has dtype: {raw.dtype}; {remedy}")
    elif dtype != np.uint8 and stored.range is None:
        few = read_first()
        numbers = few[np.isfinite(few)]
        if not numbers.size:
            advice = (
                f"found no numbers in the first {format_count(len(few), 'image')}; write range: [low, high], the "
                "values of black and of white"
            )
        else:
            low, high = float(numbers.min()), float(numbers.max())
            usual = next((each for each in _USUAL_RANGES if each[0] <= low and high <= each[1]), None)
            least, most = usual or (math.floor(low), math.ceil(high))
            advice = (
                f"found values from {low:g} to {high:g} in the first {format_count(len(few), 'image')}, but pixels are "
                f"from 0 to 255: write range: [{least}, {most}] if {least} is black and {most} is white in all images"
            )
        raise ConfigError(f"{fact}; {advice}")
    return served, StorageFormat(stored.store, stored.place, dtype.str, stored.range, channels_first)


def format_range_warning(first: npt.NDArray[Any], bounds: PixelRange) -> str | None:
    """Returns a warning when more than a tenth of the numbers of the `first` images lie outside the range, else None.

    A range that was copied from another stream may cause that.
    """
    numbers = first[np.isfinite(first)]
    outside = ((numbers < bounds[0]) | (numbers > bounds[1])).mean() if numbers.size else 0.0
    if outside <= _OUTLIER_FRACTION:
        return None
    what = "remove the key range" if first.dtype == np.uint8 else "correct range"
    return (
        f"found values from {numbers.min():g} to {numbers.max():g} in the first {format_count(len(first), 'image')}, "
        f"of which {outside:.0%} lie beyond range [{bounds[0]:g}, {bounds[1]:g}] and become black or white; unless "
        f"this is intended, {what}"
    )


def can_copy_unconverted(stored: StorageFormat) -> bool:
    """Returns whether rows are stored exactly as they are served."""
    return not stored.channels_first and stored.range is None and np.dtype(stored.dtype).isnative


def is_plain_array(stored: StorageFormat) -> bool:
    """Returns whether rows are uint8 and stored exactly as they are served, so that nothing need be said of them."""
    return can_copy_unconverted(stored) and np.dtype(stored.dtype) == np.uint8


def can_hold_images(shape: Sequence[int], dtype: np.dtype[Any]) -> bool:
    """Returns whether an array has the shape and the dtype of images."""
    try:
        _interpret_image_shape("", shape)
    except ConfigError:
        return False
    return dtype.kind in _NUMBER_KINDS


def _interpret_image_shape(
    fact: str, shape: Sequence[int], channels: Sequence[int] = _CHANNELS
) -> tuple[ImageShape, bool]:
    """Returns (height, width, channels), and whether the channels come first. Where both fit, they come last.

    Raises ConfigError, which begins with `fact`, for a shape that images cannot have.
    """
    if len(shape) not in {_GREY, _COLOUR} or 0 in shape:
        labels = "; it looks like labels" if len(shape) < _GREY and 0 not in shape else ""
        raise ConfigError(
            f"{fact}{labels}; an array of images has the shape (n, height, width, channels), (n, channels, height, "
            "width) or (n, height, width), with at least one image"
        )
    first, second, last = shape[1:] if len(shape) == _COLOUR else (*shape[1:], 1)
    if last in channels:
        return (first, second, last), False
    if first in channels:
        return (second, last, first), True
    if channels is not _CHANNELS:
        raise ConfigError(f"{fact}, but image has channels: {channels[0]}; write the number that the array has")
    raise ConfigError(
        f"{fact}; images have 1 channel or 3: leave the other channels out, as in array[..., :3], or serve all with "
        "mode: raw and channels"
    )
