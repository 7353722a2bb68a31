"""What separates the cells of a text table: told by its header and its first rows, or said to be unclear. Pure.

A mark fits when it splits the header, outside quotes, and each of the first rows into as many cells. What the suffix
says counts where it fits; else the one other mark that does.
"""

from __future__ import annotations

import csv
import io
from itertools import islice
from typing import Final

SEPARATORS: Final = (",", ";", "\t", "|")
_LOOKED_AT: Final = 20  # rows


class UnclearSeparatorError(Exception):
    """Several marks fit equally well: `marks`."""

    def __init__(self, marks: list[str]) -> None:
        super().__init__(f"several separators fit: {marks}")
        self.marks = marks


def choose_separator(head: str, usual: str) -> str:
    """The separator of a table that begins with `head`, whole lines. Raises UnclearSeparatorError."""
    cells = {mark: _count_cells(head, mark) for mark in (usual, *SEPARATORS)}
    splitting = [mark for mark, counts in cells.items() if counts and counts[0] > 1]
    fitting = [mark for mark in splitting if len(set(cells[mark])) == 1]
    for marks in (fitting, splitting):
        if usual in marks:
            return usual
        if len(marks) > 1:
            raise UnclearSeparatorError(marks)
        if marks:
            return marks[0]
    return usual


def _count_cells(head: str, mark: str) -> list[int]:
    """The cells of the header and of the first rows, blank lines left out."""
    try:
        rows = csv.reader(io.StringIO(head, newline=""), delimiter=mark)
        return [len(row) for row in islice(filter(None, rows), _LOOKED_AT)]
    except csv.Error:
        return []
