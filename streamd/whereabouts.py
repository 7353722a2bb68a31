"""Where a worker is: a few bytes that it shares with the daemon and writes before each row, for when it dies there.

task u64 | began, monotonic nanoseconds u64 | place within the task u32 | phase u32
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from streamd.limits import PAGE_BYTES
from streamd.mapping import map_writable

OUT_OF_MEMORY_STATUS: Final = 77  # what a worker ends with that could not get the memory for a row
TRACK_BYTES: Final = PAGE_BYTES  # of the memory behind it
_RECORD: Final = struct.Struct("=QQII")


class Phase(IntEnum):
    """What a worker does about a row."""

    ELSEWHERE = 0  # nothing: it starts, waits for work, or is between rows
    READING = 1
    DECODING = 2
    TRANSFORMING = 3


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The last thing a worker wrote: the row at `place` of task `task`, begun at `began_ns` of the monotonic clock."""

    task: int
    place: int
    phase: Phase
    began_ns: int


class Track:
    """The shared page, as both sides map it. A row costs the worker half a microsecond."""

    def __init__(self, descriptor: int) -> None:
        self._memory = map_writable(descriptor, TRACK_BYTES)

    def at(self, task: int, place: int, phase: Phase) -> None:
        """The worker is there from now on."""
        _RECORD.pack_into(self._memory, 0, task, time.monotonic_ns(), place, phase)

    def read(self) -> Whereabouts:
        """Where the worker is, or was when it died."""
        task, began_ns, place, phase = _RECORD.unpack_from(self._memory)
        return Whereabouts(task, place, Phase(phase) if phase in iter(Phase) else Phase.ELSEWHERE, began_ns)

    def close(self) -> None:
        """Unmaps the page, which is neither written nor read any more."""
        self._memory.release()
