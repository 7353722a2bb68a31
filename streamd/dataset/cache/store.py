"""Decoded samples kept on disk: a sample that was decoded once is gathered from then on, in all epochs, by all daemons.

The cache keeps the first samples by id, as many as fit. The choice is fixed, so that a cache smaller than the data
serves its share of every epoch, and a larger `max` adds to what is there. Nothing is ever evicted.

Pixels are those of the file that the manifest lists: a row counts while the manifest has the mtime that the file had
when the row was decoded; of several images, the mtimes of all files. A file itself is not checked any more, so one that
changed or disappeared since is still served as it was listed.

Rows are written as they are decoded, and published once they are safe on the disk: only then does the record get its
checksum. Each process checks a row once, before it first uses it. So a kill or a power cut at any moment costs only
rows that were not published, and a torn row is decoded again. All writers write the same bytes, so two do no harm.

`CachePublisher` publishes new rows a moment later, many together, in a thread, while decoding continues.
"""

from __future__ import annotations

import asyncio
import struct
import threading
import zlib
from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.core.permutation import mix64
from streamd.core.sampler import Ids
from streamd.core.spec import ImageSpec, PixelId, StreamSpec
from streamd.dataset.arrays.store import Mask, Pixels, RowPrefetcher
from streamd.dataset.cache.file import CacheFile, CacheLayout, RecordLayout
from streamd.dataset.manifest.manifest import Manifest
from streamd.ipc.worker_messages import CachePlace
from streamd.limits import CACHE_PUBLISH_S, CACHE_UNPUBLISHED_BYTES

# What this process knows of a row. Each row starts _UNCHECKED. Its first use makes it _GOOD or _DAMAGED. A row that is
# written becomes _UNPUBLISHED, and _GOOD once it is published; until then it is decoded wherever it is wanted.
_UNCHECKED, _GOOD, _UNPUBLISHED, _DAMAGED = 0, 1, 2, 3
_SEED: Final = struct.Struct("<qqq")  # id, bytes and mtime of the file, so that a row in the wrong place is damaged
_PUBLISHED: Final = 1 << 32  # beside the checksum, so that no record of a published row is 0


class DecodedCache:
    """One stream's cache in one worker: a SampleStore that also takes rows that were just decoded.

    `remarks` collects sentences for the operator. A cache that fails costs speed and nothing else.

    The worker's event loop gathers and writes. A reading thread may call `find_gatherable`, and another thread
    publishes.
    """

    def __init__(self, file: CacheFile, manifest: Manifest, image: ImageSpec | None) -> None:
        """`image` is what a row holds; None where it is a record of bytes."""
        self._file = file
        self._manifest = manifest
        self._records = file.map_row_records()
        rows = file.map_rows()
        self._rows: Pixels = rows if image is None else rows.view(image.dtype).reshape(file.rows, *image.shape)
        self._states = np.zeros(file.layout.samples, np.uint8)
        self._prefetcher = RowPrefetcher(file.layout.row_bytes)
        self._writable_rows = file.writable_rows
        self._unpublished: deque[tuple[int, int]] = deque()  # ids and checksums, in the order they were written
        self._max_unpublished = max(1, CACHE_UNPUBLISHED_BYTES // file.layout.row_bytes)
        self._publishing = threading.Lock()
        self._past_remarks: set[str] = set()
        self.remarks: list[str] = []
        if file.trouble:
            self._add_remark_once(file.trouble)

    @staticmethod
    def open(place: CachePlace, spec: StreamSpec, manifest: Manifest, pixel_id: PixelId) -> DecodedCache:
        """Opens the cache of a stream. Raises UnfitCacheError with the reason why the stream has none."""
        file = CacheFile.open(place, CacheLayout.from_stream_spec(spec, pixel_id))
        is_one_image = RecordLayout.from_stream_spec(spec).is_one_image
        return DecodedCache(file, manifest, spec.image if is_one_image else None)

    # --- what is there

    def find_gatherable(self, ids: Ids) -> Mask:
        """See `SampleStore`. A row that another process publishes counts at once."""
        # `clip` reads some other sample for an id outside the range; the conditions below and in `_find_published_ids`
        # exclude such ids again.
        states = self._states.take(ids, mode="clip")
        held: Mask = (states == _GOOD) & (ids >= 0)
        if not held.all():
            held |= (states == _UNCHECKED) & self._find_published_ids(ids)
        return held

    def _find_published_ids(self, ids: Ids) -> Mask:
        records = self._records.take(ids, mode="clip")
        known: Mask = records["mtime_ns"] == _compute_sample_times(self._manifest, ids)
        # Records exist for all samples, rows only for those that fit into the file when it was mapped.
        known &= (records["checksum"] != 0) & (ids >= 0) & (ids < self._rows.shape[0])
        return known

    def prefetch_rows(self, ids: Ids) -> None:
        """See `SampleStore`."""
        if self._prefetcher.is_worthwhile:
            shape, rows = self._file.layout, ids[self.find_gatherable(ids)].tolist()
            self._prefetcher.prefetch_rows(
                (self._file.descriptor, shape.rows_offset + row * shape.row_bytes) for row in rows
            )

    def gather_rows(self, ids: Ids, images: Pixels) -> Mask:
        """See `SampleStore`. A row found damaged is not held from then on."""
        held = self.find_sound_rows(ids)
        if held.all():
            np.take(self._rows, ids, axis=0, out=images, mode="clip")  # mode="raise" would make a copy first
        else:
            for place in np.flatnonzero(held).tolist():
                images[place] = self._rows[ids[place]]
        self.record_page_faults()
        return held

    def find_sound_rows(self, ids: Ids) -> Mask:
        """Returns which of `ids` may be read now, (n,). A row found damaged is not held from then on."""
        held = self.find_gatherable(ids)
        for place in np.flatnonzero(held & (self._states.take(ids, mode="clip") != _GOOD)).tolist():
            held[place] = self._verify_row_checksum(int(ids[place]))
        return held

    def read_row(self, sample_id: int) -> Pixels:
        """Returns a row that `find_sound_rows` has found, as a view of the mapped file."""
        row: Pixels = self._rows[sample_id]
        return row

    def record_page_faults(self) -> None:
        """Records whether the rows that were just read had to wait for a disk."""
        self._prefetcher.record_page_faults()

    def _verify_row_checksum(self, sample_id: int) -> bool:
        """Checks a row that this process has not used yet, and returns whether it is sound."""
        sound = self._compute_row_checksum(sample_id, self._rows[sample_id]) == int(
            self._records[sample_id]["checksum"]
        )
        self._states[sample_id] = _GOOD if sound else _DAMAGED
        if not sound:
            self._add_remark_once(
                "rows of the cache were damaged: they are decoded again; check the disk if this keeps happening"
            )
        return sound

    def _compute_row_checksum(self, sample_id: int, row: Pixels) -> int:
        manifest, ids = self._manifest, np.array([sample_id])
        size = int(manifest.sizes[sample_id]) + sum(each.lookup_bytes(ids).item() for each in manifest.images.values())
        seed = _SEED.pack(sample_id, size, _compute_sample_times(manifest, ids).item())
        return _PUBLISHED | zlib.crc32(row.data, zlib.crc32(seed))

    def find_permanent_fault(self, sample_id: int) -> str:
        """Returns nothing: a sample that is not held is decoded."""
        del sample_id
        return ""

    # --- what is added

    @property
    def unpublished_rows(self) -> int:
        """The number of rows that are written and not published yet."""
        return len(self._unpublished)

    def write_row(self, sample_id: int, row: Pixels) -> None:
        """Writes a sample that was just decoded, if it is one of those that are kept.

        Where the disk lags too far behind, the sample is left for a later epoch: a stream never waits for this disk.
        """
        if not self.takes_row(sample_id):
            return
        try:
            self._file.write_row(sample_id, row.data.cast("B"))
        except OSError as error:
            self._disable_writing(error)
            return
        # The checksum is computed now: the row lies in a slot, where a transform may change it next, and which belongs
        # to another batch as soon as the task is reported.
        self._states[sample_id] = _UNPUBLISHED
        self._unpublished.append((sample_id, self._compute_row_checksum(sample_id, row)))

    def takes_row(self, sample_id: int) -> bool:
        """Whether `write_row` would write this sample now."""
        if sample_id >= self._writable_rows or self._states[sample_id] in {_GOOD, _UNPUBLISHED}:
            return False
        return len(self._unpublished) < self._max_unpublished

    def publish_rows(self) -> None:
        """Syncs the rows written so far to the disk, then publishes them. It blocks on the disk."""
        # The lock keeps two publications apart: the publisher's, and the last one when a stream is closed or the worker
        # ends. It does not keep `write_row` out, which appends at the right end meanwhile. Iterating over a deque that
        # grows raises, so the rows are taken by index.
        with self._publishing:
            rows = [self._unpublished[place] for place in range(len(self._unpublished))]
            try:
                self._publish_row_records(rows)
            except OSError as error:
                self._disable_writing(error)
            # The rows leave the deque even where they could not be published. They stay _UNPUBLISHED, so this process
            # decodes them each time; they count as unpublished until here, so that `write_row` sees how far the disk
            # lags behind.
            for _ in rows:
                self._unpublished.popleft()

    def _publish_row_records(self, rows: list[tuple[int, int]]) -> None:
        if not rows:
            return
        # Pixels reach the disk before any record can name them: a record that survives a power cut has a row behind it.
        self._file.sync_rows()
        ids, checksums = np.array(rows, np.uint64).T
        # A record may still hold the checksum of an earlier version of its file. It is withdrawn first, so that no
        # process ever finds it beside the new mtime. The new checksum comes last, since it publishes the row.
        self._records["checksum"][ids] = 0
        self._records["mtime_ns"][ids] = _compute_sample_times(self._manifest, ids.astype(np.int64))
        self._records["checksum"][ids] = checksums
        self._states[ids] = _GOOD

    def _disable_writing(self, error: OSError) -> None:
        self._writable_rows = 0
        self._add_remark_once(
            f"the cache cannot be written: {error.strerror}; nothing more is cached until streamd is restarted"
        )

    def _add_remark_once(self, sentence: str) -> None:
        if sentence not in self._past_remarks:
            self._past_remarks.add(sentence)
            self.remarks.append(sentence)

    def close(self) -> None:
        """Publishes the remaining rows, and closes the file."""
        self.publish_rows()
        self._file.close()


def _compute_sample_times(manifest: Manifest, ids: Ids) -> npt.NDArray[np.int64]:
    """Returns the mtime of the file of each sample, (len(ids),); of several files, a number made of all mtimes."""
    times = manifest.lookup_mtimes_ns(ids)
    for image in manifest.images.values():
        if image.offsets is None:  # otherwise it lies in the shard of the first image
            for files in [ids] if image.frames is None else image.frames[ids].T:
                mixed = mix64(times.astype(np.int64).view(np.uint64))
                times = (mixed ^ image.mtimes_ns[files].astype(np.int64).view(np.uint64)).view(np.int64)
    return times


class CachePublisher:
    """Publishes what was written to caches after a delay, in at most one task for each cache.

    It belongs to the worker's event loop.
    """

    def __init__(self, delay_s: float = CACHE_PUBLISH_S) -> None:
        self._delay_s = delay_s
        self._under_way: dict[DecodedCache, asyncio.Task[None]] = {}

    def schedule_publish(self, cache: DecodedCache) -> None:
        """Schedules a publication if the cache has unpublished rows and none is scheduled or running."""
        if cache.unpublished_rows and cache not in self._under_way:
            task = asyncio.ensure_future(self._publish_after_delay(cache))
            self._under_way[cache] = task
            task.add_done_callback(lambda _: self._under_way.pop(cache))

    async def _publish_after_delay(self, cache: DecodedCache) -> None:
        # A worker that ends in order publishes its caches once more, so cancelling this task loses no rows. A stream
        # that was closed meanwhile has published everything: `publish_rows` then finds no rows, and does not touch the
        # closed descriptor.
        await asyncio.sleep(self._delay_s)
        await asyncio.to_thread(cache.publish_rows)
