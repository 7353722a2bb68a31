"""Where a trainer stands, as the text that it saves, and back; the account that goes on from there."""

from __future__ import annotations

from streamd.errors import TokenError
from streamd.receipts import Place, Tally, Totals, from_hex, to_hex
from streamd.spec import Cursor, StreamSpec, steps_from
from streamd.tokens import Token, read_token
from streamd.walk import Walk


def read_place(text: str | bytes, spec: StreamSpec, world: int) -> Token:
    """A token for a rank of `world`. Raises TokenError when it is none of this stream and order, or of no such rank."""
    token = read_token(text, spec)
    if token.rows and token.world != world:
        raise TokenError(
            f"this token lies {token.rows} rows within the batches that world {token.world} took at a time: resume it "
            f"with world={token.world}, or save one at the end of a whole batch of {spec.batch_size} for world={world}"
        )
    return token


def write_place(spec: StreamSpec, place: Place, rows: int = 0, world: int = 1) -> str:
    """The place as JSON. No method of the stream: a batch that knows its token must not keep it alive."""
    totals = place.totals()
    return Token(
        stream=spec.name,
        order_id=spec.order_id,
        pixel_id=place.pixel_id,
        cursor=place.cursor,
        digest=to_hex(totals.lanes),
        samples=totals.samples,
        bad=totals.bad,
        rows=rows,
        world=world,
        changed=place.changed,
        order=spec.order,
    ).to_json()


def account_at(token: Token, spec: StreamSpec, walk: Walk) -> Tally:
    """The account that a token continues; a new epoch's where the token ends one."""
    cursor = token.cursor
    if _ends_epoch(cursor, walk):
        return new_account(cursor.next_epoch(), spec, token.pixel_id)
    start = Totals(from_hex(token.digest), token.samples, token.bad)
    return Tally(spec.name, spec.order_id, cursor, start, pixel_id=token.pixel_id, changed=token.changed)


def _ends_epoch(cursor: Cursor, walk: Walk) -> bool:
    """Whether those who took the last step were through, too: else its receipt, with what is dropped, is due."""
    if not cursor.history or walk.start(cursor).steps:
        return False
    return not steps_from(cursor.base, cursor.history[-1].world, walk.batches, walk.uneven)


def new_account(cursor: Cursor, spec: StreamSpec, pixel_id: str) -> Tally:
    """An account that begins at `cursor`, after pixels of `pixel_id`."""
    return Tally(spec.name, spec.order_id, cursor, pixel_id=pixel_id)
