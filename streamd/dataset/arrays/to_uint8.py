"""Converts stored rows of any dtype and channel order to rows as they are served: (height, width, channels).

Pixels are served as uint8. In mode raw numbers keep their dtype, and only byte order and channel order may change.

Numbers are clipped to the range, scaled to 0-255 and rounded, half to even. The arithmetic is in float32, or in float64
for dtypes that do not fit in float32, one operation after the other, so that every machine gets the same pixels. A row
with a NaN is bad.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from streamd.core.sampler import Ids
from streamd.dataset.arrays.pixels import can_copy_unconverted
from streamd.dataset.arrays.store import Mask, Pixels
from streamd.dataset.manifest.types import ArrayFiles, StorageFormat

RawRows = npt.NDArray[Any]  # rows as they are stored

NOT_A_NUMBER: Final = "a pixel is not a number (NaN)"
_WHITE: Final = 255.0


class PixelConverter:
    """Converts the rows of one store. Not thread-safe, since it works in buffers of its own.

    `stored` is the format of the rows, and `shape`, `dtype` and `row_bytes` are those of a stored row. `is_needed` is
    False where rows are stored as they are served. `faults` has the samples that are bad for good, with the reason.
    """

    def __init__(self, arrays: ArrayFiles) -> None:
        self.stored = stored = arrays.stored or StorageFormat("")
        height, width, channels = arrays.shape
        self.shape = (channels, height, width) if stored.channels_first else arrays.shape
        self.dtype = np.dtype(stored.dtype)
        self.row_bytes = prod(self.shape) * self.dtype.itemsize
        self.is_needed = not can_copy_unconverted(stored)
        self._levels = np.empty(self.shape if stored.range else 0, np.result_type(self.dtype, np.float32))
        self.faults: dict[int, str] = {}
        self._raw: RawRows = np.empty((0, *self.shape), self.dtype)

    def prepare_read_buffer(self, images: Pixels) -> RawRows:
        """Returns the buffer to read rows into, (n, *shape) of `dtype`.

        It is `images` itself where no conversion is needed.
        """
        if not self.is_needed:
            return images
        # The buffer only grows, and the next task overwrites it: nothing may keep a view of it.
        if len(self._raw) < len(images):
            self._raw = np.empty((len(images), *self.shape), self.dtype)
        return self._raw[: len(images)]

    def convert_rows(self, raw: RawRows, images: Pixels, ids: Ids, held: Mask) -> Mask:
        """Converts the rows in the buffer of `prepare_read_buffer`.

        Returns the mask of the good ones among those `held`, (n,).
        """
        if not self.is_needed:
            return held
        good = held.copy()
        for place in np.flatnonzero(held).tolist():
            if not self._convert_row(raw[place], images[place]):
                good[place] = False
                self.faults[int(ids[place])] = NOT_A_NUMBER
        return good

    def _convert_row(self, row: RawRows, pixels: Pixels) -> bool:
        """Converts one row, and returns whether it is good.

        One row at a time stays in the processor's cache through all steps.
        """
        if self.stored.range is None:
            self._copy_row_channels_last(row, pixels)
            return True
        low, high = self.stored.range
        levels = self._levels
        levels[...] = row
        np.clip(levels, low, high, out=levels)
        # One NaN makes the minimum NaN, and clipping keeps it. An infinity has become one of the bounds.
        if np.isnan(levels.min()):
            return False
        if low:
            levels -= low
        if high - low != _WHITE:  # each step takes a sixth of the time
            levels *= _WHITE
            levels /= high - low
        np.rint(levels, out=levels)
        self._copy_row_channels_last(levels, pixels)
        return True

    def _copy_row_channels_last(self, row: RawRows, pixels: Pixels) -> None:
        # Levels are whole and within 0-255 by now, and other numbers keep their type, so both branches convert exactly.
        # A single channel has the same bytes in either order.
        if self.stored.channels_first and len(row) > 1:
            cv2.merge(list(row.astype(pixels.dtype, copy=False)), pixels)  # NumPy takes four times as long
        else:
            pixels[...] = row.reshape(pixels.shape)
