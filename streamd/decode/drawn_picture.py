"""Draws what people see of a batch: one picture of a sample, and the sheet of `streamd show`.

Text is in the one font that comes with Pillow, so that it looks the same on every host. That font has little more than
ASCII: `Zoë` is written as Zoe, and a character without a similar letter as an escape, such as `\\u732b`.
"""

from __future__ import annotations

import math
import unicodedata
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from streamd.core.display import (
    MARK_COLOURS,
    BatchDisplay,
    Caption,
    Colour,
    PicturePlan,
    ShownBatch,
    ShownPicture,
    Size,
    choose_text_colour,
    format_batch_heading,
    lay_mask_over,
    resample_mask,
    scale_size,
)
from streamd.errors import MissingExtraError

try:
    from PIL import Image, ImageDraw, ImageFont
except ImportError as error:
    raise MissingExtraError("Pillow", "serve", "streamd show") from error

# --- One picture


_REDUCING_GAP: Final = 2.0  # as in Pillow's thumbnails: no difference is seen

# In pixels.
_PEN: Final = 2
_RIM: Final[Colour] = (20, 20, 20)  # around each line and point, so that they show on bright pictures
_NAME_SIZE: Final = 11  # of letters
_NAME_PADDING: Final = 3
_NAME_HEIGHT: Final = 14
_POINT_RADIUS: Final = 3


def draw_shown_picture(shown: ShownPicture, size: Size) -> Image.Image:
    """Returns a picture in RGB, resized to `size`, with all that is drawn on it."""
    (high, wide), (height, width) = size, shown.plan.size
    picture = Image.fromarray(np.broadcast_to(shown.pixels, (*shown.pixels.shape[:2], 3)))
    # Enlarged without smoothing, so that each pixel that a trainer gets is visible as a square. A much larger one is
    # first averaged to twice the size or more, which takes a third of the time.
    how = Image.Resampling.NEAREST if wide >= picture.width else Image.Resampling.LANCZOS
    picture = picture.resize((wide, high), how, reducing_gap=_REDUCING_GAP)
    if shown.mask is not None:
        # The mask is laid over the resized picture, so that outlines are a pixel wide on the screen.
        mask = resample_mask(shown.mask, size)
        picture = Image.fromarray(lay_mask_over(np.asarray(picture), mask, shown.transparent))
    pen, corners = ImageDraw.Draw(picture), []
    for box in shown.boxes:
        # The first and last pixels of the box.
        left, top = round(box.left * wide / width), round(box.top * high / height)
        right = max(left, round(box.right * wide / width) - 1)
        bottom = max(top, round(box.bottom * high / height) - 1)
        corners.append((left, top))
        pen.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=_RIM)
        pen.rectangle((left, top, right, bottom), outline=box.colour, width=_PEN)
        if right - left > 2 * _PEN and bottom - top > 2 * _PEN:
            pen.rectangle((left + _PEN, top + _PEN, right - _PEN, bottom - _PEN), outline=_RIM)
    # Names come last, since the outline of another box must not cross them. They stand above the upper left corner, or
    # within the box where there is no room above.
    for box, (left, top) in zip(shown.boxes, corners, strict=True):
        name = shorten_text(box.name, _NAME_SIZE, wide - 2 * _NAME_PADDING)
        length = round(measure_width(name, _NAME_SIZE)) + 2 * _NAME_PADDING
        x, y = max(0, min(left, wide - length)), top - _NAME_HEIGHT if top >= _NAME_HEIGHT else top
        pen.rectangle((x, y, x + length - 1, y + _NAME_HEIGHT - 1), fill=box.colour)
        draw_text(picture, (x + _NAME_PADDING, y), name, _NAME_SIZE, choose_text_colour(box.colour))
    for point in shown.points:
        across, down, radius = point.x * wide / width, point.y * high / height, _POINT_RADIUS
        pen.ellipse((across - radius, down - radius, across + radius, down + radius), fill=point.colour, outline=_RIM)
    return picture


# --- The sheet: the samples of a batch side by side, each with its labels and its file below its pictures


# In pixels, except for the line spacing.
_SHEET_WIDTH: Final = 1400  # fits most screens
_MARGIN: Final = 24
_GAP: Final = 16
_WIDE_GAP: Final = 36  # between samples of several pictures
_FRAME: Final = 3
_TITLE_SIZE: Final = 20  # sizes of letters
_TEXT_SIZE: Final = 14
_SMALL_PRINT_SIZE: Final = 12
_LINE_SPACING: Final = 1.45  # from one line to the next, in sizes of letters
_ENLARGE_UP_TO: Final = 160  # smaller images are enlarged up to this
_REDUCE_TO: Final = 240  # larger ones are reduced to this
_REDUCE_DRAWN_TO: Final = 400  # ... if boxes or points are drawn on them, which need room
_REDUCE_LEAST: Final = 96  # however many pictures a sample has
_PICTURES_WIDTH: Final = 680  # of all pictures of a sample, so that two samples stand side by side
_MIN_CELL_WIDTH: Final = 154  # a file's name needs room
_PICTURE_GAP: Final = 6  # between the pictures of one sample
_BELOW_PICTURES: Final = 4  # between a sample's pictures and its text
_NOTE_LINES: Final = 2  # lines below the rows of a batch that has bad ones
_HATCH_SPACING: Final = 9  # between two lines of the hatching
_SWATCH_SIDE: Final = 11  # of a colour in the legend
_SWATCH_GAP: Final = 6  # between a colour and its class

_PAPER: Final[Colour] = (255, 255, 255)
_INK: Final[Colour] = (34, 40, 49)
_GREY: Final[Colour] = (112, 120, 131)
_EDGE: Final[Colour] = (214, 218, 223)
_MARK_WORDS: Final = {"no sample": "without a sample", "weight 0": "of weight 0"}


class _HeadEntry(NamedTuple):
    """A text in a line below the title, `x` pixels from its left end, with the colour of a class in front of it."""

    x: int
    text: str
    ink: Colour
    swatch: Colour | None = None


@dataclass(frozen=True, slots=True)
class _CellForm:
    """What the cells of a sheet have in common: the sizes of their pictures, and where these and the text begin."""

    pictures: Sequence[Size]
    width: int
    pictures_top: int
    text_top: int


def draw_sheet(batch: ShownBatch, files: Mapping[int, str], rows: int) -> Image.Image:
    """Draws the first `rows` rows of a batch as one RGB picture; `files` has the file names by sample id."""
    display = BatchDisplay(batch, rows)
    captions = display.captions

    # The heading says how many rows are special, and what is not shown as it is.
    marks = [caption.mark for caption in captions]
    remarks = [f"{marks.count(mark)} {_MARK_WORDS.get(mark, mark)}" for mark in MARK_COLOURS if mark in marks]
    if len(captions) < len(batch):
        remarks.insert(0, f"the first {len(captions)} are shown")
    head = [format_batch_heading(batch), *([" · ".join(remarks)] if remarks else []), *display.notes]

    # A cell shows one sample: titles, pictures side by side, text.
    sizes = compute_shown_sizes(display.plans)
    titles_height = round(any(plan.title for plan in display.plans) * _SMALL_PRINT_SIZE * _LINE_SPACING)
    text_top = titles_height + max(height for height, _ in sizes) + _FRAME + _BELOW_PICTURES
    width = max(sum(width for _, width in sizes) + _PICTURE_GAP * (len(sizes) - 1), _MIN_CELL_WIDTH)
    form = _CellForm(sizes, width, titles_height, text_top)
    text_height = max(len(caption.labels) for caption in captions) * _TEXT_SIZE
    text_height += (1 + (_NOTE_LINES if batch.bad else 0)) * _SMALL_PRINT_SIZE

    # Cells fill rows as wide as a screen, or wider if the sheet would be higher than wide.
    gap = _GAP if len(sizes) == 1 else _WIDE_GAP
    across, down = width + gap, text_top + round(text_height * _LINE_SPACING) + _GAP
    most = max(1, (_SHEET_WIDTH - 2 * _MARGIN + gap) // across, math.isqrt(len(captions) * down // across))
    columns = math.ceil(len(captions) / math.ceil(len(captions) / most))
    sheet_width = 2 * _MARGIN + columns * across - gap
    sheet_width = max(sheet_width, *(round(2 * _MARGIN + measure_width(line, _TITLE_SIZE)) for line in head))
    legend = _lay_out_legend(display, max(sheet_width, _SHEET_WIDTH // 2) - 2 * _MARGIN)
    if legend:
        sheet_width = max(sheet_width, _SHEET_WIDTH // 2)
    head_lines = [[_HeadEntry(0, line, _GREY)] for line in head[1:]] + legend
    cells_top = _MARGIN + round((_TITLE_SIZE + len(head_lines) * _TEXT_SIZE) * _LINE_SPACING) + _GAP // 2
    sheet_height = cells_top + math.ceil(len(captions) / columns) * down - _GAP + _MARGIN
    sheet = Image.new("RGB", (sheet_width, sheet_height), _PAPER)

    draw_text(sheet, (_MARGIN, _MARGIN - 4), head[0], _TITLE_SIZE, _INK)
    for number, line in enumerate(head_lines):
        y = _MARGIN - 4 + (_TITLE_SIZE + number * _TEXT_SIZE) * _LINE_SPACING
        for x, text, ink, swatch in line:
            left, top = _MARGIN + x, round(y) + 5
            if swatch is not None:
                place = (left, top, left + _SWATCH_SIDE - 1, top + _SWATCH_SIDE - 1)
                ImageDraw.Draw(sheet).rectangle(place, fill=swatch, outline=_GREY)
                left += _SWATCH_SIDE + _SWATCH_GAP
            draw_text(sheet, (left, y), text, _TEXT_SIZE, ink)
    for row, caption in enumerate(captions):
        at = _MARGIN + row % columns * across, cells_top + row // columns * down
        _draw_cell(sheet, at, form, display.build_row(row), caption, files.get(caption.sample_id))
    return sheet


def compute_shown_sizes(plans: Sequence[PicturePlan]) -> list[Size]:
    """Returns the sizes of a sample's pictures on the sheet: small ones enlarged by a whole factor, large ones reduced.

    Many pictures of a sample are smaller, and pictures with boxes or points are larger.
    """
    room = (_PICTURES_WIDTH - _PICTURE_GAP * (len(plans) - 1)) // len(plans)
    most = _REDUCE_DRAWN_TO if any(plan.labels for plan in plans) else _REDUCE_TO
    reduce_to = max(_REDUCE_LEAST, min(most, room))
    sizes = []
    for height, width in (plan.size for plan in plans):
        factor = max(1, min(_ENLARGE_UP_TO, reduce_to) // max(height, width))
        is_large = max(height, width) > reduce_to
        sizes.append(scale_size((height, width), reduce_to) if is_large else (height * factor, width * factor))
    return sizes


def _lay_out_legend(display: BatchDisplay, width: int) -> list[list[_HeadEntry]]:
    """Returns the legend of the masks as lines of at most `width` pixels."""
    lines: list[list[_HeadEntry]] = []
    x = width
    for text, colour in display.list_classes():
        swatch = 0 if colour is None else _SWATCH_SIDE + _SWATCH_GAP
        needed = swatch + round(measure_width(text, _TEXT_SIZE)) + _GAP
        if x + needed > width:
            lines.append([])
            x = 0
        lines[-1].append(_HeadEntry(x, text, _INK, colour))
        x += needed
    return lines


def _draw_cell(
    sheet: Image.Image,
    at: tuple[int, int],
    form: _CellForm,
    pictures: Sequence[ShownPicture],
    caption: Caption,
    file: str | None,
) -> None:
    """Draws one sample, its upper left corner at `at`."""
    (left, y), pen = at, ImageDraw.Draw(sheet)
    x, top = left, y + form.pictures_top
    mark_colour = MARK_COLOURS.get(caption.mark, _EDGE)
    for shown, (high, wide) in zip(pictures, form.pictures, strict=True):
        picture = draw_shown_picture(shown, (high, wide))
        if not caption.weight:
            # A row that does not count is greyed out and hatched.
            picture.paste(Image.blend(picture, Image.new("RGB", picture.size, _PAPER), 0.55))
            for start in range(-high, wide, _HATCH_SPACING):
                ImageDraw.Draw(picture).line([(start, high), (start + high, 0)], fill=_EDGE)
        frame = _FRAME if caption.mark else 1
        pen.rectangle((x - frame, top - frame, x + wide - 1 + frame, top + high - 1 + frame), fill=mark_colour)
        sheet.paste(picture, (x, top))
        if shown.plan.title:
            room = max(wide, form.width // len(pictures))
            draw_text(sheet, (x, y), shorten_text(shown.plan.title, _SMALL_PRINT_SIZE, room), _SMALL_PRINT_SIZE, _GREY)
        x += wide + _PICTURE_GAP
    if caption.mark:
        length, height = measure_width(caption.mark, _SMALL_PRINT_SIZE), _SMALL_PRINT_SIZE * _LINE_SPACING
        pen.rectangle((left, top, left + round(length) + 10, top + round(height) + 2), fill=mark_colour)
        draw_text(sheet, (left + 4, top + 2), caption.mark, _SMALL_PRINT_SIZE, _PAPER)

    # The end of a file's name matters most, so it is shortened in its middle.
    lines = [(line, _TEXT_SIZE, _INK, False) for line in caption.labels]
    if file is not None:
        lines.append((f"#{caption.sample_id} {file}", _SMALL_PRINT_SIZE, _GREY, True))
    if caption.bad is not None:
        lines.append((f"for {caption.bad.file}", _SMALL_PRINT_SIZE, mark_colour, True))
        lines.append((caption.bad.reason, _SMALL_PRINT_SIZE, mark_colour, False))
    text_y = float(y + form.text_top)
    for text, size, ink, is_middle in lines:
        draw_text(sheet, (left, text_y), shorten_text(text, size, form.width, middle=is_middle), size, ink)
        text_y += size * _LINE_SPACING


# --- Text


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


@lru_cache(maxsize=4096)
def _spell_text(text: str) -> str:
    """Spells `text` with letters that the font has."""
    spelled = ""
    for character in unicodedata.normalize("NFC", text):
        parts = unicodedata.normalize("NFD", character)
        if _is_in_font(character):
            spelled += character
        # A letter with accents is written without them.
        elif _is_in_font(parts[0]) and all(map(unicodedata.combining, parts[1:])):
            spelled += parts[0]
        else:
            spelled += _SPELLINGS.get(character) or character.encode("unicode_escape").decode()
    return spelled


def measure_width(text: str, size: int) -> float:
    """Returns the width of `text` in pixels."""
    return _load_font(size).getlength(_spell_text(text))


def shorten_text(text: str, size: int, max_width: float, *, middle: bool = False) -> str:
    """Shortens `text` to at most `max_width` pixels, with `…` in place of its end, or of its middle."""

    def keep(characters: int) -> str:
        head = characters // 2 if middle else characters
        return f"{text[:head]}…{text[len(text) - (characters - head) :]}"

    if measure_width(text, size) <= max_width:
        return text
    kept = bisect_right(range(len(text)), max_width, key=lambda characters: measure_width(keep(characters), size)) - 1
    return keep(max(0, kept))


def draw_text(image: Image.Image, at: tuple[float, float], text: str, size: int, colour: Colour) -> None:
    """Writes `text` onto an RGB image, its upper left corner at `at`."""
    ImageDraw.Draw(image).text(at, _spell_text(text), font=_load_font(size), fill=colour)
