"""What the daemon shares with a process that fills slots: their memory, the row at which it is, and datagrams.

The memory of batches is one sealed memfd for each slot, created on demand. Slots have serials, never used again.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from streamd.ipc.mapping import map_readable, map_writable
from streamd.ipc.messages import split_records
from streamd.ipc.worker_messages import MAX_GROUP_RECORDS, MAX_RECORD_BYTES
from streamd.limits import PAGE_BYTES

_PUNCH_HOLE_KEEP_SIZE: Final = 3
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class SlotStore:
    """All slots of this boot. The daemon holds one descriptor of each; clients get read-only ones."""

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}
        self._bytes: dict[int, int] = {}
        self._views: dict[int, memoryview] = {}

    @property
    def allocated_bytes(self) -> int:
        return sum(self._bytes.values())

    def __len__(self) -> int:
        return len(self._descriptors)

    def ensure_slot(self, slot: int, nbytes: int) -> int:
        """Returns the descriptor that workers map, of a new memfd if the serial is new.

        The caller must not close it. Raises OSError when the host refuses the memory or a descriptor.
        """
        if slot not in self._descriptors:
            self._descriptors[slot] = create_memfd(f"streamd-{slot}", nbytes)
            self._bytes[slot] = nbytes
        return self._descriptors[slot]

    def open_readable(self, slot: int) -> int | None:
        """Returns a new read-only descriptor for a client, None if the slot is gone. The caller closes it."""
        descriptor = self._descriptors.get(slot)
        if descriptor is None:
            return None
        # A duplicate would share the open file and with it the right to write. Opening anew gives a read-only one.
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def map_slot(self, slot: int) -> memoryview:
        """Returns the slot's bytes, which are sent to clients that cannot map it."""
        if slot not in self._views:
            self._views[slot] = map_readable(self._descriptors[slot], self._bytes[slot])
        return self._views[slot]

    def copy_slot_bytes(self, slot: int, into: memoryview, offset: int) -> None:
        """Copies bytes of a slot from `offset` on into `into`, without mapping the slot."""
        os.preadv(self._descriptors[slot], [into], offset)

    def drop_slot(self, slot: int, *, is_erased: bool = False) -> None:
        """Closes a slot's descriptor. The kernel frees its pages when the last mapping is gone.

        `is_erased`: it frees them now, and a process that still maps them reads zeros.
        """
        descriptor = self._descriptors.pop(slot, None)
        nbytes = self._bytes.pop(slot, 0)
        self._views.pop(slot, None)
        if descriptor is not None:
            if is_erased:
                # fallocate(2), which Python does not offer, frees the pages, whoever maps them.
                mode, begin, size = ctypes.c_int(_PUNCH_HOLE_KEEP_SIZE), ctypes.c_long(0), ctypes.c_long(nbytes)
                ctypes.CDLL(None).fallocate(ctypes.c_int(descriptor), mode, begin, size)
            os.close(descriptor)

    def close(self) -> None:
        for slot in list(self._descriptors):
            self.drop_slot(slot)


class MappedSlots:
    """The slots that a process which fills them has mapped, by serial.

    A task that still uses a slot holds its memory, so a mapping lasts until that task is over.
    """

    def __init__(self) -> None:
        self._slots: dict[int, memoryview] = {}

    def map_slot(self, slot: int, slot_bytes: int, descriptors: list[int]) -> memoryview:
        """Returns the memory of a slot. One that is new comes with the first of `descriptors`, which is taken out."""
        if slot not in self._slots:
            descriptor = descriptors.pop(0)
            self._slots[slot] = map_writable(descriptor, slot_bytes)
            os.close(descriptor)  # the mapping outlives it
        return self._slots[slot]

    def unmap_slots(self, slots: tuple[int, ...]) -> None:
        """Forgets slots that the daemon is about to close."""
        for slot in slots:
            self._slots.pop(slot, None)


def create_memfd(name: str, nbytes: int) -> int:
    """Creates shared memory of a fixed size, all zero, and returns its descriptor, which the caller closes.

    Raises OSError when the host refuses it.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # Without seals on its size, a process that shrinks the memory would end every reader with SIGBUS. The mode
        # keeps a read-only descriptor from being opened again for writing through /proc.
        os.ftruncate(descriptor, nbytes)
        os.fchmod(descriptor, 0o400)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


# --- The row at which a worker is: a record that it shares with the daemon and writes before each row.
#
# If the worker dies, the daemon reads from it which row was the last one.
#
# task u64 | began, monotonic nanoseconds u64 | place within the task u32 | phase u32
#
# A worker also tries transforms, in a thread of its own, and records that separately:
#
# stream u64 | began, monotonic nanoseconds u64 | bytes of the subject u32 | phase u32 | subject, UTF-8

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


# --- Datagrams of records between the daemon and a process that fills slots: a worker, or the bridge to a cluster.


def receive_command_records(link: socket.socket) -> tuple[list[bytes], list[int]] | None:
    """Receives one datagram: its records, and the descriptors of slots, which the caller owns.

    Returns None if none waits, and no records at all once the daemon has closed its end.
    """
    try:
        data, descriptors, _, _ = socket.recv_fds(link, MAX_RECORD_BYTES, MAX_GROUP_RECORDS)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return [], []
    return (split_records(data) if data else []), descriptors


class DatagramSender:
    """Sends datagrams over a non-blocking socket in their order. Those without room wait. Lives on the event loop.

    A full socket says nothing about the other end, which may be starting, or at a slow picture. `on_waiting(count)`
    tells how many datagrams wait, when the first one does and whenever one of them was taken. `on_closed()` is called
    when nobody can receive any more; what waits is dropped.
    """

    def __init__(
        self,
        link: socket.socket,
        on_closed: Callable[[], None],
        on_waiting: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._link = link
        self._on_closed = on_closed
        self._on_waiting = on_waiting
        self._waiting: deque[tuple[bytes, Sequence[int]]] = deque()
        self._copies: set[int] = set()  # of the descriptors that wait, those that the caller has closed since

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Sends a datagram, now or when there is room. The descriptors remain the caller's."""
        if self._waiting:
            self._waiting.append((data, descriptors))
        elif not self._send_now(data, descriptors):
            self._waiting.append((data, descriptors))
            asyncio.get_running_loop().add_writer(self._link, self._send_waiting)
            self._on_waiting(1)

    def copy_descriptors(self) -> None:
        """Copies the descriptors that wait. Call this before they are closed."""
        for place, (data, descriptors) in enumerate(self._waiting):
            copies = [each if each in self._copies else os.dup(each) for each in descriptors]
            self._copies.update(copies)
            self._waiting[place] = data, copies

    def close(self) -> None:
        """Drops what waits. Call this before the socket is closed."""
        if self._waiting:
            asyncio.get_running_loop().remove_writer(self._link)
        while self._waiting:
            self._close_copies(self._waiting.popleft()[1])

    def _close_copies(self, descriptors: Sequence[int]) -> None:
        for each in self._copies.intersection(descriptors):
            os.close(each)
            self._copies.discard(each)

    def _send_now(self, data: bytes, descriptors: Sequence[int]) -> bool:
        """Sends a datagram; returns False if there is no room."""
        try:
            if descriptors:
                socket.send_fds(self._link, [data], descriptors)
            else:
                self._link.send(data)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self.close()
            self._on_closed()
        return True

    def _send_waiting(self) -> None:
        """Sends one of the datagrams that wait; the loop calls again while there is room."""
        data, descriptors = self._waiting[0]
        if not self._send_now(data, descriptors) or not self._waiting:
            return
        self._close_copies(self._waiting.popleft()[1])
        if not self._waiting:
            asyncio.get_running_loop().remove_writer(self._link)
        self._on_waiting(len(self._waiting))
