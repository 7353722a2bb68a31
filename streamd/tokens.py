"""A place in a stream as a trainer saves it, and why one that was saved elsewhere, or is damaged, is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import msgspec

from streamd.errors import TokenError
from streamd.limits import MAX_SEGMENTS
from streamd.spec import DIGEST, Cursor, OrderFacts, StreamSpec

_ANEW: Final = "or subscribe without a token to begin anew"
_EARLIER: Final = f"take that of an earlier checkpoint, whole as it was saved, {_ANEW}"


@dataclass(frozen=True, slots=True)
class Token:
    """A cursor with the stream's identity and the digest so far, as a trainer saves it.

    `rows` of the batch behind the cursor are done too, where a trainer takes batches in parts, and by each of the
    `world` ranks that it is one of. `changed`: the pixels became others within this epoch. `order`, which tokens of
    older versions have not, says what `order_id` is made of.
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

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    def next_epoch(self) -> Token:
        """The place where the epoch after this one begins."""
        none = "0" * len(self.digest)
        return replace(
            self, cursor=self.cursor.next_epoch(), digest=none, samples=0, bad=0, rows=0, world=1, changed=False
        )

    @staticmethod
    def from_json(text: str | bytes) -> Token:
        """Reads what `to_json` wrote. Raises TokenError for anything else."""
        if not isinstance(text, str | bytes):
            raise TokenError(f"a token is text, as batch.token gives it, and this is of type {type(text).__name__}")
        try:
            token = _token.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise TokenError(f"this is no streamd token: {error}; {_EARLIER}") from error
        if token.version != 1:
            raise TokenError(
                f"a token of version {token.version}; this streamd reads version 1: use the streamd that saved it, "
                f"{_ANEW}"
            )
        if not DIGEST.fullmatch(token.digest):
            raise _damaged(f"{token.digest[:40]!r} is no digest")
        return token


def read_token(text: str | bytes, spec: StreamSpec) -> Token:
    """A token for this stream. Raises TokenError when it belongs to another stream or order, or is damaged."""
    token = Token.from_json(text)
    if token.stream != spec.name:
        raise TokenError(
            f"this token is of stream {token.stream!r}, not {spec.name!r}: resume that stream with it, {_ANEW}"
        )
    if token.order_id != spec.order_id:
        raise TokenError(other_order(token.order_id, token.order, spec))
    check_cursor(token.cursor, spec.batches)
    most = sum(segment.steps for segment in token.cursor.history) * spec.batch_size
    if not (0 <= token.samples <= most and 0 <= token.bad <= most):
        raise _damaged(f"{token.samples} samples, {token.bad} of them bad, where {most} are the most")
    if not 0 <= token.rows < _rows_behind(token, spec):
        raise _damaged(f"{token.rows} rows of a batch of {spec.batch_size}")
    return token


def other_order(order_id: str, order: OrderFacts | None, spec: StreamSpec, *, running: bool = False) -> str:
    """What to say to who was in `order_id`, made of `order` where that is known, when `spec` is served.

    `running`: it was a stream that was being read, and no token that was saved.
    """
    if order is None:
        what = (
            "files, labels, batch_size, drop_remainder, shuffle or seed differ: the token was saved under "
            f"{order_id[:12]}, {spec.order_id[:12]} is served"
        )
    else:
        what = order.difference(spec.order)
    anew = "or subscribe again to begin anew" if running else _ANEW
    return f"stream {spec.name!r} has another order now: {what}; serve it as it was to go on, {anew}"


def _rows_behind(token: Token, spec: StreamSpec) -> int:
    """Rows of the batch behind a token's place, the first that cannot be done; 1 at an epoch's end, where none is."""
    base = token.cursor.base
    if base >= spec.batches:
        return 1
    return spec.rows(base) if token.world == 1 else spec.batch_size  # ranks fill theirs up to each other's


def check_cursor(cursor: Cursor, batches: int = 1 << 40) -> None:
    """Raises TokenError unless the cursor could have come from a trainer of a stream of so many batches an epoch."""
    if not 0 <= cursor.epoch < 1 << 40 or len(cursor.history) > MAX_SEGMENTS:
        raise _damaged(f"epoch {cursor.epoch} with {len(cursor.history)} segments is out of range")
    if not 0 <= cursor.begin < batches:
        raise _damaged(f"it begins at batch {cursor.begin}, which is out of range")
    base = cursor.begin
    for segment in cursor.history:
        sound = 0 <= segment.rank < segment.world < 1 << 20 and segment.steps > 0
        if not sound or segment.base != base or segment.end - segment.world >= batches:
            raise _damaged(f"its history does not add up at {segment}")
        base = segment.end


def _damaged(why: str) -> TokenError:
    return TokenError(f"this token is damaged: {why}; {_EARLIER}")


_token: Final = msgspec.json.Decoder(Token)
