"""Draws one picture of a sample as people look at it, with its mask, its points, and its boxes with their classes."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from functools import lru_cache
from typing import Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from streamd.core.class_colours import Colour, choose_text_colour, lay_mask_over
from streamd.core.shown_pictures import ShownBox, ShownPicture, ShownPoint, resample_mask
from streamd.decode.resize import build_pil_image
from streamd.errors import MissingExtraError

_PEN: Final = 2  # pixels
_RIM: Final[Colour] = (20, 20, 20)  # around each line and point, so that they show on bright pictures
_NAME_SIZE: Final = 11  # of letters
_NAME_PADDING: Final = 3
_NAME_HEIGHT: Final = 14
_POINT_RADIUS: Final = 3


def draw_shown_picture(shown: ShownPicture, size: tuple[int, int]) -> Image.Image:
    """Returns a picture in RGB, resized to `size` (height, width), with all that is drawn on it."""
    picture = resize_shown_picture(shown, size)
    (high, wide), (height, width) = size, shown.plan.size
    scale = wide / width, high / height
    for box in shown.boxes:
        _draw_box_outline(picture, box, scale)
    # Names come last, since the outline of another box must not cross them.
    for box in shown.boxes:
        _draw_box_name(picture, box, scale)
    for point in shown.points:
        _draw_point(picture, point, scale)
    return picture


def resize_shown_picture(shown: ShownPicture, size: tuple[int, int]) -> Image.Image:
    """Returns a picture in RGB with its mask laid over it, resized to `size` (height, width)."""
    high, wide = size
    picture = build_pil_image(shown.pixels).convert("RGB")
    # Enlarged without smoothing, so that each pixel that a trainer gets is visible as a square.
    how = Image.Resampling.NEAREST if wide >= picture.width else Image.Resampling.LANCZOS
    resized = picture.resize((wide, high), how)
    if shown.mask is None:
        return resized
    # The mask is laid over the resized picture, so that outlines are a pixel wide on the screen.
    mask = resample_mask(shown.mask, size)
    return Image.fromarray(lay_mask_over(np.asarray(resized), mask, shown.transparent))


def _draw_box_outline(picture: Image.Image, box: ShownBox, scale: tuple[float, float]) -> None:
    left, top, right, bottom = _scale_box(box, scale)
    pen = ImageDraw.Draw(picture)
    pen.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=_RIM)
    pen.rectangle((left, top, right, bottom), outline=box.colour, width=_PEN)
    if right - left > 2 * _PEN and bottom - top > 2 * _PEN:
        pen.rectangle((left + _PEN, top + _PEN, right - _PEN, bottom - _PEN), outline=_RIM)


def _scale_box(box: ShownBox, scale: tuple[float, float]) -> tuple[int, int, int, int]:
    """Returns the first and last pixels of a box on the resized picture: left, top, right, bottom."""
    left, top = round(box.left * scale[0]), round(box.top * scale[1])
    right, bottom = round(box.right * scale[0]) - 1, round(box.bottom * scale[1]) - 1
    return left, top, max(left, right), max(top, bottom)


def _draw_box_name(picture: Image.Image, box: ShownBox, scale: tuple[float, float]) -> None:
    """Writes the class of a box above its upper left corner, or within it where there is no room above."""
    left, top, _, _ = _scale_box(box, scale)
    name = shorten_text(box.name, _NAME_SIZE, picture.width - 2 * _NAME_PADDING)
    width = round(measure_width(name, _NAME_SIZE)) + 2 * _NAME_PADDING
    x = max(0, min(left, picture.width - width))
    y = top - _NAME_HEIGHT if top >= _NAME_HEIGHT else top
    ImageDraw.Draw(picture).rectangle((x, y, x + width - 1, y + _NAME_HEIGHT - 1), fill=box.colour)
    draw_text(picture, (x + _NAME_PADDING, y), name, _NAME_SIZE, choose_text_colour(box.colour))


def _draw_point(picture: Image.Image, point: ShownPoint, scale: tuple[float, float]) -> None:
    x, y, radius = point.x * scale[0], point.y * scale[1], _POINT_RADIUS
    around = (x - radius, y - radius, x + radius, y + radius)
    ImageDraw.Draw(picture).ellipse(around, fill=point.colour, outline=_RIM)


# --- Text on a picture, in the one font that comes with Pillow, so that it looks the same on every host.
#
# That font has little more than ASCII: `Zoë` is written as Zoe, and a character without a similar letter as an escape,
# such as `\u732b`.


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
