"""The numbers of one picture as they are stored, and what a stream expects of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.text import format_count
from streamd.decode.exif import SIDEWAYS, UPRIGHT
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

    @property
    def upright_size(self) -> tuple[int, int]:
        """The (height, width) that it has when it is turned upright."""
        height, width = self.numbers.shape[:2]
        return (width, height) if self.orientation >= SIDEWAYS else (height, width)

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
        raise BadImageError(
            f"it holds {_format_form(*found)}, but the stream expects {_format_form(form.channels, form.dtype)}: "
            f"{_suggest_remedy(*found)}"
        )
    stored_bytes = prod((height, width, channels)) * dtype.itemsize
    if stored_bytes > MAX_RAW_BYTES:
        raise BadImageError(
            f"{width}x{height} pixels of {_format_form(*found)} are more than {MAX_RAW_BYTES // MIB:,} MiB: make it "
            "smaller"
        )


def _format_form(channels: int, dtype: str) -> str:
    return f"{format_count(channels, 'channel')} of {dtype}"


def _suggest_remedy(channels: int, dtype: str) -> str:
    if dtype in _READABLE:
        return f"convert it, or set channels: {channels} and dtype: {dtype} if all pictures are like it"
    return "convert it"
