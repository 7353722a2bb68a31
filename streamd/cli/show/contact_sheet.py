"""A contact sheet: the images of a batch side by side, with what is known of each below it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.cli.show.draw_text import Colour, shortened, width, write
from streamd.client import Batch
from streamd.core.captions import Caption, build_captions, format_batch_heading
from streamd.decode.pil_image import build_pil_image
from streamd.errors import MissingExtraError

try:
    from PIL import Image, ImageDraw
except ImportError as error:
    raise MissingExtraError("Pillow", "serve", "streamd show") from error

# All in pixels.
_SHEET_WIDTH: Final = 1400  # fits most screens
_SMALL: Final = 160  # smaller images are enlarged up to this
_LARGE: Final = 240  # larger ones are reduced to this
_MIN_CELL: Final = 154  # a file's name needs room
_MARGIN: Final = 24
_GAP: Final = 16
_FRAME: Final = 3
_TITLE: Final = 20  # sizes of letters
_TEXT: Final = 14
_SMALL_PRINT: Final = 12
_LINE: Final = 1.45  # from one line to the next, in sizes of letters
_HATCH: Final = 9  # between two lines of the hatching

_PAPER: Final = (255, 255, 255)
_INK: Final = (34, 40, 49)
_GREY: Final = (112, 120, 131)
_EDGE: Final = (214, 218, 223)
_RED: Final = (200, 36, 44)
_ORANGE: Final = (190, 98, 0)
_COLOURS: Final = {"masked": _RED, "substituted": _ORANGE, "no sample": _GREY, "weight 0": _GREY}
_COUNTED: Final = {"no sample": "without a sample", "weight 0": "of weight 0"}
_NOTES: Final = 2  # lines below the rows of a batch that has bad ones


@dataclass(frozen=True, slots=True)
class Grid:
    """Where cells lie. `picture` is (height, width) of an image as shown, `label_lines` and `notes` lines below it."""

    cells: int
    columns: int
    picture: tuple[int, int]
    label_lines: int
    notes: int
    top: int

    @staticmethod
    def of(cells: int, shape: tuple[int, int], label_lines: int, notes: int, top: int) -> Grid:
        """As wide as a screen; wider where it would be higher than wide. The last row is as full as can be."""
        one = Grid(cells, 1, shown_size(*shape), label_lines, notes, top)
        across, down = one.cell_width + _GAP, one.cell_height + _GAP
        most = max(1, (_SHEET_WIDTH - 2 * _MARGIN + _GAP) // across, math.isqrt(cells * down // across))
        return replace(one, columns=math.ceil(cells / math.ceil(cells / most)))

    @property
    def cell_width(self) -> int:
        return max(self.picture[1], _MIN_CELL)

    @property
    def cell_height(self) -> int:
        below = self.label_lines * _TEXT + (1 + self.notes) * _SMALL_PRINT
        return self.picture[0] + _FRAME + 4 + round(below * _LINE)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the sheet."""
        rows = math.ceil(self.cells / self.columns)
        across = 2 * _MARGIN + self.columns * (self.cell_width + _GAP) - _GAP
        return across, self.top + rows * (self.cell_height + _GAP) - _GAP + _MARGIN

    def at(self, cell: int) -> tuple[int, int]:
        """The upper left corner of a cell."""
        row, column = divmod(cell, self.columns)
        return _MARGIN + column * (self.cell_width + _GAP), self.top + row * (self.cell_height + _GAP)


def shown_size(height: int, wide: int) -> tuple[int, int]:
    """(height, width) of an image on the sheet: small ones a whole number of times larger, large ones reduced."""
    longer = max(height, wide)
    if longer <= _LARGE:
        factor = max(1, _SMALL // longer)
        return height * factor, wide * factor
    return max(1, round(height * _LARGE / longer)), max(1, round(wide * _LARGE / longer))


def draw_sheet(batch: Batch, files: Mapping[int, str], rows: int) -> Image.Image:
    """The first `rows` rows of a batch as one RGB picture; `files` are names by sample id."""
    told = build_captions(batch, rows)
    head = [format_batch_heading(batch), *_remarks(batch, told)]
    top = _MARGIN + round((_TITLE + (len(head) - 1) * _TEXT) * _LINE) + _GAP // 2
    label_lines = max(len(caption.labels) for caption in told)
    grid = Grid.of(len(told), batch.images.shape[1:3], label_lines, _NOTES if batch.bad else 0, top)
    across, high = grid.size
    across = max(across, *(round(2 * _MARGIN + width(line, _TITLE)) for line in head))
    sheet = Image.new("RGB", (across, high), _PAPER)
    _write_head(sheet, head)
    for cell, caption in enumerate(told):
        _draw_picture(sheet, grid, grid.at(cell), batch.images[cell], caption)
        _write_caption(sheet, grid, grid.at(cell), caption, files)
    return sheet


def _remarks(batch: Batch, told: list[Caption]) -> list[str]:
    """What the heading has to say besides, one line at most."""
    marks = [caption.mark for caption in told]
    remarks = [f"{marks.count(mark)} {_COUNTED.get(mark, mark)}" for mark in _COLOURS if mark in marks]
    if len(told) < len(batch):
        remarks.insert(0, f"the first {len(told)} are shown")
    return [" · ".join(remarks)] if remarks else []


def _write_head(sheet: Image.Image, head: list[str]) -> None:
    write(sheet, (_MARGIN, _MARGIN - 4), head[0], _TITLE, _INK)
    for number, line in enumerate(head[1:]):
        y = _MARGIN - 4 + (_TITLE + number * _TEXT) * _LINE
        write(sheet, (_MARGIN, y), line, _TEXT, _GREY)


def _draw_picture(
    sheet: Image.Image, grid: Grid, at: tuple[int, int], pixels: npt.NDArray[np.uint8], caption: Caption
) -> None:
    high, wide = grid.picture
    picture = build_pil_image(pixels).convert("RGB")
    # Enlarged without smoothing: a pixel that a trainer gets is a square that one can see.
    how = Image.Resampling.NEAREST if wide >= picture.width else Image.Resampling.LANCZOS
    shown = picture.resize((wide, high), how)
    if not caption.weight:
        _hatch(shown)
    box = (at[0], at[1], at[0] + wide - 1, at[1] + high - 1)
    pen = ImageDraw.Draw(sheet)
    if caption.mark:
        pen.rectangle(_grown(box, _FRAME), fill=_COLOURS[caption.mark])
    else:
        pen.rectangle(_grown(box, 1), outline=_EDGE)
    sheet.paste(shown, at)
    if caption.mark:
        _write_flag(sheet, at, caption.mark)


def _grown(box: tuple[int, int, int, int], by: int) -> tuple[int, int, int, int]:
    return box[0] - by, box[1] - by, box[2] + by, box[3] + by


def _hatch(picture: Image.Image) -> None:
    """Greys a picture out: a trainer does not count it."""
    picture.paste(Image.blend(picture, Image.new("RGB", picture.size, _PAPER), 0.55))
    pen = ImageDraw.Draw(picture)
    for start in range(-picture.height, picture.width, _HATCH):
        pen.line([(start, picture.height), (start + picture.height, 0)], fill=_EDGE)


def _write_flag(sheet: Image.Image, at: tuple[int, int], text: str) -> None:
    high = round(_SMALL_PRINT * _LINE) + 2
    box = (at[0], at[1], at[0] + round(width(text, _SMALL_PRINT)) + 10, at[1] + high)
    ImageDraw.Draw(sheet).rectangle(box, fill=_COLOURS[text])
    write(sheet, (at[0] + 4, at[1] + 2), text, _SMALL_PRINT, _PAPER)


def _write_caption(
    sheet: Image.Image, grid: Grid, at: tuple[int, int], caption: Caption, files: Mapping[int, str]
) -> None:
    x, y = float(at[0]), at[1] + grid.picture[0] + _FRAME + 4.0

    def say(text: str, size: int, colour: Colour, **how: Any) -> None:
        nonlocal y
        write(sheet, (x, y), shortened(text, size, grid.cell_width, **how), size, colour)
        y += size * _LINE

    for line in caption.labels:
        say(line, _TEXT, _INK)
    if caption.sample_id in files:
        say(f"#{caption.sample_id} {files[caption.sample_id]}", _SMALL_PRINT, _GREY, middle=True)
    if caption.bad is not None:
        say(f"for {caption.bad.file}", _SMALL_PRINT, _COLOURS[caption.mark], middle=True)
        say(caption.bad.reason, _SMALL_PRINT, _COLOURS[caption.mark])
