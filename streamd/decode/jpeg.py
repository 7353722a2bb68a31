"""Decodes JPEG by libjpeg-turbo, at a reduced DCT scale that still covers the target.

Reduced scales are a half, a quarter and an eighth, for which libjpeg-turbo has vector code. Other scales cost more: for
a 500x375 photograph, 5/8 takes a fifth longer than full scale, and 3/8 takes longer than a half, for fewer pixels.
"""

from __future__ import annotations

import hashlib
import re
import struct
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import simplejpeg

from streamd.core.spec import ImageSpec
from streamd.decode import pillow
from streamd.decode.geometry import (
    SIDEWAYS,
    UPRIGHT,
    Draw,
    Geometry,
    compute_covering_size,
    compute_fixed_geometry,
    compute_landed_geometry,
    draw_geometry,
)
from streamd.decode.pillow import parse_orientation, turn_upright
from streamd.decode.resize import (
    BadImageError,
    Row,
    build_pil_image,
    check_image_size,
    resize_picture,
    resize_reduced_decode,
)
from streamd.limits import KIB

PixelSize = tuple[int, int]  # height, width

_SEGMENT: Final = struct.Struct(">HH")  # a marker and a length that counts itself
_MARKER: Final = re.compile(rb"\xff[^\x00\xff]")  # the next marker, after fill bytes or bytes that libjpeg skips
_SCAN: Final = 0xFFDA
_EXIF_SEGMENT: Final = 0xFFE1
_EXIF: Final = b"Exif\x00\x00"
_WITHOUT_LENGTH: Final = frozenset({0xFF01, *range(0xFFD0, _SCAN)})
_WITH_LENGTH: Final = frozenset(range(0xFF02, 0xFFFF)) - _WITHOUT_LENGTH - {_SCAN}
_MOST_SEGMENTS: Final = 1 << 16  # before the pixels: the largest colour profiles take some hundred

# What a file is taken apart by when libjpeg complains about it: the last bytes of markers.
_SCAN_BYTE: Final = _SCAN & 0xFF
_END: Final = 0xD9
_END_MARKER: Final = b"\xff\xd9"
_RESTARTS: Final = 0xDD  # says that scans have restart markers
_AFTER_RESTARTS: Final = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL_FRAMES: Final = frozenset({0xC0, 0xC1})
_PROGRESSIVE_FRAMES: Final = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
_HIERARCHICAL_FRAMES: Final = frozenset({0xC5, 0xC6, 0xCD, 0xCE})
_FRAME_BYTES: Final = 6  # bits, height, width, number of channels
_CHANNELS: Final = frozenset({1, 3, 4})
_LS_FRAME: Final = 0xF7
_KEPT_MARKERS: Final = _FRAMES | {_LS_FRAME, 0xC4, 0xCC, 0xDA, 0xDB, _RESTARTS}  # frames, tables, scans
_METADATA_MARKERS: Final = frozenset({*range(0xE0, 0xF0), 0xFE})
_ALL_COEFFICIENTS: Final = b"\x00\x3f\x00"
_JFIF_MARKER: Final = 0xE0
_JFIF: Final = b"JFIF\x00"
_KEPT_METADATA: Final = {_JFIF_MARKER: _JFIF, 0xE1: b"Exif\x00\x00", 0xEE: b"Adobe"}  # colours and orientation
_EXTRANEOUS: Final = re.compile(r"(\d+) extraneous bytes before marker 0xd9")
_READ_AHEAD_BYTES: Final = 8
_RUN: Final = re.compile(rb"(.)\1{15}", re.DOTALL)  # equal bytes, as no part of a scan with pictures in it has them

_UNKNOWN_SUBSAMPLING: Final = "Could not determine subsampling level"  # what TurboJPEG says of such a header
_REDUCTIONS: Final = (8, 4, 2)
_BUFFER_BYTES: Final = 128 * KIB  # larger decodes are written to their rows directly, see _DecodeBuffer

# The beginning of most files, as libjpeg writes it: JFIF, two quantization tables, a frame of three colours. One unpack
# then replaces a call that reads the whole header.
_USUAL: Final = struct.Struct(">6s14x5s64x5s64x5sHHBxB")
_USUAL_SEGMENTS: Final = (b"\xff\xd8\xff\xe0\x00\x10", b"\xff\xdb\x00\x43\x00", b"\xff\xdb\x00\x43\x01")
_USUAL_FRAMES: Final = frozenset({b"\xff\xc0\x00\x11\x08", b"\xff\xc2\x00\x11\x08"})  # baseline, progressive
_USUAL_SAMPLINGS: Final = frozenset({0x11, 0x21, 0x22})  # of the first colour: 4:4:4, 4:2:2, 4:2:0
# What usually follows the frame: the four Huffman tables of the standard, and the scan. A file that matches has no EXIF
# data before its pixels, so its orientation need not be searched for.
_TABLES: Final = struct.Struct(">7x4s29x4s179x4s29x4s179x2s")
_USUAL_TABLES: Final = (b"\xff\xc4\x00\x1f", b"\xff\xc4\x00\xb5", b"\xff\xc4\x00\x1f", b"\xff\xc4\x00\xb5", b"\xff\xda")


class _JpegFaultError(BadImageError):
    """libjpeg complains about a file."""

    def __init__(self, data: bytes, what: str, fault: str) -> None:
        super().__init__(_describe_unread_jpeg(data) or f"{what}: {fault}")


class _DecodeBuffer(threading.local):
    """Memory for one decode, one for each thread, which stays in the processor's cache.

    libjpeg-turbo writes past the cache into rows that begin at a multiple of 32 bytes, as the rows of a slot do. This
    memory begins between two such multiples. Decoding here and copying takes 9 % less time for 64x64, 4 % for 128x128
    and 1 % for 224x224, and leaves the pixels in the cache for the next reader of the batch.
    """

    def __init__(self) -> None:
        memory = np.empty(_BUFFER_BYTES + 32, dtype=np.uint8)
        self.memory = memory[(16 - memory.ctypes.data) % 32 :][:_BUFFER_BYTES]


_decode_buffer: Final = _DecodeBuffer()


def decode_jpeg(data: bytes, row: Row, image: ImageSpec, draw: Draw | None = None) -> Geometry:
    """Decodes a JPEG into `row`, with exact DCT and upsampling: the fast ones differ by up to six grey levels.

    Returns how the upright picture lands in the row. Raises BadImageError.
    """
    try:
        return _decode_sound_jpeg(data, row, image, draw)
    except _JpegFaultError as error:
        if _UNKNOWN_SUBSAMPLING in str(error):  # of the colours, where the header began as most do
            return pillow.decode_into_rows_with_pillow(data, [row], image, "JPEG", [draw])[0]
        return _decode_sound_jpeg(_leave_out_padding(data, error), row, image, draw)


def _decode_sound_jpeg(data: bytes, row: Row, image: ImageSpec, draw: Draw | None) -> Geometry:
    # Standard case: a file that begins as most do, in three colours, so that its header need not be read as a whole.
    usual: PixelSize | None = None
    if len(data) >= _USUAL.size:
        first, second, third, frame, height, width, colours, sampling = _USUAL.unpack_from(data)
        begins_usually = (first, second, third) == _USUAL_SEGMENTS and frame in _USUAL_FRAMES
        if begins_usually and colours == 3 and sampling in _USUAL_SAMPLINGS:  # noqa: PLR2004 - R, G, B
            usual = height, width
    if usual is not None:
        # Where only the tables of the standard lie between the usual frame and the pixels, there are no EXIF data.
        has_standard_tables = (
            len(data) >= _USUAL.size + _TABLES.size and _TABLES.unpack_from(data, _USUAL.size) == _USUAL_TABLES
        )
        orientation = UPRIGHT if has_standard_tables else _find_orientation(data, _USUAL.size)
        if usual == (image.height, image.width) and orientation == UPRIGHT and draw is None:
            _decode_unresized(data, row, image, (0, 0))
            return compute_fixed_geometry(image, usual)
        return _decode_and_resize(data, row, image, usual, orientation, draw)
    size = _read_three_colour_size(data)
    if size is None:
        return pillow.decode_into_rows_with_pillow(data, [row], image, "JPEG", [draw])[0]
    return _decode_and_resize(data, row, image, size, _find_orientation(data, 2), draw)


def decode_jpeg_into_rows(
    data: bytes, rows: Sequence[Row], image: ImageSpec, draws: Sequence[Draw | None]
) -> list[Geometry]:
    """Decodes a JPEG once, and writes what each of `draws` shows of it into the row of the same number.

    Returns how the upright picture lands in each row. Raises BadImageError.
    """
    try:
        return _decode_sound_jpeg_into_rows(data, rows, image, draws)
    except _JpegFaultError as error:
        return _decode_sound_jpeg_into_rows(_leave_out_padding(data, error), rows, image, draws)


def _decode_sound_jpeg_into_rows(
    data: bytes, rows: Sequence[Row], image: ImageSpec, draws: Sequence[Draw | None]
) -> list[Geometry]:
    size = _read_three_colour_size(data)
    if size is None:
        return pillow.decode_into_rows_with_pillow(data, rows, image, "JPEG", draws)
    check_image_size(*size)
    orientation = _find_orientation(data, 2)
    shown = _compute_upright_size(size, orientation)
    drawn = [draw_geometry(image, shown, draw).with_orientation(orientation) for draw in draws]
    # One decode serves all rows, so it covers the row that needs most.
    reduced = size if image.exact else max(_choose_reduced_size(size, orientation, image, each) for each in drawn)
    pixels = _decode_pixels(data, image, (0, 0) if reduced == size else reduced, None)
    upright = _compute_upright_size(reduced, orientation)
    for row, geometry in zip(rows, drawn, strict=True):
        _resize_upright(row, pixels, orientation, image, geometry.scale_to_source(upright))
    return drawn


def _read_three_colour_size(data: bytes) -> PixelSize | None:
    """Returns the (height, width) in a JPEG's header; None for four colours, and for subsampling such as 4:1:0.

    The first need the conversion that Pillow has, and the second are unknown to TurboJPEG's interface, but not to
    libjpeg-turbo, which Pillow uses. The header alone decides, so a file's pixels never change.
    """
    try:
        height, width, colourspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError as error:
        if _UNKNOWN_SUBSAMPLING in str(error):
            if (unread := _describe_unread_jpeg(data)) is not None:
                raise BadImageError(unread) from error
            return None
        raise _JpegFaultError(data, "a damaged JPEG header", str(error)) from error
    check_image_size(height, width)
    return None if colourspace in {"CMYK", "YCCK"} else (height, width)


def _decode_and_resize(
    data: bytes, row: Row, image: ImageSpec, size: PixelSize, orientation: int, draw: Draw | None
) -> Geometry:
    check_image_size(*size)
    shown = _compute_upright_size(size, orientation)
    drawn = None if draw is None else draw_geometry(image, shown, draw).with_orientation(orientation)
    reduced = size if image.exact else _choose_reduced_size(size, orientation, image, drawn)
    # A crop was drawn on the upright picture at full size, and is cut from the upright reduced decode.
    upright = _compute_upright_size(reduced, orientation)
    part = compute_fixed_geometry(image, upright) if drawn is None else drawn.scale_to_source(upright)
    # simplejpeg decodes at the smallest scale that is not below `least`, which is `reduced`; (0, 0) is full size.
    least = (0, 0) if reduced == size else reduced
    if reduced == (image.height, image.width) and orientation == UPRIGHT and drawn is None:
        _decode_unresized(data, row, image, least)
        return compute_landed_geometry(image, upright, shown)
    _resize_upright(row, _decode_pixels(data, image, least, None), orientation, image, part)
    return compute_landed_geometry(image, upright, shown).with_orientation(orientation) if drawn is None else drawn


def _resize_upright(row: Row, pixels: Row, orientation: int, image: ImageSpec, part: Geometry) -> None:
    """Turns a decode upright, and resizes the part of it that `part` shows into its place in `row`."""
    if image.exact:
        resize_picture(row, turn_upright(build_pil_image(pixels), orientation), part, image.fill)
    elif orientation == UPRIGHT:
        resize_reduced_decode(row, pixels, part, image.fill)
    else:
        turned = turn_upright(build_pil_image(pixels), orientation)
        upright_pixels = np.asarray(turned).reshape(turned.height, turned.width, image.channels)
        resize_reduced_decode(row, upright_pixels, part, image.fill)


def _decode_unresized(data: bytes, row: Row, image: ImageSpec, least: PixelSize) -> None:
    """Decodes a JPEG into `row`, whose size it has when it is decoded to no less than `least`."""
    if row.nbytes > _BUFFER_BYTES:
        _decode_pixels(data, image, least, row)
    else:
        row[:] = _decode_pixels(data, image, least, _decode_buffer.memory)


def _decode_pixels(data: bytes, image: ImageSpec, least: PixelSize, buffer: Row | None) -> Row:
    colour = "RGB" if image.channels == 3 else "GRAY"  # noqa: PLR2004 - three colours
    try:
        pixels: Row = simplejpeg.decode_jpeg(data, colour, min_height=least[0], min_width=least[1], buffer=buffer)
    except ValueError as error:
        raise _JpegFaultError(data, "a damaged JPEG", str(error)) from error
    return pixels


def _compute_upright_size(size: PixelSize, orientation: int) -> PixelSize:
    """Returns the (height, width) that a stored size has once it is turned upright."""
    return (size[1], size[0]) if orientation >= SIDEWAYS else size


def _choose_reduced_size(size: PixelSize, orientation: int, image: ImageSpec, drawn: Geometry | None) -> PixelSize:
    """Returns the stored (height, width) at the smallest scale that is not below the target, else the full size."""
    shown = _compute_upright_size(size, orientation)
    for reduction in _REDUCTIONS:
        reduced = -(-size[0] // reduction), -(-size[1] // reduction)
        upright = _compute_upright_size(reduced, orientation)
        # What is shown of the reduced picture, and the target that it must not fall below.
        if drawn is None:
            (high, wide), (height, width) = upright, compute_covering_size(*shown, image)
        else:
            left, top, right, bottom = drawn.scale_to_source(upright).pixel_box
            (high, wide), (height, width) = (bottom - top, right - left), drawn.place_size
        if high >= height and wide >= width:
            return reduced
    return size


def read_jpeg_geometry(data: bytes, image: ImageSpec) -> Geometry | None:
    """Returns how a JPEG lands, from its header alone; None for the few that Pillow decodes. Raises BadImageError."""
    size = _read_three_colour_size(data)
    if size is None:
        return None
    orientation = _find_orientation(data, 2)
    return compute_fixed_geometry(image, _compute_upright_size(size, orientation)).with_orientation(orientation)


def list_possible_geometries(image: ImageSpec, size: PixelSize) -> list[Geometry]:
    """Returns how an upright picture of `size` lands without a draw: as any file, and as a JPEG at a reduced scale."""
    found = [compute_fixed_geometry(image, size)]
    if not image.exact and image.mode not in {"index", "raw"}:
        found.append(compute_landed_geometry(image, _choose_reduced_size(size, UPRIGHT, image, None), size))
    return found


class _Segment(NamedTuple):
    """A segment of a file: its marker, `start` to `end` with its scan if it begins one, and its content."""

    marker: int
    start: int
    end: int
    body: bytes


def _iterate_segments(data: bytes) -> Iterator[_Segment]:
    """Yields the segments that libjpeg reads pixels by, and EXIF data, whatever lies between them.

    Ends at the end marker, at the end of the file, and after as many segments as a hostile file may hold.
    """
    at, behind_scan = 2, _MARKER
    for _ in range(_MOST_SEGMENTS):
        found = _MARKER.search(data, at)
        if found is None or data[found.end() - 1] == _END or len(data) < found.end() + 2:
            return
        at, marker = found.end(), data[found.end() - 1]
        if marker in _KEPT_MARKERS or marker in _METADATA_MARKERS:
            end = at + int.from_bytes(data[at : at + 2])
            body = data[at + 2 : end]
            if marker == _RESTARTS:
                behind_scan = _AFTER_RESTARTS
            elif marker == _SCAN_BYTE:
                behind = behind_scan.search(data, end)
                end = len(data) if behind is None else behind.start()
            prefix = _KEPT_METADATA.get(marker)
            if marker in _KEPT_MARKERS or (prefix is not None and body.startswith(prefix)):
                yield _Segment(marker, found.start(), end, body)
            at = end


def _describe_unread_jpeg(data: bytes) -> str | None:
    """Returns the kind of a JPEG that no decoder here reads; None for one that is read, and may be damaged."""
    frame = next((each for each in _iterate_segments(data) if each.marker in {*_FRAMES, _LS_FRAME}), None)
    if frame is None or len(frame.body) < _FRAME_BYTES:
        return None
    bits, channels = frame.body[0], frame.body[_FRAME_BYTES - 1]
    if frame.marker == _LS_FRAME:
        return "a JPEG-LS image: convert it to JPEG or PNG"
    if frame.marker in _HIERARCHICAL_FRAMES:
        return "a hierarchical JPEG: convert it to a plain JPEG or PNG"
    if bits != 8:  # noqa: PLR2004 - a byte
        return f"a JPEG of {bits} bits per channel: convert it to 8 bits, or to a PNG of 16 bits"
    return None if channels in _CHANNELS else f"a JPEG of {channels} channels: convert it to RGB"


def _leave_out_padding(data: bytes, error: _JpegFaultError) -> bytes:
    """Returns the JPEG without what libjpeg complains of, where that decides on no pixel; else raises `error`.

    Left out are metadata, bytes between segments, and the bytes that cameras, scanners and file systems leave behind
    the last scan or in place of the end marker. What is kept must show the whole picture, without a complaint.
    """
    segments = [*_iterate_segments(data)]
    while segments and segments[-1].marker != _SCAN_BYTE:
        segments.pop()
    if not _is_shown_whole(segments):
        raise error
    kept, is_sequential = [data[:2]], False
    for segment in segments:
        piece = data[segment.start : segment.end]
        if segment.marker in _FRAMES:
            # Before anything is decoded: a header that libjpeg complains of was not asked for the size.
            check_image_size(int.from_bytes(segment.body[1:3]), int.from_bytes(segment.body[3:5]))
            is_sequential = segment.marker in _SEQUENTIAL_FRAMES
        elif segment.marker == _JFIF_MARKER:
            # libjpeg knows version 1 only, and all versions say the same of the pixels.
            piece = piece[: 4 + len(_JFIF)] + b"\1" + piece[5 + len(_JFIF) :]
        elif segment.marker == _SCAN_BYTE and is_sequential:
            # A sequential scan has all coefficients, whatever it says of their range.
            head = 4 + len(segment.body)
            piece = piece[: head - 3] + _ALL_COEFFICIENTS + piece[head:]
        kept.append(piece)
    plain = b"".join(kept)
    fault = _find_fault(plain + _END_MARKER)
    if fault is None:
        return plain + _END_MARKER
    found = _EXTRANEOUS.search(fault)
    if found is None:
        raise error
    # libjpeg reads some bytes ahead, and does not count those.
    most = len(plain) - int(found[1])
    ends = range(most - _READ_AHEAD_BYTES, most + 1)
    place = bisect_left(ends, True, key=lambda each: _find_fault(plain[:each] + _END_MARKER) is None)
    if place == len(ends):
        raise error
    end, scan = ends[place], segments[-1]
    if not _is_end_of_scan(plain, len(plain) - (scan.end - scan.start) + 4 + len(scan.body), end):
        raise error
    return plain[:end] + _END_MARKER


def _is_shown_whole(segments: Sequence[_Segment]) -> bool:
    """Whether the scans hold all coefficients of all channels, in full precision: a file may end between two scans."""
    missing, is_progressive = {(-1, -1)}, False
    for segment in segments:
        if segment.marker in _FRAMES:
            missing = {(channel, place) for channel in segment.body[_FRAME_BYTES::3] for place in range(64)}
            is_progressive = segment.marker in _PROGRESSIVE_FRAMES
        elif segment.marker == _SCAN_BYTE and segment.body:
            count = 2 * segment.body[0]
            first, last, precision = segment.body[count + 1 : count + 4].ljust(3, b"\xff")
            places = range(64) if not is_progressive else range(first, last + 1) if not precision & 15 else ()
            missing -= {(channel, place) for channel in segment.body[1 : count + 1 : 2] for place in places}
    return not missing


def _is_end_of_scan(data: bytes, start: int, end: int) -> bool:
    """Whether a scan from `start`, which is read up to `end`, ended there when it was written.

    Where a part of a scan is missing or wrong, the decoder takes other bytes for pixels. Its last byte then mostly has
    bits behind the last code that are not all ones, as an encoder writes them, or holes show as runs of equal bytes.
    """
    if _RUN.search(data, start, end + 1) is not None:
        return False
    is_stuffed = data[end - 2 : end] == b"\xff\x00"
    if data[end - 1] == data[end] and not is_stuffed:
        return False
    last = 0xFF if is_stuffed else data[end - 1]
    ones = next((place for place in range(8) if not last >> place & 1), 8)
    if ones >= 7:  # noqa: PLR2004 - at least one bit of the last byte belongs to the scan
        return True
    # If the last bit that is not set belongs to no code, its value changes nothing.
    changed = bytes((last | 1 << ones,)).replace(b"\xff", b"\xff\x00")
    other = data[: end - 1] + changed + _END_MARKER
    return _find_fault(other) is not None or _hash_pixels(other) != _hash_pixels(data[:end] + _END_MARKER)


def _find_fault(data: bytes) -> str | None:
    """Returns what libjpeg complains of; None for a sound file. The smallest scale is enough to read all of it."""
    try:
        simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1)
    except ValueError as error:
        return str(error)
    return None


def _hash_pixels(data: bytes) -> bytes:
    return hashlib.blake2b(simplejpeg.decode_jpeg(data, "RGB"), digest_size=16).digest()


def _find_orientation(data: bytes, start: int) -> int:
    """Returns the orientation from the EXIF data between `start` and the pixels, 1 (upright) if there are none.

    Data that span several segments are joined. Raises BadImageError for more segments than any picture has.
    """
    at, exif = start, list[bytes]()
    # Bounded, since a hostile file could hold millions of empty segments.
    for _ in range(_MOST_SEGMENTS):
        if at + _SEGMENT.size > len(data):
            break
        marker, length = _SEGMENT.unpack_from(data, at)
        if marker in _WITH_LENGTH:
            if marker == _EXIF_SEGMENT and data.startswith(_EXIF, at + _SEGMENT.size):
                exif.append(data[at + _SEGMENT.size + len(_EXIF) : at + 2 + length])
            at += 2 + length
        elif marker in _WITHOUT_LENGTH:
            at += 2
        elif marker == _SCAN or (found := _MARKER.search(data, at)) is None:
            break
        else:
            at = found.start()
    else:
        raise BadImageError(f"more than {_MOST_SEGMENTS:,} segments before its pixels: save it again")
    return parse_orientation(b"".join(exif)) if exif else UPRIGHT
