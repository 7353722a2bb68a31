"""The memory that batches lie in: one sealed memfd a slot, made on demand, known by a serial that is never reused."""

from __future__ import annotations

import fcntl
import os
from typing import Final

from streamd.ipc.mapping import map_readable

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class SlotStore:
    """All slots of this boot. The daemon holds one descriptor each; whoever may read gets a read-only one."""

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
        """The descriptor that workers map, made when the serial is new. Raises OSError when memory is refused."""
        if slot not in self._descriptors:
            self._descriptors[slot] = create_memfd(f"streamd-{slot}", nbytes)
            self._bytes[slot] = nbytes
        return self._descriptors[slot]

    def open_readable(self, slot: int) -> int | None:
        """A new read-only descriptor for a client, to be closed by the caller; None when the slot is gone."""
        descriptor = self._descriptors.get(slot)
        if descriptor is None:
            return None
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def map_slot(self, slot: int) -> memoryview:
        """The slot's bytes, for the clients that cannot map it."""
        if slot not in self._views:
            self._views[slot] = map_readable(self._descriptors[slot], self._bytes[slot])
        return self._views[slot]

    def copy_slot_bytes(self, slot: int, into: memoryview, offset: int) -> None:
        """Copies bytes of a slot from `offset` on, for whoever wants a few of them and needs no mapping."""
        os.preadv(self._descriptors[slot], [into], offset)

    def drop_slot(self, slot: int) -> None:
        """Forgets a slot; its pages go when the last mapping does."""
        descriptor = self._descriptors.pop(slot, None)
        self._bytes.pop(slot, None)
        self._views.pop(slot, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        for slot in list(self._descriptors):
            self.drop_slot(slot)


def create_memfd(name: str, nbytes: int) -> int:
    """Shared memory of a fixed size, all zero: its descriptor, for the caller to close. Raises OSError when refused."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, nbytes)
        os.fchmod(descriptor, 0o400)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
