"""The numbers of one picture as they are stored, and what a stream expects of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from streamd.core.text import format_count
from streamd.decode.geometry import UPRIGHT, Box, Geometry
from streamd.decode.resize import BadImageError, check_image_size
from streamd.limits import MAX_RAW_BYTES, MIB

Numbers = npt.NDArray[Any]  # (height, width, channels) of uint8, uint16 or float32, in the processor's byte order

_READABLE: Final = frozenset({"uint8", "uint16", "float32"})
_MIRRORED: Final = frozenset({2, 4, 5, 7})  # the orientations that are mirrored, and how often ...
_QUARTER_TURNS: Final = {3: 2, 4: 2, 5: 3, 6: 3, 7: 1, 8: 1}  # ... each is turned counterclockwise by 90 degrees


@dataclass(frozen=True, slots=True)
class RawForm:
    """What a stream expects of each picture: `dtype` is uint8, uint16 or float32."""

    channels: int
    dtype: str


@dataclass(frozen=True, slots=True)
class RawPicture:
    """The numbers of a picture, not yet turned, and its orientation, 1 to 8, as in EXIF."""

    numbers: Numbers
    orientation: int = UPRIGHT

    def turn_upright(self) -> Numbers:
        """Returns the numbers turned upright, as a view where that is possible."""
        turned = np.rot90(self.numbers, _QUARTER_TURNS.get(self.orientation, 0))
        return turned[:, ::-1] if self.orientation in _MIRRORED else turned


def check_raw_form(form: RawForm, height: int, width: int, channels: int, dtype: np.dtype[Any]) -> None:
    """Raises BadImageError unless a picture is as its stream expects, and not too large.

    Called before anything of the picture's size is allocated.
    """
    check_image_size(height, width)
    found = (channels, dtype.newbyteorder("=").name)
    if found != (form.channels, form.dtype):
        remedy = "convert it"
        if found[1] in _READABLE:
            remedy += f", or set channels: {channels} and dtype: {found[1]} if all pictures are like it"
        raise BadImageError(
            f"it holds {_format_form(*found)}, but the stream expects {_format_form(form.channels, form.dtype)}: "
            f"{remedy}"
        )
    stored_bytes = prod((height, width, channels)) * dtype.itemsize
    if stored_bytes > MAX_RAW_BYTES:
        raise BadImageError(
            f"{width}x{height} pixels of {_format_form(*found)} are more than {MAX_RAW_BYTES // MIB:,} MiB: make it "
            "smaller"
        )


def _format_form(channels: int, dtype: str) -> str:
    return f"{format_count(channels, 'channel')} of {dtype}"


# --- Resizes numbers of any depth and any number of channels, as Pillow resizes a picture of 8 bits.
#
# Pillow averages over all numbers that become one. It resizes planes of float32 in double precision and rounds once,
# so 16 bits go through them too: that takes six tenths of the time of its own planes of 16 bits, which it rounds
# twice.


_GROUPS: Final = {4: "CMYK", 3: "RGB"}  # planes of 8 bits that Pillow resizes together, each by itself
_PLANE: Final = "L"


def resize_numbers(row: Numbers, numbers: Numbers, geometry: Geometry, fill: int = 0) -> None:
    """Resizes the part of `numbers`, (height, width, channels), that `geometry` shows into its place in `row`.

    The rest of the row becomes `fill`. `geometry` is that of the upright numbers.
    """
    left, top, right, bottom = geometry.place
    place = row[top:bottom, left:right]
    if not geometry.is_whole_row:
        row[...] = fill
    height, width = geometry.source
    box: Box | None = geometry.box
    if box == (0.0, 0.0, float(width), float(height)):
        box = None
    if geometry.is_cut:
        first, upper, last, lower = geometry.pixel_box
        numbers, box = numbers[upper:lower, first:last], None
    if box is None and numbers.shape == place.shape:
        place[...] = numbers
        return
    size = place.shape[1], place.shape[0]
    # Planes of 8 bits are resized in groups that Pillow has a mode for, each plane by itself.
    if numbers.dtype == np.uint8:
        start = 0
        while start < numbers.shape[2]:
            left_over = numbers.shape[2] - start
            count = left_over if left_over in _GROUPS else max(_GROUPS) if left_over > max(_GROUPS) else 1
            channels = slice(start, start + count)
            group = np.ascontiguousarray(numbers[:, :, channels])
            mode = _GROUPS.get(count, _PLANE)
            picture = Image.frombuffer(mode, (group.shape[1], group.shape[0]), group, "raw", mode, 0, 1)
            resized = np.asarray(picture.resize(size, Image.Resampling.BILINEAR, box))
            place[:, :, channels] = resized.reshape(*place.shape[:2], count)
            start += count
        return
    for channel in range(numbers.shape[2]):
        plane = Image.fromarray(np.ascontiguousarray(numbers[:, :, channel], dtype=np.float32))
        resized = np.asarray(plane.resize(size, Image.Resampling.BILINEAR, box))
        # An average lies between the numbers that it is of, so it needs no clipping.
        place[:, :, channel] = resized if place.dtype == np.float32 else np.rint(resized)
