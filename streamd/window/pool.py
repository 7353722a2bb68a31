"""The slots and what lies in them. The sum of all slots never exceeds the budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from streamd.limits import MAX_SLOTS
from streamd.spec import BatchKey


@dataclass(slots=True)
class Entry:
    """A batch in a slot: in production until `ready`; `holders` leases keep it. A `tainted` slot is never rewritten."""

    key: BatchKey
    slot: int
    slot_bytes: int
    ready: bool = False
    holders: int = 0
    tainted: bool = False


@dataclass(slots=True)
class Pool:
    """Which batch lies in which slot."""

    memory: int
    used: int = 0
    entries: dict[BatchKey, Entry] = field(default_factory=dict)
    by_slot: dict[int, Entry] = field(default_factory=dict)
    free: dict[int, list[int]] = field(default_factory=dict)  # slot bytes -> serials, last freed last
    dropped: list[int] = field(default_factory=list)  # serials that are over, for the shell to hear of
    _next_slot: int = 1
    _slots: int = 0

    def is_ready(self, key: BatchKey) -> bool:
        entry = self.entries.get(key)
        return entry is not None and entry.ready

    def place(
        self, key: BatchKey, slot_bytes: int, worth: Callable[[BatchKey], float], *, floor: float | None
    ) -> Entry | None:
        """A slot for a new batch, at the cost of the least worth of those that nobody holds.

        None when all are held, or when none is worth less than `floor`.
        """
        slot = self._find(slot_bytes, worth, floor)
        if slot is None:
            return None
        entry = Entry(key, slot, slot_bytes)
        self.entries[key] = self.by_slot[slot] = entry
        return entry

    def _find(self, slot_bytes: int, worth: Callable[[BatchKey], float], floor: float | None) -> int | None:
        while True:
            if self.free.get(slot_bytes):
                return self.free[slot_bytes].pop()
            if self.used + slot_bytes <= self.memory and self._slots < MAX_SLOTS:
                return self._make(slot_bytes)
            if not self._give_way(worth, floor):
                return None

    def _make(self, slot_bytes: int) -> int:
        slot = self._next_slot
        self._next_slot += 1
        self._slots += 1
        self.used += slot_bytes
        return slot

    def _give_way(self, worth: Callable[[BatchKey], float], floor: float | None) -> bool:
        """Frees one slot: an empty one of another size, else the batch least worth keeping."""
        for size, slots in self.free.items():
            if slots:
                self._drop(slots.pop(0), size)
                return True
        idle = [entry for entry in self.entries.values() if entry.ready and not entry.holders]
        least = min(idle, key=lambda entry: worth(entry.key), default=None)
        if least is None or (floor is not None and worth(least.key) >= floor):
            return False
        self.discard(least)
        return True

    def _drop(self, slot: int, slot_bytes: int) -> None:
        self.used -= slot_bytes
        self._slots -= 1
        self.dropped.append(slot)

    def discard(self, entry: Entry) -> None:
        """Forgets a batch that nobody holds; its slot is free, or over if a dead session may still see it."""
        del self.entries[entry.key]
        del self.by_slot[entry.slot]
        if entry.tainted:
            self._drop(entry.slot, entry.slot_bytes)
        else:
            self.free.setdefault(entry.slot_bytes, []).append(entry.slot)

    def release(self, slot: int) -> Entry:
        """Ends one lease."""
        entry = self.by_slot[slot]
        entry.holders -= 1
        return entry

    def drop_free(self) -> int:
        """Gives all empty slots back to the host; how many."""
        count = 0
        for size, slots in self.free.items():
            for slot in slots:
                self._drop(slot, size)
            count += len(slots)
            slots.clear()
        return count

    def of_stream(self, stream: str) -> Iterator[Entry]:
        return iter([entry for entry in self.entries.values() if entry.key.stream == stream])
