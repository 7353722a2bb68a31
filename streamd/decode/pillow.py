"""Decodes all formats but three-colour JPEG by Pillow. Only the detected format may open, and bombs are refused.

Every kind of pixel that Pillow knows becomes plain RGB or L: transparency is laid on white, deep levels are scaled to 8
bits. TIFF has many dialects, of which the plain ones are accepted.
"""

from __future__ import annotations

import re
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import AvifImagePlugin, Image, ImageFile, ImagePalette, PngImagePlugin, UnidentifiedImageError, features
from PIL import TiffImagePlugin as Tiff

from streamd.core.spec import ImageSpec
from streamd.core.text import format_count
from streamd.decode.geometry import UPRIGHT, Draw, Geometry, draw_geometry
from streamd.decode.resize import BadImageError, Row, check_image_size, resize_picture
from streamd.errors import ConfigError
from streamd.limits import MAX_PIXELS

PlainMode = Literal["RGB", "L", "RGBA"]
FloatLevels = npt.NDArray[np.float32]
PixelBox = tuple[int, int, int, int]  # left, top, right, bottom
Read = TypeVar("Read")
Storage = TypeVar("Storage")

# Some formats allocate all pixels when they are opened. Pillow refuses before that, at twice the number set here.
Image.MAX_IMAGE_PIXELS = MAX_PIXELS // 2
AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # there is a worker for every core already

_CONVERSIONS: Final[dict[int, Callable[[Image.Image, PixelStorage], Image.Image]]] = {  # by channels
    1: lambda picture, storage: convert_to_plain_mode(picture, "L", storage),
    3: lambda picture, storage: convert_to_plain_mode(picture, "RGB", storage),
    4: lambda picture, storage: convert_to_plain_mode(picture, "RGBA", storage),
}
_LIBRARIES: Final = {"PNG": "zlib", "WEBP": "webp", "AVIF": "avif", "TIFF": "libtiff", "JPEG": "jpg"}
# RuntimeError is what the AVIF decoder raises. The rest comes from plugins that trust a file's own numbers: a palette
# with levels above 255 overflows a byte, and a picture with a palette may have none, which Pillow asserts.
_FAULTS: Final = (
    *(OSError, ValueError, SyntaxError, EOFError, LookupError, TypeError, RuntimeError, struct.error),
    *(ArithmeticError, AssertionError),
)
_NO_REASON: Final = "what it says of itself does not agree"  # an assertion has no text
# The level of white in modes of more than 8 bits a channel. It depends on the mode and never on the picture: taken from
# the brightest pixel, white would be another level in every file.
_WHITE: Final = {"I;16": 65535.0, "I;16B": 65535.0, "I;16L": 65535.0, "I": 65535.0, "F": 1.0}
_WHITE_LEVEL: Final = 255
_BAND_PIXELS: Final = 1 << 18  # converted at a time: a megabyte, even for the largest picture
# Other compressions are rare, and each would be one more decoder that reads hostile bytes.
_COMPRESSIONS: Final = frozenset(
    {"raw", "tiff_ccitt", "group3", "group4", "tiff_lzw", "jpeg", "tiff_adobe_deflate", "tiff_deflate", "packbits"}
)
_SUBFILE_TYPE: Final = 254
_PREVIEW: Final = 1
_WHITE_IS_ZERO: Final = 0
_YCBCR: Final = 6
_SIGNED: Final = 2
_TWELVE_BITS: Final = 4095.0
_SEPARATE_PLANES: Final = 2
_BIG_TIFF: Final = 43
_FILE_ORDER: Final = re.compile(r"(;16|;32)[BL]?([SF]?)$")  # in the raw modes of numbers that have an order of bytes
_TIFF_NUMBERS: Final = {1: "whole numbers", 2: "signed numbers", 3: "fractions", 4: "numbers", 5: "complex numbers"}
_TIFF_COLOURS: Final = {0: "white is 0", 1: "grey", 2: "RGB", 3: "palette", 5: "inks", 6: "YCbCr", 8: "CIELAB"}
_MOST_BITS: Final = 64
_RAW_NUMBERS: Final = frozenset({(1, 8), (1, 16), (3, 32)})  # sample format and bits of what mode raw reads ...
_RAW_COLOURS: Final = frozenset({0, 1, 2, 5})  # ... and its colours
_OTHER_COMPRESSIONS: Final = {33003: "JPEG 2000", 34712: "JPEG 2000", 34887: "LERC", 34933: "PNG", 50002: "JPEG XL"}
# A BMP's palette of grey that Pillow takes for levels, by the raw mode that it chooses and the bits that a pixel has.
_MISREAD_BMPS: Final = frozenset({("L", 1), ("L", 2), ("L", 4), ("1", 2), ("1", 4), ("1", 8)})
_OS2_HEADER_BYTES: Final = 12
# Chunks of a PNG: length and name, the content, a checksum. All others but the critical ones are metadata.
_PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_PNG_CHUNK: Final = struct.Struct(">I4s")
_CHECKSUM_BYTES: Final = 4
_ANCILLARY: Final = 0x20
_PIXEL_CHUNKS: Final = frozenset({b"tRNS", b"acTL", b"fcTL", b"fdAT"})
PNG_EXIF: Final = b"eXIf"
# Chunks of a WebP: name and length, the content, a byte if it is odd.
_RIFF_CHUNK: Final = struct.Struct("<4sI")
_RIFF_HEAD_BYTES: Final = 12
_WEBP_PIXEL_CHUNKS: Final = frozenset({b"VP8X", b"VP8 ", b"VP8L", b"ALPH", b"ANIM", b"ANMF"})
_WEBP_EXIF: Final = b"EXIF"
_WEBP_EXIF_FLAG: Final = 0b1000
_WEBP_METADATA: Final = 0b101100  # flags of the header: profile, EXIF, XMP


def decode_into_rows_with_pillow(
    data: bytes, rows: Sequence[Row], image: ImageSpec, format_name: str, draws: Sequence[Draw | None]
) -> list[Geometry]:
    """Decodes an image of a known format once, and writes what each of `draws` shows of it into the row of that number.

    It is turned upright, and 16 bits are scaled to 8. Alpha is laid on white, except in mode RGBA. Returns how the
    upright picture lands in each row.

    Raises BadImageError if the bytes are at fault, ConfigError if this Pillow cannot read the format.
    """
    convert = _CONVERSIONS[image.channels]
    picture, orientation = load_upright_with_pillow(data, format_name, _find_pixel_storage, convert)
    size = picture.height, picture.width
    drawn = [draw_geometry(image, size, draw).with_orientation(orientation) for draw in draws]
    for row, geometry in zip(rows, drawn, strict=True):
        resize_picture(row, picture, geometry, image.fill)
    return drawn


def load_upright_with_pillow(
    data: bytes,
    format_name: str,
    inspect: Callable[[ImageFile.ImageFile, bytes], Storage],
    convert: Callable[[Image.Image, Storage], Image.Image],
) -> tuple[Image.Image, int]:
    """Returns the first picture of a file of a known format, upright, and the orientation that it is stored in.

    `inspect` receives the picture and its file before the pixels are decoded. What it returns is passed on to
    `convert`, with the decoded picture. Raises BadImageError and ConfigError.
    """
    check_format_support(format_name)

    def load(file: bytes) -> tuple[Image.Image, int]:
        with Image.open(BytesIO(file), formats=(format_name,)) as picture:
            # All checks come before load(), which allocates all pixels and decodes them.
            check_image_size(picture.height, picture.width)
            storage = inspect(picture, file)
            picture.info.pop("xmp", None)  # Pillow would turn a TIFF by it
            picture.load()
            exif = picture.info.get("exif")
            orientation = parse_orientation(exif) if isinstance(exif, bytes) else UPRIGHT
            return convert(picture, storage), orientation

    # Turned after the decoder's own copy of the pixels is freed: memory never holds three copies.
    picture, orientation = read_with_pillow(data, format_name, load)
    return turn_upright(picture, orientation), orientation


@lru_cache(maxsize=16)
def check_format_support(format_name: str) -> None:
    """Raises ConfigError if this Pillow cannot read the format."""
    library = _LIBRARIES.get(format_name)
    if library is not None and not features.check(library):
        raise ConfigError(
            f"this Pillow was built without {library}, which {format_name} needs: install one of the wheels of Pillow"
        )


def read_with_pillow(data: bytes, format_name: str, read: Callable[[bytes], Read]) -> Read:
    """Returns what `read` makes of a file of a known format by Pillow; its errors become BadImageError.

    Where Pillow fails, the file is read once more without its metadata, which never decide on pixels: Pillow refuses
    texts and profiles that are damaged, or large when they are unpacked.
    """
    # A library in this process may have set the switch. This is no fault of the file, so it must not become a verdict.
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise RuntimeError(
            "something in this process turned on ImageFile.LOAD_TRUNCATED_IMAGES, with which missing pixels would be "
            "made up: turn it off"
        )
    try:
        return _read_or_raise_bad_image(data, format_name, read)
    except _PillowError:
        plain = _leave_out_metadata(data, format_name)
        if plain == data:
            raise
    return _read_or_raise_bad_image(plain, format_name, read)


class _PillowError(BadImageError):
    """Pillow refuses a file."""


def _read_or_raise_bad_image(data: bytes, format_name: str, read: Callable[[bytes], Read]) -> Read:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they concern metadata; faults of the pixels raise
        try:
            return read(data)
        except Image.DecompressionBombError as error:
            raise BadImageError(f"more than {MAX_PIXELS:,} pixels: make it smaller") from error
        except (UnidentifiedImageError, *_FAULTS) as error:
            # The text of the first one holds an address in memory, which differs each time.
            fault = "its header cannot be read" if isinstance(error, UnidentifiedImageError) else str(error)
            # The file may be sound, and of a kind that Pillow cannot read.
            reason = _describe_unread_tiff(data) if format_name == "TIFF" else None
            if reason is None and fault.startswith("Unsupported"):
                reason = f"a {format_name} that cannot be read ({fault}): convert it to PNG"
            raise _PillowError(reason or f"a damaged {format_name}: {fault or _NO_REASON}") from error


def _leave_out_metadata(data: bytes, format_name: str) -> bytes:
    """Returns a PNG or WebP of the same pixels without its metadata; what cannot be taken apart comes back as it is.

    All chunks remain that decide on pixels: the critical ones, transparency, animation, and EXIF data that are whole.
    """
    if format_name == "PNG":
        kept = [data[: len(_PNG_SIGNATURE)]]
        for name, content in iterate_png_chunks(data):
            chunk = data[content.start - _PNG_CHUNK.size : content.stop + _CHECKSUM_BYTES]
            # The second word of a name's first letter says whether a reader must know the chunk.
            is_critical = not name[0] & _ANCILLARY
            if name == PNG_EXIF:
                is_kept = zlib.crc32(chunk[4:-_CHECKSUM_BYTES]) == int.from_bytes(chunk[-_CHECKSUM_BYTES:])
            else:
                is_kept = is_critical or name in _PIXEL_CHUNKS
            if is_kept:
                kept.append(chunk)
        return b"".join(kept)
    if format_name == "WEBP":
        chunks, at = list[bytes](), _RIFF_HEAD_BYTES
        while at + _RIFF_CHUNK.size <= len(data):
            name, length = _RIFF_CHUNK.unpack_from(data, at)
            end = at + _RIFF_CHUNK.size + length + length % 2
            if name in _WEBP_PIXEL_CHUNKS or (name == _WEBP_EXIF and end <= len(data)):
                chunks.append(data[at:end])
            at = end
        has_exif = any(chunk.startswith(_WEBP_EXIF) for chunk in chunks)
        # The first byte of the header says which of the others there are.
        flags = ~_WEBP_METADATA | (_WEBP_EXIF_FLAG if has_exif else 0)
        chunks = [
            chunk[:8] + bytes(each & flags for each in chunk[8:9]) + chunk[9:] if chunk.startswith(b"VP8X") else chunk
            for chunk in chunks
        ]
        body = b"WEBP" + b"".join(chunks)
        return _RIFF_CHUNK.pack(b"RIFF", len(body)) + body
    return data


def iterate_png_chunks(data: bytes) -> Iterator[tuple[bytes, slice]]:
    """Yields the name of each chunk of a PNG, and where its content lies, which may end behind the file's end."""
    at = len(_PNG_SIGNATURE)
    while at + _PNG_CHUNK.size <= len(data):
        length, name = _PNG_CHUNK.unpack_from(data, at)
        start = at + _PNG_CHUNK.size
        yield name, slice(start, start + length)
        at = start + length + _CHECKSUM_BYTES


def _find_pixel_storage(picture: ImageFile.ImageFile, data: bytes) -> PixelStorage:
    """Returns how the file stores its pixels, which must be known before they are decoded.

    Corrects the transparent level where Pillow reads pixels at another depth.
    """
    if isinstance(picture, Tiff.TiffImageFile):
        return check_tiff_storage(picture, len(data))
    # Pillow scales 2 and 4 bits of a PNG to 8, and cuts 16 bits of colour to 8, but leaves the transparent level as
    # stored. Of the latter, transparent pixels can no longer be told apart.
    if isinstance(picture, PngImagePlugin.PngImageFile) and (level := picture.info.get("transparency")) is not None:
        stored = picture.tile[0].args if picture.tile else None
        if stored == "RGB;16B":
            raise BadImageError(
                "16 bits per channel with a transparent colour: convert it to 8 bits, or to an alpha channel"
            )
        steps = {"L;2": 3, "L;4": 15}.get(str(stored))
        if steps is not None:
            picture.info["transparency"] = min(level, steps) * 255 // steps
    if picture.format == "BMP":
        restore_bmp_palette(picture, data)
    if picture.format == "GIF" and picture.tile and picture.tile[0].extents != (0, 0, *picture.size):
        return PixelStorage(drawn=picture.tile[0].extents)
    return PixelStorage()


@dataclass(frozen=True, slots=True)
class PixelStorage:
    """How a file stores its pixels, as far as the mode does not determine it."""

    white: float | None = None  # the level of white; None is that of the mode
    inverted: bool = False
    drawn: PixelBox | None = None  # the part that the file draws; None is the whole picture


def convert_to_plain_mode(picture: Image.Image, mode: PlainMode, storage: PixelStorage) -> Image.Image:
    """Returns the picture in `mode`. Raises BadImageError where the meaning of its levels is unknown."""
    if picture.mode == "LAB":
        raise BadImageError("CIELAB colours, which need colour management: convert it to RGB")
    is_deep, has_alpha = picture.mode in _WHITE, picture.has_transparency_data
    # Without alpha, what is transparent becomes white.
    if mode != "RGBA" and (is_deep or has_alpha):
        plain = _convert_by_row_strips(picture, mode, storage)
    elif mode != "RGBA":
        plain = picture if picture.mode == mode else picture.convert(mode)
    # With alpha, a picture is opaque where its file says nothing.
    elif is_deep:
        transparent = picture.info.get("transparency")
        plain = _convert_by_row_strips(picture, "L", storage).convert("RGBA")
        if transparent is not None:
            seen = _convert_to_float_array(picture) != transparent
            plain.putalpha(Image.fromarray(seen.astype(np.uint8) * np.uint8(_WHITE_LEVEL)))
    elif has_alpha:
        plain = _convert_to_layer(picture)
    else:
        plain = picture.convert("RGB").convert("RGBA")
    if storage.drawn is None:
        return plain
    # White or transparent wherever the file draws nothing.
    framed = Image.new(mode, picture.size, 0 if mode == "RGBA" else "white")
    framed.paste(plain.crop(storage.drawn), storage.drawn[:2])
    return framed


def _convert_by_row_strips(picture: Image.Image, mode: PlainMode, storage: PixelStorage) -> Image.Image:
    """Converts the picture in bands from top to bottom, so that intermediate arrays stay small."""
    bands = [*_iterate_row_strips(picture.size)]
    if len(bands) == 1:
        return _convert_part(picture, picture, mode, storage)
    flat = Image.new(mode, picture.size)
    for band in bands:
        flat.paste(_convert_part(picture.crop(band), picture, mode, storage), band[:2])
    return flat


def _iterate_row_strips(size: tuple[int, int]) -> Iterator[PixelBox]:
    width, height = size
    rows = max(1, _BAND_PIXELS // width)
    for top in range(0, height, rows):
        yield 0, top, width, min(top + rows, height)


def _convert_part(part: Image.Image, whole: Image.Image, mode: PlainMode, storage: PixelStorage) -> Image.Image:
    if part.mode in _WHITE:
        opaque = _reduce_depth(part, whole, storage)
    else:
        layered = _convert_to_layer(part)
        opaque = Image.alpha_composite(Image.new("RGBA", layered.size, (_WHITE_LEVEL,) * 4), layered)
    return opaque if opaque.mode == mode else opaque.convert(mode)


def _reduce_depth(part: Image.Image, whole: Image.Image, storage: PixelStorage) -> Image.Image:
    """Scales deep levels to L; the transparent level becomes white. Raises BadImageError for levels out of range."""
    deep = _convert_to_float_array(part)
    white = storage.white or _WHITE[part.mode]
    levels = np.rint(deep * np.float32(255.0 / white))
    if not 0 <= levels.min() <= levels.max() <= 255:  # noqa: PLR2004 - uint8; NaN fails here, too
        # The range of the whole picture, whose strips are looked at one by one; NaN if any level is NaN.
        strips = map(_convert_to_float_array, map(whole.crop, _iterate_row_strips(whole.size)))
        ranges = [(strip.min(), strip.max()) for strip in strips]
        low, high = np.min([least for least, _ in ranges]), np.max([most for _, most in ranges])
        raise BadImageError(
            f"levels from {low:g} to {high:g}, where 0 is black and {white:g} is white: rescale them to that range"
        )
    if storage.inverted:
        levels = 255 - levels
    transparent = part.info.get("transparency")
    if transparent is not None:
        levels[deep == transparent] = _WHITE_LEVEL
    return Image.fromarray(levels.astype(np.uint8))


def _convert_to_float_array(part: Image.Image) -> FloatLevels:
    return np.asarray(part, dtype=np.float32)  # exact for every level of 16 bits, in half the memory of float64


def _convert_to_layer(picture: Image.Image) -> Image.Image:
    layered = picture.convert("LA") if picture.mode == "La" else picture  # Pillow cannot convert La to RGBA directly
    return layered.convert("RGBA")


def restore_bmp_palette(picture: ImageFile.ImageFile, data: bytes) -> None:
    """Reads a BMP whose palette is a scale of grey by its palette, where Pillow forgets how many bits a pixel has.

    Pillow takes such a file for grey levels of 8 bits, or of 1 bit where the palette has two colours.
    """
    tile = picture.tile[0]
    decoder_name, args = tile.codec_name, tile.args
    header_bytes = int.from_bytes(data[14:18], "little")
    bits = int.from_bytes(data[24:26] if header_bytes == _OS2_HEADER_BYTES else data[28:30], "little")
    if not isinstance(args, tuple) or (args[0], bits) not in _MISREAD_BMPS:
        return
    levels = (0, 255) if args[0] == "1" else range(1 << bits)
    picture._mode = "P"  # noqa: SLF001 - the mode of a picture that is not loaded yet has no other name
    picture.palette = ImagePalette.raw("RGB", bytes(level for each in levels for level in (each,) * 3))
    kind = "P" if bits == 8 or decoder_name == "bmp_rle" else f"P;{bits}"  # noqa: PLR2004 - a byte
    picture.tile = [tile._replace(args=(kind, *args[1:]))]


def check_tiff_storage(picture: Tiff.TiffImageFile, file_bytes: int) -> PixelStorage:
    """Returns how the first page stores its levels. Raises BadImageError for a dialect that Pillow would misread."""
    tags = picture.tag_v2
    compression = picture.info["compression"]
    if compression not in _COMPRESSIONS:
        raise BadImageError(f"a TIFF compressed by {compression}: save it with LZW or deflate")
    if int(tags.get(_SUBFILE_TYPE, 0)) & _PREVIEW:
        raise BadImageError("a TIFF that begins with a preview, as cameras' raw files do: convert it to JPEG or PNG")
    photometric = tags.get(Tiff.PHOTOMETRIC_INTERPRETATION, _WHITE_IS_ZERO)
    if photometric == _YCBCR and compression == "raw" and tags.get(Tiff.YCBCRSUBSAMPLING, (2, 2)) != (1, 1):
        raise BadImageError("an uncompressed TIFF with subsampled colours: save it with JPEG or as RGB")
    if picture.mode == "L" and _SIGNED in tags.get(Tiff.SAMPLEFORMAT, ()):
        raise BadImageError("a TIFF with levels from -128 to 127: save it with 0 to 255")
    _choose_tiff_decoder(picture)
    # Of a file that lacks a part of its pixels, libtiff would fill the missing part, and Pillow would leave it black.
    for offsets_tag, counts_tag in ((Tiff.STRIPOFFSETS, Tiff.STRIPBYTECOUNTS), (Tiff.TILEOFFSETS, Tiff.TILEBYTECOUNTS)):
        offsets, counts = tags.get(offsets_tag, ()), tags.get(counts_tag, ())
        if any(offset + count > file_bytes for offset, count in zip(offsets, counts, strict=False)):
            raise BadImageError("a TIFF truncated before its pixels end")
    # Tiles lie in reading order: if the last one ends in the last corner, they cover the page.
    corner = tags[Tiff.IMAGEWIDTH], tags[Tiff.IMAGELENGTH]
    last = picture.tile[-1].extents if picture.tile else None
    if last is None or last[2:] != corner:
        raise BadImageError(f"a TIFF whose strips do not make up its {corner[0]}x{corner[1]} pixels")
    return PixelStorage(
        white=_TWELVE_BITS if tags.get(Tiff.BITSPERSAMPLE) == (12,) else None,
        inverted=photometric == _WHITE_IS_ZERO,
    )


def _choose_tiff_decoder(picture: Tiff.TiffImageFile) -> None:
    """Makes Pillow read by libtiff what its own code misreads. Raises BadImageError for what both misread."""
    tags = picture.tag_v2
    samples, order = int(tags.get(Tiff.SAMPLESPERPIXEL, 1)), tags.get(Tiff.FILLORDER, 1)
    is_planar = tags.get(Tiff.PLANAR_CONFIGURATION, 1) == _SEPARATE_PLANES
    bits = set(tags.get(Tiff.BITSPERSAMPLE, (1,)))
    if is_planar and samples > 1:
        is_read = picture.mode in {"RGB", "CMYK"} or (
            picture.mode == "RGBA" and tags.get(Tiff.EXTRASAMPLES) in {(1,), (2,)}
        )
        if not is_read or not bits <= {8, 16}:
            raise BadImageError(_format_unread_planes(samples))
    # Without compression, Pillow takes planes of 16 bits for planes of 8 bits, and knows few modes whose bits are in
    # reverse order. libtiff reads both, by the tags of the file.
    if picture.info["compression"] == "raw" and (is_planar or order != 1):
        if samples > 1 and is_planar:
            kind = picture.mode if bits == {8} else f"{picture.mode};16N"
        else:
            tags[Tiff.PLANAR_CONFIGURATION] = tags[Tiff.FILLORDER] = 1
            picture._setup()  # noqa: SLF001 - which chooses the raw mode of a plain layout
            plain: Any = picture.tile[0].args
            kind = str(plain[0])
        size = int(tags[Tiff.IMAGEWIDTH]), int(tags[Tiff.IMAGELENGTH])
        picture.use_load_libtiff = True
        args: Any = (kind, False, tags.offset)
        picture.tile = [picture.tile[0]._replace(codec_name="libtiff", extents=(0, 0, *size), offset=0, args=args)]
    if picture.use_load_libtiff:
        # libtiff gives numbers in the processor's order, which Pillow expects of some raw modes only.
        tile = picture.tile[0]
        args = tile.args
        picture.tile = [tile._replace(args=(_FILE_ORDER.sub(r"\1N\2", args[0]), *args[1:]))]


def _describe_unread_tiff(data: bytes) -> str | None:
    """Returns the kind of a TIFF that Pillow cannot read, and what reads it; None where it is read, or damaged."""
    if data.startswith(b"MM\x00+"):
        return "a BigTIFF in big-endian order: use mode: raw, or save it as TIFF"
    try:
        fields = Tiff.ImageFileDirectory_v2(data[:16] if data[2] == _BIG_TIFF else data[:8])
        file = BytesIO(data)
        file.seek(fields.next)
        fields.load(file)
        samples, compression = int(fields.get(Tiff.SAMPLESPERPIXEL, 1)), int(fields.get(Tiff.COMPRESSION, 1))
        depths, formats = fields.get(Tiff.BITSPERSAMPLE, (1,)), fields.get(Tiff.SAMPLEFORMAT, (1,))
        bits, sample_format, photometric = depths[0], formats[0], int(fields.get(Tiff.PHOTOMETRIC_INTERPRETATION, 0))
        is_plausible = min(fields[Tiff.IMAGEWIDTH], fields[Tiff.IMAGELENGTH], samples) > 0 and 0 < bits <= _MOST_BITS
    except _FAULTS:
        return None
    if not is_plausible or samples > Tiff.MAX_SAMPLESPERPIXEL or sample_format not in _TIFF_NUMBERS:
        return None
    if compression not in Tiff.COMPRESSION_INFO:
        name = _OTHER_COMPRESSIONS.get(compression, f"method {compression}")
        return f"a TIFF compressed by {name}: save it with LZW or deflate"
    extra = fields.get(Tiff.EXTRASAMPLES, ())
    order = fields.get(Tiff.FILLORDER, 1)
    known = (fields.prefix, photometric, (sample_format,), order, (bits,) * samples, extra)
    if known in Tiff.OPEN_INFO and len({*depths}) == 1 == len({*formats}):
        # Without compression, Pillow has no place for planes that a picture does not show.
        is_planar = fields.get(Tiff.PLANAR_CONFIGURATION, 1) == _SEPARATE_PLANES
        return _format_unread_planes(samples) if is_planar and extra and compression == 1 else None
    kind = "channels that differ in depth" if len({*depths}) > 1 else f"{_TIFF_NUMBERS[sample_format]} of {bits} bits"
    colours = _TIFF_COLOURS.get(photometric, f"colours of kind {photometric}")
    backward = ", with bits in reverse order" if order != 1 else ""
    is_raw = (sample_format, bits) in _RAW_NUMBERS and photometric in _RAW_COLOURS and order == len({*depths}) == 1
    remedy = "use mode: raw, or " if is_raw else ""
    return (
        f"a TIFF of {format_count(samples, 'channel')} ({colours}; {kind}{backward}), which Pillow does not read: "
        f"{remedy}save it as grey, RGB or RGBA of 8 bits"
    )


def _format_unread_planes(samples: int) -> str:
    return (
        f"a TIFF of {samples} channels in planes of their own, of which Pillow reads RGB, RGBA and CMYK: save it with "
        "the channels of a pixel together, or use mode: raw"
    )


# --- The EXIF orientation of a picture. Copies of it in XMP are ignored in every format.


_ORIENTATION: Final = 0x0112
_TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def parse_orientation(exif: bytes) -> int:
    """Returns the orientation, 1 to 8, from a block of EXIF data, with or without its `Exif` prefix.

    Returns 1, upright, for a missing or invalid value, and for a block that cannot be read: such a picture is shown as
    it is stored, as viewers show it.
    """
    value = find_orientation(exif)
    return value if isinstance(value, int) and value in range(1, 9) else UPRIGHT


def find_orientation(exif: bytes) -> object:
    """Returns the value that a block of EXIF data has for the orientation, 1 if none; None if it cannot be read."""
    block = Image.Exif()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they concern other metadata than this one number
            block.load(exif)
            return block.get(_ORIENTATION, UPRIGHT)
    except (OSError, ValueError, SyntaxError, TypeError, struct.error):
        return None


def turn_upright(picture: Image.Image, orientation: int) -> Image.Image:
    """Returns the picture turned upright; the same object if its orientation needs no turn."""
    turn = _TURNS.get(orientation)
    return picture.transpose(turn) if turn is not None else picture
