"""What the end of a worker says of the sample it was decoding, and when a worker's silence is too long. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum
from typing import Final

from streamd.limits import GIB, STOPPED_S, WORKER_DATA_BYTES
from streamd.whereabouts import OUT_OF_MEMORY_STATUS, Phase, Whereabouts

# What a worker does to a row's pixels: in words, and the words for what it does it with.
_AT_PIXELS: Final = {Phase.DECODING: ("decode", "its decoder"), Phase.TRANSFORMING: ("transform", "the transform")}
_CRASHES: Final = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE})  # SIGBUS is a file cut off, or memory


class Finding(Enum):
    """What a look at a silent worker finds."""

    FINE = "at work"
    WAITING = "not at a row's pixels: it starts, or waits for a file"
    SLOW = "too long at one row"
    STOPPED = "stopped"
    DEAF = "not reading what it is told"


def finding(at: Whereabouts, silent_s: float, deadline_s: float, state: str) -> Finding:
    """`silent_s` since it last wrote where it is, or was given work; `state` is the letter of /proc/PID/stat."""
    if silent_s >= min(STOPPED_S, deadline_s) and state in {"T", "t"}:
        return Finding.STOPPED
    if silent_s < deadline_s:
        return Finding.FINE
    return Finding.SLOW if at.phase in _AT_PIXELS else Finding.WAITING


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker ended, in `words`, and where. `blame` is what it says of the sample there; None: nothing."""

    words: str
    at: Whereabouts
    blame: str | None = None


def death(code: int, at: Whereabouts, killed_for: Finding | None, deadline_s: float) -> Death:
    """Judges an end by its return code, negative for a signal, and by what it was killed for, if we did it.

    Only what a sample's own pixels can do is held against it: what comes from outside, such as SIGKILL, is not, and
    neither is anything that happens while a file is read.
    """
    words = _words(code, killed_for)
    if at.phase not in _AT_PIXELS:
        return Death(words, at)
    verb, means = _AT_PIXELS[at.phase]
    if killed_for is Finding.SLOW:
        return Death(words, at, f"takes more than {deadline_s:g} s to {verb}")
    if killed_for is None and code == OUT_OF_MEMORY_STATUS:
        return Death(words, at, f"needs more memory to {verb} than a worker has, {WORKER_DATA_BYTES // GIB} GiB")
    if killed_for is None and -code in _CRASHES:
        return Death(words, at, f"crashes {means}: {signal.Signals(-code).name}")
    return Death(words, at)


def _words(code: int, killed_for: Finding | None) -> str:
    if killed_for is not None:
        return f"killed since it was {killed_for.value}"
    if code == OUT_OF_MEMORY_STATUS:
        return "out of memory"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
