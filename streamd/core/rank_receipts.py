"""Adds up the receipts of all ranks of a job: whether together they are one epoch, each batch once. Pure.

A receipt speaks for its own rank in the steps that its session took. The segments before these are from a token. A
token ends a step that all ranks of its world took, so it speaks for all of them up to there: "by token".

    rank 2 of 6    | by token: 40 steps of world 8 | own: 110 steps of world 6 |
    batches        0 ............................ 319, 322, 328, 334 ......... 976

A *stretch* is a run of steps in one world, from one batch on; a job that changes its world twice has three. A batch is
twice in an epoch if two stretches have it. Within a stretch, a rank that reports the same steps again counts once. What
a rank took after the step at which its job was continued was taken in vain, since its model was lost: it counts where
the job took it again. So only the stretches that led to a whole epoch count.

Receipts are files that anybody can edit, so nothing in them is believed that something else in them contradicts. A
receipt whose own numbers cannot all be true is refused, with its file and line. What is true of each receipt alone but
not of all of them together, and what a trainer itself reports as wrong, makes the epoch "not one epoch".
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamd.core.receipt import (
    EMPTY_LANES,
    Receipt,
    ReceiptSegment,
    add_digest_lanes,
    format_digest,
    parse_digest,
    sum_expected_lanes,
)
from streamd.core.sampler import SampleOrder, compute_order_id, plan_batches
from streamd.core.spec import DIGEST_PATTERN, Cursor, OrderFacts, Segment
from streamd.core.text import format_count
from streamd.core.token import check_cursor
from streamd.errors import ConfigError, TokenError
from streamd.limits import MAX_BATCH_ROWS, MAX_SEED, MAX_SHUFFLE_CHUNK, MAX_VERIFIED_BATCHES, MAX_WORLD

Indices = npt.NDArray[np.int64]
_EpochKey = tuple[str, int, str]  # stream, epoch, order id

_SHOWN_RUNS: Final = 8
_MOST_SAMPLES: Final = MAX_VERIFIED_BATCHES * MAX_BATCH_ROWS
_LARGEST_COUNTS: Final = {  # padded steps reach beyond the last batch, by one step of a world at most
    "steps": _MOST_SAMPLES, "samples": _MOST_SAMPLES, "bad": _MOST_SAMPLES, "dropped": _MOST_SAMPLES,
    "missed": 2 * MAX_VERIFIED_BATCHES, "repeated": 2 * MAX_VERIFIED_BATCHES,
}  # fmt: skip


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
    different: digests, pixels and accounts that contradict each other, or the plan, as whole sentences.
    remarks: what the receipts say or cannot say, and what is no fault, as whole sentences.
    changed: the places of receipts within whose epoch the pixels changed.
    pixel_ids: the identities of the pixels, of which receipts of older versions have none.
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
    remarks: tuple[str, ...]
    changed: tuple[str, ...]
    pixel_ids: tuple[str, ...]

    @property
    def is_one_epoch(self) -> bool:
        """Whether each batch was taken exactly once, with equal pixels, but for those that the last world dropped."""
        return not (self.missing.size or self.twice.size or self.different)

    def format_lines(self) -> list[str]:
        """Formats the result as lines of text, the verdict first."""
        verdict = "one epoch" if self.is_one_epoch else "NOT one epoch"
        batches, receipts = format_count(self.batches, "batch", "batches"), format_count(self.receipts, "receipt")
        lines = [f"{self.stream} epoch {self.epoch}: {verdict}, {batches} in {receipts}"]
        findings = {"missing": self.missing, "twice": self.twice, "dropped by the last world": self.dropped}
        lines += [f"  {name}: {format_batches(found)}" for name, found in findings.items() if found.size]
        lines += [f"  different: {each}" for each in self.different]
        lines += [
            f"  by token: batches {part.first} to {part.last}, world {part.world}; {part.unreceipted:,} of them in no "
            "rank's own receipt"
            for part in self.by_token
        ]
        lines += [f"  note: {each}" for each in self.remarks]
        return lines + ([f"  digest of world 1: {self.digest}"] if self.digest else [])


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
    """Raises ConfigError unless a trainer of this version or an older one can have written all of a receipt."""
    place, receipt = named
    if not receipt.order_id or (receipt.complete and receipt.steps and not receipt.segments):
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
        for each in (receipt.digest, *(segment.digest or receipt.digest for segment in receipt.segments)):
            parse_digest(each)
    except (TokenError, ValueError) as error:
        why: str | None = str(error).removeprefix("this token is damaged: ").partition(";")[0]
    else:
        # Bounds come first: what follows them computes with the numbers.
        why = next((each for each in (*_find_numbers_out_of_range(receipt), *_find_contradictions(receipt))), None)
    if why is not None:
        raise ConfigError(f"{place}: this receipt is damaged: {why}; take the file that the trainer wrote")


def _find_numbers_out_of_range(receipt: Receipt) -> list[str]:
    """Returns what no receipt can have, whatever its other numbers are."""
    found = []
    if not 0 <= receipt.rank < receipt.world <= MAX_WORLD:
        found.append(f"rank {receipt.rank} of {receipt.world}, but a world has 1 to {MAX_WORLD} ranks, from 0 on")
    for name, most in _LARGEST_COUNTS.items():
        if not 0 <= (count := getattr(receipt, name)) <= most:
            found.append(f"{name} is {count}, but 0 to {most} are possible")
    for name, identity in (("order_id", receipt.order_id), ("pixel_id", receipt.pixel_id or "0" * 32)):
        if not DIGEST_PATTERN.fullmatch(identity):
            found.append(f"{name} is {identity[:40]!r}, but an identity has 32 hexadecimal digits")
    if (facts := receipt.order) is not None:
        chunks = (1, MAX_SHUFFLE_CHUNK) if facts.shuffle == "chunk" else (0, 0)
        bounds = {
            "samples": (1, MAX_VERIFIED_BATCHES * MAX_BATCH_ROWS), "batch_size": (1, MAX_BATCH_ROWS),
            "seed": (0, MAX_SEED), "chunk": chunks, "buffer": chunks,
        }  # fmt: skip
        for name, (least, most) in bounds.items():
            if not least <= (count := getattr(facts, name)) <= most:
                found.append(f"{name} of its order is {count}, but {least} to {most} are possible")
    return found


def _find_contradictions(receipt: Receipt) -> Iterator[str]:
    """Yields what cannot be true of a receipt whose numbers are all in range.

    A trainer may have taken the stream's batches in parts, or several of them at a time, so its own steps need not be
    those of the segments. What did not fill its last batch is counted as dropped.
    """
    served = sum(each.steps for each in receipt.segments)
    end, batches, last = _compute_end(receipt), receipt.batches, receipt.segments[-1] if receipt.segments else None
    facts = receipt.order if receipt.order is not None and _are_facts_of(receipt.order, receipt) else None
    batch_size = MAX_BATCH_ROWS if facts is None else facts.batch_size
    if not _are_own_steps(receipt.steps, served, batch_size, is_complete=receipt.complete):
        yield f"{receipt.steps} steps, but its segments have {served}"
    # The last segment of a whole epoch is the session's own, unless its world is too large for one more step.
    is_own = last is None or (last.rank, last.world) == (receipt.rank, receipt.world)
    if receipt.complete and last is not None and not is_own and not last.world <= batches - end < receipt.world:
        yield f"rank {receipt.rank} of {receipt.world}, but its last segment is of rank {last.rank} of {last.world}"
    # Samples: those of the plan, without the masked ones, which are among the bad ones.
    if facts is None:
        planned = served * batch_size
        if not 0 <= receipt.samples + receipt.bad <= 2 * planned + batch_size or receipt.bad > planned + batch_size:
            yield f"{receipt.samples} samples, {receipt.bad} of them bad, in {served} batches"
        return
    planned = sum(_count_planned_samples(each, facts, batches) for each in receipt.segments)
    behind = max(0, facts.samples - min(end, batches) * batch_size) if receipt.complete else 0
    is_as_served = receipt.steps == served > 1  # one batch may be one step in any case
    if receipt.dropped < behind or (is_as_served and receipt.dropped > behind) or receipt.dropped - behind > planned:
        yield f"{receipt.dropped} samples dropped, but {behind} come after its last step"
    if receipt.bad > planned:
        yield f"{receipt.bad} samples are bad, but its batches have {planned}"
    # A trainer that left an epoch within a batch, or while it gathered a group, counts what it took.
    known, is_exact = receipt.samples + receipt.dropped - behind, is_as_served or receipt.complete
    least, most = (planned - receipt.bad, planned) if is_exact else (0, planned + batch_size)
    if not least <= known <= most:
        yield f"{receipt.samples} samples, of which {receipt.bad} are bad, but its batches have {planned}"


def _are_own_steps(steps: int, served: int, batch_size: int, *, is_complete: bool) -> bool:
    """Whether a trainer can have `steps` of its own in `served` batches of the stream: as many, groups, or parts."""
    if steps == served:
        return True
    if not served:
        return not is_complete and steps < batch_size  # parts of the first batch
    if steps < served:
        # In a whole epoch no group is open; a last group that is not full counts, or is dropped.
        several = {served // steps, -(-served // steps)} if steps else {served + 1}
        is_whole = any(group > 1 and steps in {served // group, -(-served // group)} for group in several)
        return is_whole if is_complete else 2 * steps <= served + 1
    # Each batch has equally many parts, but for some at the end of the data, and some of an open batch.
    divisors = (number for number in range(1, math.isqrt(batch_size) + 1) if batch_size % number == 0)
    return any(
        part > 1 and abs(steps - served * part) < part for number in divisors for part in (number, batch_size // number)
    )


def _count_planned_samples(segment: ReceiptSegment, facts: OrderFacts, batches: int) -> int:
    """Returns the samples in the batches of a segment. Those beyond the last batch hold none."""
    first = segment.base + segment.rank
    count = max(0, min(segment.steps, -(-(batches - first) // segment.world)))
    has_last = count > 0 and first + (count - 1) * segment.world == batches - 1
    # With drop_remainder the last batch is whole, and otherwise it may hold fewer samples.
    lacking = 0 if facts.remainder == "drop" else batches * facts.batch_size - facts.samples
    return count * facts.batch_size - (lacking if has_last else 0)


@dataclass(slots=True)
class _EpochAdder:
    """Adds up the receipts of one epoch and order. `others` are receipts of the same epoch in another order."""

    receipts: Sequence[NamedReceipt]
    others: Sequence[NamedReceipt]

    def add_up(self) -> EpochSum:
        first = self.receipts[0].receipt
        batches = first.batches
        # How many stretches have each batch, and which batches are in a rank's own receipt.
        claims = sorted(self._collect_claims(), key=lambda each: (each.stretch, each.first, each.end, each.rank or 0))
        taken, is_own = np.zeros(batches, np.uint16), np.zeros(batches, np.bool_)
        for _, of_stretch in groupby(claims, key=lambda each: each.stretch):
            is_taken = np.zeros(batches, np.bool_)
            for claim in of_stretch:
                is_taken[_get_slice(claim)] = True
                is_own[_get_slice(claim)] |= claim.rank is not None
            taken += is_taken
        by_token = [
            TokenPart(claim.stretch.world, place.start, min(place.stop, batches) - 1, int((~is_own[place]).sum()))
            for claim, place in zip(claims, map(_get_slice, claims), strict=True)
            if claim.rank is None
        ]
        # The batches after the last step of whole epochs, which are too few for one more.
        ends = [
            _compute_end(each.receipt)
            for each in self.receipts
            if each.receipt.complete and batches - _compute_end(each.receipt) < each.receipt.world
        ]
        dropped = np.arange(max(ends, default=batches), batches, dtype=np.int64)
        is_missing = taken == 0
        is_missing[dropped] = False
        # The facts of the order, if a receipt has them and they are those of its order id.
        known = ((receipt.order, receipt) for _, receipt in self.receipts)
        facts = next((facts for facts, receipt in known if facts is not None and _are_facts_of(facts, receipt)), None)
        # What is no fault, and narrows what the result says.
        changed = tuple(place for place, receipt in self.receipts if receipt.changed)
        remarks = [f"{place} says changed: its pixels did not stay the same within the epoch" for place in changed]
        if old := [place for place, receipt in self.receipts if not receipt.pixel_id]:
            remarks.append(
                f"{format_count(len(old), 'receipt')} of an older streamd cannot say whether the pixels were those of "
                f"the other ranks; the first is {old[0]}"
            )
        if facts is None:
            remarks.append("the digests were not compared with the plan, since no receipt has the facts of the order")
        return EpochSum(
            first.stream,
            first.epoch,
            first.order_id,
            first.batches,
            len(self.receipts),
            np.flatnonzero(is_missing),
            np.flatnonzero(taken > 1),
            dropped,
            tuple(self._list_differences(facts)),
            tuple(by_token),
            _compute_digest(facts, first, [Segment(0, first.batches, 0, 1)]) if facts is not None else "",
            tuple(remarks),
            changed,
            tuple(sorted({receipt.pixel_id for _, receipt in self.receipts} - {""})),
        )

    # --- which steps count

    def _collect_claims(self) -> set[_Claim]:
        """Returns the steps that count: of receipts of whole epochs, and of the others where they led to these."""
        # Receipts of whole epochs lead; without any, those that came furthest.
        leading = [each for each in self.receipts if each.receipt.complete]
        if not leading:
            furthest = max(_compute_end(each.receipt) for each in self.receipts)
            leading = [each for each in self.receipts if _compute_end(each.receipt) == furthest]
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

    # --- whether the receipts agree

    def _list_differences(self, facts: OrderFacts | None) -> Iterator[str]:
        """Yields what contradicts another receipt or the plan, and what a trainer itself reports as wrong."""
        first = self.receipts[0].receipt
        for other in self.others:
            yield f"order {first.order_id} in {self.receipts[0].place}, but {other.receipt.order_id} in {other.place}"
        known: dict[tuple[Segment, ...], tuple[str, str]] = {}
        for place, receipt in self.receipts:
            if receipt.order is not None and not _are_facts_of(receipt.order, receipt):
                yield f"{place}: the facts of its order are not those of order {receipt.order_id}"
            if receipt.batches != first.batches:
                yield f"{receipt.batches} batches an epoch in {place}, but {first.batches} in {self.receipts[0].place}"
            if not receipt.ok or receipt.missed or receipt.repeated:
                yield f"{place} is not ok: missed {receipt.missed}, repeated {receipt.repeated}"
            yield from _find_wrong_account(place, receipt)
            for segments, stated in _list_segment_digests(receipt):
                digest, where = known.setdefault(segments, (stated, place))
                if digest != stated:
                    yield f"{_format_segments(segments)}: digest {digest} in {where}, but {stated} in {place}"
        # Pixels other than the first ones. A receipt that says `changed` has several.
        seen: dict[str, str] = {}
        for place, receipt in self.receipts:
            if receipt.pixel_id and not receipt.changed:
                seen.setdefault(receipt.pixel_id, place)
        for pixel_id in [*seen][1:]:
            pixels, where = next(iter(seen.items()))
            yield (
                f"pixels {pixels} in {where}, but {pixel_id} in {seen[pixel_id]}: their daemons had other image "
                "settings, another transform or other decoders; with `expect`, such a daemon does not start"
            )
        if facts is None:
            return
        for segments, (digest, place) in known.items():
            planned = _compute_digest(facts, first, segments)
            if digest != planned:
                yield f"{_format_segments(segments)}: digest {digest} in {place}, but the plan gives {planned}"


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
    """Whether facts are those of a receipt's order id and of its batches an epoch."""
    # No stream has such facts.
    if facts.batch_size < 1 or facts.samples < 1 or (facts.shuffle == "chunk" and min(facts.chunk, facts.buffer) < 1):
        return False
    whole, rest = divmod(facts.samples, facts.batch_size)
    batches = whole + bool(rest and facts.remainder != "drop")
    return compute_order_id(facts) == receipt.order_id and batches == receipt.batches


def _list_segment_digests(receipt: Receipt) -> list[tuple[tuple[Segment, ...], str]]:
    """Returns the steps whose digests a receipt states, with them: each segment, or all of them if one is not known."""
    segments = [Segment(each.base, each.steps, each.rank, each.world) for each in receipt.segments]
    stated = [((segment,), each.digest) for segment, each in zip(segments, receipt.segments, strict=True)]
    # A token of an older version had only the sum of several segments, so the sum of all is what can be checked.
    whole = [] if all(digest for _, digest in stated) else [(tuple(segments), receipt.digest)]
    return [*((each, digest) for each, digest in stated if digest), *whole]


def _find_wrong_account(place: str, receipt: Receipt) -> Iterator[str]:
    """Yields a sentence if `complete` or the digest is not what the segments of a receipt say."""
    # Whether too few batches for one more step are padded is not in a receipt, so only a world's last step is
    # uncertain.
    end = _compute_end(receipt)
    if receipt.complete and receipt.batches - end >= receipt.world:
        yield f"{place} says complete, but its steps end at batch {end} of {receipt.batches}"
    if not receipt.complete and end >= receipt.batches:
        yield (f"{place} does not say complete, but its steps reach the end of the epoch: nobody compared its account")
    # A receipt that was continued from a token of an older version has no digest of some segment.
    if all(digests := [each.digest for each in receipt.segments]):
        total = format_digest(reduce(add_digest_lanes, map(parse_digest, digests), EMPTY_LANES))
        if total != receipt.digest:
            yield f"{place}: the digests of its segments add up to {total}, but its digest is {receipt.digest}"


def _format_segments(segments: Sequence[Segment]) -> str:
    first, last = segments[0], segments[-1]
    start, stop = first.base + first.rank, last.base + (last.steps - 1) * last.world + last.rank
    if len(segments) > 1:
        return f"batches {start} to {stop} in {len(segments)} segments"
    return f"batches {start} to {stop} of rank {first.rank} of {first.world}"


def _compute_digest(facts: OrderFacts, receipt: Receipt, segments: Sequence[Segment]) -> str:
    """Returns the digest that steps must have, from the facts of the order."""
    settings = facts.shuffle, facts.seed, facts.chunk, facts.buffer
    order = SampleOrder(facts.samples, facts.batch_size, receipt.batches, *settings)
    plan = partial(plan_batches, order, receipt.epoch, is_last_short=facts.remainder == "keep")
    return format_digest(sum_expected_lanes(receipt.order_id, receipt.epoch, segments, plan))
