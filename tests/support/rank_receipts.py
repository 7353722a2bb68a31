"""Receipts as ranks write them, from the plan of one stream."""

from __future__ import annotations

from typing import Final

import numpy as np

from streamd.core.receipt import EpochTally, Receipt, TallySnapshot, format_digest
from streamd.core.sampler import SampleOrder, build_all_good_row_status, compute_batch_ids, compute_order_id
from streamd.core.spec import Cursor, RankSteps, UnevenPolicy, count_steps_left
from streamd.core.token import Token, encode_token, parse_token, resume_tally, start_tally
from support.sample_specs import some_spec

BATCHES: Final = 103
_UNNAMED: Final = some_spec(samples=1025, batch_size=10, batches=BATCHES, content_id="c" * 32)
SPEC: Final = some_spec(
    samples=1025, batch_size=10, batches=BATCHES, content_id="c" * 32, order_id=compute_order_id(_UNNAMED.order_facts)
)
_ORDER: Final = SampleOrder.from_spec(SPEC)


def digest_of(counted: EpochTally | TallySnapshot) -> str:
    """The digest of what a tally has counted, or had counted when the snapshot was taken."""
    snapshot = counted.take_snapshot() if isinstance(counted, EpochTally) else counted
    return format_digest(snapshot.compute_totals().lanes)


def make_receipt(
    rank: int,
    world: int,
    *,
    start: Token | None = None,
    steps: int | None = None,
    epoch: int = 0,
    uneven: UnevenPolicy = "drop",
) -> Receipt:
    """A rank's receipt of an epoch, or of its first `steps` steps, from a token or from the beginning."""
    tally = _take_steps(rank, world, start=start, steps=steps, epoch=epoch, uneven=uneven)
    expected = digest_of(tally) if steps is None else None
    end = min(tally.cursor.next_base_index, BATCHES)
    dropped = max(0, SPEC.samples - end * SPEC.batch_size) if steps is None else 0
    return tally.build_receipt(expected_digest=expected, steps_left=0, dropped=dropped).with_rank(rank, world, SPEC)


def receipts_of_world(world: int, *, uneven: UnevenPolicy = "drop") -> list[Receipt]:
    """The receipts of all ranks."""
    return [make_receipt(rank, world, uneven=uneven) for rank in range(world)]


def token_after(steps: int, world: int, *, rank: int = 0, start: Token | None = None) -> Token:
    """A rank's token after `steps` steps."""
    tally = _take_steps(rank, world, start=start, steps=steps)
    return parse_token(encode_token(SPEC, tally.take_snapshot()), SPEC)


def _take_steps(
    rank: int,
    world: int,
    *,
    start: Token | None,
    steps: int | None,
    epoch: int = 0,
    uneven: UnevenPolicy = "drop",
) -> EpochTally:
    walk = RankSteps(BATCHES, rank, world, uneven, None)
    tally = resume_tally(start, SPEC, walk) if start else start_tally(Cursor(epoch), SPEC, SPEC.pixel_id)
    left = count_steps_left(tally.cursor.next_base_index, world, BATCHES, uneven)
    base = tally.cursor.next_base_index
    for step in range(left if steps is None else steps):
        index = base + step * world + rank
        rows = SPEC.batch_rows(index)
        ids = np.array(compute_batch_ids(_ORDER, epoch, index, rows))
        tally.add_batch(index, ids, build_all_good_row_status(rows), tally.cursor.after_step(rank, world))
    return tally
