"""The timer of a busy worker, which finds one that was stopped or has exceeded its deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from streamd.ipc.progress_page import RowProgress, TransformTrial
from streamd.limits import STOPPED_S
from streamd.supervisor.crashes import WorkerCondition, diagnose_silent_worker

_LATE_S: Final = 1.0  # a timer this late means that the whole host stood still, the workers with it


class Watchdog:
    """Checks a busy worker that has been silent for a while, and reports its condition unless it is at work.

    `read_progress` reads the worker's progress page. `on_overdue` is called again at each check while the condition
    lasts. Lives on the event loop.
    """

    def __init__(
        self,
        pid: int,
        read_progress: Callable[[], RowProgress | TransformTrial],
        deadline_s: float,
        on_overdue: Callable[[WorkerCondition], None],
    ) -> None:
        self._pid = pid
        self._read_progress = read_progress
        self._deadline_s = deadline_s
        self._first_check_s = min(STOPPED_S, deadline_s)
        self._on_overdue = on_overdue
        self._busy_since_ns = 0
        self._is_busy = False
        self._timer: asyncio.TimerHandle | None = None

    def mark_worker_busy(self) -> None:
        """Notes that the worker, which had no work, has work now."""
        self._busy_since_ns = time.monotonic_ns()
        self._is_busy = True
        if self._timer is None:
            self._schedule_check(self._first_check_s)

    def mark_worker_idle(self) -> None:
        """Notes that the worker has no work left. The timer is kept, since work comes faster than timers are set."""
        self._is_busy = False

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule_check(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + delay_s
        self._timer = loop.call_at(due_s, self._check_worker_progress, due_s)

    def _check_worker_progress(self, due_s: float) -> None:
        self._timer = None
        # Without work there is no deadline. `mark_worker_busy` starts the timer again.
        if not self._is_busy:
            return
        # After a pause of the whole host the worker gets the time of a first check again.
        if asyncio.get_running_loop().time() - due_s > _LATE_S:
            self._schedule_check(self._first_check_s)
            return
        silent_s = self._compute_silence_s()
        self._schedule_check(self._compute_check_delay_s(silent_s))
        state = _read_process_state(self._pid) if silent_s >= self._first_check_s else ""
        found = diagnose_silent_worker(self._read_progress(), silent_s, self._deadline_s, state)
        if found is not WorkerCondition.AT_WORK:
            self._on_overdue(found)

    def _compute_check_delay_s(self, silent_s: float) -> float:
        """Returns the seconds to the next check: at STOPPED_S of silence, then every STOPPED_S, and at the deadline."""
        if silent_s >= self._deadline_s:
            return self._deadline_s
        return (
            self._first_check_s - silent_s
            if silent_s < self._first_check_s
            else min(self._first_check_s, self._deadline_s - silent_s)
        )

    def _compute_silence_s(self) -> float:
        # An idle worker writes no progress, so silence cannot begin before it last got work.
        return (time.monotonic_ns() - max(self._busy_since_ns, self._read_progress().began_ns)) / 1e9


def _read_process_state(pid: int) -> str:
    """Returns the letter of a process's state; "X" (dead) when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"
