"""Numbers of any depth are resized as Pillow resizes pictures of 8 bits."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from support.stored_numbers import Numbers, build_numbers

from streamd.core.spec import ImageSpec
from streamd.decode.geometry import Geometry, compute_random_crop_draws, draw_geometry
from streamd.decode.raw import resize_numbers

BILINEAR = Image.Resampling.BILINEAR


def _resize(numbers: Numbers, image: ImageSpec, geometry: Geometry, fill: int = 0) -> Numbers:
    row = np.full((image.height, image.width, numbers.shape[2]), 77, numbers.dtype)
    resize_numbers(row, numbers, geometry, fill)
    return row


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 7, 8, 32])
def test_bytes_are_those_of_pillow_in_each_channel(channels: int) -> None:
    numbers, image = build_numbers(40, 30, channels, "uint8"), ImageSpec(17, 23, 3)
    found = _resize(numbers, image, draw_geometry(image, (40, 30)))
    for channel in range(channels):
        plane = Image.fromarray(np.ascontiguousarray(numbers[:, :, channel])).resize((23, 17), BILINEAR)
        assert np.array_equal(found[:, :, channel], np.asarray(plane))


def test_16_bits_differ_by_one_at_most_from_the_planes_that_pillow_rounds_twice() -> None:
    numbers, image = build_numbers(40, 30, 2, "uint16"), ImageSpec(17, 23, 3, "crop")
    geometry = draw_geometry(image, (40, 30))
    found = _resize(numbers, image, geometry)
    for channel in range(2):
        plane = Image.fromarray(np.ascontiguousarray(numbers[:, :, channel])).resize((23, 17), BILINEAR, geometry.box)
        assert np.abs(found[:, :, channel].astype(int) - np.asarray(plane)).max() <= 1


def test_floats_are_those_of_pillow() -> None:
    numbers, image = build_numbers(40, 30, 2, "float32"), ImageSpec(17, 23, 3)
    found = _resize(numbers, image, draw_geometry(image, (40, 30)))
    plane = Image.fromarray(np.ascontiguousarray(numbers[:, :, 1])).resize((23, 17), BILINEAR)
    assert np.array_equal(found[:, :, 1], np.asarray(plane))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_the_largest_numbers_stay_within_their_range(dtype: str) -> None:
    top = 3e38 if dtype == "float32" else np.iinfo(dtype).max
    numbers = np.full((9, 31, 5), top, dtype)
    image = ImageSpec(20, 4, 3)
    assert (_resize(numbers, image, draw_geometry(image, (9, 31))) == np.array(top, dtype)).all()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_padding_holds_the_fill(dtype: str) -> None:
    numbers, image = np.full((10, 30, 2), 7, dtype), ImageSpec(20, 20, 3, "pad")
    found = _resize(numbers, image, draw_geometry(image, (10, 30)), fill=9)
    assert set(np.unique(found[:6])) == {9}
    assert set(np.unique(found[7:13])) == {7}


def test_a_random_crop_is_cut_at_whole_pixels_before_it_is_resized() -> None:
    numbers, image = build_numbers(40, 30, 4, "uint16"), ImageSpec(8, 8, 3, "random_crop")
    (draw,) = compute_random_crop_draws(image, 3, 0, np.array([5]))
    geometry = draw_geometry(image, (40, 30), draw)
    left, top, right, bottom = geometry.pixel_box
    cut = numbers[top:bottom, left:right]
    plain = ImageSpec(8, 8, 3)
    assert np.array_equal(_resize(numbers, image, geometry), _resize(cut, plain, draw_geometry(plain, cut.shape[:2])))


def test_numbers_of_the_right_size_are_copied() -> None:
    numbers, image = build_numbers(20, 30, 6, "float32"), ImageSpec(20, 30, 3, "crop")
    numbers[0, 0] = np.nan
    assert np.array_equal(_resize(numbers, image, draw_geometry(image, (20, 30))), numbers, equal_nan=True)
