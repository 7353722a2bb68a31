"""The measured time of a row of a stream, and the number of rows that a task has because of it.

Where rows are slow, tasks are small, so that several workers share a batch. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamd.limits import MAX_TASKS_AHEAD, TASK_ROWS, TASK_S, TASKS_AHEAD_PER_WORKER

_SMOOTHING: Final = 0.2
_TASK_NS: Final = int(TASK_S * 1e9)
_NS_A_BYTE: Final = 20.0  # nanoseconds for a byte of a photograph's file, until a row was measured


@dataclass(slots=True, eq=False)
class RowCost:
    """The cost of a row of one stream: `task_rows` for a task, and `tasks_ahead` for a worker at a time."""

    task_rows: int = TASK_ROWS
    tasks_ahead: int = MAX_TASKS_AHEAD
    is_known: bool = False
    _row_ns: float = 0.0
    _is_measured: bool = False  # from decoded rows, not only from cached ones

    def estimate_from_bytes(self, row_bytes: float) -> None:
        """Estimates the time of a row from the bytes of its file, until a row was measured."""
        self._row_ns = row_bytes * _NS_A_BYTE
        self._update_rows_per_task()

    def update_from_decoded_rows(self, rows: int, took_ns: int) -> None:
        """Updates the time of a row from `rows` rows that took `took_ns` nanoseconds to decode."""
        self._smooth_row_time(took_ns / rows, is_first=not self._is_measured)
        self._is_measured = True

    def update_from_cached_rows(self, rows: int, took_ns: int) -> None:
        """Does the same for rows from the cache. They count only while no decoded row was measured."""
        if not self._is_measured:
            self._smooth_row_time(took_ns / rows, is_first=not self.is_known)

    def _smooth_row_time(self, row_ns: float, *, is_first: bool) -> None:
        self._row_ns = row_ns if is_first else self._row_ns + _SMOOTHING * (row_ns - self._row_ns)
        self.is_known = True
        self._update_rows_per_task()

    def _update_rows_per_task(self) -> None:
        # A worker is given many cheap tasks ahead, since handing one over costs as much as doing it. It is given only
        # two expensive ones: it decodes the rows of one while it reads the files of the other.
        whole = self._row_ns * TASK_ROWS <= _TASK_NS
        self.task_rows = TASK_ROWS if whole else max(1, int(_TASK_NS / self._row_ns))
        self.tasks_ahead = MAX_TASKS_AHEAD if whole else TASKS_AHEAD_PER_WORKER
