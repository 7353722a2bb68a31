"""Text on a picture, in the one font that comes with Pillow, so that it looks the same on every host.

That font has ASCII and little more. Accents are put on its letters here, stroke by stroke: names such as `Zoë` and
`Müller` are common. What it cannot write at all is written as Python would, such as `\\u732b`: still told apart.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Final

from streamd.errors import MissingExtraError

try:
    from PIL import Image, ImageDraw, ImageFont
except ImportError as error:
    raise MissingExtraError("Pillow", "serve", "streamd show") from error

Colour = tuple[int, int, int]
Stroke = tuple[tuple[float, float], ...]

# Combining marks as strokes in a box as wide as 0.5 and as high as 0.2 of the font's size, y downwards.
_MARKS: Final[dict[str, tuple[Stroke, ...]]] = {
    "\u0300": (((0.3, 0.0), (0.6, 1.0)),),
    "\u0301": (((0.7, 0.0), (0.4, 1.0)),),
    "\u0302": (((0.2, 1.0), (0.5, 0.1), (0.8, 1.0)),),
    "\u0303": (((0.15, 0.8), (0.35, 0.3), (0.65, 0.8), (0.85, 0.3)),),
    "\u0304": (((0.2, 0.6), (0.8, 0.6)),),
    "\u0306": (((0.2, 0.1), (0.35, 0.8), (0.65, 0.8), (0.8, 0.1)),),
    "\u0307": (((0.5, 0.45), (0.5, 0.75)),),
    "\u0308": (((0.25, 0.45), (0.25, 0.75)), ((0.75, 0.45), (0.75, 0.75))),
    "\u030a": (((0.5, 0.0), (0.7, 0.5), (0.5, 1.0), (0.3, 0.5), (0.5, 0.0)),),
    "\u030b": (((0.5, 0.0), (0.25, 1.0)), ((0.85, 0.0), (0.6, 1.0))),
    "\u030c": (((0.2, 0.1), (0.5, 1.0), (0.8, 0.1)),),
    "\u0327": (((0.5, 0.0), (0.65, 0.5), (0.4, 1.0)),),
    "\u0328": (((0.6, 0.0), (0.45, 0.6), (0.7, 1.0)),),
}
_BELOW: Final = frozenset("\u0327\u0328")
_SPELLINGS: Final = {
    **dict(zip("øØłŁđĐ\u2013\u2014\u2212\u00d7", "oOlLdD---x", strict=True)),  # two dashes, minus, times
    "ß": "ss", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE",
}  # fmt: skip
_MARK_WIDTH: Final = 0.5  # of the font's size
_MARK_HEIGHT: Final = 0.2
_MARK_GAP: Final = 0.07
_MARK_OVERSAMPLING: Final = (
    4  # marks are drawn so many times larger, then reduced: lines of Pillow's own have jagged edges
)
_NO_CHARACTER: Final = "\uffff"  # shows what the font shows for what it lacks


@lru_cache(maxsize=16)
def _load_font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise MissingExtraError("Pillow with FreeType", "serve", "streamd show")
    return font


@lru_cache(maxsize=4096)
def _is_in_font(character: str) -> bool:
    font = _load_font(20)
    glyph, lacking = font.getmask(character), font.getmask(_NO_CHARACTER)
    return character.isprintable() and (glyph.size, bytes(glyph)) != (lacking.size, bytes(lacking))


def _spell_character(character: str) -> Iterator[tuple[str, str]]:
    """A character as letters that the font has, each with its marks."""
    if _is_in_font(character):
        yield character, ""
        return
    parts = unicodedata.normalize("NFD", character)
    if _is_in_font(parts[0]) and all(mark in _MARKS for mark in parts[1:]):
        yield parts[0], parts[1:]
        return
    for letter in _SPELLINGS.get(character) or character.encode("unicode_escape").decode():
        yield letter, ""


@lru_cache(maxsize=4096)
def _split_letters(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(pair for character in unicodedata.normalize("NFC", text) for pair in _spell_character(character))


def measure_width(text: str, size: int) -> float:
    """How wide `text` is, in pixels."""
    return _load_font(size).getlength("".join(letter for letter, _ in _split_letters(text)))


def shorten_text(text: str, size: int, max_width: float, *, middle: bool = False) -> str:
    """`text` in at most `max_width` pixels, with `…` for what is left out: the end, or the middle."""
    if measure_width(text, size) <= max_width:
        return text
    wide = partial(_measure_cut_width, text, size, middle=middle)
    return _cut_text(text, max(0, bisect_right(range(len(text)), max_width, key=wide) - 1), middle=middle)


def _measure_cut_width(text: str, size: int, kept: int, *, middle: bool) -> float:
    return measure_width(_cut_text(text, kept, middle=middle), size)


def _cut_text(text: str, kept: int, *, middle: bool) -> str:
    """`kept` characters of it; of a file's name the end tells most, so that gets the larger half."""
    head = kept // 2 if middle else kept
    return f"{text[:head]}…{text[len(text) - (kept - head) :]}"


def draw_text(image: Image.Image, at: tuple[float, float], text: str, size: int, colour: Colour) -> None:
    """Writes `text` onto an RGB image, its upper left corner at `at`."""
    letters, font = _split_letters(text), _load_font(size)
    plain = "".join(letter for letter, _ in letters)
    pen = ImageDraw.Draw(image)
    pen.text(at, plain, font=font, fill=colour)
    for place, (letter, marks) in enumerate(letters):
        for mark in marks:
            left, top, right, bottom = font.getbbox(letter)
            x = font.getlength(plain[:place]) + (left + right - _MARK_WIDTH * size) / 2
            y = bottom if mark in _BELOW else top - (_MARK_GAP + _MARK_HEIGHT) * size
            pen.bitmap((round(at[0] + x), round(at[1] + y)), _draw_mark(mark, size), fill=colour)


@lru_cache(maxsize=256)
def _draw_mark(mark: str, size: int) -> Image.Image:
    wide, high = round(_MARK_WIDTH * size), round(_MARK_HEIGHT * size) + 1
    mask = Image.new("L", (wide * _MARK_OVERSAMPLING, high * _MARK_OVERSAMPLING))
    pen = ImageDraw.Draw(mask)
    for stroke in _MARKS[mark]:
        points = [
            (x * _MARK_WIDTH * size * _MARK_OVERSAMPLING, y * _MARK_HEIGHT * size * _MARK_OVERSAMPLING)
            for x, y in stroke
        ]
        pen.line(points, fill=255, width=max(_MARK_OVERSAMPLING, round(size * _MARK_OVERSAMPLING / 11)), joint="curve")
    return mask.reduce(_MARK_OVERSAMPLING)
