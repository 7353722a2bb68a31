"""Counts over the last seconds. All counts cover the same stretch of time. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from streamd.core.status import COUNTED_SPAN_S

_CELL_S: Final = 0.5  # seconds that are counted together, and forgotten together
_MIN_WINDOW_S: Final = 1.0  # seconds; a rate over less would be noise


@dataclass(slots=True)
class SlidingCount:
    """Counts over the last `span_s` seconds, in a few cells, so that adding is cheap at any rate.

    Cells begin at fixed times, so that all counts of one span cover the same stretch of time.
    """

    span_s: int = COUNTED_SPAN_S
    _cells: dict[int, float] = field(default_factory=dict)

    def add_amount(self, now_s: float, amount: float = 1) -> None:
        cell = int(now_s // _CELL_S)
        if cell in self._cells:
            self._cells[cell] += amount
        else:
            self._remove_expired_cells(now_s)
            self._cells[cell] = amount

    def merge_maximum(self, other: SlidingCount) -> None:
        """Increases each cell to that of the other count, where that is larger."""
        for cell, amount in other._cells.items():
            self._cells[cell] = max(amount, self._cells.get(cell, 0))

    def compute_total(self, now_s: float) -> float:
        """Returns the sum over the span."""
        self._remove_expired_cells(now_s)
        return sum(self._cells.values())

    def _remove_expired_cells(self, now_s: float) -> None:
        first = _find_first_cell(now_s, self.span_s)
        for cell in [cell for cell in self._cells if cell < first]:
            del self._cells[cell]


def compute_window(now_s: float, began_s: float) -> float:
    """Returns the seconds that all counts of the usual span cover now, in a daemon that began at `began_s`."""
    covered_from_s = _find_first_cell(now_s, COUNTED_SPAN_S) * _CELL_S
    return max(_MIN_WINDOW_S, now_s - max(began_s, covered_from_s))


def _find_first_cell(now_s: float, span_s: int) -> int:
    return int((now_s - span_s) // _CELL_S) + 1
