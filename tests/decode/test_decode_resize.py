"""Resizing: how a picture is placed in its row."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.smooth_pictures import apart, smooth

from streamd.core.spec import ImageSpec, Resize
from streamd.decode.geometry import draw_geometry
from streamd.decode.resize import (
    BadImageError,
    Row,
    build_pil_image,
    check_image_size,
    resize_picture,
    resize_reduced_decode,
)
from streamd.limits import MAX_PIXELS

SIDES = st.integers(1, 70)
Fill = Callable[[Image.Image, ImageSpec], Row]


def filled(picture: Image.Image, image: ImageSpec) -> Row:
    row = np.full(image.shape, 77, dtype=np.uint8)
    resize_picture(row, picture, draw_geometry(image, (picture.height, picture.width)))
    return row


def filled_from_reduced(picture: Image.Image, image: ImageSpec) -> Row:
    """The same of a reduced decode."""
    row = np.full(image.shape, 77, dtype=np.uint8)
    pixels = np.asarray(picture).reshape(picture.height, picture.width, -1)
    resize_reduced_decode(row, pixels, draw_geometry(image, (picture.height, picture.width)))
    return row


both = pytest.mark.parametrize("fill", [filled, filled_from_reduced])


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (-1, 5)])
def test_an_empty_size_is_bad(size: tuple[int, int]) -> None:
    with pytest.raises(BadImageError, match=f"^its size is {size[1]}x{size[0]}, so it has no pixels$"):
        check_image_size(*size)


def test_the_bound_on_pixels_itself_is_allowed() -> None:
    check_image_size(1, MAX_PIXELS)
    with pytest.raises(BadImageError, match="are more than"):
        check_image_size(1, MAX_PIXELS + 1)


@both
@given(SIDES, SIDES, SIDES, SIDES, st.sampled_from(["stretch", "crop", "pad"]), st.sampled_from([1, 3]))
def test_every_size_is_resized_to_every_other(
    fill: Fill, height: int, width: int, rows: int, columns: int, resize: Resize, channels: int
) -> None:
    picture = Image.new("RGB" if channels > 1 else "L", (width, height), (90, 90, 90) if channels > 1 else 90)
    row = fill(picture, ImageSpec(rows, columns, channels, resize))
    assert set(np.unique(row)) <= ({0, 90} if resize == "pad" else {90})
    assert (row == 90).any()


@pytest.mark.parametrize(("width", "side"), [(7, 25), (14, 25), (49, 1)])
def test_a_crop_that_rounding_makes_slightly_too_wide_fills_its_row(width: int, side: int) -> None:
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


@both
@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
@pytest.mark.parametrize(("height", "width"), [(1, 5000), (5000, 1), (1, 1), (2, 3000), (3, 4999)])
def test_slivers_fill_their_row(fill: Fill, height: int, width: int, resize: Resize) -> None:
    row = fill(Image.new("RGB", (width, height), (90, 90, 90)), ImageSpec(24, 31, 3, resize))
    assert set(np.unique(row)) == ({0, 90} if resize == "pad" else {90})


def test_a_padded_sliver_is_a_line_through_the_middle() -> None:
    row = filled(Image.new("L", (5000, 1), 90), ImageSpec(7, 10, 1, "pad"))
    assert (row[3] == 90).all()
    assert row.sum() == 90 * 10


def test_odd_padding_is_added_below_and_to_the_right() -> None:
    tall = filled(Image.new("L", (4, 9), 90), ImageSpec(9, 9, 1, "pad"))
    wide = filled(Image.new("L", (9, 4), 90), ImageSpec(9, 9, 1, "pad"))
    assert np.flatnonzero(tall[0, :, 0]).tolist() == [2, 3, 4, 5]
    assert np.flatnonzero(wide[:, 0, 0]).tolist() == [2, 3, 4, 5]


def test_a_crop_with_an_odd_margin_removes_half_a_pixel_from_each_side() -> None:
    columns = Image.fromarray(np.tile(np.array([0, 40, 80, 120, 160], dtype=np.uint8), (4, 1)))
    row = filled(columns, ImageSpec(4, 4, 1, "crop"))
    assert row[0, :, 0].tolist() == [20, 60, 100, 140]


@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
def test_enlarging_stays_in_the_range_of_levels_and_centred(resize: Resize) -> None:
    ramp = Image.fromarray(np.tile(np.linspace(50, 200, 9).round().astype(np.uint8), (6, 1)))
    row = filled(ramp, ImageSpec(61, 97, 1, resize))[:, :, 0].astype(int)
    shown = row[row.any(axis=1)][:, row.any(axis=0)]
    assert 50 <= shown.min() <= shown.max() <= 200
    assert apart(shown + shown[:, ::-1], np.full(shown.shape, 250)) <= 2


@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
def test_shrinking_averages_pixels(resize: Resize) -> None:
    down, across = np.mgrid[0:300, 0:300]
    finest = Image.fromarray(((down + across) % 2 * 255).astype(np.uint8))
    row = filled(finest, ImageSpec(30, 30, 1, resize))
    assert apart(row, np.full(row.shape, 128)) <= 1


@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
@pytest.mark.parametrize("size", [(60, 90), (97, 97), (100, 61), (200, 31)])
def test_resizing_a_reduced_decode_gives_nearly_the_pixels_of_averaging(size: tuple[int, int], resize: Resize) -> None:
    picture = smooth(*size)
    image = ImageSpec(50, 40, 3, resize)
    assert apart(filled_from_reduced(picture, image), filled(picture, image)) <= 5


@pytest.mark.parametrize("resize", ["stretch", "crop"])
def test_a_reduced_decode_that_is_far_too_large_is_averaged(resize: Resize) -> None:
    down, across = np.mgrid[0:300, 0:300]
    finest = ((down + across) % 2 * 255).astype(np.uint8)
    row = filled_from_reduced(Image.fromarray(finest), ImageSpec(90, 80, 1, resize))
    assert apart(row, np.full(row.shape, 128)) <= 16


@pytest.mark.parametrize(("width", "shown"), [(90, slice(15, 75)), (91, slice(15, 76)), (89, slice(14, 75))])
def test_a_crop_of_a_reduced_decode_stays_centred_to_whole_pixels(width: int, shown: slice) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (60, width, 3), dtype=np.uint8)
    expected = filled_from_reduced(Image.fromarray(np.ascontiguousarray(pixels[:, shown])), ImageSpec(60, 60, 3))
    assert np.array_equal(filled_from_reduced(Image.fromarray(pixels), ImageSpec(60, 60, 3, "crop")), expected)


def test_a_resize_without_memory_raises_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_arguments: object, **_options: object) -> None:
        raise cv2.error("Insufficient memory")

    monkeypatch.setattr(cv2, "resize", failing)
    with pytest.raises(MemoryError, match="Insufficient memory"):
        filled_from_reduced(smooth(20, 20), ImageSpec(15, 15, 3))


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_a_picture_has_the_pixels_of_its_array(channels: int, mode: str) -> None:
    pixels = np.arange(4 * 6 * channels, dtype=np.uint8).reshape(4, 6, channels)
    for shown in (pixels, pixels[:, ::2], pixels[::-1]):
        picture = build_pil_image(shown)
        assert (picture.mode, picture.size) == (mode, shown.shape[1::-1])
        assert np.array_equal(np.asarray(picture).reshape(shown.shape), shown)


def test_a_picture_is_a_copy() -> None:
    pixels = np.zeros((2, 2, 3), np.uint8)
    picture = build_pil_image(pixels)
    pixels[:] = 9
    assert picture.getpixel((0, 0)) == (0, 0, 0)
