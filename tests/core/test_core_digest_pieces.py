"""Pieces of an epoch's digest: whatever the size of the pieces, their sum is what a trainer tallies."""

from __future__ import annotations

from functools import reduce

import msgspec
import numpy as np
import pytest
from support.rank_receipts import digest_of
from support.sample_specs import some_spec

from streamd.core.receipt import (
    EMPTY_LANES,
    DigestPiece,
    EpochTally,
    add_digest_lanes,
    compute_piece_lanes,
    format_digest,
    split_into_pieces,
)
from streamd.core.sampler import SampleOrder, compute_batch_ids
from streamd.core.spec import Cursor, RemainderPolicy, Segment

HISTORIES = [
    (),
    (Segment(0, 11, 0, 1),),
    (Segment(0, 2, 1, 3), Segment(6, 2, 0, 2)),
    tuple(Segment(index, 1, 0, 1) for index in range(11)),
    (Segment(0, 4, 2, 3),),  # its last step is padded: beyond the last batch
]


@pytest.mark.parametrize("rows", [1, 10, 25, 1 << 20])
@pytest.mark.parametrize("remainder", ["keep", "pad"])
@pytest.mark.parametrize("history", HISTORIES)
def test_the_sum_of_all_pieces_is_the_tally_of_a_trainer(
    history: tuple[Segment, ...], remainder: RemainderPolicy, rows: int
) -> None:
    spec = some_spec(remainder=remainder)
    order, tally = SampleOrder.from_spec(spec), EpochTally("train", spec.order_id, Cursor(4))
    for part in history:
        for step in range(part.steps):
            index = part.base + step * part.world + part.rank
            ids = compute_batch_ids(order, 4, index, spec.batch_rows(index))
            tally.add_batch(index, ids, np.zeros(ids.size, np.uint8), tally.cursor.after_step(part.rank, part.world))
    pieces = list(split_into_pieces(spec, order, Cursor(4, history), rows))
    assert format_digest(reduce(add_digest_lanes, map(compute_piece_lanes, pieces), EMPTY_LANES)) == digest_of(tally)


@pytest.mark.parametrize(("rows", "steps"), [(1, [1] * 8), (20, [2] * 4), (30, [3, 3, 2]), (1000, [8])])
def test_pieces_have_at_most_so_many_rows_also_across_segments(rows: int, steps: list[int]) -> None:
    spec = some_spec()
    history = (Segment(0, 3, 0, 1), Segment(3, 1, 0, 1), Segment(4, 4, 0, 1))
    pieces = list(split_into_pieces(spec, SampleOrder.from_spec(spec), Cursor(0, history), rows))
    assert [sum(segment.steps for segment in piece.segments) for piece in pieces] == steps


def test_a_piece_is_the_same_after_a_journey_as_json() -> None:
    spec = some_spec()
    (piece,) = split_into_pieces(spec, SampleOrder.from_spec(spec), Cursor(1 << 39, (Segment(0, 3, 0, 1),)), 1000)
    assert msgspec.json.decode(msgspec.json.encode(piece), type=DigestPiece) == piece
