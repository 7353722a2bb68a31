"""What people see of numbers that no screen shows."""

from __future__ import annotations

import numpy as np
import pytest

from streamd.core.shown_pixels import build_shown_pixels, compute_shown_size
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


def test_transparent_pixels_are_white() -> None:
    pixels = np.array([[[10, 20, 30, 0], [10, 20, 30, 255], [0, 0, 0, 51]]], np.uint8)
    found = build_shown_pixels(pixels, ImageSpec(1, 3, 4, mode="RGBA"))
    assert found[0].tolist() == [[255] * 3, [10, 20, 30], [204] * 3]


def test_class_numbers_are_grey_levels() -> None:
    found = build_shown_pixels(np.array([[3, 900]], np.uint16), ImageSpec(1, 2, 1, mode="index", dtype="uint16"))
    assert found[0, :, 0].tolist() == [3, 255]


def test_views_stand_side_by_side() -> None:
    pixels = np.arange(2 * 2 * 4 * 3, dtype=np.uint8).reshape(2, 2, 4, 3)
    image = ImageSpec(2, 4, 3, views=2)
    shown = build_shown_pixels(pixels, image)
    assert shown.shape[:2] == compute_shown_size(image) == (2, 8)
    assert np.array_equal(shown, np.hstack([*pixels]))
    masks = ImageSpec(2, 4, 1, mode="index", views=2)
    assert build_shown_pixels(pixels[..., 0], masks).shape == (2, 8, 1)
