"""Text on pictures, in a font that knows little more than ASCII."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from streamd.cli.show.contact_sheet import draw_text, measure_width, shorten_text

WHITE = (255, 255, 255)
BLACK = (0, 0, 0)


def ink(text: str, size: int = 40) -> npt.NDArray[np.bool_]:
    """Where `text` leaves ink, (80, 400)."""
    image = Image.new("RGB", (400, 80), WHITE)
    draw_text(image, (10, 20), text, size, BLACK)
    return np.asarray(image)[:, :, 0] < 128


@pytest.mark.parametrize("pair", ["éeë", "üuú", "ÉEÊ", "åaä", "çcč", "nñň"])
def test_letters_with_different_marks_look_different(pair: str) -> None:
    pictures = {ink(letter).tobytes() for letter in pair}
    assert len(pictures) == 3


@pytest.mark.parametrize("letter", "éüñåčÉÜÔ")
def test_a_mark_stands_above_its_letter_and_leaves_it_as_it_is(letter: str) -> None:
    base = ink({"é": "e", "ü": "u", "ñ": "n", "å": "a", "č": "c", "É": "E", "Ü": "U", "Ô": "O"}[letter])
    mark = ink(letter) & ~base
    assert mark.sum() > 10
    assert (ink(letter) & base).sum() == base.sum()
    assert np.flatnonzero(mark.any(axis=1)).max() < np.flatnonzero(base.any(axis=1)).min()
    left, right = np.flatnonzero(base.any(axis=0))[[0, -1]]
    assert abs(np.flatnonzero(mark.any(axis=0)).mean() - (left + right) / 2) < 5


def test_a_cedilla_stands_below_its_letter() -> None:
    base, whole = ink("c"), ink("ç")
    assert np.flatnonzero(whole.any(axis=1)).max() > np.flatnonzero(base.any(axis=1)).max()


def test_a_letter_composed_or_not_looks_the_same() -> None:
    assert np.array_equal(ink("Zo\u00eb"), ink("Zoe\u0308"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("猫", r"\u732b"),
        ("a\nb", r"a\nb"),
        ("\x1b[31m", r"\x1b[31m"),
        ("Straße", "Strasse"),
        ("1\N{EN DASH}2", "1-2"),
        ("\u202efdp", r"\u202efdp"),
    ],
)
def test_what_the_font_lacks_is_spelt(text: str, said: str) -> None:
    assert np.array_equal(ink(text, 20), ink(said, 20))


def test_names_that_the_font_cannot_write_are_told_apart() -> None:
    assert not np.array_equal(ink("猫"), ink("犬"))


def test_an_empty_text_leaves_the_paper_white() -> None:
    assert not ink("").any()
    assert measure_width("", 20) == 0


def test_marks_take_no_room_of_their_own() -> None:
    assert measure_width("Müller", 14) == measure_width("Muller", 14)


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


def test_where_nothing_fits_the_dots_remain() -> None:
    assert shorten_text("cat.jpg", 12, 1) == "…"
