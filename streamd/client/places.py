"""Where a trainer stands, as the text that it saves, and back; the account that goes on from there."""

from __future__ import annotations

from streamd.errors import TokenError
from streamd.receipts import Place, Tally, Totals, from_hex, to_hex
from streamd.spec import Cursor, StreamSpec, steps_from
from streamd.tokens import Token, read_token
from streamd.walk import Walk


def read_place(text: str | bytes, spec: StreamSpec, world: int, rows: int | None = None) -> Token:
    """A token for a rank of `world`, whose batches are of `rows` rows, or the stream's.

    Raises TokenError when it is none of this stream and order, or of no such rank.
    """
    token = read_token(text, spec)
    if token.rows and token.world != world:
        raise TokenError(
            f"this token lies {token.rows} rows within the batches that world {token.world} took at a time: resume it "
            f"with world={token.world}, or save one at the end of a whole batch of {spec.batch_size} for world={world}"
        )
    rows = rows or spec.batch_size
    if token.rows % rows and world > 1 and _ends_short(token, spec):
        raise TokenError(
            f"this token lies {token.rows} rows within the last batches of an epoch, of which one is short: with "
            f"batches of {rows} not every rank would have as many left; resume it with a batch_size that divides "
            f"{token.rows}"
        )
    return token


def _ends_short(token: Token, spec: StreamSpec) -> bool:
    """Whether ranks are within the step of an epoch's last batch, which has fewer rows than theirs."""
    return token.cursor.base + token.world >= spec.batches and spec.rows(spec.batches - 1) < spec.batch_size


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
