"""A stream as the daemon serves it: its specification, its samples, and which of them are known to be bad."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from streamd.config.schema_sections import ExpectConfig
from streamd.core.sampler import (
    MASKED,
    BadRow,
    BadSample,
    Ids,
    RowStatus,
    SampleOrder,
    compute_batch_ids,
    compute_most_bad,
    plan_batches,
    replace_bad_sample_ids,
)
from streamd.core.slot_layout import compute_slot_bytes
from streamd.core.spec import Cursor, OrderId, PixelId, StreamShape, StreamSpec
from streamd.core.text import format_count
from streamd.daemon.streams.manifest_locks import ManifestLock
from streamd.daemon.streams.quarantine import Quarantine
from streamd.daemon.streams.shuffle_score import MixingScore
from streamd.dataset.manifest.manifest import Manifest
from streamd.ipc.worker_messages import (
    TRANSFORM_RAISED,
    CachePlace,
    OpenStream,
    TransformPlace,
    format_reason,
)
from streamd.limits import TASK_ROWS, TOLERATED_BAD

# --- The identities that `expect` asks of a stream, by which the daemons of many hosts agree without talking. Pure.


def explain_other_order(expected: ExpectConfig | None, stream: str, found: OrderId) -> str | None:
    """Returns why a stream of another order must not be served; None if it is the expected one, or may be any."""
    if expected is None or expected.order in {None, found}:
        return None
    return (
        f"expect.{stream}.order: {expected.order} is expected, but the files, labels and settings of this host give "
        f"{found}; use the list of the other hosts (streamd manifest export and import), and their batch_size, "
        "drop_remainder and shuffle, or correct expect; streamd check prints both identities"
    )


def explain_other_pixels(expected: ExpectConfig | None, stream: str, found: PixelId) -> str | None:
    """Returns why a stream of other pixels must not be served; None if they are the expected ones, or may be any."""
    if expected is None or expected.pixels in {None, found}:
        return None
    return (
        f"expect.{stream}.pixels: {expected.pixels} are expected, but this installation makes {found}; install the "
        "versions of the other hosts, and use their image and transform, or correct expect; streamd check prints "
        "both identities"
    )


# --- A stream as the daemon serves it: its specification, its samples, and which of them are known to be bad.

_TRANSFORM_REMEDY = "the transform, which must never raise: a sample is bad after one failure"
_COPY_REMEDY = (
    "with `expect`, no host may leave out a file that the others have: copy the listed file to this host, and restart "
    "streamd"
)


@dataclass(frozen=True, slots=True)
class ServedStream:
    """One version of a stream, as a reload replaces it.

    `max_bad_fraction` of the pictures may be bad before the stream stops, and more of a small set with
    `has_default_fraction`, if the configuration does not say how many. `cache` is the folder of decoded samples.
    `measure_mixing` returns how well its batches mix the labels. Its first call may take a tenth of a second, so a
    daemon makes it in a thread: see `measure_shuffles_in_thread`.

    While `manifest_lock` is held, no process replaces the list at `manifest_path`. A reload may move the verdicts
    beside another list, the one that the configuration then has; `quarantine_lock` holds that list in the same way.

    `expected` are the identities that `expect` asks for. Other hosts serve the same stream then, so a fault of this
    host's copy is no verdict on a sample.
    """

    spec: StreamSpec
    manifest_path: Path
    manifest: Manifest
    order: SampleOrder
    quarantine: Quarantine
    max_bad_fraction: float
    measure_mixing: Callable[[], MixingScore | None]
    cache: CachePlace | None = None
    transform: TransformPlace | None = None
    manifest_lock: ManifestLock | None = None
    quarantine_lock: ManifestLock | None = None
    expected: ExpectConfig | None = None
    has_default_fraction: bool = False

    @property
    def stream_shape(self) -> StreamShape:
        return StreamShape(
            self.spec.name,
            self.spec.batches,
            compute_slot_bytes(self.spec),
            -(-min(self.spec.batch_size, max(1, self.spec.samples)) // TASK_ROWS),
        )

    def build_open_command(self, number: int, cache: CachePlace | None = None) -> OpenStream:
        """Returns the command that opens the stream in a worker, which knows it by `number`."""
        # Workers do not need class lists, and their size has no bound, unlike that of a record.
        labels = {name: replace(label, classes=(), counts=()) for name, label in self.spec.labels.items()}
        return OpenStream(number, str(self.manifest_path), replace(self.spec, labels=labels), cache, self.transform)

    @property
    def shuffle_score(self) -> float | None:
        """How well the shuffle mixes the labels, 1 as a full shuffle; None without a shuffle or labels to mix."""
        mixing = self.measure_mixing()
        return None if mixing is None or self.spec.shuffle == "none" else mixing.score

    @property
    def mixing_advice(self) -> str | None:
        """The remedy for poorly mixed batches; None where they are mixed well."""
        mixing = self.measure_mixing()
        return None if mixing is None else mixing.advice

    def compute_planned_ids(self, epoch: int, index: int) -> Ids:
        return compute_batch_ids(self.order, epoch, index, self.spec.batch_rows(index))

    def compute_planned_ids_of_batches(self, epoch: int, indices: range) -> tuple[Ids, Ids]:
        """Returns the concatenated ids of several batches, and the number of rows of each."""
        return plan_batches(self.order, epoch, indices, is_last_short=self.spec.remainder == "keep")

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

    def judge_unfilled_rows(self, rows: Sequence[BadSample]) -> tuple[BadSample, ...]:
        """Returns rows that workers could not fill, with the faults that must not become verdicts as passing ones.

        With `expect`, these are the faults of this host's copy: the stream stops if they do not pass.
        """
        if self.expected is None:
            return tuple(rows)
        return tuple(
            replace(each, lasting=False, reason=f"{each.reason}; {_COPY_REMEDY}") if each.of_this_host else each
            for each in rows
        )

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
        samples = self.spec.samples
        most = compute_most_bad(samples, self.max_bad_fraction, is_default=self.has_default_fraction)
        if bad <= most:
            return None
        # A file that many samples show counts once, unless most samples are lost with it.
        pictures, what = self.quarantine.count_bad_pictures(self.find_bad_picture), f"{bad:,} of"
        if pictures < bad:
            if 2 * bad <= samples and pictures <= self.count_allowed_pictures():
                return None
            what = f"through {format_count(pictures, 'file')}, {what}"
        sample_id, reason = next(reversed(self.quarantine.reasons.items()))
        here = f", {most:,} in a set of this size" if most > max(TOLERATED_BAD, self.max_bad_fraction * samples) else ""
        return (
            f"{what} {format_count(samples, 'sample')} {'is' if bad == 1 else 'are'} bad, more than "
            f"bad_samples.max_fraction {self.max_bad_fraction:g} allows{here}; the last of them is "
            f"{self._format_file_and_location(sample_id)}: {reason}; fix "
            f"{_TRANSFORM_REMEDY if reason.startswith(TRANSFORM_RAISED) else 'or remove them'}, or set a larger "
            "max_fraction; streamd check lists all of them"
        )

    def count_allowed_pictures(self) -> int:
        """Returns how many of the pictures may be bad before the stream stops."""
        if self.spec.bad_policy == "fail":
            return 0
        pictures = self.manifest.count_pictures()
        return compute_most_bad(pictures, self.max_bad_fraction, is_default=self.has_default_fraction)

    def find_bad_picture(self, sample_id: int, reason: str) -> bytes:
        """Returns what is at fault for a verdict: a file that its reason names, or else the sample's own file."""
        for image in self.manifest.images.values():
            for file in image.list_frame_files(sample_id):
                # A picture that was read and cannot be decoded is named by its image alone, unless it is a frame.
                names = [image.describe_file(file), *([] if image.frames is not None else [image.name])]
                if any(reason.startswith(format_reason(f"{name}:")) for name in names):
                    return f"{image.name} ".encode() + image.file_name(file)
        for name, frames in self.manifest.row_frames.items():
            for row in frames[sample_id].tolist():
                described = f"{name} {self.manifest.format_row(name, row)}"
                if reason.startswith(format_reason(f"{described}:")):
                    return described.encode()
        return self.manifest.file_name(sample_id)


async def measure_shuffles_in_thread(streams: Iterable[ServedStream]) -> None:
    """Computes shuffle scores in a thread, so that the event loop finds them ready when it shows them."""
    for stream in streams:
        await asyncio.to_thread(stream.measure_mixing)


def count_dropped_samples(stream: ServedStream, cursor: Cursor) -> int:
    """Returns how many samples of the epoch come after its last step, and are therefore not delivered."""
    done = min(cursor.next_base_index, stream.spec.batches)  # a padded step ends beyond the last batch
    return max(0, stream.spec.samples - done * stream.spec.batch_size)
