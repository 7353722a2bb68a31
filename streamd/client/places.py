"""Where a trainer stands, as the text that it saves, and back."""

from __future__ import annotations

from streamd.errors import TokenError
from streamd.receipts import Place, to_hex
from streamd.spec import StreamSpec
from streamd.tokens import Token, read_token


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
