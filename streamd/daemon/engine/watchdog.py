"""The timer of a worker that has work: it rings when it may have been stopped, or what it is at would be overdue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from streamd.daemon.engine.crashes import Finding, finding
from streamd.ipc.progress_page import RowProgress, TransformTrial
from streamd.limits import STOPPED_S

_LATE_S: Final = 1.0  # a timer so late says that the whole host stood still, the workers with it


class Watch:
    """Looks `where` a worker is when it has been silent for a while, and tells what it finds unless all is well."""

    def __init__(
        self,
        pid: int,
        where: Callable[[], RowProgress | TransformTrial],
        deadline_s: float,
        found: Callable[[Finding], None],
    ) -> None:
        self._pid = pid
        self._where = where
        self._deadline_s = deadline_s
        self._first_s = min(STOPPED_S, deadline_s)
        self._found = found
        self._given_ns = 0
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The worker, which had no work, has some."""
        self._given_ns = time.monotonic_ns()
        self._busy = True
        if self._timer is None:
            self._set(self._first_s)

    def rest(self) -> None:
        """It has no more. The timer is left alone: work comes in faster than timers are set and cancelled."""
        self._busy = False

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + delay_s
        self._timer = loop.call_at(due_s, self._look, due_s)

    def _look(self, due_s: float) -> None:
        self._timer = None
        if not self._busy:
            return
        if asyncio.get_running_loop().time() - due_s > _LATE_S:
            self._set(self._first_s)
            return
        silent_s = self._silent_s()
        self._set(self._pause_s(silent_s))
        state = _state(self._pid) if silent_s >= self._first_s else ""
        found = finding(self._where(), silent_s, self._deadline_s, state)
        if found is not Finding.FINE:
            self._found(found)

    def _pause_s(self, silent_s: float) -> float:
        """Until the next look: when the silence will have lasted STOPPED_S, then so often, and at the deadline."""
        if silent_s >= self._deadline_s:
            return self._deadline_s
        return self._first_s - silent_s if silent_s < self._first_s else min(self._first_s, self._deadline_s - silent_s)

    def _silent_s(self) -> float:
        return (time.monotonic_ns() - max(self._given_ns, self._where().began_ns)) / 1e9


def _state(pid: int) -> str:
    """The letter of a process's state; X, dead, when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"
