"""Finds the separator of a text table from its header and its first rows, or reports that it is unclear. Pure.

A mark fits when it splits the header, outside quotes, and each of the first rows into the same number of cells. The
usual mark of the file's suffix wins if it fits; otherwise the only other mark that does.
"""

from __future__ import annotations

import csv
import io
from itertools import islice
from typing import Final

SEPARATORS: Final = (",", ";", "\t", "|")
_LOOKED_AT: Final = 20  # rows


class UnclearSeparatorError(Exception):
    """Several marks fit equally well; `marks` has them."""

    def __init__(self, marks: list[str]) -> None:
        super().__init__(f"several separators fit: {marks}")
        self.marks = marks


def choose_separator(head: str, usual: str) -> str:
    """Returns the separator of a table that begins with `head`, which ends with a whole line.

    Raises UnclearSeparatorError.
    """
    cells = {mark: _count_cells(head, mark) for mark in (usual, *SEPARATORS)}
    splitting = [mark for mark, counts in cells.items() if counts and counts[0] > 1]
    fitting = [mark for mark in splitting if len(set(cells[mark])) == 1]
    # If no mark fits all rows, those that split the header at least are considered: rows of another width are reported
    # later.
    for marks in (fitting, splitting):
        if usual in marks:
            return usual
        if len(marks) > 1:
            raise UnclearSeparatorError(marks)
        if marks:
            return marks[0]
    return usual


def _count_cells(head: str, mark: str) -> list[int]:
    """Returns the number of cells of the header and of each of the first rows, without blank lines."""
    try:
        rows = csv.reader(io.StringIO(head, newline=""), delimiter=mark)
        return [len(row) for row in islice(filter(None, rows), _LOOKED_AT)]
    except csv.Error:
        return []
