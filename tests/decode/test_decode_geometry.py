"""Geometry: the part of a picture that a row shows, where it lands, and what follows it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.core.spec import ImageSpec, Resize
from streamd.decode.geometry import Geometry, compute_covering_size, compute_random_crop_draws, draw_geometry

SIDES = st.integers(1, 300)
RESIZES = st.sampled_from(["stretch", "crop", "pad", "random_crop"])


def drawn(image: ImageSpec, size: tuple[int, int], sample: int = 0) -> Geometry:
    (draw,) = compute_random_crop_draws(image, 0, 0, np.array([sample]))
    return draw_geometry(image, size, draw)


@pytest.mark.parametrize(
    ("resize", "least"), [("stretch", (50, 50)), ("crop", (50, 100)), ("pad", (25, 50))], ids=["stretch", "crop", "pad"]
)
def test_the_covering_size_follows_from_the_resize(resize: Resize, least: tuple[int, int]) -> None:
    assert compute_covering_size(200, 400, ImageSpec(50, 50, 3, resize)) == least


def test_the_covering_size_is_at_least_one_pixel() -> None:
    assert compute_covering_size(4, 4000, ImageSpec(10, 10, 3, "pad")) == (1, 10)


@given(SIDES, SIDES, SIDES, SIDES, RESIZES, st.integers(0, 50))
def test_the_box_lies_in_the_picture_and_the_place_in_the_row(
    height: int, width: int, rows: int, columns: int, resize: Resize, sample: int
) -> None:
    geometry = drawn(ImageSpec(rows, columns, 3, resize), (height, width), sample)
    left, top, right, bottom = geometry.box
    assert 0 <= left < right <= width + 1e-9
    assert 0 <= top < bottom <= height + 1e-9
    left, top, right, bottom = geometry.place
    assert 0 <= left < right <= columns
    assert 0 <= top < bottom <= rows
    assert geometry.is_whole_row or resize == "pad"


@pytest.mark.parametrize(
    ("resize", "box", "place"),
    [
        ("stretch", (0, 0, 400, 200), (0, 0, 50, 50)),
        ("crop", (100, 0, 300, 200), (0, 0, 50, 50)),
        ("pad", (0, 0, 400, 200), (0, 12, 50, 37)),
        ("random_crop", (100, 0, 300, 200), (0, 0, 50, 50)),
    ],
)
def test_without_a_draw_the_middle_is_shown(resize: Resize, box: tuple[int, ...], place: tuple[int, ...]) -> None:
    geometry = draw_geometry(ImageSpec(50, 50, 3, resize), (200, 400))
    assert (geometry.box, geometry.place, geometry.is_cut) == (box, place, False)


@given(SIDES, SIDES, RESIZES, st.integers(0, 50), st.integers(1, 8))
def test_corners_of_the_box_land_on_corners_of_the_place(
    height: int, width: int, resize: Resize, sample: int, times: int
) -> None:
    geometry = drawn(ImageSpec(24, 32, 3, resize), (height, width), sample)
    for each in (geometry, geometry.scale_to_source((height * times, width * times))):
        left, top, right, bottom = each.box
        corners = each.map_points([(left, top), (right, bottom)])
        assert corners.ravel().tolist() == pytest.approx(each.place)


@given(SIDES, SIDES, RESIZES, st.integers(0, 50), st.tuples(SIDES, SIDES))
def test_a_picture_of_another_size_shows_the_same_part(
    height: int, width: int, resize: Resize, sample: int, size: tuple[int, int]
) -> None:
    geometry = drawn(ImageSpec(24, 32, 3, resize), (height, width), sample)
    point = np.array([[0.3 * width, 0.6 * height]])
    followed = draw_geometry(ImageSpec(24, 32, 1, resize), size, geometry)
    moved = point * [size[1] / width, size[0] / height]
    assert followed.source == size
    assert followed.map_points(moved) == pytest.approx(geometry.map_points(point), abs=1e-6)


def test_a_row_of_another_size_shows_the_same_part_in_proportion() -> None:
    geometry = draw_geometry(ImageSpec(50, 50, 3, "pad"), (200, 400)).scale_to_target((100, 200))
    assert (geometry.box, geometry.target, geometry.place) == ((0, 0, 400, 200), (100, 200), (0, 24, 200, 74))


def test_a_thin_place_keeps_a_pixel_in_a_smaller_row() -> None:
    geometry = draw_geometry(ImageSpec(50, 50, 3, "pad"), (1, 400)).scale_to_target((5, 5))
    assert geometry.place_size == (1, 5)


@given(
    begin=st.integers(0, 500),
    length=st.integers(1, 500),
    rest=st.integers(0, 500),
    top=st.integers(0, 300),
    reduction=st.sampled_from([1, 2, 4, 8]),
)
def test_a_cut_of_a_reduced_decode_is_the_nearest_whole_pixels(
    begin: int, length: int, rest: int, top: int, reduction: int
) -> None:
    size = top + 1 + rest, begin + length + rest
    box = begin, top, begin + length, top + 1
    reduced = -(-size[0] // reduction), -(-size[1] // reduction)
    left, upper, right, lower = (
        Geometry(size, box, (8, 8), (0, 0, 8, 8), is_cut=True).scale_to_source(reduced).pixel_box
    )
    assert 0 <= left < right <= reduced[1]
    assert 0 <= upper < lower <= reduced[0]
    assert left == reduced[1] - 1 or left == (2 * begin * reduced[1] + size[1]) // (2 * size[1])
    assert right in {left + 1, (2 * (begin + length) * reduced[1] + size[1]) // (2 * size[1])}
    assert reduction > 1 or (left, upper, right, lower) == box
