"""Pictures that are arrays of NumPy, each in a file of its own."""

from __future__ import annotations

import warnings
from io import BytesIO
from math import prod
from tokenize import TokenError
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy

from streamd.decode.raw.picture import RawForm, RawPicture, check_raw_form
from streamd.decode.resize import BadImageError

NPY_MAGIC: Final = b"\x93NUMPY"
_MAX_HEADER_CHARS: Final = 4096  # of a header's text, which is parsed as Python; that of a plain array has 128
_HEADER_ERRORS: Final = (
    *(ValueError, TypeError, SyntaxError, LookupError, OverflowError, RecursionError, MemoryError),
    TokenError,  # from a header that looks as if Python 2 had written it
)
_GREY, _COLOUR = 2, 3  # dimensions


def read_raw_npy(data: bytes, form: RawForm) -> RawPicture:
    """Returns the array of an .npy file: (height, width), or (height, width, channels), or the channels first.

    Where the channels may be first or last, they are last. Raises BadImageError.
    """
    file = BytesIO(data)
    try:
        version = npy.read_magic(file)
        parse = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that Python 2 wrote the header
            shape, in_columns, dtype = parse(file, max_header_size=_MAX_HEADER_CHARS)
    except _HEADER_ERRORS as error:
        raise BadImageError("a damaged .npy file: its header cannot be read; write it with np.save") from error
    height, width, channels, is_channels_first = _interpret_shape(shape, form.channels)
    check_raw_form(form, height, width, channels, dtype)
    if len(data) - file.tell() < prod(shape) * dtype.itemsize:
        raise BadImageError("an .npy file that is truncated before its numbers end")
    stored = np.frombuffer(data, dtype, prod(shape), file.tell()).reshape(shape, order="F" if in_columns else "C")
    whole = stored.reshape(height, width, 1) if len(shape) == _GREY else stored
    numbers: np.ndarray[Any, Any] = np.moveaxis(whole, 0, -1) if is_channels_first else whole
    return RawPicture(numbers.astype(dtype.newbyteorder("="), copy=False))


def _interpret_shape(shape: tuple[int, ...], channels: int) -> tuple[int, int, int, bool]:
    """Returns height, width and channels, and whether the channels come first."""
    if len(shape) not in {_GREY, _COLOUR} or min(shape) < 1:
        raise BadImageError(
            f"its array has the shape {shape}: save (height, width, channels), (channels, height, width) or (height, "
            "width)"
        )
    if len(shape) == _GREY:
        return *shape, 1, False  # type: ignore[return-value]  # two sides
    first, second, last = shape
    if last != channels and first == channels:
        return second, last, first, True
    return first, second, last, False
