"""The slots and the batches in them. The sum of all slots never exceeds the budget.

A slot's entry is in production, then whole and leased or cached. When it is discarded, its slot is free for another
batch, or dropped. `by_slot` holds the entry of every used slot, `entries` only those of batches that may be sent: the
key of a batch is removed before its slot is free if its stream is replaced meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from streamd.core.spec import BatchKey
from streamd.limits import MAX_SLOTS


@dataclass(slots=True)
class SlotEntry:
    """A batch in a slot, in production until `is_whole`, kept by `lease_count` leases.

    A slot that `may_stay_mapped` is never rewritten. If it `may_be_read`, by a forked child that no lease counts, its
    pages stay too when it is dropped. A whole batch without leases is cached or discarded.
    """

    key: BatchKey
    slot: int
    slot_bytes: int
    started_s: float = 0.0  # when its production began
    is_whole: bool = False
    lease_count: int = 0
    may_stay_mapped: bool = False
    may_be_read: bool = False
    is_cached: bool = False

    def __repr__(self) -> str:
        return f"<SlotEntry {self.key.stream!r} {self.key.epoch}:{self.key.index} in slot {self.slot}, {self.state}>"

    @property
    def state(self) -> Literal["in production", "leased", "cached", "idle"]:
        """Where the entry stands; `idle` is a whole batch between its last lease and the decision to cache it."""
        if not self.is_whole:
            return "in production"
        if self.lease_count:
            return "leased"
        return "cached" if self.is_cached else "idle"


@dataclass(frozen=True, slots=True)
class BatchDemand:
    """What the sessions want. It is called only when a batch has to be evicted.

    `compute_worth` returns more for a batch that is wanted sooner.
    """

    list_cursors: Callable[[], Iterable[BatchKey]]
    compute_worth: Callable[[BatchKey], float]


@dataclass(slots=True)
class SlotPool:
    """Allocates slots to batches, within bounds of bytes and number, and evicts cached batches for new ones.

    `dropped_slots`, `read_slots` and `evicted_keys` collect serials and keys for the scheduler, which empties them.
    """

    memory_bytes: int
    used_bytes: int = 0
    entries: dict[BatchKey, SlotEntry] = field(default_factory=dict)
    by_slot: dict[int, SlotEntry] = field(default_factory=dict)
    free_slots: dict[int, list[int]] = field(default_factory=dict)  # slot bytes -> serials, last freed last
    dropped_slots: list[int] = field(default_factory=list)  # serials that are never used again
    read_slots: list[int] = field(default_factory=list)  # those of them that a forked child may still read
    evicted_keys: list[BatchKey] = field(default_factory=list)  # cached batches discarded for others
    configured_slots: int = MAX_SLOTS  # the most slots at a time, ...
    most_slots: int = MAX_SLOTS  # ... and the most for now: fewer after the host has refused one
    # Stream -> (epoch, index) of its cached batches, sorted.
    _cached_batches: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    _cached_bytes: int = 0
    _next_slot: int = 1
    _slot_count: int = 0

    def __repr__(self) -> str:
        states: Counter[str] = Counter(entry.state for entry in self.by_slot.values())
        states["free"] = sum(map(len, self.free_slots.values()))
        parts = [f"{count} {state}" for state, count in states.items() if count]
        return f"<SlotPool {', '.join([f'{self.used_bytes} of {self.memory_bytes} bytes', *parts])}>"

    def allocate_slot(
        self, key: BatchKey, slot_bytes: int, demand: BatchDemand, *, is_modest: bool
    ) -> SlotEntry | None:
        """Returns the entry of a new batch, in a slot that is free or new, or was freed by evicting a cached batch.

        Returns None if no slot can be freed. A batch that `is_modest` evicts only batches that are worth less than it.
        """
        # Each turn that does not end the loop evicts one slot. The slot freed last comes first, since its memory is the
        # most likely to be in the processor's cache.
        while True:
            if free := self.free_slots.get(slot_bytes):
                slot = free.pop()
                break
            if self.used_bytes + slot_bytes <= self.memory_bytes and self._slot_count < self.most_slots:
                slot = self._next_slot
                self._next_slot += 1
                self._slot_count += 1
                self.used_bytes += slot_bytes
                break
            # If a slot does not fit once all empty slots and cached batches are gone, none is evicted in vain.
            empty = sum(size * len(slots) for size, slots in self.free_slots.items())
            if self.used_bytes - empty - self._cached_bytes + slot_bytes > self.memory_bytes:
                return None
            if not self._evict_one(slot_bytes, demand, key if is_modest else None):
                return None
        entry = SlotEntry(key, slot, slot_bytes)
        self.entries[key] = self.by_slot[slot] = entry
        return entry

    def mark_batch_whole(self, slot: int) -> SlotEntry:
        """Marks the batch in `slot` as whole; returns its entry."""
        entry = self.by_slot[slot]
        entry.is_whole = True
        return entry

    def lease_batch(self, entry: SlotEntry) -> None:
        """Adds a lease to a batch."""
        self._uncache_batch(entry)
        entry.lease_count += 1

    def release_lease(self, slot: int) -> SlotEntry:
        """Takes a lease off the batch in `slot`; returns its entry, which may now be cached or discarded."""
        entry = self.by_slot[slot]
        entry.lease_count -= 1
        return entry

    def cache_batch(self, entry: SlotEntry) -> None:
        """Keeps a batch without leases until its memory is needed."""
        if not entry.is_cached:
            entry.is_cached = True
            insort(self._cached_batches.setdefault(entry.key.stream, []), (entry.key.epoch, entry.key.index))
            self._cached_bytes += entry.slot_bytes

    def discard_batch(self, entry: SlotEntry) -> None:
        """Removes a batch without leases. Its slot is free, or is dropped if a process may still map it."""
        self._uncache_batch(entry)
        # The key may belong to a newer entry, of a stream that replaced this one, which must stay.
        if self.entries.get(entry.key) is entry:
            del self.entries[entry.key]
        del self.by_slot[entry.slot]
        if entry.may_stay_mapped:
            self._drop_slot(entry.slot, entry.slot_bytes)
            if entry.may_be_read:
                self.read_slots.append(entry.slot)
        else:
            self.free_slots.setdefault(entry.slot_bytes, []).append(entry.slot)

    def drop_free_slots(self) -> int:
        """Drops all empty slots, so that the host gets their memory back; returns their number.

        The bound after a refused slot is lifted too.
        """
        count = 0
        for size, slots in self.free_slots.items():
            for slot in slots:
                self._drop_slot(slot, size)
            count += len(slots)
            slots.clear()
        self.most_slots = self.configured_slots
        return count

    def remove_denied_slot(self, entry: SlotEntry) -> bool:
        """Removes a slot that the host could not create, and allows no more slots than exist.

        Returns whether any slot exists.
        """
        if self.entries.get(entry.key) is entry:
            del self.entries[entry.key]
        del self.by_slot[entry.slot]
        self.used_bytes -= entry.slot_bytes
        self._slot_count -= 1
        # With no slot at all there is nothing to reuse, so the next batch has to try to create one.
        self.most_slots = self._slot_count or self.configured_slots
        return self._slot_count > 0

    def entries_of_stream(self, stream: str) -> Iterator[SlotEntry]:
        # A copy, since callers discard entries while they iterate.
        return iter([entry for entry in self.entries.values() if entry.key.stream == stream])

    # --- eviction

    def _evict_one(self, slot_bytes: int, demand: BatchDemand, modest: BatchKey | None) -> bool:
        """Frees one slot: an empty one of another size, else that of the cached batch that is worth least.

        For a `modest` batch, only batches that are worth less than it are evicted. Returns whether a slot was freed.
        """
        for size, slots in self.free_slots.items():
            if slots:
                self._drop_slot(slots.pop(0), size)
                return True
        # The candidates: the first and last cached batch of each stream, and the last one before each cursor. A batch
        # between two cursors is wanted first by the session behind it, so the furthest of them lies right before the
        # next cursor: the least wanted batch is one of these few. (Where ranks share a stream, it may be a step or two
        # before one of them.)
        cached = self._cached_batches
        places = {stream: {1, len(idle)} for stream, idle in cached.items() if idle}
        for cursor in demand.list_cursors():
            if cursor.stream in places:
                places[cursor.stream].add(bisect_left(cached[cursor.stream], (cursor.epoch, cursor.index)))
        keys = [BatchKey(stream, *cached[stream][at - 1]) for stream, ats in places.items() for at in ats if at]
        worth = {key: demand.compute_worth(key) for key in keys}
        # Of batches of the same worth, those of the wanted size go first, then old epochs, then late batches: a trainer
        # that starts late needs the beginning of an epoch first.
        least = min(
            worth,
            key=lambda key: (worth[key], self.entries[key].slot_bytes != slot_bytes, key.epoch, -key.index),
            default=None,
        )
        if least is None or (modest is not None and worth[least] >= demand.compute_worth(modest)):
            return False
        self.discard_batch(self.entries[least])
        self.evicted_keys.append(least)
        return True

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
