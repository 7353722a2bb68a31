"""Resizes numbers of any depth and any number of channels, as Pillow resizes a picture of 8 bits.

Pillow averages over all numbers that become one. It resizes planes of float32 in double precision and rounds once, so
16 bits go through them too: that takes six tenths of the time of its own planes of 16 bits, which it rounds twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from PIL import Image

from streamd.decode.geometry import Box, Geometry
from streamd.decode.raw.picture import Numbers

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
    elif numbers.dtype == np.uint8:
        _resize_bytes(place, numbers, box)
    else:
        _resize_planes(place, numbers, box)


def _resize_bytes(place: Numbers, numbers: Numbers, box: Box | None) -> None:
    size = place.shape[1], place.shape[0]
    for channels in _iterate_groups(numbers.shape[2]):
        group = np.ascontiguousarray(numbers[:, :, channels])
        count = group.shape[2]
        mode = _GROUPS.get(count, _PLANE)
        picture = Image.frombuffer(mode, (group.shape[1], group.shape[0]), group, "raw", mode, 0, 1)
        resized = np.asarray(picture.resize(size, Image.Resampling.BILINEAR, box))
        place[:, :, channels] = resized.reshape(*place.shape[:2], count)


def _iterate_groups(channels: int) -> Iterator[slice]:
    start = 0
    while start < channels:
        left = channels - start
        count = left if left in _GROUPS else max(_GROUPS) if left > max(_GROUPS) else 1
        yield slice(start, start + count)
        start += count


def _resize_planes(place: Numbers, numbers: Numbers, box: Box | None) -> None:
    size = place.shape[1], place.shape[0]
    for channel in range(numbers.shape[2]):
        plane = Image.fromarray(np.ascontiguousarray(numbers[:, :, channel], dtype=np.float32))
        resized = np.asarray(plane.resize(size, Image.Resampling.BILINEAR, box))
        # An average lies between the numbers that it is of, so it needs no clipping.
        place[:, :, channel] = resized if place.dtype == np.float32 else np.rint(resized)
