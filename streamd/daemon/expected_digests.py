"""What every epoch's digest must be: computed from the plan, off the event loop, once for all."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import replace
from typing import Final

from streamd.core.receipt import compute_expected_digest
from streamd.core.spec import Cursor
from streamd.daemon.streams.served_stream import ServedStream

_MAX_KEPT_DIGESTS: Final = 32
_ROWS_AT_ONCE: Final = 16384  # worked out at a time: few calls of NumPy, and all within the processor's cache

DigestKey = tuple[str, Cursor]


class ExpectedDigests:
    """Expected digests by what they follow from: order and cursor. A stream's name may be another's after a reload."""

    def __init__(self) -> None:
        self._digests: OrderedDict[DigestKey, asyncio.Future[str]] = OrderedDict()

    async def compute_digest(self, stream: ServedStream, cursor: Cursor) -> str:
        """The digest of all steps in `cursor`'s history.

        Whoever has read a whole epoch mostly reads another: its digest is worked out while it lasts, since for ten
        million samples that takes a second or two, and trainers wait for it between two epochs.
        """
        digest = await asyncio.shield(self._start_computing(stream, cursor))
        if len(cursor.history) == 1 and not cursor.history[0].base:
            self._start_computing(stream, replace(cursor, epoch=cursor.epoch + 1))
        return digest

    def _start_computing(self, stream: ServedStream, cursor: Cursor) -> asyncio.Future[str]:
        account = (stream.spec.order_id, cursor)
        if account not in self._digests:
            self._digests[account] = asyncio.ensure_future(asyncio.to_thread(_compute_digest, stream, cursor))
            while len(self._digests) > _MAX_KEPT_DIGESTS:
                self._digests.popitem(last=False)
        return self._digests[account]


def _compute_digest(stream: ServedStream, cursor: Cursor) -> str:
    return compute_expected_digest(
        stream.spec.order_id,
        cursor.epoch,
        cursor.history,
        lambda indices: stream.plan_several_ids(cursor.epoch, indices),
        batches_at_once=max(1, _ROWS_AT_ONCE // stream.spec.batch_size),
    )


def count_dropped_samples(stream: ServedStream, cursor: Cursor) -> int:
    """Samples of the epoch that lie behind its last step."""
    done = min(cursor.next_base, stream.spec.batches)  # a padded step ends beyond the last batch
    return max(0, stream.spec.samples - done * stream.spec.batch_size)
