"""Judges a worker's exit against the sample or transform that it was at, and how long a worker may be silent. Pure."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final

from streamd.ipc.progress_page import OUT_OF_MEMORY_STATUS, RowProgress, TransformTrial, WorkerPhase
from streamd.ipc.worker_messages import TransformFault, WorkerDied
from streamd.limits import GIB, STOPPED_S, WORKER_DATA_BYTES

# Phases in which a worker handles a row's pixels: the verb for messages, and the name of what runs.
_PIXEL_PHASES: Final = {
    WorkerPhase.DECODING: ("decode", "its decoder"),
    WorkerPhase.TRANSFORMING: ("transform", "the transform"),
}
# Phases in which a worker tries a transform: words for one that takes too long, and for one that ends its process.
_TRIAL_PHASES: Final = {
    WorkerPhase.IMPORTING: ("to import", "when it is imported"),
    WorkerPhase.TRYING: ("on a built-in image", "on a built-in image"),
}
# SIGBUS is left out: it means a file that was cut off, or a lack of memory, and no fault of a sample.
_CRASH_SIGNALS: Final = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE})


class WorkerCondition(Enum):
    """The condition in which a check finds a silent worker."""

    AT_WORK = "at work"
    WAITING = "not at a row's pixels: it starts, or waits for a file"
    SLOW_ROW = "working on one row for too long"
    ENDLESS_TRIAL = "trying a transform for too long"
    STOPPED = "stopped"
    NOT_READING = "not reading its messages"


def diagnose_silent_worker(
    progress: RowProgress | TransformTrial, silent_s: float, deadline_s: float, process_state: str
) -> WorkerCondition:
    """Returns the condition of a worker from its progress page and the state of its process.

    `silent_s` are the seconds since it last wrote its progress, or was given work. `process_state` is the letter of
    /proc/PID/stat.
    """
    # A stopped process makes no progress at any row, so it is reported long before the deadline of a row.
    if silent_s >= min(STOPPED_S, deadline_s) and process_state in {"T", "t"}:
        return WorkerCondition.STOPPED
    if silent_s < deadline_s:
        return WorkerCondition.AT_WORK
    if progress.phase in _TRIAL_PHASES:
        return WorkerCondition.ENDLESS_TRIAL
    return WorkerCondition.SLOW_ROW if progress.phase in _PIXEL_PHASES else WorkerCondition.WAITING


def is_waiting_for_file(progress: RowProgress) -> bool:
    """Whether a worker that has a task waits for files: its progress page shows it at no row's pixels."""
    return progress.phase not in _PIXEL_PHASES


def diagnose_worker_exit(
    return_code: int,
    progress: RowProgress,
    trial: TransformTrial,
    killed_for: WorkerCondition | None,
    deadline_s: float,
) -> WorkerDied:
    """Judges a worker's exit by its return code, negative for a signal. It is blamed on the row of `progress`.

    `killed_for` is the condition for which the daemon killed it, None if it did not. A sample is blamed only for what
    its pixels can cause: never for what comes from outside, such as SIGKILL, nor for anything that happens while a file
    is read. A transform that was being tried is blamed when it exceeds the deadline, crashes, or exits the process.
    """
    words, fault = _describe_worker_exit(return_code, killed_for), None
    if progress.phase not in _PIXEL_PHASES or killed_for is WorkerCondition.ENDLESS_TRIAL:
        tried = _find_transform_fault(return_code, trial, killed_for, deadline_s)
        return WorkerDied(words, (), progress.task, progress.place, transform_fault=tried)
    verb, means = _PIXEL_PHASES[progress.phase]
    if killed_for is WorkerCondition.SLOW_ROW:
        fault = f"takes more than {deadline_s:g} s to {verb}"
    elif killed_for is None and return_code == OUT_OF_MEMORY_STATUS:
        fault = f"needs more memory to {verb} than a worker has, {WORKER_DATA_BYTES // GIB} GiB"
    elif killed_for is None and -return_code in _CRASH_SIGNALS:
        fault = f"crashes {means}: {signal.Signals(-return_code).name}"
    return WorkerDied(words, (), progress.task, progress.place, fault)


def _find_transform_fault(
    return_code: int, trial: TransformTrial, killed_for: WorkerCondition | None, deadline_s: float
) -> TransformFault | None:
    """Returns the fault of the transform that a worker was trying when it ended, or None. It was at no row's pixels."""
    if trial.phase not in _TRIAL_PHASES:
        return None
    takes, ends = _TRIAL_PHASES[trial.phase]
    if killed_for is WorkerCondition.ENDLESS_TRIAL:
        why = "is there an endless loop, or does it wait for something?"
        return TransformFault(
            trial.stream, f"{trial.subject} takes more than {deadline_s:g} s {takes}: {why}", is_certain=True
        )
    own = -return_code in _CRASH_SIGNALS if return_code < 0 else return_code != OUT_OF_MEMORY_STATUS
    if killed_for is not None or not own:
        return None
    # Not certain, since the trial runs in a thread beside the worker's other work, which may have ended the process.
    how = f"{trial.subject} ends its process {ends}, {_describe_worker_exit(return_code, None)}"
    return TransformFault(trial.stream, f"{how}: run it by itself to see why", is_certain=False)


def _describe_worker_exit(return_code: int, killed_for: WorkerCondition | None) -> str:
    if killed_for is not None:
        return f"killed because it was {killed_for.value}"
    if return_code == OUT_OF_MEMORY_STATUS:
        return "out of memory"
    return f"killed by {signal.Signals(-return_code).name}" if return_code < 0 else f"with exit status {return_code}"


# --- The timer of a busy worker, which finds one that was stopped or has exceeded its deadline.


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
        # An idle worker writes no progress, so silence cannot begin before it last got work.
        silent_s = (time.monotonic_ns() - max(self._busy_since_ns, self._read_progress().began_ns)) / 1e9
        # The next check is at STOPPED_S of silence, then every STOPPED_S, and at the deadline.
        if silent_s >= self._deadline_s:
            self._schedule_check(self._deadline_s)
        elif silent_s < self._first_check_s:
            self._schedule_check(self._first_check_s - silent_s)
        else:
            self._schedule_check(min(self._first_check_s, self._deadline_s - silent_s))
        state = _read_process_state(self._pid) if silent_s >= self._first_check_s else ""
        found = diagnose_silent_worker(self._read_progress(), silent_s, self._deadline_s, state)
        if found is not WorkerCondition.AT_WORK:
            self._on_overdue(found)


def _read_process_state(pid: int) -> str:
    """Returns the letter of a process's state; "X" (dead) when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"
