"""Boxes and points follow the geometry of their picture, are clipped to it, and are dropped as the label says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from streamd.core.spec import ImageSpec, LabelSpec, Resize
from streamd.decode.boxes import align_label_rows, find_label_fit, find_odd_rows, place_label_rows
from streamd.decode.decoders import BadImageError, decode_image
from streamd.decode.geometry import Geometry, Size, compute_random_crop_draws, draw_geometry

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
    odd = {"empty": 2, "outside": 2, "filled": 1, "cornered": 0, "crowded": 0}
    assert find_odd_rows(rows, BOXES, SIZE) == odd
    assert find_odd_rows(rows / np.float32(200), replace(BOXES, unit="fraction"), SIZE) == odd
    points = np.array([[1, 1], [np.nan, np.nan], [-9, 1]], np.float32)
    assert find_odd_rows(points, POINTS, SIZE) == {"outside": 1, "filled": 1, "cornered": 1, "crowded": 0}
    nothing = {"empty": 0, "outside": 0, "filled": 0, "cornered": 0, "crowded": 0}
    assert find_odd_rows(np.empty((0, 5), np.float32), BOXES, SIZE) == nothing
    corner = np.array([[0, 0, 100, 50, 0]] * 8, np.float32)
    assert find_odd_rows(corner, BOXES, SIZE) == {**nothing, "filled": 1, "cornered": 1, "crowded": 1}
    assert find_odd_rows(corner + np.float32(0.5), BOXES, SIZE) == {**nothing, "filled": 1}


TURNS: dict[int, Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.uint8]]] = {
    1: lambda upright: upright,
    2: np.fliplr,
    3: lambda upright: np.rot90(upright, 2),
    4: np.flipud,
    5: lambda upright: upright.swapaxes(0, 1),
    6: lambda upright: np.rot90(upright, 1),
    7: lambda upright: np.rot90(upright.swapaxes(0, 1), 2),
    8: lambda upright: np.rot90(upright, 3),
}


@settings(max_examples=120, deadline=None)
@given(
    orientation=st.integers(1, 8),
    times=st.sampled_from([1, 2, 5]),
    is_stored=st.booleans(),
    resize=st.sampled_from(["stretch", "crop", "pad"]),
    target=st.tuples(st.integers(20, 60), st.integers(20, 60)),
    corner=st.tuples(st.integers(0, 20), st.integers(0, 30)),
    side=st.tuples(st.integers(4, 9), st.integers(4, 9)),
)
def test_boxes_lie_on_their_pixels_whatever_picture_they_were_drawn_on(
    orientation: int,
    times: int,
    is_stored: bool,
    resize: Resize,
    target: Size,
    corner: tuple[int, int],
    side: tuple[int, int],
) -> None:
    upright = np.zeros((30, 40), np.uint8)
    upright[corner[0] : corner[0] + side[0], corner[1] : corner[1] + side[1]] = 255
    stored = TURNS[orientation](upright)
    exif, out = Image.Exif(), BytesIO()
    exif[0x112] = orientation
    Image.fromarray(np.ascontiguousarray(stored)).save(out, "PNG", exif=exif)
    # A size tells only a quarter turn; all others are taken to be those of the upright picture.
    drawn = stored if is_stored and orientation >= 5 else upright
    rows, columns = np.nonzero(drawn)
    box = np.array([[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1, 3]], np.float32)
    box[:, :4] *= times
    image = ImageSpec(*target, 1, resize, mode="index", fill=7)
    row = np.empty(target, np.uint8)
    geometry = decode_image(out.getvalue(), row, image)
    assert (geometry.source, geometry.stored_size) == (upright.shape, stored.shape)
    size = drawn.shape[0] * times, drawn.shape[1] * times
    found = np.empty((1, 5), np.float32)
    place_label_rows(
        align_label_rows(box, replace(BOXES, rows=1), size, geometry), replace(BOXES, rows=1), geometry, found
    )
    seen = np.argwhere(row == 255)
    if found[0, 4] < 0:
        assert not seen.size
        return
    # A pixel belongs to the box if its middle does.
    middles = np.argwhere(np.ones(target, np.bool_)) + 0.5
    left, top, right, bottom = found[0, :4]
    inside = (middles[:, 1] > left) & (middles[:, 1] < right) & (middles[:, 0] > top) & (middles[:, 0] < bottom)
    edges = np.array([left, top, right, bottom]) % 1
    if (np.abs(edges - 0.5) > 1e-3).all():  # where an edge lies on the middle of a pixel, rounding decides
        assert {*map(tuple, seen)} == {*map(tuple, np.floor(middles[inside]).astype(int))}


@pytest.mark.parametrize(
    ("drawn", "source", "orientation", "fit"),
    [
        ((40, 30), (40, 30), 6, "same"),
        ((30, 40), (40, 30), 6, "turned"),
        ((60, 80), (40, 30), 8, "turned"),
        ((80, 60), (40, 30), 8, "scaled"),
        ((30, 30), (60, 60), 5, "scaled"),
        ((360, 640), (2252, 4000), 1, "scaled"),  # rounded to whole pixels
        ((2252, 4000), (360, 640), 1, "scaled"),
        ((30, 40), (40, 30), 1, "has other proportions"),
        ((40, 33), (400, 300), 6, "has other proportions"),
        ((50, 50), (100, 101), 6, "may be meant for it as it is stored or as it is turned upright"),
        ((101, 100), (100, 101), 6, "turned"),
    ],
)
def test_sizes_say_how_labels_come_onto_the_picture(drawn: Size, source: Size, orientation: int, fit: str) -> None:
    geometry = replace(draw_geometry(ImageSpec(10, 10, 3), source), orientation=orientation)
    if " " not in fit:
        assert find_label_fit(drawn, geometry) == fit
        return
    said = f"its labels were drawn on {drawn[1]}x{drawn[0]} pixels, width x height, but the picture has "
    with pytest.raises(BadImageError, match=f"{said}.*: the size in the data {fit}; correct or remove it"):
        find_label_fit(drawn, geometry)


def test_a_size_that_the_boxes_contradict_is_refused() -> None:
    geometry = replace(draw_geometry(ImageSpec(10, 10, 3), (40, 30)), orientation=6)
    upright: npt.NDArray[np.float32] = np.array([[0, 0, 20, 38, 1]], np.float32)
    with pytest.raises(BadImageError, match=r"drawn on 40x30 pixels.*is too small for them, and that of"):
        align_label_rows(upright, BOXES, (30, 40), geometry)
    # Boxes that lie outside of both are cut as ever.
    assert align_label_rows(upright * 9, BOXES, (30, 40), geometry).shape == (1, 5)
    assert align_label_rows(upright, BOXES, None, geometry) is upright
    hidden = np.array([[np.nan, np.nan], [40, 0]], np.float32)
    turned = align_label_rows(hidden, POINTS, (30, 40), geometry)
    assert np.isnan(turned[0]).all()
    assert turned[1].tolist() == [30, 40]
