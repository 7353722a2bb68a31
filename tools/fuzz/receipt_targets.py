"""Receipts of ranks on paper: what `streamd verify` reads, from whoever wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from fuzz.message_targets import SPEC, open_plain_runner
from fuzz.structures import edit_json
from fuzz.target import FuzzTarget
from streamd.cli.verify import read_receipts
from streamd.core.rank_receipts import add_up_receipts
from streamd.core.receipt import EpochTally, TallyStart
from streamd.core.sampler import SampleOrder, compute_batch_ids, compute_order_id
from streamd.core.spec import Cursor
from streamd.errors import ConfigError
from streamd.limits import GIB

_NAMED: Final = replace(SPEC, order_id=compute_order_id(SPEC.order_facts))
_ROUNDS: Final = ((2, 2), (1, 3))  # steps, world


def _make_receipts() -> list[bytes]:
    """Returns one receipt of two worlds after the other, with all facts and without."""
    order, receipts = SampleOrder.from_spec(_NAMED), list[bytes]()
    cursor, start = Cursor(), TallyStart()
    for steps, world in _ROUNDS:
        tally = EpochTally(_NAMED.name, _NAMED.order_id, cursor, start)
        for _ in range(steps):
            index = tally.cursor.next_base_index + world - 1
            ids = compute_batch_ids(order, 0, index, _NAMED.batch_rows(index))
            tally.add_batch(index, ids, (ids < 0).astype("u1"), tally.cursor.after_step(world - 1, world))
        receipt = tally.build_receipt(expected_digest=None, steps_left=0, dropped=0).with_rank(world - 1, world, _NAMED)
        totals = tally.take_snapshot().compute_totals()
        cursor, start = tally.cursor, TallyStart(totals, tuple(each.digest for each in receipt.segments))
        receipts += [receipt.to_json().encode(), replace(receipt, order=None, complete=True).to_json().encode()]
    return receipts


def _run_verify(data: bytes) -> str:
    """Reads receipts from a file and adds them up, as the command does."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "receipts-0.jsonl"
        path.write_bytes(data)
        sums = add_up_receipts(read_receipts(path))
    lines = [line for each in sums for line in each.format_lines()]
    return f"{len(sums)} epochs, {len(lines) > len(sums)}"


def _build_targets() -> Sequence[FuzzTarget]:
    return (
        FuzzTarget(
            "verify",
            "receipts of ranks, as streamd verify reads them",
            _make_receipts,
            open_plain_runner(_run_verify),
            (ConfigError,),
            edit_json,
            data_bytes=4 * GIB,
            growth_bytes=GIB,  # what an epoch of MAX_VERIFIED_BATCHES takes
        ),
    )


TARGETS: Final = {each.name: each for each in _build_targets()}
