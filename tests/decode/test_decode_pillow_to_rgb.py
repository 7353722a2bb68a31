"""Every kind of pixel becomes RGB or grey: palettes, transparency, 16 bits, inks."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from PIL import Image
from support.smooth_pictures import apart, decoded, encoded, png, smooth

from streamd.core.spec import ImageSpec
from streamd.decode.decoders import BadImageError
from streamd.decode.pillow import PixelStorage, PlainMode, convert_to_plain_mode

PICTURE = smooth(20, 30)
IMAGE = ImageSpec(20, 30, 3)
GREY = ImageSpec(20, 30, 1)
ALL_MODES = ["1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "I", "I;16", "I;16B", "F"]


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("stored", ALL_MODES)
def test_every_mode_of_pillow_becomes_rgb_or_grey(stored: str, mode: PlainMode) -> None:
    flat = convert_to_plain_mode(Image.new(stored, (3, 2)), mode, PixelStorage())
    assert (flat.mode, flat.size) == (mode, (3, 2))


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


def test_grey_fills_three_channels_and_colour_fills_one() -> None:
    grey = PICTURE.convert("L")
    assert np.array_equal(decoded(encoded(grey, "PNG"), IMAGE), np.asarray(grey)[:, :, None].repeat(3, axis=2))
    assert np.array_equal(decoded(encoded(PICTURE, "PNG"), GREY)[:, :, 0], np.asarray(grey))


def test_composing_rounds_to_the_nearest_level() -> None:
    levels, alphas = np.meshgrid(np.arange(256), np.arange(256))
    layered = Image.fromarray(np.stack([levels, levels, levels, alphas], axis=2).astype(np.uint8))
    nearest = np.rint((levels * alphas + 255 * (255 - alphas)) / 255)
    modes: tuple[PlainMode, ...] = ("RGB", "L")
    for mode in modes:
        flat = np.asarray(convert_to_plain_mode(layered, mode, PixelStorage())).reshape(256, 256, -1)
        assert np.array_equal(flat[:, :, 0], nearest)


def test_every_sixteen_bit_level_goes_to_the_nearest_of_eight() -> None:
    deep = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    flat = np.asarray(convert_to_plain_mode(Image.fromarray(deep), "L", PixelStorage()))
    assert np.array_equal(flat, (deep.astype(int) + 128) // 257)


def test_twelve_bit_levels_stored_as_sixteen_are_not_stretched() -> None:
    deep = Image.fromarray(np.array([[0, 4095]], dtype=np.uint16))
    assert np.asarray(convert_to_plain_mode(deep, "L", PixelStorage())).tolist() == [[0, 16]]


def test_a_fraction_of_one_is_white() -> None:
    fractions = Image.fromarray(np.array([[0.0, 0.5, 1.0, -0.001, 1.001]], dtype=np.float32))
    assert np.asarray(convert_to_plain_mode(fractions, "L", PixelStorage())).tolist() == [[0, 128, 255, 0, 255]]


@pytest.mark.parametrize("level", [-0.1, 1.1, 200.0, float("nan"), float("inf")])
def test_a_level_outside_zero_to_one_is_bad(level: float) -> None:
    fractions = Image.fromarray(np.array([[0.0, level]], dtype=np.float32))
    with pytest.raises(BadImageError, match="where 0 is black and 1 is white: rescale them to that range"):
        convert_to_plain_mode(fractions, "RGB", PixelStorage())


def test_a_negative_whole_number_is_bad() -> None:
    with pytest.raises(BadImageError, match="levels from -300 to 0"):
        convert_to_plain_mode(Image.fromarray(np.array([[0, -300]], dtype=np.int32)), "L", PixelStorage())


@pytest.mark.parametrize("image", [IMAGE, GREY])
@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_a_transparent_level_of_grey_is_white_at_every_depth(depth: int, image: ImageSpec) -> None:
    white = (1 << depth) - 1
    black_row = bytes((30 * depth + 7) // 8)
    white_row = b"\xff" * len(black_row)
    rows = [black_row, white_row] * 10
    opaque = decoded(png(depth, 0, rows, (20, 30)), image)
    assert opaque[0].max() == 0
    assert opaque[1].min() == 255
    seen = decoded(png(depth, 0, rows, (20, 30), struct.pack(">H", 0)), image)
    assert (seen == 255).all()
    same = decoded(png(depth, 0, rows, (20, 30), struct.pack(">H", white)), image)
    assert np.array_equal(same, opaque)


@pytest.mark.parametrize(("depth", "level", "shown"), [(2, 1, 85), (4, 3, 51)])
def test_transparency_is_compared_with_the_stored_level(depth: int, level: int, shown: int) -> None:
    packed = int("".join(f"{level:0{depth}b}" for _ in range(8 // depth)), 2)
    rows = [bytes([packed]) * ((30 * depth + 7) // 8)] * 20
    assert (decoded(png(depth, 0, rows, (20, 30)), GREY) == shown).all()
    assert (decoded(png(depth, 0, rows, (20, 30), struct.pack(">H", level)), GREY) == 255).all()
    assert (decoded(png(depth, 0, rows, (20, 30), struct.pack(">H", level - 1)), GREY) == shown).all()


def test_one_transparent_colour_is_white() -> None:
    colour = PICTURE.getpixel((7, 3))
    pixels = decoded(encoded(PICTURE, "PNG", transparency=colour), IMAGE)
    expected = np.asarray(PICTURE).copy()
    expected[(expected == colour).all(axis=2)] = 255
    assert np.array_equal(pixels, expected)


def test_sixteen_bits_of_colour_keep_their_high_bytes() -> None:
    row = struct.pack(">3H", 0x12FF, 0x8000, 0xFFFF) * 30
    assert decoded(png(16, 2, [row] * 20, (20, 30)), IMAGE)[4, 5].tolist() == [0x12, 0x80, 0xFF]
    layered = struct.pack(">4H", 0x12FF, 0x8000, 0xFFFF, 0xFFFF) * 30
    assert decoded(png(16, 6, [layered] * 20, (20, 30)), IMAGE)[4, 5].tolist() == [0x12, 0x80, 0xFF]


def test_a_transparent_colour_of_sixteen_bits_is_refused() -> None:
    row = struct.pack(">3H", 1, 2, 3) * 30
    with pytest.raises(BadImageError, match="16 bits per channel with a transparent colour"):
        decoded(png(16, 2, [row] * 20, (20, 30), struct.pack(">3H", 1, 2, 3)), IMAGE)


@pytest.mark.parametrize(
    ("inks", "shown"),
    [((0, 0, 0, 0), (255, 255, 255)), ((255, 0, 0, 0), (0, 255, 255)), ((0, 0, 0, 255), (0, 0, 0))],
    ids=["paper", "cyan", "black"],
)
@pytest.mark.parametrize("name", ["TIFF", "JPEG"])
def test_cmyk_inks_are_subtracted_from_white(
    name: str, inks: tuple[int, int, int, int], shown: tuple[int, int, int]
) -> None:
    pixels = decoded(encoded(Image.new("CMYK", (30, 20), inks), name), IMAGE)
    assert apart(pixels, np.full(IMAGE.shape, shown)) <= 3


def test_pixels_outside_the_drawn_box_are_white() -> None:
    flat = convert_to_plain_mode(Image.new("L", (4, 3), 9), "RGB", PixelStorage(drawn=(1, 1, 3, 2)))
    assert np.asarray(flat)[:, :, 2].tolist() == [[255] * 4, [255, 9, 9, 255], [255] * 4]
