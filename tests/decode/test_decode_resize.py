"""Sizes: what a decode must cover, and how a picture comes to lie in its row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import apart, smooth
from PIL import Image

from streamd.decode.resize import BadImageError, check_pixels, covering_size, fill
from streamd.limits import MAX_PIXELS
from streamd.spec import ImageSpec, Resize

SIDES = st.integers(1, 70)


def filled(picture: Image.Image, image: ImageSpec) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    row = np.full(image.shape, 77, dtype=np.uint8)
    fill(row, picture, image)
    return row


@pytest.mark.parametrize(
    ("resize", "least"), [("stretch", (50, 50)), ("crop", (50, 100)), ("pad", (25, 50))], ids=["stretch", "crop", "pad"]
)
def test_what_a_decode_must_cover_follows_from_the_rule(resize: Resize, least: tuple[int, int]) -> None:
    assert covering_size(200, 400, ImageSpec(50, 50, 3, resize)) == least


def test_what_must_be_covered_is_never_nothing() -> None:
    assert covering_size(4, 4000, ImageSpec(10, 10, 3, "pad")) == (1, 10)


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (-1, 5)])
def test_a_size_of_nothing_is_bad(size: tuple[int, int]) -> None:
    with pytest.raises(BadImageError, match="a size of"):
        check_pixels(*size)


def test_the_bound_on_pixels_itself_is_allowed() -> None:
    check_pixels(1, MAX_PIXELS)
    with pytest.raises(BadImageError, match="are more than"):
        check_pixels(1, MAX_PIXELS + 1)


@given(SIDES, SIDES, SIDES, SIDES, st.sampled_from(["stretch", "crop", "pad"]), st.sampled_from([1, 3]))
def test_every_size_fits_into_every_other(
    height: int, width: int, rows: int, columns: int, resize: Resize, channels: int
) -> None:
    picture = Image.new("RGB" if channels > 1 else "L", (width, height), (90, 90, 90) if channels > 1 else 90)
    row = filled(picture, ImageSpec(rows, columns, channels, resize))
    assert set(np.unique(row)) <= ({0, 90} if resize == "pad" else {90})
    assert (row == 90).any()


@pytest.mark.parametrize(("width", "side"), [(7, 25), (14, 25), (49, 1)])
def test_a_crop_that_rounding_makes_a_hair_too_wide_is_still_a_crop(width: int, side: int) -> None:
    assert (filled(Image.new("L", (width, 300), 90), ImageSpec(side, side, 1, "crop")) == 90).all()


def test_stretching_keeps_all_four_corners() -> None:
    row = filled(smooth(60, 90), ImageSpec(30, 20, 3))
    assert apart(row[[0, 0, -1, -1], [0, -1, 0, -1]], [[0, 0, 255], [0, 255, 0], [255, 0, 0], [255, 255, 0]]) <= 12


def test_cropping_keeps_the_middle_in_its_proportions() -> None:
    picture = smooth(60, 90)
    assert np.array_equal(filled(picture, ImageSpec(60, 60, 3, "crop")), np.asarray(picture)[:, 15:75])


def test_padding_shows_the_whole_picture_between_black_bars() -> None:
    picture = smooth(30, 60)
    row = filled(picture, ImageSpec(60, 60, 3, "pad"))
    assert np.array_equal(row[15:45], np.asarray(picture))
    assert not row[:15].any()
    assert not row[45:].any()
