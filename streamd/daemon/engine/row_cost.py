"""How long a row of a stream takes, and how many rows a task has therefore: workers share a batch of dear rows.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamd.limits import MAX_TASKS_AHEAD, TASK_ROWS, TASK_S, TASKS_AHEAD_PER_WORKER

_SMOOTHING: Final = 0.2
_TASK_NS: Final = int(TASK_S * 1e9)
_NS_A_BYTE: Final = 20.0  # of a file, to decode a photograph: what counts until a row was measured


@dataclass(slots=True, eq=False)
class RowCost:
    """Of one stream. `task_rows` is what a task should have, `tasks_ahead` what a worker may be given of it."""

    task_rows: int = TASK_ROWS
    tasks_ahead: int = MAX_TASKS_AHEAD
    is_known: bool = False
    _row_ns: float = 0.0
    _is_measured: bool = False  # at rows that were decoded

    def estimate_from_bytes(self, row_bytes: float) -> None:
        """A row's file has so many bytes; for as long as nothing is known."""
        self._row_ns = row_bytes * _NS_A_BYTE
        self._update_rows_per_task()

    def update_from_decoded_rows(self, rows: int, took_ns: int) -> None:
        """So many rows took so long to decode."""
        self._smooth_row_time(took_ns / rows, afresh=not self._is_measured)
        self._is_measured = True

    def update_from_cached_rows(self, rows: int, took_ns: int) -> None:
        """So many rows, which needed no decoding, took so long; it counts as long as none was decoded."""
        if not self._is_measured:
            self._smooth_row_time(took_ns / rows, afresh=not self.is_known)

    def _smooth_row_time(self, row_ns: float, *, afresh: bool) -> None:
        self._row_ns = row_ns if afresh else self._row_ns + _SMOOTHING * (row_ns - self._row_ns)
        self.is_known = True
        self._update_rows_per_task()

    def _update_rows_per_task(self) -> None:
        whole = self._row_ns * TASK_ROWS <= _TASK_NS
        self.task_rows = TASK_ROWS if whole else max(1, int(_TASK_NS / self._row_ns))
        self.tasks_ahead = MAX_TASKS_AHEAD if whole else TASKS_AHEAD_PER_WORKER
