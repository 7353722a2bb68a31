"""Adds up the receipts of all ranks of a job: whether together they are one epoch, each batch once. Pure.

A receipt speaks for its own rank in the steps that its session took. The segments before these are from a token. A
token ends a step that all ranks of its world took, so it speaks for all of them up to there: "by token".

    rank 2 of 6    | by token: 40 steps of world 8 | own: 110 steps of world 6 |
    batches        0 ............................ 319, 322, 328, 334 ......... 976

A *stretch* is a run of steps in one world, from one batch on; a job that changes its world twice has three. A batch is
twice in an epoch if two stretches have it. Within a stretch, a rank that reports the same steps again counts once. What
a rank took after the step at which its job was continued was taken in vain, since its model was lost: it counts where
the job took it again. So only the stretches that led to a whole epoch count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamd.core.receipt import (
    EMPTY_LANES,
    Receipt,
    add_digest_lanes,
    compute_expected_digest,
    format_digest,
    parse_digest,
)
from streamd.core.sampler import SampleOrder, compute_order_id, plan_batches
from streamd.core.spec import Cursor, OrderFacts, Segment
from streamd.core.text import format_count
from streamd.core.token import check_cursor
from streamd.errors import ConfigError, TokenError
from streamd.limits import MAX_VERIFIED_BATCHES

Indices = npt.NDArray[np.int64]
_EpochKey = tuple[str, int, str]  # stream, epoch, order id

_SHOWN_RUNS: Final = 8


class NamedReceipt(NamedTuple):
    """A receipt, and where it was read, such as `receipts-3.jsonl:2`."""

    place: str
    receipt: Receipt


class _Stretch(NamedTuple):
    """The steps of one world from batch `base` on, until the world changes."""

    base: int
    world: int


class _Claim(NamedTuple):
    """The steps `first` to `end` of a stretch, by one rank, or by all ranks if a token says so (`rank` is None)."""

    stretch: _Stretch
    rank: int | None
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class TokenPart:
    """Steps of `world` ranks, from batch `first` to batch `last`, for which a token speaks.

    `unreceipted` of these batches are in no rank's own receipt.
    """

    world: int
    first: int
    last: int
    unreceipted: int


@dataclass(frozen=True, slots=True)
class EpochSum:
    """What the receipts of one epoch add up to. Batches are index arrays, ascending, int64 (n,).

    missing: nobody took them, though another rank did take the batches around them.
    twice: two stretches of the job have them.
    dropped: the last batches, too few for a step of all ranks.
    different: digests and accounts that contradict each other, or the plan, as whole sentences.
    digest: the digest that one trainer of world 1 has; "" if the receipts lack the facts to compute it.
    """

    stream: str
    epoch: int
    order_id: str
    batches: int
    receipts: int
    missing: Indices
    twice: Indices
    dropped: Indices
    different: tuple[str, ...]
    by_token: tuple[TokenPart, ...]
    digest: str

    @property
    def is_one_epoch(self) -> bool:
        """Whether each batch was taken exactly once, but for those that the last world dropped."""
        return not (self.missing.size or self.twice.size or self.different)

    def format_lines(self) -> list[str]:
        """Formats the result as lines of text, the verdict first."""
        verdict = "one epoch" if self.is_one_epoch else "NOT one epoch"
        batches, receipts = format_count(self.batches, "batch", "batches"), format_count(self.receipts, "receipt")
        lines = [f"{self.stream} epoch {self.epoch}: {verdict}, {batches} in {receipts}"]
        lines += [f"  {name}: {format_batches(found)}" for name, found in self._list_findings() if found.size]
        lines += [f"  different: {each}" for each in self.different]
        lines += [
            f"  by token: batches {part.first} to {part.last}, world {part.world}; {part.unreceipted:,} of them in no "
            "rank's own receipt"
            for part in self.by_token
        ]
        return lines + ([f"  digest of world 1: {self.digest}"] if self.digest else [])

    def _list_findings(self) -> list[tuple[str, Indices]]:
        return [("missing", self.missing), ("twice", self.twice), ("dropped by the last world", self.dropped)]


def format_batches(indices: Indices) -> str:
    """Formats batch indices as runs, such as `9 batches: 3, 11, 19 to 25`; long lists are cut."""
    cuts = np.flatnonzero(np.diff(indices) != 1) + 1
    runs = [
        f"{run[0]}" if run.size == 1 else f"{run[0]} to {run[-1]}"
        for run in np.split(indices, cuts[:_SHOWN_RUNS])[:_SHOWN_RUNS]
    ]
    rest = f" and so on, up to {indices[-1]}" if cuts.size >= _SHOWN_RUNS else ""
    return f"{format_count(indices.size, 'batch', 'batches')}: {', '.join(runs)}{rest}"


def add_up_receipts(receipts: Iterable[NamedReceipt]) -> list[EpochSum]:
    """Adds up receipts, epoch by epoch, in the order of streams and epochs.

    Raises ConfigError for a receipt that cannot be added up: its steps do not follow each other, or an older version
    wrote it, without them.
    """
    groups: dict[_EpochKey, list[NamedReceipt]] = defaultdict(list)
    for each in receipts:
        _check_receipt_sound(each)
        receipt = each.receipt
        groups[receipt.stream, receipt.epoch, receipt.order_id].append(each)
    orders: dict[tuple[str, int], list[_EpochKey]] = defaultdict(list)
    for key in groups:
        orders[key[:2]].append(key)
    return [
        _EpochAdder(groups[key], [groups[other][0] for other in orders[key[:2]] if other != key]).add_up()
        for key in sorted(groups)
    ]


def _check_receipt_sound(named: NamedReceipt) -> None:
    """Raises ConfigError unless the segments of a receipt can be those of a trainer."""
    place, receipt = named
    if not receipt.order_id or (receipt.steps and not receipt.segments):
        raise ConfigError(
            f"{place}: this receipt names no order or no segments: an older streamd wrote it; verify receipts of this "
            "version"
        )
    if not 0 < receipt.batches <= MAX_VERIFIED_BATCHES:
        raise ConfigError(
            f"{place}: {receipt.batches} batches an epoch, but 1 to {MAX_VERIFIED_BATCHES} can be verified"
        )
    history = tuple(Segment(each.base, each.steps, each.rank, each.world) for each in receipt.segments)
    try:
        check_cursor(Cursor(receipt.epoch, history, history[0].base if history else 0), receipt.batches)
        for each in (receipt.digest, *(segment.digest for segment in receipt.segments)):
            parse_digest(each or "0" * 32)
    except (TokenError, ValueError) as error:
        why = str(error).removeprefix("this token is damaged: ").partition(";")[0]
        raise ConfigError(f"{place}: this receipt is damaged: {why}; take the file that the trainer wrote") from error


@dataclass(slots=True)
class _EpochAdder:
    """Adds up the receipts of one epoch and order. `others` are receipts of the same epoch in another order."""

    receipts: Sequence[NamedReceipt]
    others: Sequence[NamedReceipt]
    _different: list[str] = field(default_factory=list)

    def add_up(self) -> EpochSum:
        first = self.receipts[0].receipt
        claims = self._collect_claims()
        taken, unreceipted = self._count_batches(claims)
        dropped = self._find_dropped_batches()
        is_missing = taken == 0
        is_missing[dropped] = False
        return EpochSum(
            first.stream,
            first.epoch,
            first.order_id,
            first.batches,
            len(self.receipts),
            np.flatnonzero(is_missing),
            np.flatnonzero(taken > 1),
            dropped,
            (*self._list_differences(), *self._different),
            tuple(self._list_token_parts(claims, unreceipted)),
            self._compute_whole_digest(),
        )

    # --- which steps count

    def _collect_claims(self) -> set[_Claim]:
        """Returns the steps that count: of receipts of whole epochs, and of the others where they led to these."""
        leading = self._find_leading_receipts()
        stretches = [_list_claims(each.receipt) for each in leading]
        ends: dict[_Stretch, int] = {}  # the step at which a stretch was left for another one
        for claims in stretches:
            last = claims[-1].stretch if claims else None
            for claim in claims:
                if claim.stretch != last:
                    ends[claim.stretch] = min(claim.end, ends.get(claim.stretch, claim.end))
        known = {claim.stretch for claims in stretches for claim in claims}
        found = {claim for claims in stretches for claim in claims}
        for each in self.receipts:
            for claim in _list_claims(each.receipt) if each not in leading else ():
                end = min(claim.end, ends.get(claim.stretch, claim.end))
                if claim.stretch in known and claim.first < end:
                    found.add(claim._replace(end=end))
        return found

    def _find_leading_receipts(self) -> list[NamedReceipt]:
        """Returns the receipts of whole epochs; without any, those that came furthest."""
        whole = [each for each in self.receipts if each.receipt.complete]
        if whole:
            return whole
        furthest = max(_compute_end(each.receipt) for each in self.receipts)
        return [each for each in self.receipts if _compute_end(each.receipt) == furthest]

    def _count_batches(self, claims: set[_Claim]) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.bool_]]:
        """Returns how many stretches have each batch, and which batches are in no rank's own receipt."""
        batches = self.receipts[0].receipt.batches
        taken, is_own = np.zeros(batches, np.uint16), np.zeros(batches, np.bool_)
        for stretch in sorted({claim.stretch for claim in claims}):
            is_taken = np.zeros(batches, np.bool_)
            for claim in claims:
                if claim.stretch == stretch:
                    is_taken[_get_slice(claim)] = True
                    if claim.rank is not None:
                        is_own[_get_slice(claim)] = True
            taken += is_taken
        return taken, ~is_own

    def _find_dropped_batches(self) -> Indices:
        """Returns the batches after the last step of whole epochs, which are too few for one more."""
        batches = self.receipts[0].receipt.batches
        ends = [
            _compute_end(each.receipt)
            for each in self.receipts
            if each.receipt.complete and batches - _compute_end(each.receipt) < each.receipt.world
        ]
        return np.arange(max(ends, default=batches), batches, dtype=np.int64)

    def _list_token_parts(self, claims: set[_Claim], unreceipted: npt.NDArray[np.bool_]) -> Iterator[TokenPart]:
        for claim in sorted(claims, key=lambda each: (each.stretch, each.first, each.end, each.rank or 0)):
            if claim.rank is None:
                place = _get_slice(claim)
                last = min(place.stop, unreceipted.size) - 1
                yield TokenPart(claim.stretch.world, place.start, last, int(np.count_nonzero(unreceipted[place])))

    # --- whether digests agree

    def _list_differences(self) -> Iterator[str]:
        """Yields what contradicts another receipt, or the receipt itself, or the plan."""
        first = self.receipts[0].receipt
        for other in self.others:
            yield f"order {first.order_id} in {self.receipts[0].place}, but {other.receipt.order_id} in {other.place}"
        known: dict[Segment, tuple[str, str]] = {}
        for place, receipt in self.receipts:
            if receipt.order is not None and not _are_facts_of(receipt.order, receipt):
                yield f"{place}: the facts of its order are not those of order {receipt.order_id}"
            if receipt.batches != first.batches:
                yield f"{receipt.batches} batches an epoch in {place}, but {first.batches} in {self.receipts[0].place}"
            if not receipt.ok or receipt.missed or receipt.repeated:
                yield f"{place} is not ok: missed {receipt.missed}, repeated {receipt.repeated}"
            yield from _find_wrong_sum(place, receipt)
            for segment, stated in _list_segment_digests(receipt):
                digest, where = known.setdefault(segment, (stated, place))
                if digest != stated:
                    yield f"{_format_segment(segment)}: digest {digest} in {where}, but {stated} in {place}"
        yield from self._find_unplanned_digests(known)

    def _find_unplanned_digests(self, known: dict[Segment, tuple[str, str]]) -> Iterator[str]:
        facts, first = self._find_order_facts(), self.receipts[0].receipt
        if facts is None:
            return
        for segment, (digest, place) in known.items():
            planned = _compute_digest(facts, first, [segment])
            if digest != planned:
                yield f"{_format_segment(segment)}: digest {digest} in {place}, but the plan gives {planned}"

    def _find_order_facts(self) -> OrderFacts | None:
        """Returns the facts of the order, if a receipt has them and they are those of its order id."""
        known = ((receipt.order, receipt) for _, receipt in self.receipts)
        return next((facts for facts, receipt in known if facts is not None and _are_facts_of(facts, receipt)), None)

    def _compute_whole_digest(self) -> str:
        facts, first = self._find_order_facts(), self.receipts[0].receipt
        return _compute_digest(facts, first, [Segment(0, first.batches, 0, 1)]) if facts is not None else ""


def _list_claims(receipt: Receipt) -> list[_Claim]:
    """Returns the steps that a receipt speaks for, in order: those by token, then its own, if it took any."""
    claims: list[_Claim] = []
    own = receipt.segments[-1] if receipt.segments else None
    is_own = own is not None and (own.rank, own.world) == (receipt.rank, receipt.world)
    for each in receipt.segments:
        # Ranks that go on in the same world from another rank's token are still in the same stretch.
        goes_on = bool(claims) and claims[-1].stretch.world == each.world
        stretch = claims[-1].stretch if goes_on else _Stretch(each.base, each.world)
        first = (each.base - stretch.base) // each.world
        rank = each.rank if each is own and is_own else None
        claims.append(_Claim(stretch, rank, first, first + each.steps))
    return claims


def _get_slice(claim: _Claim) -> slice:
    """Returns the batches of a claim as a slice of all batches; padded steps reach beyond the last one."""
    base, world = claim.stretch
    start, stop = base + claim.first * world, base + claim.end * world
    return slice(start, stop) if claim.rank is None else slice(start + claim.rank, stop, world)


def _compute_end(receipt: Receipt) -> int:
    """Returns the batch after the last step of a receipt."""
    if not receipt.segments:
        return 0
    last = receipt.segments[-1]
    return last.base + last.steps * last.world


def _are_facts_of(facts: OrderFacts, receipt: Receipt) -> bool:
    return compute_order_id(facts) == receipt.order_id and _count_batches_of_order(facts) == receipt.batches


def _list_segment_digests(receipt: Receipt) -> list[tuple[Segment, str]]:
    """Returns the segments of a receipt whose digests are known, with them."""
    return [
        (Segment(each.base, each.steps, each.rank, each.world), each.digest) for each in receipt.segments if each.digest
    ]


def _find_wrong_sum(place: str, receipt: Receipt) -> Iterator[str]:
    """Yields a sentence if the digests of a receipt's segments do not add up to its digest."""
    digests = [each.digest for each in receipt.segments]
    if not receipt.digest or not all(digests):  # continued from a token of an older version
        return
    total = format_digest(reduce(add_digest_lanes, map(parse_digest, digests), EMPTY_LANES))
    if total != receipt.digest:
        yield f"{place}: the digests of its segments add up to {total}, but its digest is {receipt.digest}"


def _format_segment(segment: Segment) -> str:
    first, last = segment.base + segment.rank, segment.base + (segment.steps - 1) * segment.world + segment.rank
    return f"batches {first} to {last} of rank {segment.rank} of {segment.world}"


def _count_batches_of_order(facts: OrderFacts) -> int:
    """Returns the batches of an epoch; 0 for facts that no stream has."""
    if facts.batch_size < 1 or facts.samples < 1 or (facts.shuffle == "chunk" and min(facts.chunk, facts.buffer) < 1):
        return 0
    whole, rest = divmod(facts.samples, facts.batch_size)
    return whole + bool(rest and facts.remainder != "drop")


def _compute_digest(facts: OrderFacts, receipt: Receipt, segments: Sequence[Segment]) -> str:
    """Returns the digest that steps must have, from the facts of the order."""
    settings = facts.shuffle, facts.seed, facts.chunk, facts.buffer
    order = SampleOrder(facts.samples, facts.batch_size, receipt.batches, *settings)
    plan = partial(plan_batches, order, receipt.epoch, is_last_short=facts.remainder == "keep")
    return compute_expected_digest(receipt.order_id, receipt.epoch, segments, plan)
