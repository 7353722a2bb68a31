"""The digest that the steps of an epoch must have, in pieces, each of which any process can compute. Pure.

The digest of an epoch is the sum of its pieces (`receipt`). A piece has no data: it names the order of the samples and
some steps. So a long epoch is computed in many short turns, and in another process if need be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial, reduce
from typing import Final

import msgspec

from streamd.core.receipt import EMPTY_LANES, Lanes, add_digest_lanes, sum_expected_lanes
from streamd.core.sampler import SampleOrder, plan_batches
from streamd.core.spec import Cursor, Segment, StreamSpec

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
    for segments in _split_history(cursor.history, max(1, rows // spec.batch_size)):
        yield DigestPiece(order, spec.remainder == "keep", spec.order_id, cursor.epoch, tuple(segments))


def _split_history(history: Sequence[Segment], most_steps: int) -> Iterator[list[Segment]]:
    """Yields runs of segments with `most_steps` steps together, the last with fewer."""
    taken: list[Segment] = []
    room = most_steps
    for part in history:
        done = 0
        while done < part.steps:
            steps = min(room, part.steps - done)
            taken.append(Segment(part.base + done * part.world, steps, part.rank, part.world))
            done, room = done + steps, room - steps
            if not room:
                yield taken
                taken, room = [], most_steps
    if taken:
        yield taken


def compute_piece_lanes(piece: DigestPiece) -> Lanes:
    """Returns the lanes of a piece. The sum of all pieces of an epoch is its digest."""
    groups = sum_expected_lanes(
        piece.order_id,
        piece.epoch,
        piece.segments,
        partial(plan_batches, piece.order, piece.epoch, is_last_short=piece.is_last_short),
        batches_at_once=max(1, _ROWS_AT_ONCE // piece.order.batch_size),
    )
    return reduce(add_digest_lanes, groups, EMPTY_LANES)
