"""The row at which a worker is: a record that it shares with the daemon and writes before each row.

If the worker dies, the daemon reads from it which row was the last one.

task u64 | began, monotonic nanoseconds u64 | place within the task u32 | phase u32

A worker also tries transforms, in a thread of its own, and records that separately:

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

OUT_OF_MEMORY_STATUS: Final = 77  # the exit status of a worker that could not get the memory for a row
PROGRESS_PAGE_BYTES: Final = PAGE_BYTES
_RECORD: Final = struct.Struct("=QQII")
_TRIAL_AT: Final = 64  # bytes from the page's beginning
_SUBJECT_AT: Final = _TRIAL_AT + _RECORD.size
_MAX_SUBJECT_BYTES: Final = 512


class WorkerPhase(IntEnum):
    """What a worker does with a row, or with a transform before any row."""

    IDLE = 0  # nothing: it starts, waits for work, or is between rows
    READING = 1
    DECODING = 2
    TRANSFORMING = 3
    IMPORTING = 4
    TRYING = 5


@dataclass(frozen=True, slots=True)
class RowProgress:
    """The last record of a worker: the row at `place` of task `task`, begun at `began_ns` of the monotonic clock."""

    task: int
    place: int
    phase: WorkerPhase
    began_ns: int


@dataclass(frozen=True, slots=True)
class TransformTrial:
    """The last trial of a transform by a worker, for stream number `stream`; `subject` is a module or a function.

    `phase` is IDLE when the trial is over. `began_ns` is a time of the monotonic clock.
    """

    stream: int
    subject: str
    phase: WorkerPhase
    began_ns: int


class ProgressPage:
    """The shared page, as both sides map it. A row costs the worker half a microsecond.

    No lock protects it between the processes. The worker is its only writer, of each record from one thread at a time.
    The daemon reads it to judge a worker that is dead or has been silent for seconds.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = map_writable(descriptor, PROGRESS_PAGE_BYTES)

    def write_row_progress(self, task: int, place: int, phase: WorkerPhase) -> None:
        """Records the row and the phase in which the worker is from now on."""
        _RECORD.pack_into(self._memory, 0, task, time.monotonic_ns(), place, phase)

    def read_row_progress(self) -> RowProgress:
        """Returns where the worker is, or was when it died."""
        task, began_ns, place, phase = _RECORD.unpack_from(self._memory)
        return RowProgress(task, place, _decode_phase(phase), began_ns)

    def write_transform_trial(self, stream: int, subject: str, phase: WorkerPhase) -> None:
        """Records that the worker tries a stream's transform from now on; IDLE: that the trial is over. One at a time.

        A subject over 512 bytes of UTF-8 is cut.
        """
        # The text is written before the record with its length, so a reader that sees the new record sees its text.
        said = subject.encode(errors="replace")[:_MAX_SUBJECT_BYTES]
        self._memory[_SUBJECT_AT : _SUBJECT_AT + len(said)] = said
        _RECORD.pack_into(self._memory, _TRIAL_AT, stream, time.monotonic_ns(), len(said), phase)

    def read_transform_trial(self) -> TransformTrial:
        """Returns the trial in which the worker is, or was when it died."""
        stream, began_ns, said_bytes, phase = _RECORD.unpack_from(self._memory, _TRIAL_AT)
        said = self._memory[_SUBJECT_AT : _SUBJECT_AT + min(said_bytes, _MAX_SUBJECT_BYTES)].tobytes()
        return TransformTrial(stream, said.decode(errors="replace"), _decode_phase(phase), began_ns)

    def close(self) -> None:
        """Releases the page. It must not be read or written after that."""
        self._memory.release()


def _decode_phase(number: int) -> WorkerPhase:
    # A worker that corrupts its memory may overwrite the page too, so the number may be any.
    return WorkerPhase(number) if number < len(WorkerPhase) else WorkerPhase.IDLE
