"""What people see of numbers that no screen shows."""

from __future__ import annotations

import numpy as np
import pytest

from streamd.core.class_colours import get_class_colour
from streamd.core.shown_pixels import build_shown_pixels, describe_shown_numbers, measure_levels
from streamd.core.spec import ImageSpec, PixelType


def test_pixels_of_8_bits_are_shown_as_they_are() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert build_shown_pixels(pixels, ImageSpec(2, 4, 3)) is pixels


@pytest.mark.parametrize(
    ("dtype", "bounds", "black", "white"),
    [("uint16", None, 0, 65535), ("uint16", (200.0, 4000.0), 200, 4000), ("float32", None, 0, 1)],
)
def test_raw_numbers_are_scaled_from_their_range(
    dtype: PixelType, bounds: tuple[float, float] | None, black: float, white: float
) -> None:
    numbers = np.array([[[black], [white], [(black + white) / 2]]], dtype)
    image = ImageSpec(1, 3, 1, mode="raw", dtype=dtype, range=bounds)
    assert build_shown_pixels(numbers, image)[0, :, 0].tolist() in ([0, 255, 127], [0, 255, 128])


@pytest.mark.parametrize(("channels", "shown"), [(1, 1), (2, 1), (3, 3), (12, 3)])
def test_the_first_channels_are_shown(channels: int, shown: int) -> None:
    numbers = np.full((2, 3, channels), 7, np.uint8)
    assert build_shown_pixels(numbers, ImageSpec(2, 3, channels, mode="raw")).shape == (2, 3, shown)


def test_what_is_no_number_is_black_and_infinity_white() -> None:
    numbers = np.array([[[np.nan], [np.inf], [-np.inf], [1e30]]], np.float32)
    found = build_shown_pixels(numbers, ImageSpec(1, 4, 1, mode="raw", dtype="float32"))
    assert found[0, :, 0].tolist() == [0, 255, 0, 255]


def test_transparent_pixels_show_a_checkerboard() -> None:
    pixels = np.zeros((32, 32, 4), np.uint8)
    pixels[:, :, :3] = 10, 20, 30
    pixels[0, 0, 3] = 255
    found = build_shown_pixels(pixels, ImageSpec(32, 32, 4, mode="RGBA"))
    assert found[0, 0].tolist() == [10, 20, 30]
    assert {tuple(pixel) for pixel in found.reshape(-1, 3)[1:].tolist()} == {(250,) * 3, (205,) * 3}


def test_half_transparent_pixels_mix_with_the_checkerboard() -> None:
    pixels = np.full((1, 1, 4), (0, 0, 0, 51), np.uint8)
    assert build_shown_pixels(pixels, ImageSpec(1, 1, 4, mode="RGBA"))[0, 0].tolist() == [200] * 3


def test_class_numbers_have_the_colours_of_their_classes_and_their_fill_has_none() -> None:
    image = ImageSpec(1, 3, 1, mode="index", dtype="uint16", fill=900)
    found = build_shown_pixels(np.array([[3, 22, 900]], np.uint16), image)[0].tolist()
    assert found[:2] == [list(get_class_colour(3)), list(get_class_colour(22))]
    assert found[2] in ([250] * 3, [205] * 3)


def test_deep_numbers_are_stretched_to_what_a_batch_holds() -> None:
    numbers = np.full((2, 100, 100, 4), 1000, np.uint16)
    numbers[:, :50, :, :3] = 3000
    numbers[:, 50:, :, 3] = 60000  # a channel that is not shown
    numbers[0, 0, 0] = 65535  # a broken pixel
    image = ImageSpec(100, 100, 4, mode="raw", dtype="uint16")
    levels = measure_levels(numbers, image)
    assert levels is not None
    assert list(levels) == [1000, 3000]
    shown = build_shown_pixels(numbers[1], image, levels)
    assert (shown[0, 0].tolist(), shown[99, 0].tolist()) == ([255] * 3, [0] * 3)
    assert describe_shown_numbers(image, levels) == "1,000 is black and 3,000 white; the first 3 of 4 channels"


def test_numbers_of_8_bits_keep_their_range() -> None:
    image = ImageSpec(2, 2, 3, mode="raw")
    assert measure_levels(np.full((1, 2, 2, 3), 7, np.uint8), image) == (0, 255)
    assert describe_shown_numbers(image, (0, 255)) == "0 is black and 255 white"


@pytest.mark.parametrize("number", [5.0, np.nan])
def test_a_batch_of_one_number_only_can_be_shown(number: float) -> None:
    image = ImageSpec(2, 2, 1, mode="raw", dtype="float32")
    low, high = measure_levels(np.full((1, 2, 2, 1), number, np.float32), image)
    assert low < high


def test_views_stand_side_by_side() -> None:
    pixels = np.arange(2 * 2 * 4 * 3, dtype=np.uint8).reshape(2, 2, 4, 3)
    image = ImageSpec(2, 4, 3, views=2)
    assert np.array_equal(build_shown_pixels(pixels, image), np.hstack([*pixels]))
    assert build_shown_pixels(pixels[0], image).shape == (2, 4, 3), "one view by itself"
    masks = ImageSpec(2, 4, 1, mode="index", views=2)
    assert build_shown_pixels(pixels[..., 0], masks).shape == (2, 8, 3)
