"""What speaks against a subscription before the window is asked: names, numbers, tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from streamd.allowance import AMPLE, Allowance
from streamd.errors import TokenError, near_name
from streamd.limits import MAX_NAMES, MAX_SESSIONS
from streamd.messages import AskNames, Refused, Subscribe
from streamd.served import ServedStream
from streamd.spec import StreamSpec
from streamd.tokens import check_cursor, other_order

_MAX_WORLD: Final = 1 << 20  # far beyond any job, and every index up to its padding fits the digest's places
_DRAINING_RETRY_S: Final = 0.2
_FULL_RETRY_S: Final = 1.0


def objection(
    wish: Subscribe,
    streams: Mapping[str, ServedStream],
    *,
    sessions: int,
    draining: bool,
    allowance: Allowance = AMPLE,
    ended: int = 0,
) -> Refused | None:
    """Why a subscription cannot be, with what to do; None when nothing speaks against it.

    `ended`: how many of the `sessions` are over while their trainers hold something of them.
    """
    stream = streams.get(wish.stream)
    if stream is None:
        return _unknown(wish.stream, streams)
    if not 0 <= wish.together <= MAX_SESSIONS:
        return Refused("usage", f"{wish.together} trainers together: from 1 to {MAX_SESSIONS}")
    if not 0 <= wish.rank < wish.world < _MAX_WORLD or (wish.epochs is not None and wish.epochs < 0):
        return Refused("usage", f"rank {wish.rank} of world {wish.world}, epochs {wish.epochs}: not possible")
    if draining:
        return Refused("busy", "this daemon is going away; the next one will answer", _DRAINING_RETRY_S)
    if sessions >= allowance.sessions:
        return Refused("busy", allowance.refusal(ended), _FULL_RETRY_S)
    return _misplaced(wish, stream.spec)


def names_objection(question: AskNames, streams: Mapping[str, ServedStream]) -> Refused | None:
    """Why names cannot be told."""
    stream = streams.get(question.stream)
    if stream is None:
        return _unknown(question.stream, streams)
    if len(question.sample_ids) > MAX_NAMES:
        return Refused("usage", f"{len(question.sample_ids)} names asked for at once; {MAX_NAMES} are the most")
    samples = stream.spec.samples
    strange = next((each for each in question.sample_ids if not 0 <= each < samples), None)
    if strange is not None:
        return Refused("usage", f"stream {question.stream!r} has sample ids 0 to {samples - 1}, not {strange}")
    return None


def _unknown(name: str, streams: Iterable[str]) -> Refused:
    return Refused("unknown", f"no stream {name!r}{near_name(name, streams)}; served: {', '.join(streams)}")


def _misplaced(wish: Subscribe, spec: StreamSpec) -> Refused | None:
    """What is wrong with the place at which the subscription wants to begin."""
    if wish.order_id is not None and wish.order_id != spec.order_id:
        return Refused("token", other_order(wish.order_id, wish.order, spec, running=wish.resuming))
    try:
        check_cursor(wish.cursor)
    except TokenError as error:
        return Refused("token", str(error))
    last_step = wish.cursor.history[-1].world if wish.cursor.history else 0
    if wish.cursor.base >= spec.batches + last_step:
        return Refused("token", f"the token's place lies beyond the {spec.batches} batches of an epoch")
    return None
