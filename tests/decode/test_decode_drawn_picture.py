"""Pictures as people look at them: resized, with masks, boxes and points."""

from __future__ import annotations

import numpy as np
from support.sample_batches import noise

from streamd.core.class_colours import get_box_colour, get_class_colour
from streamd.core.shown_pictures import PicturePlan, ShownBox, ShownPicture, ShownPoint
from streamd.decode.drawn_picture import draw_shown_picture

BLACK = np.zeros((20, 30, 3), np.uint8)
PLAN = PicturePlan("", "photo", (20, 30))


def test_enlarged_pixels_are_squares() -> None:
    pixels = noise(1, 20, 30)[0]
    found = np.asarray(draw_shown_picture(ShownPicture(PLAN, pixels), (80, 120)))
    assert np.array_equal(found, np.repeat(np.repeat(pixels, 4, axis=0), 4, axis=1))


def test_the_outline_of_a_class_is_a_pixel_wide_however_large_the_picture_is() -> None:
    mask = np.full((20, 30), 255, np.uint8)
    mask[5:15, 10:20] = 2
    found = np.asarray(draw_shown_picture(ShownPicture(PLAN, BLACK, mask), (80, 120)))
    outline = (found == get_class_colour(2)).all(axis=2)
    assert outline[20, 40:80].all()
    assert outline[20:60, 40].all()
    assert not outline[21:59, 41:79].any()
    assert outline.sum() == 2 * 40 + 2 * 38


def test_a_box_is_drawn_where_it_lies_and_named_above_it() -> None:
    box = ShownBox(10, 10, 20, 15, "dog", get_box_colour(3))
    found = np.asarray(draw_shown_picture(ShownPicture(PLAN, BLACK, boxes=(box,)), (80, 120)))
    coloured = (found == box.colour).all(axis=2)
    assert coloured[40:60, 40].all()
    assert coloured[59, 40:80].all()
    assert not coloured[44:56, 44:76].any()
    assert coloured[28:38].any(), "its name"
    assert not coloured[64:].any()


def test_a_name_without_room_above_its_box_lies_within_the_picture() -> None:
    box = ShownBox(25, 0, 30, 20, "a very long name of a class", get_box_colour(3))
    found = np.asarray(draw_shown_picture(ShownPicture(PLAN, BLACK, boxes=(box,)), (80, 120)))
    assert (found[:14] == box.colour).all(axis=2).any()


def test_boxes_without_area_and_at_the_edges_can_be_drawn() -> None:
    boxes = tuple(
        ShownBox(*sides, "x", get_box_colour(0)) for sides in ((0, 0, 0, 0), (30, 20, 30, 20), (0, 0, 30, 20))
    )
    assert draw_shown_picture(ShownPicture(PLAN, BLACK, boxes=boxes), (10, 15)).size == (15, 10)


def test_a_point_is_drawn_where_it_lies() -> None:
    point = ShownPoint(10, 5, get_box_colour(4))
    found = np.asarray(draw_shown_picture(ShownPicture(PLAN, BLACK, points=(point,)), (80, 120)))
    places = np.argwhere((found == point.colour).all(axis=2))
    assert np.abs(places.mean(axis=0) - (20, 40)).max() <= 1
