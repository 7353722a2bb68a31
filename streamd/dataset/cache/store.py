"""Decoded samples kept on disk: what was decoded once is gathered from then on, by every epoch and every daemon.

The samples kept are the first ones by id, as many as there is room for: a fixed choice, so that a cache smaller than
the data spares each epoch its part, and a larger `max` adds to what is there. Nothing is ever evicted.

Pixels are those of the file that the manifest knows: a row counts while the manifest has the mtime that it was decoded
at. The file itself is not looked at any more, so one that changed or went since is still there as it was listed.

Rows are written as they are decoded and published when they are safe on the disk: only then the record gets its
checksum. Each process checks a row once, before it first uses it. So a kill at any moment, or a power cut, costs rows
that were not published, and a torn row is decoded anew. Whoever writes, writes the same bytes: two writers do no harm.

Has what caches were given published a moment later, by a thread: together, and while decoding goes on.
"""

from __future__ import annotations

import asyncio
import struct
import threading
import zlib
from collections import deque
from typing import Final

import numpy as np

from streamd.core.sampler import Ids
from streamd.core.spec import PixelId, StreamSpec
from streamd.dataset.arrays.readahead import RowPrefetcher
from streamd.dataset.arrays.store import Mask, Pixels
from streamd.dataset.cache.file import CacheFile, CacheLayout
from streamd.dataset.manifest.manifest import Manifest
from streamd.ipc.worker_messages import CachePlace
from streamd.limits import CACHE_PUBLISH_S, CACHE_UNPUBLISHED_BYTES

_UNCHECKED, _GOOD, _UNPUBLISHED, _DAMAGED = 0, 1, 2, 3  # what this process knows of a row
_SEED: Final = struct.Struct("<qqq")  # id, bytes and mtime of the file: a row in another's place is damaged, too
_PUBLISHED: Final = 1 << 32  # beside the checksum, so that no record of a published row is 0


class DecodedCache:
    """One stream's cache in one worker: a Store, to which what was decoded is given.

    `remarks` gets a sentence when something goes wrong, which is never more than that.
    """

    def __init__(self, file: CacheFile, manifest: Manifest, image_shape: tuple[int, int, int]) -> None:
        self._file = file
        self._manifest = manifest
        self._records = file.map_row_records()
        self._rows: Pixels = file.map_rows().reshape(file.rows, *image_shape)
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
        """Raises UnfitCacheError, which says why the stream does without."""
        file = CacheFile.open(place, CacheLayout.from_stream_spec(spec, pixel_id))
        return DecodedCache(file, manifest, spec.image_shape)

    # --- what is there

    def find_gatherable(self, ids: Ids) -> Mask:
        """See Store. What another process has published counts as soon as it is."""
        states = self._states.take(ids, mode="clip")
        held: Mask = (states == _GOOD) & (ids >= 0)
        if not held.all():
            held |= (states == _UNCHECKED) & self._find_published_ids(ids)
        return held

    def _find_published_ids(self, ids: Ids) -> Mask:
        records = self._records.take(ids, mode="clip")
        known: Mask = records["mtime_ns"] == self._manifest.lookup_mtimes_ns(ids)
        known &= (records["checksum"] != 0) & (ids >= 0) & (ids < self._rows.shape[0])
        return known

    def prefetch_rows(self, ids: Ids) -> None:
        """See Store."""
        if self._prefetcher.is_worthwhile:
            shape, rows = self._file.layout, ids[self.find_gatherable(ids)].tolist()
            self._prefetcher.prefetch_rows(
                (self._file.descriptor, shape.rows_offset + row * shape.row_bytes) for row in rows
            )

    def gather_rows(self, ids: Ids, images: Pixels) -> Mask:
        """See Store. A row that is found damaged is not held from then on."""
        held = self.find_gatherable(ids)
        for place in np.flatnonzero(held & (self._states.take(ids, mode="clip") != _GOOD)).tolist():
            held[place] = self._verify_row_checksum(int(ids[place]))
        if held.all():
            np.take(self._rows, ids, axis=0, out=images, mode="clip")  # mode="raise" would take a detour
        else:
            for place in np.flatnonzero(held).tolist():
                images[place] = self._rows[ids[place]]
        self._prefetcher.record_page_faults()
        return held

    def _verify_row_checksum(self, sample_id: int) -> bool:
        """Checks a row that this process has not used yet."""
        sound = self._compute_row_checksum(sample_id, self._rows[sample_id]) == int(
            self._records[sample_id]["checksum"]
        )
        self._states[sample_id] = _GOOD if sound else _DAMAGED
        if not sound:
            self._add_remark_once(
                "rows of the cache were damaged: they are decoded again; see to the disk if this goes on"
            )
        return sound

    def _compute_row_checksum(self, sample_id: int, row: Pixels) -> int:
        manifest = self._manifest
        seed = _SEED.pack(
            sample_id, int(manifest.sizes[sample_id]), manifest.lookup_mtimes_ns(np.array(sample_id)).item()
        )
        return _PUBLISHED | zlib.crc32(row.data, zlib.crc32(seed))

    def find_permanent_fault(self, sample_id: int) -> str:
        """Nothing: what is not held is decoded."""
        del sample_id
        return ""

    # --- what is added

    @property
    def unpublished_rows(self) -> int:
        """Rows that are kept and not published yet."""
        return len(self._unpublished)

    def write_row(self, sample_id: int, row: Pixels) -> None:
        """Writes a sample that was just decoded, if it is one of those that are kept.

        While the disk lags too far behind, it is left for another epoch: the stream waits for no disk.
        """
        if sample_id >= self._writable_rows or self._states[sample_id] in {_GOOD, _UNPUBLISHED}:
            return
        if len(self._unpublished) >= self._max_unpublished:
            return
        try:
            self._file.write_row(sample_id, row.data.cast("B"))
        except OSError as error:
            self._disable_writing(error)
            return
        self._states[sample_id] = _UNPUBLISHED
        self._unpublished.append((sample_id, self._compute_row_checksum(sample_id, row)))

    def publish_rows(self) -> None:
        """Makes what was kept so far safe on the disk, then known to all. Takes a while: for another thread."""
        with self._publishing:
            rows = [self._unpublished[place] for place in range(len(self._unpublished))]  # more may come meanwhile
            try:
                self._publish_row_records(rows)
            except OSError as error:
                self._disable_writing(error)
            for _ in rows:
                self._unpublished.popleft()

    def _publish_row_records(self, rows: list[tuple[int, int]]) -> None:
        if not rows:
            return
        self._file.sync_rows()
        ids, checksums = np.array(rows, np.uint64).T
        self._records["checksum"][ids] = 0  # of a file that was listed anew
        self._records["mtime_ns"][ids] = self._manifest.lookup_mtimes_ns(ids)
        self._records["checksum"][ids] = checksums
        self._states[ids] = _GOOD

    def _disable_writing(self, error: OSError) -> None:
        self._writable_rows = 0
        self._add_remark_once(
            f"the cache cannot be written: {error.strerror}; nothing more is kept until streamd is restarted"
        )

    def _add_remark_once(self, sentence: str) -> None:
        if sentence not in self._past_remarks:
            self._past_remarks.add(sentence)
            self.remarks.append(sentence)

    def close(self) -> None:
        """Publishes what is left, and lets go of the file."""
        self.publish_rows()
        self._file.close()


class CachePublisher:
    """The publishing that is under way or about to be, one at a time for each cache."""

    def __init__(self, delay_s: float = CACHE_PUBLISH_S) -> None:
        self._delay_s = delay_s
        self._under_way: dict[DecodedCache, asyncio.Task[None]] = {}

    def schedule_publish(self, cache: DecodedCache) -> None:
        """The cache may have been given something."""
        if cache.unpublished_rows and cache not in self._under_way:
            task = asyncio.ensure_future(self._publish_after_delay(cache))
            self._under_way[cache] = task
            task.add_done_callback(lambda _: self._under_way.pop(cache))

    async def _publish_after_delay(self, cache: DecodedCache) -> None:
        await asyncio.sleep(self._delay_s)
        await asyncio.to_thread(cache.publish_rows)
