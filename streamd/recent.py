"""What happened in the last half minute: a count that forgets. Pure, time is an argument."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

SPAN_S: Final = 30
_CELL_S: Final = 2  # what is counted together, and forgotten together


@dataclass(slots=True)
class Recent:
    """Counts over a sliding span, in a few cells: adding costs next to nothing, whatever the rate."""

    since_s: float
    _cells: dict[int, float] = field(default_factory=dict)

    def add(self, now_s: float, amount: float = 1) -> None:
        cell = int(now_s // _CELL_S)
        if cell in self._cells:
            self._cells[cell] += amount
        else:
            self._forget(now_s)
            self._cells[cell] = amount

    def cover(self, other: Recent) -> None:
        """Counts at least what the other counted, in each part of the span."""
        for cell, amount in other._cells.items():
            self._cells[cell] = max(amount, self._cells.get(cell, 0))

    def total(self, now_s: float) -> float:
        """What was counted within the span."""
        self._forget(now_s)
        return sum(self._cells.values())

    def per_s(self, now_s: float) -> float:
        """The rate, over the span or over the time that there has been so far."""
        return self.total(now_s) / max(_CELL_S, min(SPAN_S, now_s - self.since_s))

    def _forget(self, now_s: float) -> None:
        oldest = int((now_s - SPAN_S) // _CELL_S)
        for cell in [cell for cell in self._cells if cell <= oldest]:
            del self._cells[cell]
