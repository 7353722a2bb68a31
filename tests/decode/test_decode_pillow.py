"""PNG, WebP and BMP in all their kinds of pixels, upright and without transparency."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from pictures import apart, decoded, encoded, smooth
from PIL import Image, ImageFile

from streamd.decode import BadImageError
from streamd.limits import MAX_PIXELS
from streamd.spec import ImageSpec

PICTURE = smooth(20, 30)
IMAGE = ImageSpec(20, 30, 3)
GREY = ImageSpec(20, 30, 1)


def png_of_size(height: int, width: int) -> bytes:
    """A PNG that says how large it is and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("name", ["PNG", "BMP"])
def test_lossless_files_give_their_very_pixels(name: str) -> None:
    assert np.array_equal(decoded(encoded(PICTURE, name), IMAGE), np.asarray(PICTURE))


@pytest.mark.parametrize(("lossless", "tolerance"), [(True, 0), (False, 16)])
def test_webp_gives_its_pixels(*, lossless: bool, tolerance: int) -> None:
    assert apart(decoded(encoded(PICTURE, "WEBP", lossless=lossless, quality=95), IMAGE), PICTURE) <= tolerance


def test_a_palette_gives_its_colours() -> None:
    picture = PICTURE.quantize(16)
    assert np.array_equal(decoded(encoded(picture, "PNG"), IMAGE), np.asarray(picture.convert("RGB")))


def test_a_transparent_palette_colour_becomes_white() -> None:
    picture = Image.new("P", (30, 20))
    picture.putpalette([10, 20, 30, 200, 0, 0])
    picture.paste(1, (0, 0, 15, 20))
    pixels = decoded(encoded(picture, "PNG", transparency=0), IMAGE)
    assert (pixels[:, :15] == (200, 0, 0)).all()
    assert (pixels[:, 15:] == 255).all()


@pytest.mark.parametrize(("alpha", "level"), [(0, 255), (255, 100), (51, 224)])
def test_alpha_is_composed_on_white(alpha: int, level: int) -> None:
    rgba = Image.new("RGBA", (30, 20), (100, 100, 100, alpha))
    assert apart(decoded(encoded(rgba, "PNG"), IMAGE), np.full(IMAGE.shape, level)) <= 1
    la = Image.new("LA", (30, 20), (100, alpha))
    assert apart(decoded(encoded(la, "PNG"), GREY), np.full(GREY.shape, level)) <= 1
    assert apart(decoded(encoded(la, "PNG"), IMAGE), np.full(IMAGE.shape, level)) <= 1


@pytest.mark.parametrize("image", [IMAGE, GREY])
def test_one_bit_is_black_and_white(image: ImageSpec) -> None:
    bits = Image.new("1", (30, 20))
    bits.paste(1, (0, 0, 15, 20))
    pixels = decoded(encoded(bits, "PNG"), image)
    assert (pixels[:, :15] == 255).all()
    assert (pixels[:, 15:] == 0).all()


@pytest.mark.parametrize("image", [IMAGE, GREY])
def test_sixteen_bits_are_scaled_to_eight(image: ImageSpec) -> None:
    levels = np.arange(256, dtype=np.uint16)
    deep = np.zeros((20, 30), dtype=np.uint16)
    deep.flat[:256] = levels * 257
    pixels = decoded(encoded(Image.fromarray(deep), "PNG"), image)
    for channel in range(image.channels):
        assert pixels[:, :, channel].flat[:256].tolist() == levels.tolist()


def test_grey_fills_three_channels_and_colour_fills_one() -> None:
    grey = PICTURE.convert("L")
    assert np.array_equal(decoded(encoded(grey, "PNG"), IMAGE), np.asarray(grey)[:, :, None].repeat(3, axis=2))
    assert np.array_equal(decoded(encoded(PICTURE, "PNG"), GREY)[:, :, 0], np.asarray(grey))


@pytest.mark.parametrize("name", ["PNG", "WEBP"])
def test_exif_orientation_is_applied(name: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {"lossless": True} if name == "WEBP" else {}
    turned = PICTURE.transpose(Image.Transpose.ROTATE_90)
    assert np.array_equal(decoded(encoded(turned, name, exif=exif, **options), IMAGE), np.asarray(PICTURE))


def test_a_bomb_is_refused_before_its_pixels_are_made() -> None:
    with pytest.raises(BadImageError, match=f"30000x40000 pixels are more than {MAX_PIXELS}"):
        decoded(png_of_size(40000, 30000), IMAGE)


def test_a_png_without_pixels_is_bad() -> None:
    with pytest.raises(BadImageError, match="a damaged PNG"):
        decoded(png_of_size(20, 30), IMAGE)


def test_a_process_that_would_invent_pixels_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(RuntimeError, match="LOAD_TRUNCATED_IMAGES"):
        decoded(encoded(PICTURE, "PNG"), IMAGE)
