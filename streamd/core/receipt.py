"""The account of an epoch: a tally of the batches taken, and an order digest that daemon and client compute separately.

The digest is a sum over rows of a keyed scramble of (place, planned sample), in two 64-bit lanes. A sum does not depend
on the order of its terms, so the daemon adds up whole epochs at once and from the plan alone. Each term contains its
place, so a batch that was lost, repeated or exchanged still changes the sum.

Bad samples are checked batch by batch instead (`client.batch.restore_planned_ids`). A file may turn bad after one
trainer has received its good pixels and before another one receives it, and both accounts are right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Final, NamedTuple

import msgspec
import numpy as np

from streamd.core.sampler import (
    MASKED,
    Ids,
    RowStatus,
    SampleOrder,
    Words,
    compute_batch_index_ranges,
    mix64,
    plan_batches,
)
from streamd.core.spec import DIGEST_PATTERN, Cursor, OrderFacts, Segment, StreamSpec

_LANE: Final = 1 << 64
EMPTY_LANES: Final = (0, 0)
_FLUSH_BATCHES: Final = 64  # batches digested together, to share NumPy's cost for each call

Lanes = tuple[int, int]
CountedBatch = tuple[int, Ids, RowStatus]  # index, planned ids and verdict marks of one batch
PlannedBatches = tuple[Ids, Ids]  # the ids of several batches, concatenated, and the number of rows of each


@dataclass(frozen=True, slots=True)
class ReceiptSegment:
    """A run of steps of an epoch, as `Segment`, and the digest of its batches.

    `digest` is "" for steps whose digest is only known as part of a sum, from a token of an older version.
    """

    base: int
    steps: int
    rank: int
    world: int
    digest: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """The account of one epoch of one session. `ok`: no step was missed or repeated, and both digests are equal.

    `pixel_id` is the identity of the last pixels, and `changed` says that there were others before them within the
    epoch. It is "" in receipts of versions that did not record it.

    The receipts of all ranks can be added up (`rank_receipts`): `rank` and `world` are the session's own, `batches` is
    the number of an epoch's batches as they are served, and `segments` are all steps of the epoch up to here. If the
    session continued from a token, the segments before its own are those of the token. `order` has the facts of
    `order_id`, from which the digests can be computed again.
    """

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
    order_id: str = ""
    rank: int = 0
    world: int = 1
    batches: int = 0
    segments: tuple[ReceiptSegment, ...] = ()
    order: OrderFacts | None = None
    pixel_id: str = ""

    def with_rank(self, rank: int, world: int, spec: StreamSpec) -> Receipt:
        """Returns the receipt with the session's rank, and the facts of `spec`, the stream as it is served."""
        return replace(self, rank=rank, world=world, batches=spec.batches, order=spec.order_facts)

    def to_json(self) -> str:
        """Returns the receipt as one line of JSON, which `streamd verify` reads."""
        return msgspec.json.encode(self).decode()


@lru_cache(maxsize=64)
def _derive_digest_keys(order_id: str, epoch: int) -> Words:
    material = hashlib.blake2b(f"streamd receipt {order_id} epoch {epoch}".encode(), digest_size=16).digest()
    return np.frombuffer(material, dtype="<u8").astype(np.uint64)


def digest_rows(order_id: str, epoch: int, places: Words, ids: Ids) -> Lanes:
    """Returns the digest of rows: `places` are index * 2^16 + row, `ids` the samples planned there."""
    keys = _derive_digest_keys(order_id, epoch)
    # All arithmetic on uint64 wraps, and so does the sum: it is modulo 2^64, like `add_digest_lanes`.
    contents = mix64(ids.view(np.uint64))
    lanes = [int(mix64(mix64(places ^ key) + contents).sum(dtype=np.uint64)) for key in keys]
    return lanes[0], lanes[1]


def add_digest_lanes(one: Lanes, other: Lanes) -> Lanes:
    return (one[0] + other[0]) % _LANE, (one[1] + other[1]) % _LANE


def format_digest(lanes: Lanes) -> str:
    return f"{lanes[1]:016x}{lanes[0]:016x}"


def parse_digest(text: str) -> Lanes:
    """Returns the lanes of a digest as text. Raises ValueError if the text is no digest."""
    if not DIGEST_PATTERN.fullmatch(text):
        raise ValueError(f"a digest has 32 hexadecimal digits, which {text[:40]!r} does not have")
    return int(text[16:], 16), int(text[:16], 16)


@dataclass(frozen=True, slots=True)
class TallyTotals:
    """The totals of a tally: the digest's lanes, the samples delivered, and the rows with a verdict."""

    lanes: Lanes = EMPTY_LANES
    samples: int = 0
    bad: int = 0

    def compute_totals_with_batches(self, order_id: str, epoch: int, batches: Sequence[CountedBatch]) -> TallyTotals:
        """Returns these totals plus those of `batches`, which are digested together to share NumPy's cost."""
        if not batches:
            return self
        indices, all_ids, all_marks = zip(*batches, strict=True)
        ids, marks = np.concatenate(all_ids), np.concatenate(all_marks)
        lanes = digest_rows(order_id, epoch, compute_digest_row_places(indices, [each.size for each in all_ids]), ids)
        return TallyTotals(
            add_digest_lanes(self.lanes, lanes),
            self.samples + int(np.count_nonzero((ids >= 0) & (marks != MASKED))),
            self.bad + int(np.count_nonzero(marks)),
        )


def compute_digest_row_places(indices: Ids | Sequence[int], rows: Ids | Sequence[int]) -> Words:
    """Returns the places of several batches, concatenated, for `digest_rows`: `rows[i]` rows of batch `indices[i]`."""
    ends = np.cumsum(rows)
    row = np.arange(ends[-1], dtype=np.uint64) - np.repeat(ends - rows, rows).astype(np.uint64)
    first = np.repeat(np.asarray(indices, dtype=np.uint64) << np.uint64(16), rows)
    places: Words = first + row
    return places


def sum_expected_lanes(
    order_id: str,
    epoch: int,
    segments: Sequence[Segment],
    planned: Callable[[range], PlannedBatches],
    *,
    batches_at_once: int = _FLUSH_BATCHES,
) -> Lanes:
    """Returns the lanes of the digest that the steps of `segments` must have.

    `planned(indices)` returns the planned ids of batches, concatenated, and the rows of each. It is called for up to
    `batches_at_once` batches at a time.
    """
    lanes = EMPTY_LANES
    for walk in compute_batch_index_ranges(segments):
        for start in range(0, len(walk), batches_at_once):
            group = walk[start : start + batches_at_once]
            ids, rows = planned(group)
            lanes = add_digest_lanes(lanes, digest_rows(order_id, epoch, compute_digest_row_places(group, rows), ids))
    return lanes


class TallyStart(NamedTuple):
    """Where a tally began: the totals up to there, and the digest of each segment of the history, "" if not known."""

    totals: TallyTotals = TallyTotals()
    digests: tuple[str, ...] = ()

    def compute_segment_digests(self, lanes: Lanes, history: Sequence[Segment]) -> tuple[str, ...]:
        """Returns the digest of each segment of `history`, given the lanes of all its steps.

        `history` is the one at the start, with further steps in its last segment, or in one more.
        """
        before = self.totals.lanes
        own = (lanes[0] - before[0]) % _LANE, (lanes[1] - before[1]) % _LANE
        if len(history) > len(self.digests):
            return (*self.digests, format_digest(own))
        if not history or not self.digests[-1]:
            return self.digests
        return (*self.digests[:-1], format_digest(add_digest_lanes(parse_digest(self.digests[-1]), own)))


_AT_BEGINNING: Final = TallyStart()


class TallySnapshot(NamedTuple):
    """A tally's state at one moment; its totals are computed only when they are requested.

    It is a tuple since one is made for every batch and few are used.
    """

    cursor: Cursor
    pixel_id: str
    changed: bool
    order_id: str
    start: TallyStart
    before: TallyTotals
    # The tally's own list, not a copy. It only grows, and is replaced instead of cleared, so its first `length` batches
    # stay as they were at that moment.
    waiting: list[CountedBatch]
    length: int
    last: CountedBatch | None

    def compute_totals(self) -> TallyTotals:
        last = [] if self.last is None else [self.last]
        return self.before.compute_totals_with_batches(
            self.order_id, self.cursor.epoch, self.waiting[: self.length] + last
        )


@dataclass(slots=True)
class EpochTally:
    """The batches that one trainer took of one epoch, counted at the moment when its loop took them.

    `pixel_id` is that of the last pixels it received; `changed`: it changed within the epoch.
    """

    stream: str
    order_id: str
    cursor: Cursor
    start: TallyStart = _AT_BEGINNING
    repeated: int = 0
    pixel_id: str = ""
    changed: bool = False
    _seen: bytearray = field(default_factory=bytearray)  # by batch index: 1 if the batch was taken
    _waiting: list[CountedBatch] = field(default_factory=list)
    _totals: TallyTotals = field(init=False)

    def __post_init__(self) -> None:
        self._totals = self.start.totals
        for walk in compute_batch_index_ranges(self.cursor.history):
            self._extend_seen_flags(walk.stop)
            self._seen[walk.start : walk.stop : walk.step] = b"\1" * len(walk)

    def record_pixel_id(self, pixel_id: str) -> None:
        """Records the identity of the next batch's pixels."""
        self.changed |= pixel_id != self.pixel_id
        self.pixel_id = pixel_id

    def add_batch(self, index: int, ids: Ids, marks: RowStatus, after: Cursor) -> None:
        """Counts one batch, `ids` as planned, and moves the cursor to `after`. Neither array may be changed later."""
        self._extend_seen_flags(index + 1)
        self.repeated += self._seen[index]
        self._seen[index] = 1
        self._waiting.append((index, ids, marks))
        if len(self._waiting) >= _FLUSH_BATCHES:
            self._digest_waiting_batches()
        self.cursor = after

    def _extend_seen_flags(self, indices: int) -> None:
        # At least doubled, so that the cost of all extensions of an epoch together is linear in its length.
        if indices > len(self._seen):
            self._seen.extend(bytes(max(indices - len(self._seen), len(self._seen))))

    def _digest_waiting_batches(self) -> TallyTotals:
        self._totals = self._totals.compute_totals_with_batches(self.order_id, self.cursor.epoch, self._waiting)
        self._waiting = []  # a new list, since snapshots refer to the old one
        return self._totals

    def take_snapshot(self, after: Cursor | None = None, last: CountedBatch | None = None) -> TallySnapshot:
        """Returns the present state, which later batches do not change.

        With `after` and `last`, the state that the tally will have after this batch, which is not counted yet.
        """
        cursor, waiting = self.cursor if after is None else after, self._waiting
        return TallySnapshot(
            cursor, self.pixel_id, self.changed, self.order_id, self.start, self._totals, waiting, len(waiting), last
        )

    @property
    def steps_taken(self) -> int:
        return sum(segment.steps for segment in self.cursor.history)

    def build_receipt(self, *, expected_digest: str | None, steps_left: int, dropped: int) -> Receipt:
        """Returns the account of the epoch.

        `expected_digest` is the daemon's digest, None if the epoch was stopped early. `steps_left` are the steps of
        the epoch after the cursor, and `dropped` the samples that no rank gets.
        """
        totals, complete = self._digest_waiting_batches(), expected_digest is not None
        digest, history = format_digest(totals.lanes), self.cursor.history
        digests = self.start.compute_segment_digests(totals.lanes, history)
        # Steps minus distinct batches. If one batch was taken twice in place of another, the first counts as repeated
        # and the other as missed.
        missed = self.steps_taken + (steps_left if complete else 0) - self._seen.count(1)
        agrees = expected_digest is None or expected_digest == digest
        return Receipt(
            stream=self.stream,
            epoch=self.cursor.epoch,
            steps=self.steps_taken,
            samples=totals.samples,
            missed=missed,
            repeated=self.repeated,
            bad=totals.bad,
            dropped=dropped,
            changed=self.changed,
            complete=complete,
            ok=missed == 0 and self.repeated == 0 and agrees,
            digest=digest,
            order_id=self.order_id,
            segments=tuple(
                ReceiptSegment(each.base, each.steps, each.rank, each.world, own)
                for each, own in zip(history, digests, strict=True)
            ),
            pixel_id=self.pixel_id,
        )


# --- The digest that the steps of an epoch must have, in pieces, each of which any process can compute. Pure.
#
# The digest of an epoch is the sum of its pieces (`receipt`). A piece has no data: it names the order of the samples
# and some steps. So a long epoch is computed in many short turns, and in another process if need be.


_ROWS_AT_ONCE: Final = 16384  # rows of one NumPy call: few calls, and all arrays within the processor's cache


class DigestPiece(msgspec.Struct, frozen=True):
    """Some steps of an epoch, and all that decides their samples. See `plan_batches` for `is_last_short`."""

    order: SampleOrder
    is_last_short: bool
    order_id: str
    epoch: int
    segments: tuple[Segment, ...]


def split_into_pieces(spec: StreamSpec, order: SampleOrder, cursor: Cursor, rows: int) -> Iterator[DigestPiece]:
    """Yields the steps of `cursor`'s history in pieces of at most `rows` samples each, or of one step."""
    build_piece = partial(DigestPiece, order, spec.remainder == "keep", spec.order_id, cursor.epoch)
    most_steps = room = max(1, rows // spec.batch_size)
    taken: list[Segment] = []
    for part in cursor.history:
        done = 0
        while done < part.steps:
            steps = min(room, part.steps - done)
            taken.append(Segment(part.base + done * part.world, steps, part.rank, part.world))
            done, room = done + steps, room - steps
            if not room:
                yield build_piece(tuple(taken))
                taken, room = [], most_steps
    if taken:
        yield build_piece(tuple(taken))


def compute_piece_lanes(piece: DigestPiece) -> Lanes:
    """Returns the lanes of a piece. The sum of all pieces of an epoch is its digest."""
    return sum_expected_lanes(
        piece.order_id,
        piece.epoch,
        piece.segments,
        partial(plan_batches, piece.order, piece.epoch, is_last_short=piece.is_last_short),
        batches_at_once=max(1, _ROWS_AT_ONCE // piece.order.batch_size),
    )
