"""Colours of class numbers, for masks and boxes that people look at. Pure.

The first eight colours are those that Okabe and Ito chose so that people with any kind of colour vision tell them
apart: https://jfly.uni-koeln.de/color/. Later classes have the same hues, first darker and then lighter.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Colour = tuple[int, int, int]  # red, green, blue, 0 to 255
Pixels = npt.NDArray[np.uint8]
Numbers = npt.NDArray[Any]

_BLACK: Final[Colour] = (0, 0, 0)
_HUES: Final[tuple[Colour, ...]] = (
    (230, 159, 0),  # orange
    (86, 180, 233),  # sky blue
    (0, 158, 115),  # bluish green
    (240, 228, 66),  # yellow
    (0, 114, 178),  # blue
    (213, 94, 0),  # vermilion
    (204, 121, 167),  # reddish purple
)
_DARKER: Final = tuple((red * 11 // 20, green * 11 // 20, blue * 11 // 20) for red, green, blue in _HUES)
_LIGHTER: Final = tuple(((red + 255) // 2, (green + 255) // 2, (blue + 255) // 2) for red, green, blue in _HUES)
_COLOURS: Final[tuple[Colour, ...]] = (*_HUES, *_DARKER, *_LIGHTER)
_TABLE: Final[Pixels] = np.array([_BLACK, *_COLOURS], np.uint8)
_COVERED: Final = np.float32(0.5)  # so much of a pixel comes from the colour of its class
_COVERED_BY_BACKGROUND: Final = np.float32(0.35)  # ... and so much from the black of class 0
_GREYED: Final = np.float32(0.7)  # so much of a picture's own colours is taken below a mask, or they would mix
_BRIGHTNESS: Final = np.array([0.299, 0.587, 0.114], np.float32)  # of red, green and blue
_CHANNELS: Final = 3
_BRIGHT_FROM: Final = 140  # on brighter colours, black letters are read more easily than white ones


def get_class_colour(number: int) -> Colour:
    """Returns the colour of a class in a mask. Class 0, which is mostly the background, is black."""
    return _BLACK if number == 0 else _COLOURS[(number - 1) % len(_COLOURS)]


def get_box_colour(number: int) -> Colour:
    """Returns the colour of the boxes of a class, or of the point at a place. None is black."""
    return _COLOURS[number % len(_COLOURS)]


def choose_text_colour(background: Colour) -> Colour:
    """Returns black or white, whichever is read more easily on `background`."""
    red, green, blue = background
    brightness = (299 * red + 587 * green + 114 * blue) // 1000
    return _BLACK if brightness >= _BRIGHT_FROM else (255, 255, 255)


def format_hex_colour(colour: Colour) -> str:
    """Returns a colour as a web page writes it, such as `#e69f00`."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def colour_class_numbers(numbers: Numbers) -> Pixels:
    """Returns the colours of class numbers (height, width), as uint8 (height, width, 3)."""
    places = np.where(numbers == 0, 0, (numbers.astype(np.int64) - 1) % len(_COLOURS) + 1)
    return _TABLE[places]


def lay_mask_over(picture: Pixels, numbers: Numbers, transparent: int) -> Pixels:
    """Returns a picture (height, width, 1 or 3) with the colours of its mask (height, width) laid over it.

    The picture shows through, in pale colours, except along the outline of a class. Where the mask holds the number
    `transparent`, the picture is as it was.
    """
    colours = colour_class_numbers(numbers).astype(np.float32)
    below = np.broadcast_to(picture, (*picture.shape[:2], _CHANNELS)).astype(np.float32)
    pale = below + ((below @ _BRIGHTNESS)[:, :, np.newaxis] - below) * _GREYED
    cover = np.where(numbers == 0, _COVERED_BY_BACKGROUND, _COVERED)
    cover[_find_outlines(numbers)] = 1
    blended = pale + (colours - pale) * cover[:, :, np.newaxis]
    shown = np.where((numbers == transparent)[:, :, np.newaxis], below, np.rint(blended))
    return np.asarray(shown, np.uint8)


def _find_outlines(numbers: Numbers) -> npt.NDArray[np.bool_]:
    """Returns which pixels of any class but 0 have a neighbour of another class."""
    outlines: npt.NDArray[np.bool_] = np.zeros(numbers.shape, np.bool_)
    differs = numbers[:, 1:] != numbers[:, :-1]
    outlines[:, 1:] |= differs
    outlines[:, :-1] |= differs
    differs = numbers[1:] != numbers[:-1]
    outlines[1:] |= differs
    outlines[:-1] |= differs
    outlines &= numbers != 0
    return outlines
