"""Boxes and points follow the geometry of their picture, are clipped to it, and are dropped as the label says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from streamd.core.spec import ImageSpec, LabelSpec
from streamd.decode.boxes import find_odd_rows, place_label_rows
from streamd.decode.geometry import Geometry, draw_geometry
from streamd.decode.random_crop import compute_random_crop_draws

BOXES = LabelSpec("boxes", "boxes", width=5, rows=4)
POINTS = LabelSpec("points", "points", width=2, rows=3)
SIZE = 100, 200  # height, width of the picture
EMPTY = [-1.0] * 5


def placed(label: LabelSpec, geometry: Geometry, *rows: Sequence[float]) -> list[list[float]]:
    found = np.array(rows, np.float32).reshape(-1, label.width)
    row = np.full(label.shape, 7, np.float32)
    place_label_rows(found, label, geometry, row)
    given: list[list[float]] = row.tolist()
    return given


def geometry(resize: Any, height: int = 50, width: int = 50) -> Geometry:
    return draw_geometry(ImageSpec(height, width, 3, resize), SIZE)


def test_a_stretched_box_follows_each_axis() -> None:
    assert placed(BOXES, geometry("stretch"), [20, 10, 60, 90, 3]) == [[5, 5, 15, 45, 3], EMPTY, EMPTY, EMPTY]


def test_a_crop_cuts_boxes_and_leaves_out_those_beyond_it() -> None:
    # The middle 100 columns of 200 are shown, at half their size.
    rows = [0, 0, 40, 40, 1], [40, 20, 60, 40, 2], [100, 0, 190, 100, 0]
    assert placed(BOXES, geometry("crop"), *rows) == [[0, 10, 5, 20, 2], [25, 0, 50, 50, 0], EMPTY, EMPTY]


def test_pad_moves_boxes_and_cuts_them_at_the_picture_and_not_at_the_padding() -> None:
    # The picture is 25 rows high, below 12 rows of padding.
    assert placed(BOXES, geometry("pad"), [-20, -20, 100, 100, 0])[0] == [0, 12, 25, 37, 0]


@pytest.mark.parametrize(("share", "kept"), [(0.0, True), (0.5, True), (0.51, False), (1.0, False)])
def test_a_box_is_dropped_below_its_visible_share(share: float, kept: bool) -> None:
    label = replace(BOXES, min_visible=share)
    whole = [60, 0, 140, 100, 1]
    rows = placed(label, geometry("crop"), [40, 20, 60, 40, 2], whole)
    assert [25 - 20, 0, 45, 50, 1] in rows
    assert ([0, 10, 5, 20, 2] in rows) is kept


def test_a_wholly_visible_box_survives_any_share_despite_rounding() -> None:
    label = replace(BOXES, min_visible=1.0)
    for width in range(3, 400):
        image = ImageSpec(37, 41, 3)
        shown = draw_geometry(image, (width + 5, width))
        assert placed(label, shown, [0, 0, width, width + 5, 0])[0] == [0, 0, 41, 37, 0]


def test_a_box_without_area_is_always_dropped() -> None:
    assert placed(BOXES, geometry("stretch"), [20, 10, 20, 90, 3], [300, 10, 400, 20, 1]) == [EMPTY] * 4


def test_fractions_are_of_the_picture() -> None:
    label = replace(BOXES, unit="fraction")
    assert placed(label, geometry("stretch"), [0.25, 0.5, 0.75, 1, 1])[0] == [12.5, 25, 37.5, 50, 1]


def test_points_keep_their_places_and_are_minus_one_outside_or_hidden() -> None:
    shown = geometry("crop")
    rows = placed(POINTS, shown, [40, 50], [np.nan, np.nan], [60, 50])
    assert rows == [[-1, -1], [-1, -1], [5, 25]]
    assert placed(POINTS, shown, [50, 0], [150, 50]) == [[0, 0], [-1, -1], [-1, -1]]  # the right edge is outside


def test_a_box_marks_the_same_pixels_in_a_random_crop() -> None:
    image = ImageSpec(64, 64, 3, "random_crop")
    for draw in compute_random_crop_draws(image, 3, 1, np.arange(20)):
        shown = draw_geometry(image, SIZE, draw)
        left, top, right, bottom = shown.box
        inner = [left + 0.25 * (right - left), top, right, top + 0.5 * (bottom - top), 0]
        assert np.allclose(placed(BOXES, shown, inner)[0], [16, 0, 64, 32, 0], atol=1e-4)


def test_odd_boxes_are_counted() -> None:
    rows: npt.NDArray[np.float32] = np.array(
        [[0, 0, 200.4, 100.4, 0], [0, 0, 201, 90, 0], [-3, 0, 4, 4, 0], [5, 5, 5, 9, 0], [300, 5, 300, 9, 0]],
        np.float32,
    )
    assert find_odd_rows(rows, BOXES, SIZE) == (2, 2)
    assert find_odd_rows(rows / np.float32(200), replace(BOXES, unit="fraction"), SIZE) == (2, 2)
    assert find_odd_rows(np.array([[1, 1], [np.nan, np.nan], [-9, 1]], np.float32), POINTS, SIZE) == (0, 1)
