"""Tokens: a trainer's position in a stream as text that it saves, and the tally that continues from there.

Tokens of another stream or order and damaged ones are refused, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

import msgspec

from streamd.core.receipt import (
    EpochTally,
    TallySnapshot,
    TallyStart,
    TallyTotals,
    add_digest_lanes,
    format_digest,
    parse_digest,
)
from streamd.core.spec import DIGEST_PATTERN, Cursor, OrderFacts, RankSteps, StreamSpec, count_steps_left
from streamd.core.text import format_count
from streamd.errors import TokenError
from streamd.limits import MAX_SEGMENTS

_ANEW: Final = "or subscribe without a token to start from the beginning"
_EARLIER: Final = f"use the complete token of an earlier checkpoint, {_ANEW}"


@dataclass(frozen=True, slots=True)
class Token:
    """A cursor with the stream's identity and the digest so far, as a trainer saves it.

    If a trainer takes batches in parts, `rows` rows of the batch after the cursor are done too, by each of the `world`
    ranks. `changed`: the pixels changed within this epoch. `order` has the facts from which `order_id` is made, and
    `digests` the digest of each segment of the cursor's history; tokens of older versions have neither.
    """

    stream: str
    order_id: str
    pixel_id: str
    cursor: Cursor
    digest: str
    samples: int = 0
    bad: int = 0
    version: int = 1
    rows: int = 0
    world: int = 1
    changed: bool = False
    order: OrderFacts | None = None
    digests: tuple[str, ...] = ()

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    def at_next_epoch(self) -> Token:
        """Returns the token at the beginning of the next epoch."""
        none = "0" * len(self.digest)
        return replace(
            self,
            cursor=self.cursor.at_next_epoch(),
            digest=none,
            samples=0,
            bad=0,
            rows=0,
            world=1,
            changed=False,
            digests=(),
        )

    @property
    def segment_digests(self) -> tuple[str, ...]:
        """The digest of each segment of the history; "" where an older version left only the sum of several."""
        if self.digests:
            return self.digests
        return (self.digest,) if len(self.cursor.history) == 1 else ("",) * len(self.cursor.history)

    @staticmethod
    def from_json(text: str | bytes) -> Token:
        """Reads what `to_json` wrote. Raises TokenError for anything else."""
        if not isinstance(text, str | bytes):
            raise TokenError(f"a token is text, as batch.token gives it, but this is of type {type(text).__name__}")
        try:
            token = _token.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise TokenError(f"this is not a valid streamd token: {error}; {_EARLIER}") from error
        if token.version != 1:
            raise TokenError(
                f"this token has version {token.version}, but this streamd reads version 1: use the streamd that "
                f"saved it, {_ANEW}"
            )
        if not DIGEST_PATTERN.fullmatch(token.digest):
            raise _build_damage_error(f"{token.digest[:40]!r} is not a digest")
        if not _are_digests_of_history(token):
            raise _build_damage_error(f"the digests of its {len(token.cursor.history)} segments do not add up")
        return token


def _are_digests_of_history(token: Token) -> bool:
    """Whether a token has a digest for each segment of its history, and they add up, or has none."""
    if not token.digests:
        return True
    if len(token.digests) != len(token.cursor.history):
        return False
    if "" in token.digests:  # continued from a token of an older version
        return all(not each or DIGEST_PATTERN.fullmatch(each) for each in token.digests)
    if not all(map(DIGEST_PATTERN.fullmatch, token.digests)):
        return False
    return format_digest(reduce(add_digest_lanes, map(parse_digest, token.digests))) == token.digest


def parse_token(text: str | bytes, spec: StreamSpec) -> Token:
    """Reads a token for this stream. Raises TokenError if it belongs to another stream or order, or is damaged."""
    token = Token.from_json(text)
    if token.stream != spec.name:
        raise TokenError(
            f"this token belongs to stream {token.stream!r}, not to {spec.name!r}: resume {token.stream!r} with it, "
            f"{_ANEW}"
        )
    if token.order_id != spec.order_id:
        raise TokenError(explain_order_mismatch(token.order_id, token.order, spec))
    check_cursor(token.cursor, spec.batches)
    most = sum(segment.steps for segment in token.cursor.history) * spec.batch_size
    if not (0 <= token.samples <= most and 0 <= token.bad <= most):
        raise _build_damage_error(
            f"{token.samples} samples, {token.bad} of them bad, where at most {most} are possible"
        )
    # At an epoch's end no row of a next batch is taken. In a world of several ranks, each rank fills a short last batch
    # up to the full size.
    base = token.cursor.next_base_index
    rows = 1 if base >= spec.batches else spec.batch_rows(base) if token.world == 1 else spec.batch_size
    if not 0 <= token.rows < rows:
        raise _build_damage_error(f"{token.rows} rows of a batch of {spec.batch_size}")
    return token


def explain_order_mismatch(
    order_id: str, order: OrderFacts | None, spec: StreamSpec, *, is_running: bool = False
) -> str:
    """Returns why a trainer at a position of `order_id` cannot go on with `spec`, and the remedy.

    `order` has the facts of `order_id`, if they are known. `is_running`: the position is that of a running stream, not
    of a saved token.
    """
    if order is None:
        what = (
            "files, labels, batch_size, drop_remainder, shuffle or seed differ: the token was saved for order "
            f"{order_id[:12]}, but order {spec.order_id[:12]} is served"
        )
    else:
        what = order.describe_difference(spec.order_facts)
    anew = "or subscribe again to start from the beginning" if is_running else _ANEW
    return (
        f"stream {spec.name!r} has a different order now: {what}; to continue, serve the stream as it was before, "
        f"{anew}"
    )


def check_cursor(cursor: Cursor, batches: int = 1 << 40) -> None:
    """Raises TokenError unless a trainer can have this cursor in a stream of `batches` batches an epoch."""
    if not 0 <= cursor.epoch < 1 << 40 or len(cursor.history) > MAX_SEGMENTS:
        raise _build_damage_error(f"epoch {cursor.epoch} with {len(cursor.history)} segments is out of range")
    if not 0 <= cursor.begin < batches:
        raise _build_damage_error(f"it begins at batch {cursor.begin}, which is out of range")
    base = cursor.begin
    for segment in cursor.history:
        sound = 0 <= segment.rank < segment.world < 1 << 20 and segment.steps > 0
        if not sound or segment.base != base or segment.next_base_index - segment.world >= batches:
            raise _build_damage_error(f"its history does not add up at {segment}")
        base = segment.next_base_index


def _build_damage_error(why: str) -> TokenError:
    return TokenError(f"this token is damaged: {why}; {_EARLIER}")


_token: Final = msgspec.json.Decoder(Token)


def parse_token_for_rank(text: str | bytes, spec: StreamSpec, world: int, rows: int | None = None) -> Token:
    """Reads a token for a rank of `world` with batches of `rows` rows, None for the stream's.

    Raises TokenError if it is not of this stream and order, or if ranks of this world cannot resume it.
    """
    token = parse_token(text, spec)
    if token.rows and token.world != world:
        raise TokenError(
            f"this token was saved within a batch, after {format_count(token.rows, 'row')}, with world={token.world}: "
            f"resume it with world={token.world}; to resume with world={world}, save a token at the end of a whole "
            f"batch of {spec.batch_size}"
        )
    rows = rows or spec.batch_size
    is_in_last_step = token.cursor.next_base_index + token.world >= spec.batches
    is_short = is_in_last_step and spec.batch_rows(spec.batches - 1) < spec.batch_size
    if token.rows % rows and world > 1 and is_short:
        raise TokenError(
            f"this token was saved after {format_count(token.rows, 'row')} of the last batches of an epoch, one of "
            f"which is short: with batches of {rows}, not every rank would have the same number left; resume it with "
            f"a batch_size that divides {token.rows}"
        )
    return token


def encode_token(spec: StreamSpec, snapshot: TallySnapshot, rows: int = 0, world: int = 1) -> str:
    """Returns a position as JSON.

    It is a function and not a method of the stream, since a batch that has its token must not keep the stream alive.
    """
    totals = snapshot.compute_totals()
    return Token(
        stream=spec.name,
        order_id=spec.order_id,
        pixel_id=snapshot.pixel_id,
        cursor=snapshot.cursor,
        digest=format_digest(totals.lanes),
        samples=totals.samples,
        bad=totals.bad,
        rows=rows,
        world=world,
        changed=snapshot.changed,
        order=spec.order_facts,
        digests=snapshot.start.compute_segment_digests(totals.lanes, snapshot.cursor.history),
    ).to_json()


def resume_tally(token: Token, spec: StreamSpec, rank_steps: RankSteps) -> EpochTally:
    """Returns the tally that a token continues, or a new epoch's if the token is at an epoch's end."""
    cursor = token.cursor
    # The epoch is over only if it is for these ranks and for those that took the last step. If it is over for these
    # ranks alone, its receipt is due, with the samples that are dropped.
    if (
        cursor.history
        and not rank_steps.step_after(cursor).steps
        and not count_steps_left(
            cursor.next_base_index, cursor.history[-1].world, rank_steps.batches, rank_steps.uneven
        )
    ):
        return start_tally(cursor.at_next_epoch(), spec, token.pixel_id)
    totals = TallyTotals(parse_digest(token.digest), token.samples, token.bad)
    start = TallyStart(totals, token.segment_digests)
    return EpochTally(spec.name, spec.order_id, cursor, start, pixel_id=token.pixel_id, changed=token.changed)


def start_tally(cursor: Cursor, spec: StreamSpec, pixel_id: str) -> EpochTally:
    """Returns a tally that begins at `cursor`, after pixels of `pixel_id`."""
    return EpochTally(spec.name, spec.order_id, cursor, pixel_id=pixel_id)
