"""Text on a picture, in the one font that comes with Pillow, so that it looks the same on every host.

That font has little more than ASCII: `Zoë` is written as Zoe, and a character without a similar letter as an escape,
such as `\\u732b`.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from functools import lru_cache
from typing import Final

from PIL import Image, ImageDraw, ImageFont

from streamd.core.class_colours import Colour
from streamd.errors import MissingExtraError

_SPELLINGS: Final = {
    **dict(zip("øØłŁđĐ\u2013\u2014\u2212\u00d7", "oOlLdD---x", strict=True)),  # two dashes, minus, times
    "ß": "ss", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE",
}  # fmt: skip
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


def _spell_with_font_letters(character: str) -> str:
    if _is_in_font(character):
        return character
    parts = unicodedata.normalize("NFD", character)
    if _is_in_font(parts[0]) and all(map(unicodedata.combining, parts[1:])):
        return parts[0]
    return _SPELLINGS.get(character) or character.encode("unicode_escape").decode()


@lru_cache(maxsize=4096)
def _spell_text(text: str) -> str:
    """Spells `text` with letters that the font has."""
    return "".join(map(_spell_with_font_letters, unicodedata.normalize("NFC", text)))


def measure_width(text: str, size: int) -> float:
    """Returns the width of `text` in pixels."""
    return _load_font(size).getlength(_spell_text(text))


def shorten_text(text: str, size: int, max_width: float, *, middle: bool = False) -> str:
    """Shortens `text` to at most `max_width` pixels, with `…` in place of its end, or of its middle."""
    if measure_width(text, size) <= max_width:
        return text

    def measure_kept(kept: int) -> float:
        return measure_width(_ellipsize_text(text, kept, middle=middle), size)

    kept = bisect_right(range(len(text)), max_width, key=measure_kept) - 1
    return _ellipsize_text(text, max(0, kept), middle=middle)


def _ellipsize_text(text: str, kept: int, *, middle: bool) -> str:
    """Keeps `kept` characters, for a file's name mostly those at its end, which matter most."""
    head = kept // 2 if middle else kept
    return f"{text[:head]}…{text[len(text) - (kept - head) :]}"


def draw_text(image: Image.Image, at: tuple[float, float], text: str, size: int, colour: Colour) -> None:
    """Writes `text` onto an RGB image, its upper left corner at `at`."""
    ImageDraw.Draw(image).text(at, _spell_text(text), font=_load_font(size), fill=colour)
