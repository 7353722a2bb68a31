"""What the end of a worker says of the sample it was at, or of a transform, and when its silence is too long. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum
from typing import Final

from streamd.ipc.progress_page import OUT_OF_MEMORY_STATUS, RowProgress, TransformTrial, WorkerPhase
from streamd.limits import GIB, STOPPED_S, WORKER_DATA_BYTES

# What a worker does to a row's pixels: in words, and the words for what it does it with.
_AT_PIXELS: Final = {
    WorkerPhase.DECODING: ("decode", "its decoder"),
    WorkerPhase.TRANSFORMING: ("transform", "the transform"),
}
# What a worker does before there is a row: how it takes too long, how it ends, and what to look for.
_AT_TRIALS: Final = {
    WorkerPhase.IMPORTING: ("to import", "when it is imported"),
    WorkerPhase.TRYING: ("on a built-in image", "on a built-in image"),
}
_CRASHES: Final = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE})  # SIGBUS is a file cut off, or memory


class Finding(Enum):
    """What a look at a silent worker finds."""

    FINE = "at work"
    WAITING = "not at a row's pixels: it starts, or waits for a file"
    SLOW = "too long at one row"
    ENDLESS = "too long over a transform"
    STOPPED = "stopped"
    DEAF = "not reading what it is told"


def finding(at: RowProgress | TransformTrial, silent_s: float, deadline_s: float, state: str) -> Finding:
    """`silent_s` since it last wrote where it is, or was given work; `state` is the letter of /proc/PID/stat."""
    if silent_s >= min(STOPPED_S, deadline_s) and state in {"T", "t"}:
        return Finding.STOPPED
    if silent_s < deadline_s:
        return Finding.FINE
    if at.phase in _AT_TRIALS:
        return Finding.ENDLESS
    return Finding.SLOW if at.phase in _AT_PIXELS else Finding.WAITING


def is_waiting(at: RowProgress) -> bool:
    """Whether a worker that has a task waits for files, as far as it says: it is at no row's pixels."""
    return at.phase not in _AT_PIXELS


@dataclass(frozen=True, slots=True)
class Charge:
    """What speaks against the transform of a stream, by its number; `certain` if nothing else can be at fault."""

    stream: int
    reason: str
    certain: bool


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker ended, in `words`, and where. `blame` is what it says of the sample there; None: nothing.

    `charge` is what it says of a transform that was being tried.
    """

    words: str
    at: RowProgress
    blame: str | None = None
    charge: Charge | None = None


def death(code: int, at: RowProgress, trial: TransformTrial, killed_for: Finding | None, deadline_s: float) -> Death:
    """Judges an end by its return code, negative for a signal, and by what it was killed for, if we did it.

    Only what a sample's own pixels can do is held against it: what comes from outside, such as SIGKILL, is not, and
    neither is anything that happens while a file is read. A transform answers for all but that.
    """
    words = _words(code, killed_for)
    if at.phase not in _AT_PIXELS or killed_for is Finding.ENDLESS:
        return Death(words, at, charge=_charge(code, trial, killed_for, deadline_s))
    verb, means = _AT_PIXELS[at.phase]
    if killed_for is Finding.SLOW:
        return Death(words, at, f"takes more than {deadline_s:g} s to {verb}")
    if killed_for is None and code == OUT_OF_MEMORY_STATUS:
        return Death(words, at, f"needs more memory to {verb} than a worker has, {WORKER_DATA_BYTES // GIB} GiB")
    if killed_for is None and -code in _CRASHES:
        return Death(words, at, f"crashes {means}: {signal.Signals(-code).name}")
    return Death(words, at)


def _charge(code: int, trial: TransformTrial, killed_for: Finding | None, deadline_s: float) -> Charge | None:
    """What the end of a worker that was at no row's pixels says of the transform it tried, if it tried one."""
    if trial.phase not in _AT_TRIALS:
        return None
    takes, ends = _AT_TRIALS[trial.phase]
    if killed_for is Finding.ENDLESS:
        why = "is there a loop without an end, or does it wait for something?"
        return Charge(trial.stream, f"{trial.subject} takes more than {deadline_s:g} s {takes}: {why}", certain=True)
    own = -code in _CRASHES if code < 0 else code != OUT_OF_MEMORY_STATUS
    if killed_for is not None or not own:
        return None
    how = f"{trial.subject} ends its process {ends}, {_words(code, None)}"
    return Charge(trial.stream, f"{how}: run it by itself to see why", certain=False)


def _words(code: int, killed_for: Finding | None) -> str:
    if killed_for is not None:
        return f"killed since it was {killed_for.value}"
    if code == OUT_OF_MEMORY_STATUS:
        return "out of memory"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
