"""The memory of batches: one sealed memfd for each slot, created on demand. Slots have serials, never used again."""

from __future__ import annotations

import ctypes
import fcntl
import os
from typing import Final

from streamd.ipc.mapping import map_readable, map_writable

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
