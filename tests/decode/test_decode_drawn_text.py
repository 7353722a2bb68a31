"""Text on pictures: its letters, and how it is shortened."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from streamd.decode.drawn_picture import draw_text, measure_width, shorten_text

WHITE = (255, 255, 255)
BLACK = (0, 0, 0)


def ink(text: str, size: int = 40) -> npt.NDArray[np.bool_]:
    """Where `text` leaves ink, (80, 400)."""
    image = Image.new("RGB", (400, 80), WHITE)
    draw_text(image, (10, 20), text, size, BLACK)
    return np.asarray(image)[:, :, 0] < 128


def test_composed_and_decomposed_letters_look_the_same() -> None:
    assert np.array_equal(ink("Zo\u00eb"), ink("Zoe\u0308"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("猫", r"\u732b"),
        ("a\nb", r"a\nb"),
        ("\x1b[31m", r"\x1b[31m"),
        ("Straße", "Strasse"),
        ("Zoë Müller", "Zoe Muller"),
        ("1\N{EN DASH}2", "1-2"),
        ("\u202efdp", r"\u202efdp"),
    ],
)
def test_characters_missing_from_the_font_are_spelled_out(text: str, said: str) -> None:
    assert np.array_equal(ink(text, 20), ink(said, 20))


def test_an_empty_text_leaves_the_paper_white() -> None:
    assert not ink("").any()
    assert measure_width("", 20) == 0


@pytest.mark.parametrize("middle", [False, True])
def test_a_shortened_text_fits_and_says_that_it_is_shortened(middle: bool) -> None:
    text = "cat/IMG_2024_Müller_000012.jpg"
    short = shorten_text(text, 12, 100, middle=middle)
    assert measure_width(short, 12) <= 100
    assert measure_width(f"{short}m", 12) > 90
    head, tail = short.split("…")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert bool(tail) == middle


def test_a_text_that_fits_stays_whole() -> None:
    assert shorten_text("cat", 12, measure_width("cat", 12)) == "cat"


def test_a_text_with_no_room_becomes_an_ellipsis() -> None:
    assert shorten_text("cat.jpg", 12, 1) == "…"
