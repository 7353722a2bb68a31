"""Decodes one file into a row of numbers as they are stored, for `mode: raw`: PNG, TIFF or .npy, by its content.

Numbers are uint8, uint16 or float32, of 1 to 32 channels. PNG of 16 bits a channel is read by OpenCV, and TIFF by
tifffile and the codecs of imagecodecs.
"""

from __future__ import annotations

import importlib
import logging
import struct
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import prod
from tokenize import TokenError
from types import ModuleType
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy
from PIL import Image

from streamd.core.spec import ImageSpec
from streamd.core.text import format_count
from streamd.decode.geometry import UPRIGHT, Box, Draw, Geometry, draw_geometry
from streamd.decode.pillow import PNG_EXIF, iterate_png_chunks, parse_orientation, read_with_pillow
from streamd.decode.resize import BadImageError, check_image_size
from streamd.decode.sniff import detect_format
from streamd.errors import MissingExtraError
from streamd.limits import MAX_RAW_BYTES, MAX_TIFF_PAGES, MIB

# --- The numbers of one picture as they are stored, and what a stream expects of them.

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


# --- The numbers of a TIFF, whose directories tifffile reads.
#
# The full-size pages of a file make up one picture: their channels follow each other. Reduced copies of it, as a
# GeoTIFF has, and masks are left out. Dialects that do not say what their numbers are, or keep them in another form,
# are refused.

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


# --- The numbers of a PNG: by Pillow, and where Pillow would cut 16 bits to 8, by OpenCV, which reads them by libpng.

cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # what it prints about a file has no file's name


class _StoredPixels(NamedTuple):
    """How a PNG stores its pixels. `scale` is what Pillow multiplies levels of fewer than 8 bits by."""

    channels: int
    bits: int = 8
    scale: int = 1


_UINT8: Final = np.dtype(np.uint8)
_UINT16: Final = np.dtype(np.uint16)
_DEEP: Final = 16
_STORED: Final = {  # by Pillow's name of the stored pixels
    "1": _StoredPixels(1),
    "L;2": _StoredPixels(1, scale=85),
    "L;4": _StoredPixels(1, scale=17),
    "L": _StoredPixels(1),
    "LA": _StoredPixels(2),
    "RGB": _StoredPixels(3),
    "RGBA": _StoredPixels(4),
    "I;16B": _StoredPixels(1, _DEEP),
    "LA;16B": _StoredPixels(2, _DEEP),
    "RGB;16B": _StoredPixels(3, _DEEP),
    "RGBA;16B": _StoredPixels(4, _DEEP),
}
_PLANES_OF_OPENCV: Final = {1: [0], 2: [0, 3], 3: [2, 1, 0], 4: [2, 1, 0, 3]}  # it has blue first, and no grey-alpha
_ANIMATION: Final = b"acTL"


def read_raw_png(data: bytes, form: RawForm) -> RawPicture:
    """Returns the levels of a PNG as they are stored: those of 1, 2 and 4 bits as uint8, those of 16 as uint16.

    A transparent colour and a colour space change no level. Raises BadImageError, MemoryError.
    """
    return read_with_pillow(data, "PNG", lambda each: _read_levels(each, form))


def _read_levels(data: bytes, form: RawForm) -> RawPicture:
    with Image.open(BytesIO(data), formats=("PNG",)) as picture:
        check_image_size(picture.height, picture.width)
        name = str(picture.tile[0].args) if picture.tile else ""
        if name.startswith("P"):
            raise BadImageError(
                "a PNG with a palette, whose numbers are no levels: use mode: index to keep them, or mode: RGB"
            )
        stored = _STORED.get(name)
        if stored is None:
            raise BadImageError(f"a PNG whose pixels are stored as {name or 'nothing'}: save it again")
        dtype = _UINT16 if stored.bits == _DEEP else _UINT8
        check_raw_form(form, picture.height, picture.width, stored.channels, dtype)
        if stored.bits == _DEEP:
            return _read_deep(data, (picture.height, picture.width, stored.channels))
        picture.load()
        exif = picture.info.get("exif")
        numbers = np.array(picture, dtype=np.uint8).reshape(picture.height, picture.width, stored.channels)
        return RawPicture(
            numbers // np.uint8(stored.scale) if stored.scale > 1 else numbers,
            parse_orientation(exif) if isinstance(exif, bytes) else UPRIGHT,
        )


def _read_deep(data: bytes, shape: tuple[int, int, int]) -> RawPicture:
    chunks = dict(iterate_png_chunks(data))
    if _ANIMATION in chunks:
        raise BadImageError("an animation of 16 bits per channel: save its picture as a PNG of its own")
    try:
        found = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        if error.code == cv2.Error.StsNoMem:
            raise MemoryError(str(error)) from error
        raise BadImageError("a damaged PNG: its pixels cannot be decoded") from error
    if found is None:
        raise BadImageError("a damaged PNG: its pixels cannot be decoded")
    # The stored channels: OpenCV adds some for grey with alpha and for transparency.
    planes: Numbers = found.reshape(*found.shape[:2], -1)
    picked = _PLANES_OF_OPENCV[shape[2]]
    if planes.dtype != np.uint16 or planes.shape[:2] != shape[:2] or planes.shape[2] <= max(picked):
        raise BadImageError(f"a PNG that decodes to {planes.dtype} {planes.shape}: save it again")
    exif = data[chunks[PNG_EXIF]] if PNG_EXIF in chunks else b""
    return RawPicture(planes[:, :, picked], parse_orientation(exif) if exif else UPRIGHT)


# --- Decodes one file into a row of numbers as they are stored: PNG, TIFF or .npy, chosen by its content.

_READERS: Final[dict[str, Callable[[bytes, RawForm], RawPicture]]] = {"PNG": read_raw_png, "TIFF": read_raw_tiff}


def decode_raw_into_rows(
    data: bytes, rows: Sequence[Numbers], image: ImageSpec, draws: Sequence[Draw | None]
) -> list[Geometry]:
    """Reads a file once, and writes what each of `draws` shows of it into the row of the same number.

    Rows are (height, width, channels) of the dtype of `image`. Returns how the upright picture lands in each; see
    `decode_image`.
    """
    picture = read_raw_picture(data, RawForm(image.channels, image.dtype))
    numbers = picture.turn_upright()
    size, orientation = (numbers.shape[0], numbers.shape[1]), picture.orientation
    drawn = [draw_geometry(image, size, draw).with_orientation(orientation) for draw in draws]
    for row, geometry in zip(rows, drawn, strict=True):
        resize_numbers(row, numbers, geometry, image.fill)
    return drawn


def read_raw_picture(data: bytes, form: RawForm) -> RawPicture:
    """Returns the numbers of a file as they are stored.

    Raises BadImageError if the bytes are at fault, or hold other channels than expected; MissingExtraError if a TIFF
    needs libraries that are not installed.
    """
    if data.startswith(NPY_MAGIC):
        return read_raw_npy(data, form)
    name = detect_format(data)
    reader = _READERS.get(name)
    if reader is None:
        raise BadImageError(f"a {name}, whose numbers are no measurements: mode raw reads PNG, TIFF and .npy")
    return reader(data, form)


# --- Pictures that are arrays of NumPy, each in a file of its own.


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
    if len(shape) not in {_GREY, _COLOUR} or min(shape) < 1:
        raise BadImageError(
            f"its array has the shape {shape}: save (height, width, channels), (channels, height, width) or (height, "
            "width)"
        )
    first, second, last = shape if len(shape) == _COLOUR else (*shape, 1)
    is_channels_first = len(shape) == _COLOUR and last != form.channels and first == form.channels
    height, width, channels = (second, last, first) if is_channels_first else (first, second, last)
    check_raw_form(form, height, width, channels, dtype)
    if len(data) - file.tell() < prod(shape) * dtype.itemsize:
        raise BadImageError("an .npy file that is truncated before its numbers end")
    stored = np.frombuffer(data, dtype, prod(shape), file.tell()).reshape(shape, order="F" if in_columns else "C")
    whole = stored.reshape(height, width, 1) if len(shape) == _GREY else stored
    numbers: np.ndarray[Any, Any] = np.moveaxis(whole, 0, -1) if is_channels_first else whole
    return RawPicture(numbers.astype(dtype.newbyteorder("="), copy=False))
