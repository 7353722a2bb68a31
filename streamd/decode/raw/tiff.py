"""The numbers of a TIFF: tifffile reads its directories, and `tiff_segments` its strips and tiles.

The full-size pages of a file make up one picture: their channels follow each other. Reduced copies of it, as a GeoTIFF
has, and masks are left out. Dialects that do not say what their numbers are, or keep them in another form, are refused.
"""

from __future__ import annotations

import importlib
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from math import prod
from types import ModuleType
from typing import Any, Final

import numpy as np

from streamd.core.text import format_count
from streamd.decode.geometry import UPRIGHT
from streamd.decode.raw.picture import Numbers, RawForm, RawPicture, check_raw_form
from streamd.decode.resize import BadImageError
from streamd.errors import MissingExtraError
from streamd.limits import MAX_RAW_BYTES, MAX_TIFF_PAGES, MIB

_SUBFILE_TYPE: Final = 254
_WIDTH: Final = 256
_LENGTH: Final = 257
_BITS: Final = 258
_COMPRESSION: Final = 259
_PHOTOMETRIC: Final = 262
_FILL_ORDER: Final = 266
_STRIP_OFFSETS: Final = 273
_ORIENTATION: Final = 274
_SAMPLES: Final = 277
_ROWS_PER_STRIP: Final = 278
_STRIP_BYTES: Final = 279
_PLANES: Final = 284
_PREDICTOR: Final = 317
_TILE_WIDTH: Final = 322
_TILE_LENGTH: Final = 323
_TILE_OFFSETS: Final = 324
_TILE_BYTES: Final = 325
_SAMPLE_FORMAT: Final = 339

_REDUCED_OR_MASK: Final = 1 | 4
_LEVELS: Final = frozenset({0, 1, 2, 5})  # photometric: white or black is 0, RGB, CMYK: plain levels, kept as they are
_PALETTE: Final = 3
_SEPARATE_PLANES: Final = 2
_REVERSED_BITS: Final = 2
_KINDS: Final = {1: "u", 2: "i", 3: "f"}
_NO_LIMIT: Final = 1 << 32
# What tifffile raises for a damaged directory, besides its own error, which is a ValueError.
_FAULTS: Final = (OSError, ValueError, LookupError, TypeError, ArithmeticError, AttributeError, struct.error)
_FAULTS_OF_CODE: Final = (AssertionError, RuntimeError, NotImplementedError)

Tags = Any  # tifffile's tags of a page


def read_raw_tiff(data: bytes, form: RawForm) -> RawPicture:
    """Returns the numbers of a TIFF or BigTIFF, those of its full-size pages one behind the other.

    Raises BadImageError, and MissingExtraError without tifffile and imagecodecs.
    """
    tifffile = _import_extra("tifffile")
    # It logs the contents of hostile files; what concerns their numbers is refused here.
    logging.getLogger("tifffile").disabled = True
    # The flags keep tifffile from following the private tables of some microscopes.
    flags = {"is_lsm": False, "is_scanimage": False, "is_ndpi": False}
    try:
        with tifffile.TiffFile(BytesIO(data), _multifile=False, **flags) as file:
            layouts, orientation = _list_layouts(file)
    except (*_FAULTS, *_FAULTS_OF_CODE) as error:
        raise BadImageError(f"a damaged TIFF: its directory cannot be read ({type(error).__name__})") from error
    first = layouts[0]
    other = next((each for each in layouts if (each.height, each.width) != (first.height, first.width)), None)
    if other is not None or len({each.dtype for each in layouts}) > 1:
        raise BadImageError(
            f"a TIFF of {len(layouts)} pages that differ in size or type: keep those of one picture in one file"
        )
    channels = sum(each.samples for each in layouts)
    check_raw_form(form, first.height, first.width, channels, first.dtype)
    numbers = np.empty((first.height, first.width, channels), first.dtype.newbyteorder("="))
    start = 0
    for layout in layouts:
        read_segments(data, layout, numbers[:, :, start : start + layout.samples])
        start += layout.samples
    return RawPicture(numbers, orientation)


def _import_extra(name: str) -> ModuleType:
    """Returns tifffile or imagecodecs, which is large. Raises MissingExtraError."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or name, "tiff", "reading TIFF in mode raw") from error


def _list_layouts(file: Any) -> tuple[list[ImageLayout], int]:
    """Returns the layout of each full-size page, and the orientation of the first."""
    layouts: list[ImageLayout] = []
    orientation = UPRIGHT
    for number in range(MAX_TIFF_PAGES + 1):
        try:
            tags = file.pages[number].tags
        except IndexError:
            break
        if number == MAX_TIFF_PAGES:
            raise BadImageError(f"a TIFF of more than {MAX_TIFF_PAGES} pages: keep each picture in a file of its own")
        if _read_number(tags, _SUBFILE_TYPE, 0) & _REDUCED_OR_MASK:
            continue
        if not layouts:
            orientation = _read_number(tags, _ORIENTATION, UPRIGHT)
        layouts.append(_read_layout(tags, file.byteorder))
    if not layouts:
        raise BadImageError("a TIFF without a page of full size: write it again")
    return layouts, orientation if orientation in range(1, 9) else UPRIGHT


def _read_layout(tags: Tags, byte_order: str) -> ImageLayout:
    """Returns how a page stores its numbers. Raises BadImageError for a dialect whose numbers are not plain."""
    photometric = _read_number(tags, _PHOTOMETRIC, 1)
    if photometric == _PALETTE:
        raise BadImageError("a TIFF with a palette, whose numbers are no levels: use mode: index, or save it as RGB")
    if photometric not in _LEVELS:
        raise BadImageError(f"a TIFF with colours of kind {photometric}: save it as grey levels or RGB")
    if _read_number(tags, _FILL_ORDER, 1) == _REVERSED_BITS:
        raise BadImageError("a TIFF whose bytes have their bits in reverse order: save it again")
    # The type of its numbers, in the byte order of the file.
    bits, formats = set(_read_numbers(tags, _BITS) or (1,)), set(_read_numbers(tags, _SAMPLE_FORMAT) or (1,))
    if len(bits) > 1 or len(formats) > 1:
        raise BadImageError("a TIFF whose channels differ in depth: save them with equal depth")
    (depth,), (kind,) = bits, formats
    known = _KINDS.get(kind)
    if known is None or depth not in {8, 16, 32, 64} or (known == "f" and depth == 8):  # noqa: PLR2004 - whole bytes
        raise BadImageError(
            f"a TIFF of {format_count(depth, 'bit')} per channel, format {kind}: save it as uint8, uint16 or float32"
        )
    height, width = _read_number(tags, _LENGTH, 0), _read_number(tags, _WIDTH, 0)
    is_tiled = _TILE_OFFSETS in tags
    offsets = _read_numbers(tags, _TILE_OFFSETS if is_tiled else _STRIP_OFFSETS)
    counts = _read_numbers(tags, _TILE_BYTES if is_tiled else _STRIP_BYTES)
    rows = min(_read_number(tags, _ROWS_PER_STRIP, _NO_LIMIT), height)
    segment = (_read_number(tags, _TILE_LENGTH, 0), _read_number(tags, _TILE_WIDTH, 0)) if is_tiled else (rows, width)
    return ImageLayout(
        height,
        width,
        _read_number(tags, _SAMPLES, 1),
        np.dtype(f"{byte_order}{known}{depth // 8}"),
        segment=segment,
        is_tiled=is_tiled,
        is_planar=_read_number(tags, _PLANES, 1) == _SEPARATE_PLANES,
        compression=_read_number(tags, _COMPRESSION, 1),
        predictor=_read_number(tags, _PREDICTOR, 1),
        offsets=offsets,
        counts=counts,
    )


def _read_number(tags: Tags, code: int, default: int) -> int:
    values = _read_numbers(tags, code)
    return values[0] if values else default


def _read_numbers(tags: Tags, code: int) -> tuple[int, ...]:
    """Returns the whole numbers of a tag, empty if the page has none. Raises BadImageError for other values."""
    value = tags.valueof(code)
    values = () if value is None else value if isinstance(value, tuple) else (value,)
    if not all(isinstance(each, int) and each >= 0 for each in values):
        raise BadImageError(f"a damaged TIFF: its tag {code} is no number")
    return tuple(map(int, values))


# --- The strips and tiles of a TIFF: unpacked to exactly as many bytes as they must have, and put in their places.


_PLAIN: Final = 1
_PACKBITS: Final = 32773
_CODECS: Final = {  # of imagecodecs, by compression; deflate has Adobe's number and the older one
    5: "lzw_decode",
    8: "deflate_decode",
    32946: "deflate_decode",
    _PACKBITS: "packbits_decode",
}
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
    if layout.compression not in _CODECS:
        raise BadImageError(f"a TIFF with compression {layout.compression}: save it with LZW or deflate")
    decode = getattr(_import_extra("imagecodecs"), _CODECS[layout.compression])

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
        delta_decode = _import_extra("imagecodecs").delta_decode
        whole, native = np.dtype(f"{stored.byteorder}u{stored.itemsize}"), np.dtype(f"=u{stored.itemsize}")

        def add_differences(data: bytes, shape: tuple[int, ...]) -> Numbers:
            summed: Numbers = delta_decode(np.frombuffer(data, whole).reshape(shape).astype(native), axis=1)
            return summed.view(stored.newbyteorder("="))

        return add_differences
    if layout.predictor == _FLOAT_DIFFERENCES and stored.kind == "f":
        floatpred_decode = _import_extra("imagecodecs").floatpred_decode

        def add_float_differences(data: bytes, shape: tuple[int, ...]) -> Numbers:
            summed: Numbers = floatpred_decode(np.frombuffer(data, stored).reshape(shape), axis=1)
            return summed

        return add_float_differences
    raise BadImageError(f"a TIFF with predictor {layout.predictor} for {stored.name}: save it without a predictor")
