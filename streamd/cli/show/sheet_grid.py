"""Where the pictures and the text of a contact sheet lie. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

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
