"""The strips and tiles of a TIFF: unpacked to exactly as many bytes as they must have, and put in their places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from types import ModuleType
from typing import Any, Final

import numpy as np

from streamd.decode.raw.picture import Numbers
from streamd.decode.resize import BadImageError
from streamd.errors import MissingExtraError
from streamd.limits import MAX_RAW_BYTES, MIB

_PLAIN: Final = 1
_LZW: Final = 5
_DEFLATE: Final = frozenset({8, 32946})  # Adobe's number and the older one
_PACKBITS: Final = 32773
_WITHOUT_PREDICTOR: Final = frozenset({_PLAIN, _PACKBITS})  # libtiff ignores a predictor here
_NO_PREDICTOR: Final = 1
_DIFFERENCES: Final = 2
_FLOAT_DIFFERENCES: Final = 3


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """How one page stores its numbers.

    `dtype` has the byte order of the file. `segment` is the (height, width) of a strip or tile, of which the page has
    rows and columns; `offsets` and `counts` say where each lies, in bytes. Where `is_planar`, each channel has segments
    of its own, and those of the first channel come first. The last strip ends with the page; tiles have one size.
    """

    height: int
    width: int
    samples: int
    dtype: np.dtype[Any]
    segment: tuple[int, int]
    is_tiled: bool
    is_planar: bool
    compression: int
    predictor: int
    offsets: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def grid(self) -> tuple[int, int]:
        """The rows and columns of segments."""
        return -(-self.height // self.segment[0]), -(-self.width // self.segment[1])


def read_segments(data: bytes, layout: ImageLayout, numbers: Numbers) -> None:
    """Reads all segments of a page of the file `data` into `numbers`, (height, width, samples).

    Raises BadImageError unless each segment lies in the file and has all its numbers; MissingExtraError.
    """
    _check_segments(layout, len(data))
    unpack, restore = _choose_unpacker(layout), _choose_predictor(layout)
    rows, columns = layout.grid
    high, wide = layout.segment
    for number, (offset, count) in enumerate(zip(layout.offsets, layout.counts, strict=True)):
        plane, inner = divmod(number, rows * columns)
        row, column = divmod(inner, columns)
        top, left = row * high, column * wide
        part = (
            numbers[top : top + high, left : left + wide, plane : plane + 1]
            if layout.is_planar
            else (numbers[top : top + high, left : left + wide])
        )
        shape = (high if layout.is_tiled else part.shape[0], wide, part.shape[2])
        nbytes = prod(shape) * layout.dtype.itemsize
        # The last strip of some writers is as long as the others.
        stored = unpack(data[offset : offset + count], high * wide * shape[2] * layout.dtype.itemsize)
        if len(stored) < nbytes:
            kind = "tile" if layout.is_tiled else "strip"
            raise BadImageError(f"a TIFF whose {kind} {number} has {len(stored)} of {nbytes} bytes: write it again")
        part[...] = restore(stored[:nbytes], shape)[: part.shape[0], : part.shape[1]]


def _check_segments(layout: ImageLayout, file_bytes: int) -> None:
    """Raises BadImageError unless the segments make up the page, and lie in the file."""
    if min(layout.segment) < 1 or layout.samples < 1:
        raise BadImageError(f"a TIFF with tiles or strips of {layout.segment[1]}x{layout.segment[0]} pixels")
    rows, columns = layout.grid
    padded = prod((rows, layout.segment[0], columns, layout.segment[1], layout.samples)) * layout.dtype.itemsize
    if layout.is_tiled and padded > 2 * MAX_RAW_BYTES:
        raise BadImageError(
            f"a TIFF with tiles of {layout.segment[1]}x{layout.segment[0]} pixels, which take more than "
            f"{2 * MAX_RAW_BYTES // MIB:,} MiB: use smaller tiles"
        )
    wanted = rows * columns * (layout.samples if layout.is_planar else 1)
    if not wanted == len(layout.offsets) == len(layout.counts):
        raise BadImageError(f"a TIFF with {len(layout.offsets)} strips or tiles, but {wanted} make up its pixels")
    if any(offset + count > file_bytes for offset, count in zip(layout.offsets, layout.counts, strict=True)):
        raise BadImageError("a TIFF truncated before its pixels end")
    if not all(layout.counts):
        raise BadImageError("a TIFF in which a strip or tile is left out: write all of them, as with SPARSE_OK=FALSE")


def _choose_unpacker(layout: ImageLayout) -> Callable[[bytes, int], bytes]:
    """Returns the function that unpacks a segment to at most so many bytes."""
    if layout.compression == _PLAIN:
        return lambda packed, _: packed
    if layout.compression in _DEFLATE:
        return _build_codec("deflate_decode")
    if layout.compression == _LZW:
        return _build_codec("lzw_decode")
    if layout.compression == _PACKBITS:
        return _build_codec("packbits_decode")
    raise BadImageError(f"a TIFF with compression {layout.compression}: save it with LZW or deflate")


def _build_codec(name: str) -> Callable[[bytes, int], bytes]:
    decode = getattr(_import_imagecodecs(), name)

    def unpack(packed: bytes, nbytes: int) -> bytes:
        try:
            return bytes(decode(packed, out=nbytes))
        except (RuntimeError, ValueError) as error:
            raise BadImageError(f"a damaged TIFF: {error}") from error

    return unpack


def _choose_predictor(layout: ImageLayout) -> Callable[[bytes, tuple[int, ...]], Numbers]:
    """Returns the function that makes numbers of the unpacked bytes of a segment."""
    stored = layout.dtype
    if layout.predictor == _NO_PREDICTOR or layout.compression in _WITHOUT_PREDICTOR:
        return lambda data, shape: np.frombuffer(data, stored).reshape(shape)
    if layout.predictor == _DIFFERENCES:
        delta_decode = _import_imagecodecs().delta_decode
        whole, native = np.dtype(f"{stored.byteorder}u{stored.itemsize}"), np.dtype(f"=u{stored.itemsize}")

        def add_differences(data: bytes, shape: tuple[int, ...]) -> Numbers:
            summed: Numbers = delta_decode(np.frombuffer(data, whole).reshape(shape).astype(native), axis=1)
            return summed.view(stored.newbyteorder("="))

        return add_differences
    if layout.predictor == _FLOAT_DIFFERENCES and stored.kind == "f":
        floatpred_decode = _import_imagecodecs().floatpred_decode

        def add_float_differences(data: bytes, shape: tuple[int, ...]) -> Numbers:
            summed: Numbers = floatpred_decode(np.frombuffer(data, stored).reshape(shape), axis=1)
            return summed

        return add_float_differences
    raise BadImageError(f"a TIFF with predictor {layout.predictor} for {stored.name}: save it without a predictor")


def _import_imagecodecs() -> ModuleType:
    try:
        import imagecodecs  # noqa: PLC0415 - an extra, and large
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "imagecodecs", "tiff", "reading TIFF in mode raw") from error
    return imagecodecs
