"""The slots and what lies in them. The sum of all slots never exceeds the budget."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from streamd.core.spec import BatchKey
from streamd.limits import MAX_SLOTS


@dataclass(slots=True)
class SlotEntry:
    """A batch in a slot, in production until `is_whole`; `lease_count` leases keep it.

    A `may_stay_mapped` slot is never rewritten. Once it is whole and nobody holds it, it is discarded or put to
    `cache_batch`.
    """

    key: BatchKey
    slot: int
    slot_bytes: int
    started_s: float = 0.0  # when its production began
    is_whole: bool = False
    lease_count: int = 0
    may_stay_mapped: bool = False
    is_cached: bool = False


@dataclass(frozen=True, slots=True)
class BatchDemand:
    """What the sessions want, asked only when something has to give way. `worth` grows as a batch is wanted sooner."""

    list_cursors: Callable[[], Iterable[BatchKey]]
    compute_worth: Callable[[BatchKey], float]


@dataclass(slots=True)
class SlotPool:
    """Which batch lies in which slot."""

    memory_bytes: int
    used_bytes: int = 0
    entries: dict[BatchKey, SlotEntry] = field(default_factory=dict)
    by_slot: dict[int, SlotEntry] = field(default_factory=dict)
    free_slots: dict[int, list[int]] = field(default_factory=dict)  # slot bytes -> serials, last freed last
    dropped_slots: list[int] = field(default_factory=list)  # serials that are over, for the shell to hear of
    evicted_keys: list[BatchKey] = field(default_factory=list)  # batches that gave way, for the sessions to hear of
    configured_slots: int = MAX_SLOTS  # of slots at a time
    most_slots: int = MAX_SLOTS  # ... and now: fewer where the host has refused one
    # Stream -> (epoch, index), in order.
    _cached_batches: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    _cached_bytes: int = 0
    _next_slot: int = 1
    _slot_count: int = 0

    def allocate_slot(
        self, key: BatchKey, slot_bytes: int, demand: BatchDemand, *, is_modest: bool
    ) -> SlotEntry | None:
        """A slot for a new batch, at the cost of the least worth of those that rest.

        None when too much is held, or when a `modest` batch finds none that is worth less than itself.
        """
        slot = self._find_slot(slot_bytes, demand, key if is_modest else None)
        if slot is None:
            return None
        entry = SlotEntry(key, slot, slot_bytes)
        self.entries[key] = self.by_slot[slot] = entry
        return entry

    def mark_batch_whole(self, slot: int) -> SlotEntry:
        """The batch in `slot` is whole."""
        entry = self.by_slot[slot]
        entry.is_whole = True
        return entry

    def lease_batch(self, entry: SlotEntry) -> None:
        """One more lease."""
        self._uncache_batch(entry)
        entry.lease_count += 1

    def release_lease(self, slot: int) -> SlotEntry:
        """One lease less."""
        entry = self.by_slot[slot]
        entry.lease_count -= 1
        return entry

    def cache_batch(self, entry: SlotEntry) -> None:
        """Nobody holds this batch: it stays until something else needs its memory."""
        if not entry.is_cached:
            entry.is_cached = True
            insort(self._cached_batches.setdefault(entry.key.stream, []), (entry.key.epoch, entry.key.index))
            self._cached_bytes += entry.slot_bytes

    def remove_unfinished_batch_key(self, entry: SlotEntry) -> None:
        """Nobody will have what is in production here, whatever comes of it: its key is free, its slot is not yet."""
        del self.entries[entry.key]

    def discard_batch(self, entry: SlotEntry) -> None:
        """Forgets a batch that nobody holds; its slot is free, or over if a dead session may still see it."""
        self._uncache_batch(entry)
        if self.entries.get(entry.key) is entry:
            del self.entries[entry.key]
        del self.by_slot[entry.slot]
        if entry.may_stay_mapped:
            self._drop_slot(entry.slot, entry.slot_bytes)
        else:
            self.free_slots.setdefault(entry.slot_bytes, []).append(entry.slot)

    def drop_free_slots(self) -> int:
        """Gives all empty slots back to the host, and hopes for the best; how many."""
        count = 0
        for size, slots in self.free_slots.items():
            for slot in slots:
                self._drop_slot(slot, size)
            count += len(slots)
            slots.clear()
        self.most_slots = self.configured_slots
        return count

    def remove_denied_slot(self, entry: SlotEntry) -> bool:
        """The slot of this batch could not be made, and no other will be; whether there is any at all."""
        if self.entries.get(entry.key) is entry:
            del self.entries[entry.key]
        del self.by_slot[entry.slot]
        self.used_bytes -= entry.slot_bytes
        self._slot_count -= 1
        # With none at all, whoever comes next must find out anew.
        self.most_slots = self._slot_count or self.configured_slots
        return self._slot_count > 0

    def entries_of_stream(self, stream: str) -> Iterator[SlotEntry]:
        return iter([entry for entry in self.entries.values() if entry.key.stream == stream])

    # --- finding a slot

    def _find_slot(self, slot_bytes: int, demand: BatchDemand, modest: BatchKey | None) -> int | None:
        while True:
            if free := self.free_slots.get(slot_bytes):
                return free.pop()
            if self.used_bytes + slot_bytes <= self.memory_bytes and self._slot_count < self.most_slots:
                return self._create_slot(slot_bytes)
            if not self._fits_after_evictions(slot_bytes) or not self._evict_one(slot_bytes, demand, modest):
                return None

    def _fits_after_evictions(self, slot_bytes: int) -> bool:
        """Whether there is room when all that may give way does; if not, nothing should in vain."""
        empty = sum(size * len(slots) for size, slots in self.free_slots.items())
        return self.used_bytes - empty - self._cached_bytes + slot_bytes <= self.memory_bytes

    def _create_slot(self, slot_bytes: int) -> int:
        slot = self._next_slot
        self._next_slot += 1
        self._slot_count += 1
        self.used_bytes += slot_bytes
        return slot

    def _evict_one(self, slot_bytes: int, demand: BatchDemand, modest: BatchKey | None) -> bool:
        """Frees one slot: an empty one of another size, else that of the batch least worth keeping.

        Nothing gives way to a `modest` batch but what is worth less.
        """
        for size, slots in self.free_slots.items():
            if slots:
                self._drop_slot(slots.pop(0), size)
                return True
        worth = {key: demand.compute_worth(key) for key in self._find_eviction_candidates(demand.list_cursors())}
        least = min(worth, key=lambda key: (worth[key], *self._eviction_order(key, slot_bytes)), default=None)
        if least is None or (modest is not None and worth[least] >= demand.compute_worth(modest)):
            return False
        self.discard_batch(self.entries[least])
        self.evicted_keys.append(least)
        return True

    def _eviction_order(self, key: BatchKey, slot_bytes: int) -> tuple[bool, int, int]:
        """Of batches worth the same: first what fits, then old epochs; the beginning of an epoch goes last."""
        return self.entries[key].slot_bytes != slot_bytes, key.epoch, -key.index

    def _find_eviction_candidates(self, cursors: Iterable[BatchKey]) -> list[BatchKey]:
        """Of the batches that rest, the last before each cursor, the first and the last of all.

        Whatever lies between two cursors is nearer to the first of them, so the least wanted is one of these few.
        (Where ranks share a stream, it may be a step or two before one of them.)
        """
        places = {stream: {1, len(idle)} for stream, idle in self._cached_batches.items() if idle}
        for cursor in cursors:
            if cursor.stream in places:
                places[cursor.stream].add(
                    bisect_left(self._cached_batches[cursor.stream], (cursor.epoch, cursor.index))
                )
        return [
            BatchKey(stream, *self._cached_batches[stream][at - 1])
            for stream, ats in places.items()
            for at in ats
            if at
        ]

    def _drop_slot(self, slot: int, slot_bytes: int) -> None:
        self.used_bytes -= slot_bytes
        self._slot_count -= 1
        self.dropped_slots.append(slot)

    def _uncache_batch(self, entry: SlotEntry) -> None:
        if entry.is_cached:
            entry.is_cached = False
            idle = self._cached_batches[entry.key.stream]
            del idle[bisect_left(idle, (entry.key.epoch, entry.key.index))]
            self._cached_bytes -= entry.slot_bytes
