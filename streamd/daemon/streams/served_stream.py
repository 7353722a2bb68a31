"""A stream as the daemon serves it: its specification, its samples, and which of them are known to be bad.

The digest that an epoch must have is computed from the order alone, in a thread, once for all trainers.
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

_TRANSFORM_REMEDY = "the transform, which must never raise: a sample is bad after one failure"
_TOLERATED_BAD = 10  # up to this many bad samples never stop a stream, however small it is
_MAX_KEPT_DIGESTS: Final = 32
_ROWS_AT_ONCE: Final = 16384  # rows of one NumPy call: few calls, and all arrays within the processor's cache


@dataclass(frozen=True, slots=True)
class ServedStream:
    """One version of a stream, as a reload replaces it.

    `max_bad_fraction` of the samples may be bad before the stream stops. `cache` is the folder of decoded samples.
    `shuffle_meter` measures how well its batches mix the labels.

    While `manifest_lock` is held, no process replaces the list at `manifest_path`. A reload may move the verdicts
    beside another list, the one that the configuration then has; `quarantine_lock` holds that list in the same way.
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
        """How well the shuffle mixes the labels, 1 as a full shuffle; None without a shuffle or labels to mix."""
        mixing = self.shuffle_meter.measure_mixing()
        return None if mixing is None or self.spec.shuffle == "none" else mixing.score

    @property
    def mixing_advice(self) -> str | None:
        """The remedy for poorly mixed batches; None where they are mixed well."""
        mixing = self.shuffle_meter.measure_mixing()
        return None if mixing is None else mixing.advice

    def compute_planned_ids(self, epoch: int, index: int) -> Ids:
        return compute_batch_ids(self.order, epoch, index, self.spec.batch_rows(index))

    def compute_planned_ids_of_batches(self, epoch: int, indices: range) -> tuple[Ids, Ids]:
        """Returns the concatenated ids of several batches, and the number of rows of each."""
        rows = np.fromiter(map(self.spec.batch_rows, indices), dtype=np.int64, count=len(indices))
        return compute_ids_of_batches(self.order, epoch, np.array(indices, dtype=np.int64), rows), rows

    def resolve_delivered_ids(self, epoch: int, index: int) -> tuple[Ids, RowStatus]:
        """Returns the ids that batch epoch:index delivers under the verdicts known now, and the status of each row."""
        return replace_bad_sample_ids(
            self.compute_planned_ids(epoch, index), self.quarantine.reasons, self.spec.bad_policy
        )

    def list_bad_rows(self, epoch: int, index: int, marks: RowStatus) -> tuple[BadRow, ...]:
        """Returns the substituted and masked rows of a batch, with file names and reasons."""
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
        """Returns the name by which users know a sample: its file, or in a pack the file that was packed."""
        return self.manifest.display_name(sample_id).decode(errors="backslashreplace")

    def _format_file_and_location(self, sample_id: int) -> str:
        """Returns `format_file_name`; in a pack also where the sample lies, which is what has to be repaired."""
        shown = self.format_file_name(sample_id)
        location = self.manifest.file_name(sample_id).decode(errors="backslashreplace")
        return shown if shown == location else f"{shown} (packed as {location})"

    def format_unreadable_reason(self, sample_id: int, reason: str) -> str:
        """Returns why the stream must stop over an unreadable sample; a reason with a key path names no file."""
        return (
            reason
            if reason.startswith("streams.")
            else f"{self._format_file_and_location(sample_id)} cannot be read: {reason}"
        )

    def explain_too_many_bad_samples(self) -> str | None:
        """Returns why the stream must stop for its bad samples; None while they are few enough."""
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
            f"{bad:,} of {format_count(self.spec.samples, 'sample')} {'is' if bad == 1 else 'are'} bad, more than "
            f"bad_samples.max_fraction {self.max_bad_fraction:g} allows; the last of them is "
            f"{self._format_file_and_location(sample_id)}: {reason}; fix "
            f"{_TRANSFORM_REMEDY if reason.startswith(TRANSFORM_RAISED) else 'or remove them'}, or set a larger "
            "max_fraction; streamd check lists all of them"
        )


async def measure_shuffles_in_thread(streams: Iterable[ServedStream]) -> None:
    """Computes shuffle scores in a thread, so that the event loop finds them ready when it shows them."""
    for stream in streams:
        await asyncio.to_thread(stream.shuffle_meter.measure_mixing)


class ExpectedDigests:
    """Expected digests, by the order id and the cursor that determine them. Used by the event loop's thread alone.

    Streams are not keyed by name, since a reload may give a name to another stream.
    """

    def __init__(self) -> None:
        self._digests: OrderedDict[DigestKey, asyncio.Future[str]] = OrderedDict()

    async def compute_digest(self, stream: ServedStream, cursor: Cursor) -> str:
        """Returns the digest of all steps in `cursor`'s history.

        Then starts to compute the digest of the next epoch: a trainer that has read one whole epoch usually reads
        another. For ten million samples this takes a second or two, during which trainers would wait between epochs.
        """
        # Shielded: several trainers await one computation, and one that leaves must not cancel it for the others.
        digest = await asyncio.shield(self._start_digest_in_thread(stream, cursor))
        if len(cursor.history) == 1 and not cursor.history[0].base:
            self._start_digest_in_thread(stream, replace(cursor, epoch=cursor.epoch + 1))
        return digest

    def _start_digest_in_thread(self, stream: ServedStream, cursor: Cursor) -> asyncio.Future[str]:
        account = (stream.spec.order_id, cursor)
        if account not in self._digests:
            self._digests[account] = asyncio.ensure_future(asyncio.to_thread(_compute_digest, stream, cursor))
            # The oldest go first, even unfinished: a caller that awaits one holds the future itself.
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
    """Returns how many samples of the epoch come after its last step, and are therefore not delivered."""
    done = min(cursor.next_base_index, stream.spec.batches)  # a padded step ends beyond the last batch
    return max(0, stream.spec.samples - done * stream.spec.batch_size)
