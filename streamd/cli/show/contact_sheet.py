"""Draws a contact sheet: the samples of a batch side by side, each with its labels and its file below its pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from streamd.client import Batch
from streamd.core.captions import Caption, build_captions, format_batch_heading
from streamd.core.class_colours import Colour
from streamd.core.shown_pictures import BatchPictures, ShownClass
from streamd.errors import MissingExtraError

try:
    from PIL import Image, ImageDraw
except ImportError as error:
    raise MissingExtraError("Pillow", "serve", "streamd show") from error

from streamd.decode.drawn_picture import draw_shown_picture, draw_text, measure_width, shorten_text

# In pixels.
_HATCH_SPACING: Final = 9  # between two lines of the hatching
_SWATCH_SIDE: Final = 11  # of a colour in the legend
_SWATCH_GAP: Final = 6  # between a colour and its class

_PAPER: Final = (255, 255, 255)
_INK: Final = (34, 40, 49)
_GREY: Final = (112, 120, 131)
_EDGE: Final = (214, 218, 223)
_RED: Final = (200, 36, 44)
_ORANGE: Final = (190, 98, 0)
_MARK_COLOURS: Final = {"masked": _RED, "substituted": _ORANGE, "no sample": _GREY, "weight 0": _GREY}
_MARK_WORDS: Final = {"no sample": "without a sample", "weight 0": "of weight 0"}
_NOTE_LINES: Final = 2  # lines below the rows of a batch that has bad ones


def draw_sheet(batch: Batch, files: Mapping[int, str], rows: int) -> Image.Image:
    """Draws the first `rows` rows of a batch as one RGB picture; `files` has the file names by sample id."""
    captions = build_captions(batch, rows)
    pictures = BatchPictures(batch, len(captions))
    head = [format_batch_heading(batch), *_format_heading_remarks(batch, captions), *pictures.notes]
    grid = _lay_out_cells(pictures, captions, note_lines=_NOTE_LINES if batch.bad else 0)
    across = max(grid.sheet_size[0], *(round(2 * MARGIN + measure_width(line, TITLE_SIZE)) for line in head))
    legend = _wrap_legend(pictures, max(across, SHEET_WIDTH // 2) - 2 * MARGIN)
    lines = len(head) - 1 + len(legend)
    grid = grid.move_to(MARGIN + round((TITLE_SIZE + lines * TEXT_SIZE) * LINE_SPACING) + GAP // 2)
    width = max(across, SHEET_WIDTH // 2) if legend else across
    sheet = Image.new("RGB", (width, grid.sheet_size[1]), _PAPER)
    _draw_heading(sheet, head)
    _draw_legend(sheet, legend, len(head))
    for cell, caption in enumerate(captions):
        _draw_cell(sheet, grid, cell, pictures, caption)
        _draw_caption(sheet, grid, grid.locate_cell(cell), caption, files)
    return sheet


def _lay_out_cells(pictures: BatchPictures, captions: Sequence[Caption], note_lines: int) -> SheetGrid:
    plans = pictures.plans
    reduce_to = choose_reduced_side(len(plans), is_drawn_on=any(plan.labels for plan in plans))
    sizes = [compute_shown_size(*plan.size, reduce_to) for plan in plans]
    label_lines = max(len(caption.labels) for caption in captions)
    titles = int(any(plan.title for plan in plans))
    return SheetGrid.compute_grid_layout(len(captions), sizes, label_lines, note_lines, 0, title_lines=titles)


def _format_heading_remarks(batch: Batch, captions: list[Caption]) -> list[str]:
    """Formats the counts of special rows for the heading, as at most one line."""
    marks = [caption.mark for caption in captions]
    remarks = [f"{marks.count(mark)} {_MARK_WORDS.get(mark, mark)}" for mark in _MARK_COLOURS if mark in marks]
    if len(captions) < len(batch):
        remarks.insert(0, f"the first {len(captions)} are shown")
    return [" · ".join(remarks)] if remarks else []


def _draw_heading(sheet: Image.Image, head: list[str]) -> None:
    draw_text(sheet, (MARGIN, MARGIN - 4), head[0], TITLE_SIZE, _INK)
    for number, line in enumerate(head[1:]):
        draw_text(sheet, (MARGIN, _locate_head_line(number)), line, TEXT_SIZE, _GREY)


def _locate_head_line(number: int) -> float:
    """Returns the top of a line below the title."""
    return MARGIN - 4 + (TITLE_SIZE + number * TEXT_SIZE) * LINE_SPACING


# --- the legend of masks


def _wrap_legend(pictures: BatchPictures, width: int) -> list[list[tuple[str, Colour | None]]]:
    """Returns the lines of the legend, `width` pixels wide: a text and its colour, if it is that of a class."""
    classes, left_out = pictures.list_classes()
    entries: list[tuple[str, Colour | None]] = [(_format_class(each), each.colour) for each in classes]
    if left_out:
        entries.append((f"and {left_out:,} more classes", None))
    lines: list[list[tuple[str, Colour | None]]] = []
    used = width
    for text, colour in entries:
        needed = _measure_legend_entry(text, colour)
        if used + needed > width:
            lines.append([])
            used = 0
        lines[-1].append((text, colour))
        used += needed
    return lines


def _format_class(shown: ShownClass) -> str:
    return f"{shown.number} {shown.name}" if shown.name != str(shown.number) else shown.name


def _measure_legend_entry(text: str, colour: Colour | None) -> int:
    swatch = 0 if colour is None else _SWATCH_SIDE + _SWATCH_GAP
    return swatch + round(measure_width(text, TEXT_SIZE)) + GAP


def _draw_legend(sheet: Image.Image, legend: list[list[tuple[str, Colour | None]]], after: int) -> None:
    pen = ImageDraw.Draw(sheet)
    for number, line in enumerate(legend, after - 1):
        x, y = MARGIN, _locate_head_line(number)
        for text, colour in line:
            at = x
            if colour is not None:
                top = round(y) + 5
                pen.rectangle((x, top, x + _SWATCH_SIDE - 1, top + _SWATCH_SIDE - 1), fill=colour, outline=_GREY)
                at += _SWATCH_SIDE + _SWATCH_GAP
            draw_text(sheet, (at, y), text, TEXT_SIZE, _INK)
            x += _measure_legend_entry(text, colour)


# --- the cells


def _draw_cell(sheet: Image.Image, grid: SheetGrid, cell: int, pictures: BatchPictures, caption: Caption) -> None:
    for number, shown in enumerate(pictures.build_row(cell)):
        at, (high, wide) = grid.locate_picture(cell, number), grid.pictures[number]
        picture = draw_shown_picture(shown, (high, wide))
        if not caption.weight:
            _grey_out_picture(picture)
        box = (at[0], at[1], at[0] + wide - 1, at[1] + high - 1)
        pen = ImageDraw.Draw(sheet)
        if caption.mark:
            pen.rectangle(_grow_box(box, FRAME_WIDTH), fill=_MARK_COLOURS[caption.mark])
        else:
            pen.rectangle(_grow_box(box, 1), outline=_EDGE)
        sheet.paste(picture, at)
        if shown.plan.title:
            title = shorten_text(shown.plan.title, SMALL_PRINT_SIZE, max(wide, grid.cell_width // len(grid.pictures)))
            draw_text(sheet, (at[0], at[1] - grid.title_height), title, SMALL_PRINT_SIZE, _GREY)
    if caption.mark:
        _draw_status_flag(sheet, grid.locate_picture(cell, 0), caption.mark)


def _grow_box(box: tuple[int, int, int, int], by: int) -> tuple[int, int, int, int]:
    return box[0] - by, box[1] - by, box[2] + by, box[3] + by


def _grey_out_picture(picture: Image.Image) -> None:
    """Greys out and hatches the picture of a row of weight 0."""
    picture.paste(Image.blend(picture, Image.new("RGB", picture.size, _PAPER), 0.55))
    pen = ImageDraw.Draw(picture)
    for start in range(-picture.height, picture.width, _HATCH_SPACING):
        pen.line([(start, picture.height), (start + picture.height, 0)], fill=_EDGE)


def _draw_status_flag(sheet: Image.Image, at: tuple[int, int], text: str) -> None:
    high = round(SMALL_PRINT_SIZE * LINE_SPACING) + 2
    box = (at[0], at[1], at[0] + round(measure_width(text, SMALL_PRINT_SIZE)) + 10, at[1] + high)
    ImageDraw.Draw(sheet).rectangle(box, fill=_MARK_COLOURS[text])
    draw_text(sheet, (at[0] + 4, at[1] + 2), text, SMALL_PRINT_SIZE, _PAPER)


def _draw_caption(
    sheet: Image.Image, grid: SheetGrid, at: tuple[int, int], caption: Caption, files: Mapping[int, str]
) -> None:
    x, y = float(at[0]), float(at[1] + grid.text_top)

    def draw_line(text: str, size: int, colour: Colour, **how: Any) -> None:
        nonlocal y
        draw_text(sheet, (x, y), shorten_text(text, size, grid.cell_width, **how), size, colour)
        y += size * LINE_SPACING

    for line in caption.labels:
        draw_line(line, TEXT_SIZE, _INK)
    if caption.sample_id in files:
        draw_line(f"#{caption.sample_id} {files[caption.sample_id]}", SMALL_PRINT_SIZE, _GREY, middle=True)
    if caption.bad is not None:
        draw_line(f"for {caption.bad.file}", SMALL_PRINT_SIZE, _MARK_COLOURS[caption.mark], middle=True)
        draw_line(caption.bad.reason, SMALL_PRINT_SIZE, _MARK_COLOURS[caption.mark])


# --- Where the pictures and the text of a contact sheet lie. Pure.


Size = tuple[int, int]  # height, width in pixels

# In pixels, except for the line spacing.
SHEET_WIDTH: Final = 1400  # fits most screens
MARGIN: Final = 24
GAP: Final = 16
_WIDE_GAP: Final = 36  # between samples of several pictures
FRAME_WIDTH: Final = 3
TITLE_SIZE: Final = 20  # sizes of letters
TEXT_SIZE: Final = 14
SMALL_PRINT_SIZE: Final = 12
LINE_SPACING: Final = 1.45  # from one line to the next, in sizes of letters
_ENLARGE_UP_TO: Final = 160  # smaller images are enlarged up to this
_REDUCE_TO: Final = 240  # larger ones are reduced to this
_REDUCE_DRAWN_TO: Final = 400  # ... if boxes or points are drawn on them, which need room
_REDUCE_LEAST: Final = 96  # however many pictures a sample has
_PICTURES_WIDTH: Final = 680  # of all pictures of a sample, so that two samples stand side by side
_MIN_CELL_WIDTH: Final = 154  # a file's name needs room
_PICTURE_GAP: Final = 6  # between the pictures of one sample
_BELOW_PICTURES: Final = 4  # between a sample's pictures and its text


@dataclass(frozen=True, slots=True)
class SheetGrid:
    """The layout of the cells, each of which shows one sample.

    `pictures` has (height, width) of each of its pictures as shown, side by side. Above them are `title_lines` lines of
    text, below them `label_lines` and `note_lines`.
    """

    cells: int
    columns: int
    pictures: tuple[Size, ...]
    label_lines: int
    note_lines: int
    top: int
    title_lines: int = 0

    @staticmethod
    def compute_grid_layout(
        cells: int, pictures: Sequence[Size], label_lines: int, note_lines: int, top: int, *, title_lines: int = 0
    ) -> SheetGrid:
        """Lays cells out in full rows as wide as a screen, or wider if the sheet would be higher than wide."""
        one = SheetGrid(cells, 1, tuple(pictures), label_lines, note_lines, top, title_lines)
        across, down = one.cell_width + one.gap, one.cell_height + GAP
        most = max(1, (SHEET_WIDTH - 2 * MARGIN + one.gap) // across, math.isqrt(cells * down // across))
        return replace(one, columns=math.ceil(cells / math.ceil(cells / most)))

    def move_to(self, top: int) -> SheetGrid:
        """Returns the same cells, the first row of which begins at `top`."""
        return replace(self, top=top)

    @property
    def gap(self) -> int:
        """The space between two columns."""
        return GAP if len(self.pictures) == 1 else _WIDE_GAP

    @property
    def cell_width(self) -> int:
        widths = sum(width for _, width in self.pictures) + _PICTURE_GAP * (len(self.pictures) - 1)
        return max(widths, _MIN_CELL_WIDTH)

    @property
    def title_height(self) -> int:
        """The height of the titles above the pictures."""
        return round(self.title_lines * SMALL_PRINT_SIZE * LINE_SPACING)

    @property
    def text_top(self) -> int:
        """The top of the text below the pictures, counted from that of the cell."""
        return self.title_height + max(height for height, _ in self.pictures) + FRAME_WIDTH + _BELOW_PICTURES

    @property
    def cell_height(self) -> int:
        below = self.label_lines * TEXT_SIZE + (1 + self.note_lines) * SMALL_PRINT_SIZE
        return self.text_top + round(below * LINE_SPACING)

    @property
    def sheet_size(self) -> tuple[int, int]:
        """(width, height) of the sheet."""
        rows = math.ceil(self.cells / self.columns)
        across = 2 * MARGIN + self.columns * (self.cell_width + self.gap) - self.gap
        return across, self.top + rows * (self.cell_height + GAP) - GAP + MARGIN

    def locate_cell(self, cell: int) -> tuple[int, int]:
        """Returns (x, y) of the upper left corner of a cell."""
        row, column = divmod(cell, self.columns)
        return MARGIN + column * (self.cell_width + self.gap), self.top + row * (self.cell_height + GAP)

    def locate_picture(self, cell: int, picture: int) -> tuple[int, int]:
        """Returns (x, y) of the upper left corner of a picture of a cell, below its title."""
        x, y = self.locate_cell(cell)
        before = sum(width + _PICTURE_GAP for _, width in self.pictures[:picture])
        return x + before, y + self.title_height


def choose_reduced_side(pictures: int, *, is_drawn_on: bool) -> int:
    """Returns the longest side of a large picture as shown, where samples have so many pictures."""
    room = (_PICTURES_WIDTH - _PICTURE_GAP * (pictures - 1)) // pictures
    return max(_REDUCE_LEAST, min(_REDUCE_DRAWN_TO if is_drawn_on else _REDUCE_TO, room))


def compute_shown_size(height: int, wide: int, reduce_to: int = _REDUCE_TO) -> Size:
    """Returns (height, width) of an image on the sheet: a small one enlarged by a whole factor, a large one reduced."""
    longer = max(height, wide)
    if longer <= reduce_to:
        factor = max(1, min(_ENLARGE_UP_TO, reduce_to) // longer)
        return height * factor, wide * factor
    return max(1, round(height * reduce_to / longer)), max(1, round(wide * reduce_to / longer))
