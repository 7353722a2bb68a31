"""Where a worker is: a few bytes that it shares with the daemon and writes before each row, for when it dies there.

task u64 | began, monotonic nanoseconds u64 | place within the task u32 | phase u32

Beside its rows it tries transforms, in a thread, and says so in a record of its own:

stream u64 | began, monotonic nanoseconds u64 | bytes of the subject u32 | phase u32 | subject, UTF-8
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from streamd.ipc.mapping import map_writable
from streamd.limits import PAGE_BYTES

OUT_OF_MEMORY_STATUS: Final = 77  # what a worker ends with that could not get the memory for a row
PROGRESS_PAGE_BYTES: Final = PAGE_BYTES  # of the memory behind it
_RECORD: Final = struct.Struct("=QQII")
_TRIAL_AT: Final = 64  # bytes from the page's beginning
_SUBJECT_AT: Final = _TRIAL_AT + _RECORD.size
_MAX_SUBJECT_BYTES: Final = 512


class WorkerPhase(IntEnum):
    """What a worker does about a row, or about a transform before any row."""

    IDLE = 0  # nothing: it starts, waits for work, or is between rows
    READING = 1
    DECODING = 2
    TRANSFORMING = 3
    IMPORTING = 4
    TRYING = 5


@dataclass(frozen=True, slots=True)
class RowProgress:
    """The last thing a worker wrote: the row at `place` of task `task`, begun at `began_ns` of the monotonic clock."""

    task: int
    place: int
    phase: WorkerPhase
    began_ns: int


@dataclass(frozen=True, slots=True)
class TransformTrial:
    """What a worker last tried of a transform, for stream number `stream`: `subject` is a module, or a function.

    ELSEWHERE when that is over; `began_ns` of the monotonic clock.
    """

    stream: int
    subject: str
    phase: WorkerPhase
    began_ns: int


class ProgressPage:
    """The shared page, as both sides map it. A row costs the worker half a microsecond."""

    def __init__(self, descriptor: int) -> None:
        self._memory = map_writable(descriptor, PROGRESS_PAGE_BYTES)

    def write_row_progress(self, task: int, place: int, phase: WorkerPhase) -> None:
        """The worker is there from now on."""
        _RECORD.pack_into(self._memory, 0, task, time.monotonic_ns(), place, phase)

    def read_row_progress(self) -> RowProgress:
        """Where the worker is, or was when it died."""
        task, began_ns, place, phase = _RECORD.unpack_from(self._memory)
        return RowProgress(task, place, _decode_phase(phase), began_ns)

    def write_transform_trial(self, stream: int, subject: str, phase: WorkerPhase) -> None:
        """The worker is at a stream's transform from now on; ELSEWHERE: no more. One at a time."""
        said = subject.encode(errors="replace")[:_MAX_SUBJECT_BYTES]
        self._memory[_SUBJECT_AT : _SUBJECT_AT + len(said)] = said
        _RECORD.pack_into(self._memory, _TRIAL_AT, stream, time.monotonic_ns(), len(said), phase)

    def read_transform_trial(self) -> TransformTrial:
        """What the worker tries, or tried when it died."""
        stream, began_ns, said_bytes, phase = _RECORD.unpack_from(self._memory, _TRIAL_AT)
        said = self._memory[_SUBJECT_AT : _SUBJECT_AT + min(said_bytes, _MAX_SUBJECT_BYTES)].tobytes()
        return TransformTrial(stream, said.decode(errors="replace"), _decode_phase(phase), began_ns)

    def close(self) -> None:
        """Unmaps the page, which is neither written nor read any more."""
        self._memory.release()


def _decode_phase(number: int) -> WorkerPhase:
    # A dying worker may have scribbled on it.
    return WorkerPhase(number) if number < len(WorkerPhase) else WorkerPhase.IDLE
