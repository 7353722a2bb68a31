"""The formats that Pillow reads: pixels, first frames, decompression bombs and damage."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile, features
from support.smooth_pictures import apart, decoded, encoded, png, smooth

from streamd.core.spec import ImageSpec
from streamd.decode import pillow
from streamd.decode.decoders import BadImageError
from streamd.errors import ConfigError
from streamd.limits import MAX_PIXELS

PICTURE = smooth(20, 30)
IMAGE = ImageSpec(20, 30, 3)
GREY = ImageSpec(20, 30, 1)


@pytest.mark.parametrize("name", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_files_give_their_exact_pixels(name: str) -> None:
    assert np.array_equal(decoded(encoded(PICTURE, name), IMAGE), np.asarray(PICTURE))


@pytest.mark.parametrize(("lossless", "tolerance"), [(True, 0), (False, 16)])
def test_webp_gives_its_pixels(*, lossless: bool, tolerance: int) -> None:
    assert apart(decoded(encoded(PICTURE, "WEBP", lossless=lossless, quality=95), IMAGE), PICTURE) <= tolerance


@pytest.mark.parametrize("name", ["PNG", "WEBP", "GIF", "TIFF", "AVIF"])
def test_the_first_picture_of_several_is_shown(name: str) -> None:
    options: dict[str, Any] = {"lossless": True} if name == "WEBP" else {}
    frames = [picture.quantize(32) if name == "GIF" else picture for picture in (PICTURE, PICTURE.rotate(180))]
    several = encoded(frames[0], name, save_all=True, append_images=frames[1:], **options)
    assert len(several) > len(encoded(frames[0], name, **options))
    assert apart(decoded(several, IMAGE), frames[0].convert("RGB")) <= (40 if name == "AVIF" else 0)


def test_transparent_pixels_of_a_gif_become_white() -> None:
    picture = Image.new("P", (30, 20), 1)
    picture.putpalette([10, 20, 30, 200, 0, 0])
    picture.paste(0, (15, 0, 30, 20))
    pixels = decoded(encoded(picture, "GIF", transparency=0, optimize=False), IMAGE)
    assert (pixels[:, :15] == (200, 0, 0)).all()
    assert (pixels[:, 15:] == 255).all()


def test_a_gif_shows_white_where_its_first_frame_draws_nothing() -> None:
    data = encoded(Image.new("P", (30, 20), 0), "GIF", optimize=False)
    larger = data[:6] + struct.pack("<HH", 40, 30) + data[10:]  # the canvas; the frame stays as it is
    pixels = decoded(larger, ImageSpec(30, 40, 1))
    assert (pixels[:20, :30] == 0).all()
    assert (pixels[20:] == 255).all()
    assert (pixels[:, 30:] == 255).all()


@pytest.mark.parametrize(("white", "kind"), [(100, ">u1"), (1000, ">u2"), (65535, ">u2")])
def test_a_portable_map_defines_its_own_white(white: int, kind: str) -> None:
    levels = np.array([[0, white // 4, white]], dtype=kind)
    data = f"P5\n# by hand\n3 1\n{white}\n".encode() + levels.tobytes()
    assert decoded(data, ImageSpec(1, 3, 1)).ravel().tolist() == [0, 64, 255]


@pytest.mark.parametrize("image", [ImageSpec(2, 2, 3), ImageSpec(2, 2, 1)])
@pytest.mark.parametrize("data", [b"P1 2 2\n1 0\n0 1\n", b"P4 2 2\n\x80\x40"], ids=["text", "bytes"])
def test_a_set_bit_of_a_portable_bitmap_is_black(data: bytes, image: ImageSpec) -> None:
    assert decoded(data, image)[:, :, 0].tolist() == [[0, 255], [255, 0]]


def bombs() -> dict[str, bytes]:
    """Files that say they are large, and hold next to nothing."""
    canvas = (39_999).to_bytes(3, "little") + (29_999).to_bytes(3, "little")
    webp = b"VP8X" + struct.pack("<IB3x", 10, 0) + canvas
    page = encoded(Image.new("1", (8, 8)), "TIFF")
    sides = [struct.pack("<HHII", tag, kind, 1, 8) for tag in (256, 257) for kind in (3, 4)]
    for side in sides:
        page = page.replace(side, side[:8] + struct.pack("<I", 40_000))
    return {
        "png": png(8, 2, [], (40_000, 30_000)),
        "webp": b"RIFF" + struct.pack("<I", len(webp) + 4) + b"WEBP" + webp,
        "gif": b"GIF89a"
        + struct.pack("<HH", 40_000, 30_000)
        + b"\0\0\0,"
        + struct.pack("<4H", 0, 0, 40_000, 30_000)
        + b"\0\2\0;",
        "bmp": b"BM"
        + struct.pack("<IHHI", 54, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, 40_000, 30_000, 1, 24, *[0] * 6),
        "pgm": b"P5 40000 30000 255\n",
        "tiff": page,
    }


@pytest.mark.parametrize("name", bombs())
def test_a_bomb_is_refused_before_its_pixels_are_made(name: str) -> None:
    with pytest.raises(BadImageError, match=f"more than {MAX_PIXELS:,} pixels: make it smaller"):
        decoded(bombs()[name], IMAGE)


def test_a_png_without_pixels_is_bad() -> None:
    with pytest.raises(BadImageError, match="a damaged PNG"):
        decoded(png(8, 2, [], (20, 30)), IMAGE)


def test_a_png_with_a_palette_that_is_missing_is_bad() -> None:
    with pytest.raises(BadImageError, match=r"^a damaged PNG: what it says of itself does not agree$"):
        decoded(png(8, 3, [bytes(30)] * 20, (20, 30)), IMAGE)


def test_a_tiff_whose_palette_has_levels_above_the_largest_is_bad() -> None:
    palette = encoded(smooth(8, 8).convert("P"), "TIFF")
    at = palette.index(struct.pack("<HHI", 320, 3, 768))  # the tag, the type and the number of the levels
    as_32_bits = palette[:at] + struct.pack("<HHI", 320, 4, 384) + palette[at + 8 :]
    with pytest.raises(BadImageError, match="a damaged TIFF: unsigned byte integer is greater than maximum"):
        decoded(as_32_bits, IMAGE)


def test_a_damaged_header_always_gives_the_same_reason() -> None:
    data = b"II*\0" + bytes(60)
    with pytest.raises(BadImageError, match=r"^a damaged TIFF: its header cannot be read$"):
        decoded(data, IMAGE)


def test_a_valid_file_of_an_unsupported_kind_is_not_called_damaged() -> None:
    of_16_bytes = b"BM" + struct.pack("<IHHI", 26, 0, 0, 26) + struct.pack("<I", 16) + bytes(20)
    with pytest.raises(
        BadImageError, match=r"^a BMP that cannot be read \(Unsupported BMP header type \(16\)\): convert it"
    ):
        decoded(of_16_bytes, IMAGE)


def test_a_pillow_without_the_library_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "check", lambda library: library != "avif")
    pillow.check_format_support.cache_clear()
    try:
        with pytest.raises(ConfigError, match="this Pillow was built without avif, which AVIF needs"):
            decoded(encoded(PICTURE, "AVIF"), IMAGE)
        assert decoded(encoded(PICTURE, "PNG"), IMAGE).shape == IMAGE.shape
    finally:
        pillow.check_format_support.cache_clear()


def test_decoding_is_refused_where_pillow_loads_truncated_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(RuntimeError, match="LOAD_TRUNCATED_IMAGES"):
        decoded(encoded(PICTURE, "PNG"), IMAGE)
