"""The colours of classes, and masks laid over pictures."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from streamd.core.class_colours import (
    Colour,
    choose_text_colour,
    colour_class_numbers,
    format_hex_colour,
    get_box_colour,
    get_class_colour,
    lay_mask_over,
)

# What people without one kind of cones see, in linear light: Viénot, Brettel and Mollon, 1999.
PROTANOPE = np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]])
DEUTERANOPE = np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]])
APART = 30  # of 255: a difference in brightness or hue that nobody overlooks


def seen(colour: Colour, sight: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[float]:
    linear = (np.array(colour) / 255) ** 2.2
    return list((np.clip(sight @ linear, 0, 1) ** (1 / 2.2) * 255).tolist())


@pytest.mark.parametrize("sight", [np.eye(3), PROTANOPE, DEUTERANOPE])
def test_the_first_eight_classes_differ_for_every_kind_of_sight(
    sight: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> None:
    colours = [seen(get_class_colour(number), sight) for number in range(8)]
    for one, other in combinations(colours, 2):
        assert np.linalg.norm(np.subtract(one, other)) > APART


def test_the_colours_of_the_first_22_classes_differ_and_then_repeat() -> None:
    assert len({get_class_colour(number) for number in range(22)}) == 22
    assert get_class_colour(22) == get_class_colour(1)
    assert get_class_colour(0) == (0, 0, 0)
    assert get_box_colour(0) != (0, 0, 0)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_numbers_of_masks_have_the_colours_of_their_classes(dtype: type[np.uint8 | np.uint16]) -> None:
    numbers = np.array([[0, 1, 22], [7, 43, 255]], dtype)
    found = colour_class_numbers(numbers)
    assert [tuple(pixel) for pixel in found.reshape(-1, 3).tolist()] == [
        get_class_colour(number) for number in numbers.ravel().tolist()
    ]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_mask_tints_its_picture_except_where_it_is_transparent(channels: int) -> None:
    picture, numbers = np.full((9, 9, channels), 100, np.uint8), np.full((9, 9), 255, np.uint8)
    numbers[2:7, 2:7] = 1
    found = lay_mask_over(picture, numbers, 255)
    assert found.shape == (9, 9, 3)
    assert found[0, 0].tolist() == [100] * 3
    assert tuple(found[2, 2].tolist()) == get_class_colour(1), "the outline"
    inside = found[4, 4].astype(int)
    assert (np.abs(inside - (np.array(get_class_colour(1)) + 100) / 2) <= 1).all()


def test_the_background_darkens_its_picture_and_has_no_outline() -> None:
    picture, numbers = np.full((4, 6, 3), 200, np.uint8), np.zeros((4, 6), np.uint8)
    numbers[:, 3:] = 2
    found = lay_mask_over(picture, numbers, 255)
    assert set(found[:, :3].ravel().tolist()) == {130}


@pytest.mark.parametrize("number", range(21))
def test_letters_contrast_with_every_colour(number: int) -> None:
    colour = get_box_colour(number)
    letters = choose_text_colour(colour)
    assert abs(np.mean(letters) - np.mean(colour)) > 80


def test_a_colour_is_written_as_web_pages_do() -> None:
    assert format_hex_colour((230, 159, 0)) == "#e69f00"
