"""The files behind the golden digests: one of every kind of pixel, made here once and then kept, as encoders change.

`golden.py --files` writes them again, which only a new kind of pixel is a reason for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from PIL import Image
from support.smooth_pictures import encoded, png

SIZE = HEIGHT, WIDTH = 24, 32
Turn = Image.Transpose

# What a camera stores is the upright picture turned the other way round.
STORED: dict[int, Turn | None] = {
    1: None,
    2: Turn.FLIP_LEFT_RIGHT,
    3: Turn.ROTATE_180,
    4: Turn.FLIP_TOP_BOTTOM,
    5: Turn.TRANSPOSE,
    6: Turn.ROTATE_90,
    7: Turn.TRANSVERSE,
    8: Turn.ROTATE_270,
}


def picture(height: int = HEIGHT, width: int = WIDTH) -> Image.Image:
    """RGB: four different corners, and steps and stripes that show what a resampling or a chroma filter does."""
    down, across = np.mgrid[0:height, 0:width]
    red = 255 * down // (height - 1)
    green = 255 * across // (width - 1)
    blue = np.where((down // 3 + across // 4) % 2, 220, 40)
    return Image.fromarray(np.stack([red, green, blue], axis=2).astype(np.uint8))


def fade() -> Image.Image:
    """L: from transparent to opaque, both ends reached."""
    return Image.fromarray(np.tile(np.linspace(0, 255, WIDTH).round().astype(np.uint8), (HEIGHT, 1)))


def with_alpha(opaque: Image.Image) -> Image.Image:
    layered = opaque.copy()
    layered.putalpha(fade())
    return layered


def deep() -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    """16-bit levels that are no multiples of 257."""
    return (np.arange(HEIGHT * WIDTH, dtype=np.uint32) * 85 % 65536).astype(np.uint16).reshape(HEIGHT, WIDTH)


def four_inks() -> Image.Image:
    """CMYK with a black of its own, so that what is done with it shows."""
    cyan, magenta, yellow = (plane.point(lambda level: 255 - level) for plane in picture().split())
    return Image.merge("CMYK", (cyan, magenta, yellow, fade().point(lambda level: level // 3)))


def ycck() -> bytes:
    """Adobe's YCCK, which Pillow reads and does not write: its planes as CMYK, and the marker changed to say so."""
    cyan, magenta, yellow, black = four_inks().split()
    luma, blue, red = Image.merge("RGB", (cyan, magenta, yellow)).convert("YCbCr").split()
    planes = [plane.point(lambda level: 255 - level) for plane in (luma, blue, red)]
    data = encoded(Image.merge("CMYK", [*planes, black]), subsampling=0, quality=85)
    transform = data.index(b"Adobe\0") + 11
    return data[:transform] + b"\2" + data[transform + 1 :]


def without_adobe(data: bytes) -> bytes:
    """The same scan without the marker by which Adobe says that inks are stored inverted."""
    start = data.index(b"\xff\xee")
    return data[:start] + data[start + 2 + int.from_bytes(data[start + 2 : start + 4]) :]


def stored(upright: Image.Image, orientation: int) -> Image.Image:
    turn = STORED[orientation]
    return upright if turn is None else upright.transpose(turn)


def exif(orientation: int) -> Image.Exif:
    block = Image.Exif()
    block[0x0112] = orientation
    return block


def turned(orientation: int, name: str, **options: object) -> bytes:
    return encoded(stored(picture(), orientation), name, exif=exif(orientation), **options)


def told_late(data: bytes) -> bytes:
    """The same file with its EXIF data after all tables but the last, after fill bytes."""
    start, last = data.index(b"\xff\xe1"), data.rindex(b"\xff\xc4")
    end = start + 2 + int.from_bytes(data[start + 2 : start + 4])
    return data[:start] + data[end:last] + b"\xff\xff" + data[start:end] + data[last:]


def jpeg_files() -> Iterator[tuple[str, bytes]]:
    rgb = picture()
    yield "baseline.jpg", encoded(rgb, quality=85)
    yield "no-subsampling.jpg", encoded(rgb, quality=85, subsampling=0)
    yield "half-subsampling.jpg", encoded(rgb, quality=85, subsampling=1)
    yield "progressive.jpg", encoded(rgb, quality=85, progressive=True)
    yield "restarts.jpg", encoded(rgb, quality=85, restart_marker_blocks=2)
    yield "grey.jpg", encoded(rgb.convert("L"), quality=85)
    yield "stored-as-rgb.jpg", encoded(rgb, quality=75, keep_rgb=True)
    yield "large.jpg", encoded(picture(90, 120).resize((160, 120), Image.Resampling.BICUBIC), quality=30)
    yield "cmyk.jpg", encoded(four_inks(), quality=85, subsampling=0)
    yield "cmyk-unmarked.jpg", without_adobe(encoded(four_inks(), quality=85, subsampling=0))
    yield "ycck.jpg", ycck()
    for orientation in STORED:
        yield f"orientation-{orientation}.jpg", turned(orientation, "JPEG", quality=85)
    yield "orientation-6-late.jpg", told_late(turned(6, "JPEG", quality=85))


def png_files() -> Iterator[tuple[str, bytes]]:
    rgb = picture()
    grey = rgb.convert("L")
    yield "rgb.png", encoded(rgb, "PNG")
    yield "rgb-one-transparent.png", encoded(rgb, "PNG", transparency=rgb.getpixel((20, 9)))
    yield "rgba.png", encoded(with_alpha(rgb), "PNG")
    yield "grey.png", encoded(grey, "PNG")
    yield "grey-one-transparent.png", encoded(grey, "PNG", transparency=grey.getpixel((20, 9)))
    yield "grey-alpha.png", encoded(with_alpha(grey), "PNG")
    yield "one-bit.png", encoded(grey.convert("1"), "PNG")
    yield "palette.png", encoded(rgb.quantize(16), "PNG")
    yield "palette-transparent.png", encoded(rgb.quantize(16), "PNG", transparency=bytes(range(0, 256, 16)))
    packed = [bytes((0b00011011,) * 8)] * HEIGHT
    yield "two-bits-one-transparent.png", png(2, 0, packed, SIZE, struct.pack(">H", 2))
    packed = [bytes(range(0x10, 0x100, 15))] * HEIGHT
    yield "four-bits-one-transparent.png", png(4, 0, packed, SIZE, struct.pack(">H", 3))
    levels = deep()
    yield "sixteen-bits.png", encoded(Image.fromarray(levels), "PNG")
    rows = [row.astype(">u2").tobytes() for row in levels]
    yield "sixteen-bits-one-transparent.png", png(16, 0, rows, SIZE, struct.pack(">H", int(levels[9, 20])))
    colours = np.stack([levels, levels[::-1], levels[:, ::-1]], axis=2)
    rows = [row.astype(">u2").tobytes() for row in colours[: HEIGHT // 2]]
    yield "sixteen-bits-rgb.png", png(16, 2, rows, (len(rows), WIDTH))
    yield "orientation-6.png", turned(6, "PNG")
    yield "animated.png", encoded(rgb.quantize(16), "PNG", save_all=True, append_images=[rgb.quantize(8).rotate(180)])


def tiff_files() -> Iterator[tuple[str, bytes]]:
    rgb = picture()
    grey = rgb.convert("L")
    levels = deep()
    yield "rgb.tif", encoded(rgb, "TIFF")
    yield "rgb-lzw.tif", encoded(rgb, "TIFF", compression="tiff_lzw")
    yield (
        "rgb-deflate-pages.tif",
        encoded(rgb, "TIFF", compression="tiff_adobe_deflate", save_all=True, append_images=[rgb.rotate(180)]),
    )
    yield "grey-packbits.tif", encoded(grey, "TIFF", compression="packbits")
    yield "one-bit-fax.tif", encoded(grey.convert("1"), "TIFF", compression="group4")
    yield "jpeg.tif", encoded(rgb, "TIFF", compression="jpeg", quality=85)
    yield "ycbcr.tif", encoded(rgb.convert("YCbCr"), "TIFF", compression="tiff_lzw")
    yield "cmyk.tif", encoded(four_inks(), "TIFF", compression="tiff_lzw")
    yield "palette.tif", encoded(rgb.quantize(16), "TIFF", compression="tiff_lzw")
    yield "rgba.tif", encoded(with_alpha(rgb), "TIFF", compression="tiff_lzw")
    yield "grey-alpha.tif", encoded(with_alpha(grey), "TIFF", compression="tiff_lzw")
    yield "sixteen-bits.tif", encoded(Image.fromarray(levels), "TIFF")
    yield "sixteen-bits-big-endian.tif", encoded(Image.fromarray(levels.astype(">u2")), "TIFF")
    white_is_zero = {262: 0}
    yield "sixteen-bits-white-is-zero.tif", encoded(Image.fromarray(levels), "TIFF", tiffinfo=white_is_zero)
    yield "whole-numbers.tif", encoded(Image.fromarray(levels.astype(np.int32)), "TIFF", compression="tiff_lzw")
    fractions = levels.astype(np.float32) / np.float32(65535)
    yield "fractions.tif", encoded(Image.fromarray(fractions), "TIFF", compression="tiff_lzw")
    yield "orientation-6.tif", turned(6, "TIFF", compression="tiff_lzw")
    yield "orientation-7.tif", turned(7, "TIFF")


def other_files() -> Iterator[tuple[str, bytes]]:
    rgb = picture()
    flipped = rgb.rotate(180)
    yield "lossy.webp", encoded(rgb, "WEBP", quality=80)
    yield "lossless.webp", encoded(rgb, "WEBP", lossless=True)
    yield "alpha.webp", encoded(with_alpha(rgb), "WEBP", quality=80)
    yield "animated.webp", encoded(rgb, "WEBP", quality=80, save_all=True, append_images=[flipped])
    yield "orientation-6.webp", turned(6, "WEBP", lossless=True)
    yield "lossy.avif", encoded(rgb, "AVIF", quality=70)
    yield "alpha.avif", encoded(with_alpha(rgb), "AVIF", quality=70)
    yield "grey.avif", encoded(rgb.convert("L"), "AVIF", quality=70)
    yield "orientation-6.avif", turned(6, "AVIF", quality=70)
    yield "palette.gif", encoded(rgb.quantize(16), "GIF")
    yield "transparent.gif", encoded(rgb.quantize(16), "GIF", transparency=3)
    yield "animated.gif", encoded(rgb.quantize(16), "GIF", save_all=True, append_images=[flipped.quantize(16)])
    yield "rgb.bmp", encoded(rgb, "BMP")
    yield "palette.bmp", encoded(rgb.quantize(16), "BMP")
    yield "one-bit.bmp", encoded(rgb.convert("1"), "BMP")
    yield "alpha.bmp", encoded(with_alpha(rgb), "BMP")
    yield from portable_maps()


def portable_maps() -> Iterator[tuple[str, bytes]]:
    """PNM: as bytes and as text, with a white of 1, 255, 1000 and 65535."""
    rgb, levels = picture(), deep()
    grey, bits = rgb.convert("L"), rgb.convert("1")
    as_text = "\n".join(" ".join(str(1 - bit // 255) for bit in row) for row in np.asarray(bits).astype(int) * 255)
    yield "text.pbm", f"P1\n# a comment\n{WIDTH} {HEIGHT}\n{as_text}\n".encode()
    yield "bytes.pbm", encoded(bits, "PPM")
    as_text = "\n".join(" ".join(map(str, row)) for row in np.asarray(grey).tolist())
    yield "text.pgm", f"P2\n{WIDTH} {HEIGHT} 255\n{as_text}\n".encode()
    yield "white-is-1000.pgm", f"P5\n{WIDTH} {HEIGHT} 1000\n".encode() + (levels % 1001).astype(">u2").tobytes()
    yield "sixteen-bits.pgm", f"P5\n{WIDTH} {HEIGHT} 65535\n".encode() + levels.astype(">u2").tobytes()
    yield "bytes.ppm", encoded(rgb, "PPM")


def all_files() -> dict[str, bytes]:
    """Every golden file by its name."""
    return dict([*jpeg_files(), *png_files(), *tiff_files(), *other_files()])
