"""The account of an epoch: a tally of what was handed over, and an order digest that both sides compute for themselves.

The digest is a sum over rows of a keyed scramble of (place, sample, verdict), in two 64-bit lanes. A sum does not
depend on the order of its terms, so the daemon adds up whole epochs at once and from the plan alone, while the place in
each term still betrays any batch that was lost, repeated or exchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np

from streamd.plan import Ids, Words, mix64, segment_indices
from streamd.spec import DIGEST, Cursor, Segment
from streamd.verdicts import Marks

_LANE: Final = 1 << 64
_EMPTY: Final = (0, 0)
_FLUSH_BATCHES: Final = 64  # batches digested together, to share NumPy's cost a call

Lanes = tuple[int, int]
Counted = tuple[Words, Ids, Marks]  # places, delivered ids, marks of one batch


@dataclass(frozen=True, slots=True)
class Receipt:
    """The account of one epoch of one session. `ok`: nothing missed or repeated, and both digests equal."""

    stream: str
    epoch: int
    steps: int
    samples: int
    missed: int
    repeated: int
    bad: int
    dropped: int
    changed: bool
    complete: bool
    ok: bool
    digest: str


@lru_cache(maxsize=64)
def _keys(order_id: str, epoch: int) -> Words:
    material = hashlib.blake2b(f"streamd receipt {order_id} epoch {epoch}".encode(), digest_size=16).digest()
    return np.frombuffer(material, dtype="<u8").astype(np.uint64)


def digest_rows(order_id: str, epoch: int, places: Words, ids: Ids, marks: Marks) -> Lanes:
    """The digest of rows: `places` is index * 2^16 + row, `ids` what was delivered, `marks` the verdicts."""
    keys = _keys(order_id, epoch)
    contents = mix64(ids.view(np.uint64) ^ (marks.astype(np.uint64) << np.uint64(56)))
    lanes = [int(mix64(mix64(places ^ key) + contents).sum(dtype=np.uint64)) for key in keys]
    return lanes[0], lanes[1]


def places_of(index: int, rows: int) -> Words:
    return np.arange(rows, dtype=np.uint64) + np.uint64(index << 16)


def add(one: Lanes, other: Lanes) -> Lanes:
    return (one[0] + other[0]) % _LANE, (one[1] + other[1]) % _LANE


def to_hex(lanes: Lanes) -> str:
    return f"{lanes[1]:016x}{lanes[0]:016x}"


def from_hex(text: str) -> Lanes:
    """Raises ValueError when the text is no digest."""
    if not DIGEST.fullmatch(text):
        raise ValueError(f"a digest has 32 hexadecimal digits, which {text[:40]!r} has not")
    return int(text[16:], 16), int(text[:16], 16)


def expected_digest(
    order_id: str, epoch: int, segments: Sequence[Segment], batch: Callable[[int], tuple[Ids, Marks]]
) -> str:
    """What the digest of `segments` must be; `batch(index)` gives a batch's resolved ids and marks."""
    total = _EMPTY
    indices = segment_indices(segments).tolist()
    for start in range(0, len(indices), _FLUSH_BATCHES):
        group = indices[start : start + _FLUSH_BATCHES]
        resolved = [batch(index) for index in group]
        places = np.concatenate([places_of(index, ids.size) for index, (ids, _) in zip(group, resolved, strict=True)])
        ids = np.concatenate([ids for ids, _ in resolved])
        marks = np.concatenate([marks for _, marks in resolved])
        total = add(total, digest_rows(order_id, epoch, places, ids, marks))
    return to_hex(total)


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A tally's state at one moment; the digest is worked out when somebody asks."""

    cursor: Cursor
    _order_id: str
    _lanes: Lanes
    _waiting: tuple[Counted, ...]

    @property
    def digest(self) -> str:
        return to_hex(_digest_more(self._lanes, self._order_id, self.cursor.epoch, self._waiting))


def _digest_more(lanes: Lanes, order_id: str, epoch: int, batches: Sequence[Counted]) -> Lanes:
    if not batches:
        return lanes
    places, ids, marks = zip(*batches, strict=True)
    rows = digest_rows(order_id, epoch, np.concatenate(places), np.concatenate(ids), np.concatenate(marks))
    return add(lanes, rows)


@dataclass(slots=True)
class Tally:
    """What one trainer took of one epoch, counted at the moment its loop took it."""

    stream: str
    order_id: str
    cursor: Cursor
    lanes: Lanes = _EMPTY
    samples: int = 0
    bad: int = 0
    repeated: int = 0
    changed: bool = False
    _seen: set[int] = field(default_factory=set)
    _waiting: list[Counted] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._seen.update(segment_indices(self.cursor.history).tolist())

    def take(self, index: int, ids: Ids, marks: Marks, rank: int, world: int) -> None:
        """Counts one batch and moves the cursor behind it."""
        self.repeated += index in self._seen
        self._seen.add(index)
        self.samples += int(np.count_nonzero(ids >= 0))
        self.bad += int(np.count_nonzero(marks))
        self._waiting.append((places_of(index, ids.size), ids.copy(), marks))  # the caller's ids are its own to change
        if len(self._waiting) >= _FLUSH_BATCHES:
            self._flush()
        self.cursor = self.cursor.after_step(rank, world)

    def _flush(self) -> None:
        self.lanes = _digest_more(self.lanes, self.order_id, self.cursor.epoch, self._waiting)
        self._waiting.clear()

    def snapshot(self) -> Place:
        """This moment, unmoved by what is taken later."""
        return Place(self.cursor, self.order_id, self.lanes, tuple(self._waiting))

    @property
    def digest(self) -> str:
        self._flush()
        return to_hex(self.lanes)

    @property
    def steps(self) -> int:
        return sum(segment.steps for segment in self.cursor.history)

    def receipt(self, *, expected_digest: str | None, steps_left: int, dropped: int) -> Receipt:
        """Closes the account; `expected_digest` is the daemon's word, None when the epoch was stopped early."""
        complete = expected_digest is not None
        missed = self.steps + (steps_left if complete else 0) - len(self._seen)
        agrees = expected_digest is None or expected_digest == self.digest
        return Receipt(
            stream=self.stream,
            epoch=self.cursor.epoch,
            steps=self.steps,
            samples=self.samples,
            missed=missed,
            repeated=self.repeated,
            bad=self.bad,
            dropped=dropped,
            changed=self.changed,
            complete=complete,
            ok=missed == 0 and self.repeated == 0 and agrees,
            digest=self.digest,
        )
