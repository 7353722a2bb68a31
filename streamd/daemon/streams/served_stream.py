"""A stream as the daemon serves it: what it promises, where its samples are, which of them are known to be bad.

What every epoch's digest must be is computed from its plan, off the event loop, once for all its trainers.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from streamd.core.bad_samples import MASKED, BadRow, RowStatus, replace_bad_sample_ids
from streamd.core.receipt import compute_expected_digest
from streamd.core.sampler import Ids, SampleOrder, compute_batch_ids, compute_ids_of_batches
from streamd.core.slot_layout import compute_slot_bytes
from streamd.core.spec import Cursor, StreamShape, StreamSpec
from streamd.core.text import format_count
from streamd.daemon.streams.manifest_locks import ManifestLock
from streamd.daemon.streams.quarantine import Quarantine
from streamd.daemon.streams.shuffle_score import ShuffleMeter
from streamd.dataset.manifest.manifest import Manifest
from streamd.ipc.worker_messages import TRANSFORM_RAISED, CachePlace, TransformPlace
from streamd.limits import TASK_ROWS

DigestKey = tuple[str, Cursor]

_TRANSFORM_REMEDY = "the transform, which must not raise by chance since once is enough for a sample"
_TOLERATED_BAD = 10  # so few bad samples never stop a stream, however small it is
_MAX_KEPT_DIGESTS: Final = 32
_ROWS_AT_ONCE: Final = 16384  # worked out at a time: few calls of NumPy, and all within the processor's cache


@dataclass(frozen=True, slots=True)
class ServedStream:
    """`max_bad_fraction` of the samples may be bad before the stream stops; `cache` is where decoded ones are kept.

    `shuffle_meter` tells how well its batches mix the labels. As long as `manifest_lock` is there, nobody lists the
    samples anew in the place of `manifest_path`; and with `quarantine_lock`, where its verdicts go if that is another
    place: a reload moves them beside the list that the configuration has then.
    """

    spec: StreamSpec
    manifest_path: Path
    manifest: Manifest
    order: SampleOrder
    quarantine: Quarantine
    max_bad_fraction: float
    shuffle_meter: ShuffleMeter
    cache: CachePlace | None = None
    transform: TransformPlace | None = None
    manifest_lock: ManifestLock | None = None
    quarantine_lock: ManifestLock | None = None

    @property
    def stream_shape(self) -> StreamShape:
        return StreamShape(
            self.spec.name,
            self.spec.batches,
            compute_slot_bytes(self.spec),
            -(-min(self.spec.batch_size, max(1, self.spec.samples)) // TASK_ROWS),
        )

    @property
    def shuffle_score(self) -> float | None:
        """How well the shuffle mixes the labels, 1 as a full one; None where nothing is shuffled, or to be mixed."""
        mixing = self.shuffle_meter.measure_mixing()
        return None if mixing is None or self.spec.shuffle == "none" else mixing.score

    @property
    def mixing_advice(self) -> str | None:
        """What to do about batches of like labels, if they are."""
        mixing = self.shuffle_meter.measure_mixing()
        return None if mixing is None else mixing.advice

    def compute_planned_ids(self, epoch: int, index: int) -> Ids:
        return compute_batch_ids(self.order, epoch, index, self.spec.batch_rows(index))

    def compute_planned_ids_of_batches(self, epoch: int, indices: range) -> tuple[Ids, Ids]:
        """The ids of several batches, one behind the other, and the rows of each."""
        rows = np.fromiter(map(self.spec.batch_rows, indices), dtype=np.int64, count=len(indices))
        return compute_ids_of_batches(self.order, epoch, np.array(indices, dtype=np.int64), rows), rows

    def resolve_delivered_ids(self, epoch: int, index: int) -> tuple[Ids, RowStatus]:
        """The samples that batch epoch:index delivers, by the verdicts known now."""
        return replace_bad_sample_ids(
            self.compute_planned_ids(epoch, index), self.quarantine.reasons, self.spec.bad_policy
        )

    def list_bad_rows(self, epoch: int, index: int, marks: RowStatus) -> tuple[BadRow, ...]:
        """What was substituted or masked in a batch, with names."""
        if not self.quarantine.reasons or not marks.any():
            return ()
        planned = self.compute_planned_ids(epoch, index)
        return tuple(
            BadRow(
                row,
                int(planned[row]),
                self.format_file_name(int(planned[row])),
                self.quarantine.reasons[int(planned[row])],
                "masked" if marks[row] == MASKED else "substituted",
            )
            for row in np.flatnonzero(marks).tolist()
        )

    def format_file_name(self, sample_id: int) -> str:
        """What people know a sample by: its file; of a pack, the file that was packed."""
        return self.manifest.display_name(sample_id).decode(errors="backslashreplace")

    def _format_file_and_location(self, sample_id: int) -> str:
        """As `format_file_name`; of a pack, also where in it the sample lies, since that is what has to be mended."""
        shown = self.format_file_name(sample_id)
        location = self.manifest.file_name(sample_id).decode(errors="backslashreplace")
        return shown if shown == location else f"{shown} (packed as {location})"

    def format_unreadable_reason(self, sample_id: int, reason: str) -> str:
        """Why the stream must stop over a sample that cannot be read; a reason with a key path is not the file's."""
        return (
            reason
            if reason.startswith("streams.")
            else f"{self._format_file_and_location(sample_id)} cannot be read: {reason}"
        )

    def explain_too_many_bad_samples(self) -> str | None:
        """Why the stream must stop, if it must."""
        bad = len(self.quarantine.reasons)
        if self.spec.bad_policy == "fail" and bad:
            sample_id, reason = next(iter(self.quarantine.reasons.items()))
            return (
                f"sample {sample_id}, {self._format_file_and_location(sample_id)}, is bad ({reason}), and "
                "bad_samples.policy is fail"
            )
        if bad <= _TOLERATED_BAD or bad <= self.max_bad_fraction * self.spec.samples:
            return None
        sample_id, reason = next(reversed(self.quarantine.reasons.items()))
        return (
            f"{bad:,} of {format_count(self.spec.samples, 'sample')} {'is' if bad == 1 else 'are'} bad, more "
            "than bad_samples.max_fraction "
            f"{self.max_bad_fraction:g} allows; the last: {self._format_file_and_location(sample_id)}: {reason}; mend "
            f"{_TRANSFORM_REMEDY if reason.startswith(TRANSFORM_RAISED) else 'or remove them'}, or set a larger "
            "max_fraction: streamd check names them all"
        )


async def measure_shuffles_in_thread(streams: Iterable[ServedStream]) -> None:
    """Has shuffle scores worked out in a thread, so that the event loop finds them ready when it shows them."""
    for stream in streams:
        await asyncio.to_thread(stream.shuffle_meter.measure_mixing)


class ExpectedDigests:
    """Expected digests by what they follow from: order and cursor. A stream's name may be another's after a reload."""

    def __init__(self) -> None:
        self._digests: OrderedDict[DigestKey, asyncio.Future[str]] = OrderedDict()

    async def compute_digest(self, stream: ServedStream, cursor: Cursor) -> str:
        """The digest of all steps in `cursor`'s history.

        Whoever has read a whole epoch mostly reads another: its digest is worked out while it lasts, since for ten
        million samples that takes a second or two, and trainers wait for it between two epochs.
        """
        digest = await asyncio.shield(self._start_digest_in_thread(stream, cursor))
        if len(cursor.history) == 1 and not cursor.history[0].base:
            self._start_digest_in_thread(stream, replace(cursor, epoch=cursor.epoch + 1))
        return digest

    def _start_digest_in_thread(self, stream: ServedStream, cursor: Cursor) -> asyncio.Future[str]:
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
        lambda indices: stream.compute_planned_ids_of_batches(cursor.epoch, indices),
        batches_at_once=max(1, _ROWS_AT_ONCE // stream.spec.batch_size),
    )


def count_dropped_samples(stream: ServedStream, cursor: Cursor) -> int:
    """Samples of the epoch that lie behind its last step."""
    done = min(cursor.next_base_index, stream.spec.batches)  # a padded step ends beyond the last batch
    return max(0, stream.spec.samples - done * stream.spec.batch_size)
