"""The slots and what lies in them. The sum of all slots never exceeds the budget."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from streamd.core.spec import BatchKey
from streamd.limits import MAX_SLOTS


@dataclass(slots=True)
class Entry:
    """A batch in a slot, in production until `ready`; `holders` leases keep it. A `tainted` slot is never rewritten.

    Once it is whole and nobody holds it, it is discarded or put to `rest`.
    """

    key: BatchKey
    slot: int
    slot_bytes: int
    started_s: float = 0.0  # when its production began
    ready: bool = False
    holders: int = 0
    tainted: bool = False
    resting: bool = False


@dataclass(frozen=True, slots=True)
class Demand:
    """What the sessions want, asked only when something has to give way. `worth` grows as a batch is wanted sooner."""

    cursors: Callable[[], Iterable[BatchKey]]
    worth: Callable[[BatchKey], float]


@dataclass(slots=True)
class Pool:
    """Which batch lies in which slot."""

    memory_bytes: int
    used: int = 0
    entries: dict[BatchKey, Entry] = field(default_factory=dict)
    by_slot: dict[int, Entry] = field(default_factory=dict)
    free: dict[int, list[int]] = field(default_factory=dict)  # slot bytes -> serials, last freed last
    dropped: list[int] = field(default_factory=list)  # serials that are over, for the shell to hear of
    evicted: list[BatchKey] = field(default_factory=list)  # batches that gave way, for the sessions to hear of
    bound: int = MAX_SLOTS  # of slots at a time
    most_slots: int = MAX_SLOTS  # ... and now: fewer where the host has refused one
    _idle: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # stream -> (epoch, index), in order
    _idle_bytes: int = 0
    _next_slot: int = 1
    _slots: int = 0

    def place(self, key: BatchKey, slot_bytes: int, demand: Demand, *, modest: bool) -> Entry | None:
        """A slot for a new batch, at the cost of the least worth of those that rest.

        None when too much is held, or when a `modest` batch finds none that is worth less than itself.
        """
        slot = self._find(slot_bytes, demand, key if modest else None)
        if slot is None:
            return None
        entry = Entry(key, slot, slot_bytes)
        self.entries[key] = self.by_slot[slot] = entry
        return entry

    def finish(self, slot: int) -> Entry:
        """The batch in `slot` is whole."""
        entry = self.by_slot[slot]
        entry.ready = True
        return entry

    def hold(self, entry: Entry) -> None:
        """One more lease."""
        self._wake(entry)
        entry.holders += 1

    def release(self, slot: int) -> Entry:
        """One lease less."""
        entry = self.by_slot[slot]
        entry.holders -= 1
        return entry

    def rest(self, entry: Entry) -> None:
        """Nobody holds this batch: it stays until something else needs its memory."""
        if not entry.resting:
            entry.resting = True
            insort(self._idle.setdefault(entry.key.stream, []), (entry.key.epoch, entry.key.index))
            self._idle_bytes += entry.slot_bytes

    def disown(self, entry: Entry) -> None:
        """Nobody will have what is in production here, whatever comes of it: its key is free, its slot is not yet."""
        del self.entries[entry.key]

    def discard(self, entry: Entry) -> None:
        """Forgets a batch that nobody holds; its slot is free, or over if a dead session may still see it."""
        self._wake(entry)
        if self.entries.get(entry.key) is entry:
            del self.entries[entry.key]
        del self.by_slot[entry.slot]
        if entry.tainted:
            self._drop(entry.slot, entry.slot_bytes)
        else:
            self.free.setdefault(entry.slot_bytes, []).append(entry.slot)

    def drop_free(self) -> int:
        """Gives all empty slots back to the host, and hopes for the best; how many."""
        count = 0
        for size, slots in self.free.items():
            for slot in slots:
                self._drop(slot, size)
            count += len(slots)
            slots.clear()
        self.most_slots = self.bound
        return count

    def forgo(self, entry: Entry) -> bool:
        """The slot of this batch could not be made, and no other will be; whether there is any at all."""
        if self.entries.get(entry.key) is entry:
            del self.entries[entry.key]
        del self.by_slot[entry.slot]
        self.used -= entry.slot_bytes
        self._slots -= 1
        self.most_slots = self._slots or self.bound  # with none at all, whoever comes next must find out anew
        return self._slots > 0

    def of_stream(self, stream: str) -> Iterator[Entry]:
        return iter([entry for entry in self.entries.values() if entry.key.stream == stream])

    # --- finding a slot

    def _find(self, slot_bytes: int, demand: Demand, modest: BatchKey | None) -> int | None:
        while True:
            if free := self.free.get(slot_bytes):
                return free.pop()
            if self.used + slot_bytes <= self.memory_bytes and self._slots < self.most_slots:
                return self._make(slot_bytes)
            if not self._could_hold(slot_bytes) or not self._give_way(slot_bytes, demand, modest):
                return None

    def _could_hold(self, slot_bytes: int) -> bool:
        """Whether there is room when all that may give way does; if not, nothing should in vain."""
        empty = sum(size * len(slots) for size, slots in self.free.items())
        return self.used - empty - self._idle_bytes + slot_bytes <= self.memory_bytes

    def _make(self, slot_bytes: int) -> int:
        slot = self._next_slot
        self._next_slot += 1
        self._slots += 1
        self.used += slot_bytes
        return slot

    def _give_way(self, slot_bytes: int, demand: Demand, modest: BatchKey | None) -> bool:
        """Frees one slot: an empty one of another size, else that of the batch least worth keeping.

        Nothing gives way to a `modest` batch but what is worth less.
        """
        for size, slots in self.free.items():
            if slots:
                self._drop(slots.pop(0), size)
                return True
        worth = {key: demand.worth(key) for key in self._furthest(demand.cursors())}
        least = min(worth, key=lambda key: (worth[key], *self._tie(key, slot_bytes)), default=None)
        if least is None or (modest is not None and worth[least] >= demand.worth(modest)):
            return False
        self.discard(self.entries[least])
        self.evicted.append(least)
        return True

    def _tie(self, key: BatchKey, slot_bytes: int) -> tuple[bool, int, int]:
        """Of batches worth the same: first what fits, then old epochs; the beginning of an epoch goes last."""
        return self.entries[key].slot_bytes != slot_bytes, key.epoch, -key.index

    def _furthest(self, cursors: Iterable[BatchKey]) -> list[BatchKey]:
        """Of the batches that rest, the last before each cursor, the first and the last of all.

        Whatever lies between two cursors is nearer to the first of them, so the least wanted is one of these few.
        (Where ranks share a stream, it may be a step or two before one of them.)
        """
        places = {stream: {1, len(idle)} for stream, idle in self._idle.items() if idle}
        for cursor in cursors:
            if cursor.stream in places:
                places[cursor.stream].add(bisect_left(self._idle[cursor.stream], (cursor.epoch, cursor.index)))
        return [BatchKey(stream, *self._idle[stream][at - 1]) for stream, ats in places.items() for at in ats if at]

    def _drop(self, slot: int, slot_bytes: int) -> None:
        self.used -= slot_bytes
        self._slots -= 1
        self.dropped.append(slot)

    def _wake(self, entry: Entry) -> None:
        if entry.resting:
            entry.resting = False
            idle = self._idle[entry.key.stream]
            del idle[bisect_left(idle, (entry.key.epoch, entry.key.index))]
            self._idle_bytes -= entry.slot_bytes
