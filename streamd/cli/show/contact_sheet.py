"""Draws a contact sheet: the images of a batch side by side, each with its labels and its file below it.

All text is in the one font that comes with Pillow, so that it looks the same on every host. That font has little more
than ASCII: `Zoë` is written as Zoe, and a character without a similar letter as an escape, such as `\\u732b`.
"""

from __future__ import annotations

import math
import unicodedata
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.client import Batch
from streamd.core.captions import Caption, build_captions, format_batch_heading
from streamd.core.shown_pixels import build_shown_pixels, compute_shown_size
from streamd.decode.pil_image import build_pil_image
from streamd.errors import MissingExtraError

try:
    from PIL import Image, ImageDraw, ImageFont
except ImportError as error:
    raise MissingExtraError("Pillow", "serve", "streamd show") from error

Colour = tuple[int, int, int]

# In pixels, except for the line spacing.
_SHEET_WIDTH: Final = 1400  # fits most screens
_ENLARGE_UP_TO: Final = 160  # smaller images are enlarged up to this
_REDUCE_TO: Final = 240  # larger ones are reduced to this
_MIN_CELL_WIDTH: Final = 154  # a file's name needs room
_MARGIN: Final = 24
_GAP: Final = 16
_FRAME_WIDTH: Final = 3
_TITLE_SIZE: Final = 20  # sizes of letters
_TEXT_SIZE: Final = 14
_SMALL_PRINT_SIZE: Final = 12
_LINE_SPACING: Final = 1.45  # from one line to the next, in sizes of letters
_HATCH_SPACING: Final = 9  # between two lines of the hatching

_PAPER: Final = (255, 255, 255)
_INK: Final = (34, 40, 49)
_GREY: Final = (112, 120, 131)
_EDGE: Final = (214, 218, 223)
_RED: Final = (200, 36, 44)
_ORANGE: Final = (190, 98, 0)
_MARK_COLOURS: Final = {"masked": _RED, "substituted": _ORANGE, "no sample": _GREY, "weight 0": _GREY}
_MARK_WORDS: Final = {"no sample": "without a sample", "weight 0": "of weight 0"}
_NOTE_LINES: Final = 2  # lines below the rows of a batch that has bad ones

_SPELLINGS: Final = {
    **dict(zip("øØłŁđĐ\u2013\u2014\u2212\u00d7", "oOlLdD---x", strict=True)),  # two dashes, minus, times
    "ß": "ss", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE",
}  # fmt: skip
_NO_CHARACTER: Final = "\uffff"  # shows what the font shows for what it lacks


@dataclass(frozen=True, slots=True)
class SheetGrid:
    """The layout of the cells.

    `picture_size` is (height, width) of an image as shown; below it are `label_lines` and `note_lines` lines of text.
    """

    cells: int
    columns: int
    picture_size: tuple[int, int]
    label_lines: int
    note_lines: int
    top: int

    @staticmethod
    def compute_grid_layout(
        cells: int, image_size: tuple[int, int], label_lines: int, note_lines: int, top: int
    ) -> SheetGrid:
        """Lays cells out in full rows as wide as a screen, or wider if the sheet would be higher than wide."""
        one = SheetGrid(cells, 1, compute_picture_size(*image_size), label_lines, note_lines, top)
        across, down = one.cell_width + _GAP, one.cell_height + _GAP
        most = max(1, (_SHEET_WIDTH - 2 * _MARGIN + _GAP) // across, math.isqrt(cells * down // across))
        return replace(one, columns=math.ceil(cells / math.ceil(cells / most)))

    @property
    def cell_width(self) -> int:
        return max(self.picture_size[1], _MIN_CELL_WIDTH)

    @property
    def cell_height(self) -> int:
        below = self.label_lines * _TEXT_SIZE + (1 + self.note_lines) * _SMALL_PRINT_SIZE
        return self.picture_size[0] + _FRAME_WIDTH + 4 + round(below * _LINE_SPACING)

    @property
    def sheet_size(self) -> tuple[int, int]:
        """(width, height) of the sheet."""
        rows = math.ceil(self.cells / self.columns)
        across = 2 * _MARGIN + self.columns * (self.cell_width + _GAP) - _GAP
        return across, self.top + rows * (self.cell_height + _GAP) - _GAP + _MARGIN

    def locate_cell(self, cell: int) -> tuple[int, int]:
        """Returns (x, y) of the upper left corner of a cell."""
        row, column = divmod(cell, self.columns)
        return _MARGIN + column * (self.cell_width + _GAP), self.top + row * (self.cell_height + _GAP)


def compute_picture_size(height: int, wide: int) -> tuple[int, int]:
    """Returns (height, width) of an image on the sheet: a small one enlarged by a whole factor, a large one reduced."""
    longer = max(height, wide)
    if longer <= _REDUCE_TO:
        factor = max(1, _ENLARGE_UP_TO // longer)
        return height * factor, wide * factor
    return max(1, round(height * _REDUCE_TO / longer)), max(1, round(wide * _REDUCE_TO / longer))


def draw_sheet(batch: Batch, files: Mapping[int, str], rows: int) -> Image.Image:
    """Draws the first `rows` rows of a batch as one RGB picture; `files` has the file names by sample id."""
    captions = build_captions(batch, rows)
    head = [format_batch_heading(batch), *_format_heading_remarks(batch, captions)]
    top = _MARGIN + round((_TITLE_SIZE + (len(head) - 1) * _TEXT_SIZE) * _LINE_SPACING) + _GAP // 2
    label_lines = max(len(caption.labels) for caption in captions)
    grid = SheetGrid.compute_grid_layout(
        len(captions), compute_shown_size(batch.spec.image), label_lines, _NOTE_LINES if batch.bad else 0, top
    )
    across, high = grid.sheet_size
    across = max(across, *(round(2 * _MARGIN + measure_width(line, _TITLE_SIZE)) for line in head))
    sheet = Image.new("RGB", (across, high), _PAPER)
    _draw_heading(sheet, head)
    for cell, caption in enumerate(captions):
        _draw_picture(
            sheet, grid, grid.locate_cell(cell), build_shown_pixels(batch.images[cell], batch.spec.image), caption
        )
        _draw_caption(sheet, grid, grid.locate_cell(cell), caption, files)
    return sheet


def _format_heading_remarks(batch: Batch, captions: list[Caption]) -> list[str]:
    """Formats the counts of special rows for the heading, as at most one line."""
    marks = [caption.mark for caption in captions]
    remarks = [f"{marks.count(mark)} {_MARK_WORDS.get(mark, mark)}" for mark in _MARK_COLOURS if mark in marks]
    if len(captions) < len(batch):
        remarks.insert(0, f"the first {len(captions)} are shown")
    return [" · ".join(remarks)] if remarks else []


def _draw_heading(sheet: Image.Image, head: list[str]) -> None:
    draw_text(sheet, (_MARGIN, _MARGIN - 4), head[0], _TITLE_SIZE, _INK)
    for number, line in enumerate(head[1:]):
        y = _MARGIN - 4 + (_TITLE_SIZE + number * _TEXT_SIZE) * _LINE_SPACING
        draw_text(sheet, (_MARGIN, y), line, _TEXT_SIZE, _GREY)


def _draw_picture(
    sheet: Image.Image, grid: SheetGrid, at: tuple[int, int], pixels: npt.NDArray[np.uint8], caption: Caption
) -> None:
    high, wide = grid.picture_size
    picture = build_pil_image(pixels).convert("RGB")
    # Enlarged without smoothing, so that each pixel that a trainer gets is visible as a square.
    how = Image.Resampling.NEAREST if wide >= picture.width else Image.Resampling.LANCZOS
    shown = picture.resize((wide, high), how)
    if not caption.weight:
        _grey_out_picture(shown)
    box = (at[0], at[1], at[0] + wide - 1, at[1] + high - 1)
    pen = ImageDraw.Draw(sheet)
    if caption.mark:
        pen.rectangle(_grow_box(box, _FRAME_WIDTH), fill=_MARK_COLOURS[caption.mark])
    else:
        pen.rectangle(_grow_box(box, 1), outline=_EDGE)
    sheet.paste(shown, at)
    if caption.mark:
        _draw_status_flag(sheet, at, caption.mark)


def _grow_box(box: tuple[int, int, int, int], by: int) -> tuple[int, int, int, int]:
    return box[0] - by, box[1] - by, box[2] + by, box[3] + by


def _grey_out_picture(picture: Image.Image) -> None:
    """Greys out and hatches the picture of a row of weight 0."""
    picture.paste(Image.blend(picture, Image.new("RGB", picture.size, _PAPER), 0.55))
    pen = ImageDraw.Draw(picture)
    for start in range(-picture.height, picture.width, _HATCH_SPACING):
        pen.line([(start, picture.height), (start + picture.height, 0)], fill=_EDGE)


def _draw_status_flag(sheet: Image.Image, at: tuple[int, int], text: str) -> None:
    high = round(_SMALL_PRINT_SIZE * _LINE_SPACING) + 2
    box = (at[0], at[1], at[0] + round(measure_width(text, _SMALL_PRINT_SIZE)) + 10, at[1] + high)
    ImageDraw.Draw(sheet).rectangle(box, fill=_MARK_COLOURS[text])
    draw_text(sheet, (at[0] + 4, at[1] + 2), text, _SMALL_PRINT_SIZE, _PAPER)


def _draw_caption(
    sheet: Image.Image, grid: SheetGrid, at: tuple[int, int], caption: Caption, files: Mapping[int, str]
) -> None:
    x, y = float(at[0]), at[1] + grid.picture_size[0] + _FRAME_WIDTH + 4.0

    def draw_line(text: str, size: int, colour: Colour, **how: Any) -> None:
        nonlocal y
        draw_text(sheet, (x, y), shorten_text(text, size, grid.cell_width, **how), size, colour)
        y += size * _LINE_SPACING

    for line in caption.labels:
        draw_line(line, _TEXT_SIZE, _INK)
    if caption.sample_id in files:
        draw_line(f"#{caption.sample_id} {files[caption.sample_id]}", _SMALL_PRINT_SIZE, _GREY, middle=True)
    if caption.bad is not None:
        draw_line(f"for {caption.bad.file}", _SMALL_PRINT_SIZE, _MARK_COLOURS[caption.mark], middle=True)
        draw_line(caption.bad.reason, _SMALL_PRINT_SIZE, _MARK_COLOURS[caption.mark])


# --- text on a picture


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
