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
import contextlib
import errno
import fcntl
import os
import stat
import struct
import threading
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.core import log
from streamd.core.host import open_regular_descriptor
from streamd.core.sampler import Ids, mix64
from streamd.core.spec import PixelId, StreamSpec, compute_identity
from streamd.core.text import escape_unprintable
from streamd.dataset.arrays.store import (
    NO_DRAWS,
    Mask,
    Pixels,
    ReportRow,
    RowPrefetcher,
    SampleDraws,
    SampleGeometries,
    SampleRows,
    Store,
    build_whole_geometry,
    ignore_row_report,
)
from streamd.dataset.manifest.manifest import Manifest
from streamd.decode.geometry import Geometry, Size
from streamd.ipc.mapping import map_readable, map_writable
from streamd.ipc.worker_messages import CachePlace
from streamd.limits import CACHE_PUBLISH_S, CACHE_UNPUBLISHED_BYTES, GIB, PAGE_BYTES

# What this process knows of a row. Each row starts _UNCHECKED. Its first use makes it _GOOD or _DAMAGED. A row that is
# written becomes _UNPUBLISHED, and _GOOD once it is published; until then it is decoded wherever it is wanted.
_UNCHECKED, _GOOD, _UNPUBLISHED, _DAMAGED = 0, 1, 2, 3
_SEED: Final = struct.Struct("<qqq")  # id, bytes and mtime of the file, so that a row in the wrong place is damaged
_PUBLISHED: Final = 1 << 32  # beside the checksum, so that no record of a published row is 0


class DecodedCache(Store):
    """One stream's cache in one worker: a store that also takes samples that were just decoded.

    Its images are not cropped at random, so a sample looks the same in every epoch.

    `remarks` collects sentences for the operator. A cache that fails costs speed and nothing else.

    The worker's event loop gathers and writes. A reading thread may call `find_gatherable`, and another thread
    publishes.
    """

    def __init__(self, file: CacheFile, manifest: Manifest, spec: StreamSpec) -> None:
        self._file = file
        self._manifest = manifest
        self._layout = RecordLayout.from_stream_spec(spec)
        self._whole = {name: build_whole_geometry(image.height, image.width) for name, image in spec.images.items()}
        self._records = file.map_row_records()
        shape = file.layout
        mapped = map_readable(file.descriptor, shape.file_bytes(file.rows))  # read-only
        pixels = np.frombuffer(mapped, np.uint8, offset=shape.rows_offset)
        self._rows: Record = pixels.reshape(file.rows, shape.row_bytes)
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
        return DecodedCache(file, manifest, spec)

    # --- what is there

    def find_gatherable(self, ids: Ids) -> Mask:
        """See `Store`. A row that another process publishes counts at once."""
        # `clip` reads some other sample for an id outside the range; the conditions below exclude such ids again.
        states = self._states.take(ids, mode="clip")
        held: Mask = (states == _GOOD) & (ids >= 0)
        if not held.all():
            records = self._records.take(ids, mode="clip")
            published: Mask = records["mtime_ns"] == _compute_sample_times(self._manifest, ids)
            # Records exist for all samples, rows only for those that fit into the file when it was mapped.
            published &= (records["checksum"] != 0) & (ids >= 0) & (ids < self._rows.shape[0])
            held |= (states == _UNCHECKED) & published
        return held

    def prefetch_rows(self, ids: Ids) -> None:
        """See `Store`."""
        if self._prefetcher.is_worthwhile:
            shape, rows = self._file.layout, ids[self.find_gatherable(ids)].tolist()
            self._prefetcher.prefetch_rows(
                (self._file.descriptor, shape.rows_offset + row * shape.row_bytes) for row in rows
            )

    def gather(
        self, ids: Ids, rows: SampleRows, draws: SampleDraws = NO_DRAWS, report_row: ReportRow = ignore_row_report
    ) -> tuple[Mask, Sequence[SampleGeometries]]:
        """See `Store`. A row found damaged is not held from then on."""
        del draws, report_row  # rows are copied, which takes no time worth mentioning
        held = self.find_gatherable(ids)
        for place in np.flatnonzero(held & (self._states.take(ids, mode="clip") != _GOOD)).tolist():
            # A row that this process has not used yet is checked once.
            row = int(ids[place])
            held[place] = self._compute_row_checksum(row, self._rows[row]) == int(self._records[row]["checksum"])
            self._states[row] = _GOOD if held[place] else _DAMAGED
            if not held[place]:
                self._add_remark_once(
                    "rows of the cache were damaged: they are decoded again; check the disk if this keeps happening"
                )
        landed: list[SampleGeometries] = [self._whole] * ids.size
        # Standard case: a row is the pixels of one image.
        if self._layout.is_one_image:
            (images,) = rows.values()
            copied = images.reshape(ids.size, -1).view(np.uint8)
            if held.all():
                np.take(self._rows, ids, axis=0, out=copied, mode="clip")  # mode="raise" would make a copy first
            else:
                for place in np.flatnonzero(held).tolist():
                    copied[place] = self._rows[ids[place]]
        # A row has several images, or says where boxes and points belong.
        else:
            for place in np.flatnonzero(held).tolist():
                record = self._rows[ids[place]]
                self._layout.unpack_images(record, {name: each[place] for name, each in rows.items()})
                landed[place] = self._layout.unpack_geometries(record)
        # Whether the rows that were just read had to wait for a disk.
        self._prefetcher.record_page_faults()
        return held, landed

    def _compute_row_checksum(self, sample_id: int, row: Record) -> int:
        manifest, ids = self._manifest, np.array([sample_id])
        size = int(manifest.sizes[sample_id]) + sum(each.lookup_bytes(ids).item() for each in manifest.images.values())
        seed = _SEED.pack(sample_id, size, _compute_sample_times(manifest, ids).item())
        return _PUBLISHED | zlib.crc32(row.data, zlib.crc32(seed))

    # --- what is added

    @property
    def unpublished_rows(self) -> int:
        """The number of rows that are written and not published yet."""
        return len(self._unpublished)

    def write_sample(self, sample_id: int, rows: Mapping[str, Pixels], landed: SampleGeometries) -> None:
        """Writes a sample that was just decoded, if it is one of those that are kept.

        `rows` has its images, each (H, W, C), and `landed` how its pictures land, where boxes or points follow them.
        Where the disk lags too far behind, the sample is left for a later epoch: a stream never waits for this disk.
        """
        if sample_id >= self._writable_rows or self._states[sample_id] in {_GOOD, _UNPUBLISHED}:
            return
        if len(self._unpublished) >= self._max_unpublished:
            return
        row = self._layout.pack_record(rows, landed)
        try:
            self._file.write_row(sample_id, row.data)
        except OSError as error:
            self._disable_writing(error)
            return
        # The checksum is computed now: the row lies in a slot, where a transform may change it next, and which belongs
        # to another batch as soon as the task is reported.
        self._states[sample_id] = _UNPUBLISHED
        self._unpublished.append((sample_id, self._compute_row_checksum(sample_id, row)))

    def publish_rows(self) -> None:
        """Syncs the rows written so far to the disk, then publishes them. It blocks on the disk."""
        # The lock keeps two publications apart: the publisher's, and the last one when a stream is closed or the worker
        # ends. It does not keep `write_sample` out, which appends at the right end meanwhile. Iterating over a deque
        # that grows raises, so the rows are taken by index.
        with self._publishing:
            rows = [self._unpublished[place] for place in range(len(self._unpublished))]
            try:
                if rows:
                    # Pixels reach the disk before any record can name them: a record that survives a power cut has a
                    # row behind it.
                    self._file.sync_rows()
                    ids, checksums = np.array(rows, np.uint64).T
                    # A record may still hold the checksum of an earlier version of its file. It is withdrawn first, so
                    # that no process ever finds it beside the new mtime. The new checksum comes last, since it
                    # publishes the row.
                    self._records["checksum"][ids] = 0
                    self._records["mtime_ns"][ids] = _compute_sample_times(self._manifest, ids.astype(np.int64))
                    self._records["checksum"][ids] = checksums
                    self._states[ids] = _GOOD
            except OSError as error:
                self._disable_writing(error)
            # The rows leave the deque even where they could not be published. They stay _UNPUBLISHED, so this process
            # decodes them each time; they count as unpublished until here, so that `write_sample` sees how far the disk
            # lags behind.
            for _ in rows:
                self._unpublished.popleft()

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


# --- The file that keeps a stream's decoded samples: a header, a record for each sample, then the pixels by id.
#
# magic 8 | version u32 | bytes of a row u32 | samples u64 | content_id 32 | pixel_id 32 | zeros up to a page records:
# mtime_ns i64 | checksum u64, 0 while the row is not published | zeros up to a page rows: what `record` keeps of each
# sample, mostly pixels, the first sample's first
#
# All numbers are little-endian. Space is allocated before anything is written, so that a full disk shows here and not
# in the middle of an epoch. The file never shrinks: a process that reads a mapping beyond the end of its file dies of
# SIGBUS.


_HEADER: Final = struct.Struct("<8sIIQ32s32s")
_MAGIC: Final = b"streamdC"
_VERSION: Final = 1
_VERSION_WITH_BOXES: Final = 2  # of records with geometries, which have the orientation of each picture's file
_MODE: Final = 0o600
_BLOCK_BYTES: Final = 512  # what st_blocks counts, whatever the file system
RECORD_TYPE: Final = np.dtype([("mtime_ns", "<i8"), ("checksum", "<u8")])
_FOLDER_MODE = 0o700


class UnfitCacheError(Exception):
    """A cache that cannot be used. Its stream is served without one."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """What a cache holds, which decides where everything lies in its file. Pure."""

    content_id: str
    pixel_id: PixelId
    samples: int
    row_bytes: int
    version: int = _VERSION

    @staticmethod
    def from_stream_spec(spec: StreamSpec, pixel_id: PixelId) -> CacheLayout:
        record = RecordLayout.from_stream_spec(spec)
        version = _VERSION_WITH_BOXES if record.targets else _VERSION
        return CacheLayout(spec.content_id, pixel_id, spec.samples, record.nbytes, version)

    @property
    def cache_file_name(self) -> str:
        """The name of the file. Other samples or other pixels have a file of their own."""
        version = "" if self.version == _VERSION else f"-{self.version}"
        return f"{self.content_id[:16]}-{self.pixel_id[:16]}{version}.cache"

    @property
    def header_page_bytes(self) -> bytes:
        """The first page of the file."""
        ids = self.content_id.encode(), self.pixel_id.encode()
        return _HEADER.pack(_MAGIC, self.version, self.row_bytes, self.samples, *ids).ljust(PAGE_BYTES, b"\0")

    @property
    def rows_offset(self) -> int:
        """Where the first row begins, in bytes."""
        return PAGE_BYTES + -(-self.samples * RECORD_TYPE.itemsize // PAGE_BYTES) * PAGE_BYTES

    def file_bytes(self, rows: int) -> int:
        """Returns the size of a file with room for the first `rows` samples."""
        return self.rows_offset + rows * self.row_bytes

    def count_rows(self, file_bytes: int) -> int:
        """Returns how many samples, from the first on, have room in a file of this size."""
        return min(self.samples, max(0, file_bytes - self.rows_offset) // self.row_bytes)

    def count_rows_within_limit(self, max_bytes: int | None) -> int:
        """Returns how many samples are kept when a file may have `max_bytes`; None is no limit."""
        return self.samples if max_bytes is None else self.count_rows(max_bytes)


def lock_file_name(spec: StreamSpec) -> str:
    """Returns the name of the file whose lock decides which process writes a stream's cache.

    It depends on the image settings instead of the pixel id, since the daemon has no decoder to compute that id with.
    """
    several = [part for name, image in spec.images.items() for part in (name, image.describe_pixels())]
    parts = several if len(spec.images) > 1 else [spec.image.describe_pixels()]
    return f"{spec.content_id[:16]}-{compute_identity('streamd cache 1', *parts)[:16]}.lock"


@dataclass(frozen=True, slots=True)
class CacheFile:
    """An open cache file: it holds `rows` samples, of which this process may write the first `writable_rows`."""

    layout: CacheLayout
    descriptor: int
    rows: int
    writable_rows: int
    trouble: str = ""  # why there is no room to write

    @staticmethod
    def open(place: CachePlace, layout: CacheLayout) -> CacheFile:
        """Opens the file of `layout`.

        A process that may write creates it, and makes room in it. Raises UnfitCacheError.
        """
        path = Path(place.folder) / layout.cache_file_name
        flags = os.O_RDWR | os.O_CREAT if place.writable else os.O_RDONLY
        try:
            descriptor = open_regular_descriptor(path, flags | os.O_NOFOLLOW, _MODE)
        except OSError as error:
            raise UnfitCacheError(f"{path}: {error.strerror}") from error
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, descriptor)  # unless the file proves usable
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid not in {0, os.geteuid()}:
                raise UnfitCacheError(
                    f"{path}: it is not a regular file of this user; remove it, or give the cache another path"
                )
            trouble = ""
            wanted = layout.count_rows_within_limit(place.max_bytes)
            if place.writable:
                # All workers of a daemon open the file at about the same time. The first one allocates and writes the
                # header; the others wait, and find both done.
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                try:
                    trouble = _allocate_space(path, descriptor, layout.file_bytes(wanted))
                    # A new file that has room gets its header. An existing header stays as it is.
                    is_new = not os.pread(descriptor, PAGE_BYTES, 0).strip(b"\0")
                    if is_new and os.fstat(descriptor).st_size >= layout.rows_offset:
                        _write_fully(descriptor, layout.header_page_bytes, 0)
                finally:
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
            nbytes = os.fstat(descriptor).st_size
            # Readers and writers make the same checks. A reader that comes before the writer's header finds none.
            header = os.pread(descriptor, PAGE_BYTES, 0)
            if nbytes < layout.rows_offset or not header.strip(b"\0"):
                raise UnfitCacheError(trouble or f"{path}: nothing is in it yet")
            if header != layout.header_page_bytes:
                raise UnfitCacheError(
                    f"{path}: it is not a cache, or it is a cache of another version; remove it, and streamd will make "
                    "it again"
                )
            rows = layout.count_rows(nbytes)
            if not rows:
                raise UnfitCacheError(trouble or f"{path}: max leaves no room for a single sample; set a larger one")
            opened.pop_all()
        return CacheFile(layout, descriptor, rows, min(rows, wanted) if place.writable and not trouble else 0, trouble)

    def write_row(self, sample_id: int, row: memoryview) -> None:
        """Writes a sample's pixels. No process uses them before their record is published. Raises OSError."""
        _write_fully(self.descriptor, row, self.layout.file_bytes(sample_id))

    def map_row_records(self) -> npt.NDArray[np.void]:
        """Maps the records, of dtype RECORD_TYPE. Whatever a writer stores there is published to all processes."""
        mapped = map_writable if self.writable_rows else map_readable
        return np.frombuffer(
            mapped(self.descriptor, self.layout.rows_offset), RECORD_TYPE, self.layout.samples, PAGE_BYTES
        )

    def sync_rows(self) -> None:
        """Returns when everything written so far is safe on the disk. Raises OSError."""
        os.fdatasync(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


def _allocate_space(path: Path, descriptor: int, nbytes: int) -> str:
    """Allocates `nbytes`, all or none. Returns why it cannot, or an empty text."""
    before = os.fstat(descriptor)
    allocated_bytes = before.st_blocks * _BLOCK_BYTES
    if min(before.st_size, allocated_bytes) >= nbytes:
        return ""
    system = os.fstatvfs(descriptor)
    free = system.f_bavail * system.f_frsize
    why = os.strerror(errno.ENOSPC)
    # An allocation that fails takes all free space for a moment, which other programs may need. So it is not even tried
    # where the space is known to be too small.
    if nbytes - allocated_bytes <= free:
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
        except OSError as error:
            # Gives back what a failed allocation has taken. Other processes may have mapped the file up to its former
            # size, so it must not become shorter than that.
            os.ftruncate(descriptor, before.st_size)
            why = error.strerror or type(error).__name__
        else:
            return ""
    return (
        f"{path} needs {nbytes / GIB:.2f} GiB, which it cannot get ({why}; {free / GIB:.2f} GiB are free): nothing "
        "more is cached; make room, or set a smaller max, and restart streamd"
    )


def _write_fully(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    written = os.pwrite(descriptor, data, offset)
    if written < len(data):  # the disk is full, or a limit reached
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class WriterLocks:
    """The locks that this process holds, by path. Each counts its holders, since two streams may share a cache.

    The system releases them when the process ends, however it ends.
    """

    def __init__(self) -> None:
        self._held: dict[Path, tuple[int, int]] = {}  # descriptor, number of holders

    def acquire_lock(self, path: Path) -> bool:
        """Returns whether this process may write from now on. If not, logs why."""
        # flock belongs to an open file. If this process opened the same path again, it would be refused the lock that
        # it already holds. So one descriptor is shared, and its holders are counted.
        if path in self._held:
            descriptor, times = self._held[path]
            self._held[path] = descriptor, times + 1
            return True
        try:
            path.parent.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
        except OSError as error:
            _warn_read_only(path, f"it cannot be written ({error.strerror})")
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            is_held = isinstance(error, BlockingIOError)
            _warn_read_only(path, "another streamd is writing to it" if is_held else f"no lock: {error.strerror}")
            return False
        self._held[path] = descriptor, 1
        return True

    def release_lock(self, path: Path) -> None:
        """Undoes one `acquire_lock`. Raises KeyError for a lock that is not held."""
        descriptor, times = self._held.pop(path)
        if times > 1:
            self._held[path] = descriptor, times - 1
        else:
            os.close(descriptor)


def _warn_read_only(path: Path, why: str) -> None:
    folder = escape_unprintable(str(path.parent))
    log.warning("cache.read_only", f"the cache in {folder} is used as it is, and nothing is added to it: {why}")


# --- What a cache keeps of one sample: the pixels of its images, and where boxes and points belong on them.
#
# pixels of the first image | pixels of the second | ... | a geometry for each image, 64 bytes, if boxes follow one
#
# A sample of one image without such labels is its pixels and nothing else, so that it is gathered with one NumPy call.


Record = npt.NDArray[np.uint8]  # (nbytes,)

_GEOMETRY: Final = struct.Struct("<2I4d4I?B6x")  # source, box, place, is_cut, orientation


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """Where the parts of a record lie: `images` has the bytes of each image by name, as the ends of a slice.

    `targets` has the (height, width) of the images whose geometry is kept behind the pixels: all that are one picture,
    or none.
    """

    images: Mapping[str, tuple[int, int]]
    targets: Mapping[str, Size]

    @staticmethod
    def from_stream_spec(spec: StreamSpec) -> RecordLayout:
        places: dict[str, tuple[int, int]] = {}
        start = 0
        for name, image in spec.images.items():
            nbytes = prod(image.shape) * np.dtype(image.dtype).itemsize
            places[name] = start, start + nbytes
            start += nbytes
        has_boxes = any(label.is_ragged for label in spec.labels.values())
        # All are kept, whichever a label follows now: the file of a cache does not depend on that. No label follows
        # views or a clip.
        single = {name: image for name, image in spec.images.items() if not image.pictures}
        targets = {name: (image.height, image.width) for name, image in single.items() if has_boxes}
        return RecordLayout(places, targets)

    @property
    def pixel_bytes(self) -> int:
        """The bytes of all images."""
        return max(stop for _, stop in self.images.values())

    @property
    def nbytes(self) -> int:
        """The bytes of a record."""
        return self.pixel_bytes + len(self.targets) * _GEOMETRY.size

    @property
    def is_one_image(self) -> bool:
        """Whether a record is the pixels of the only image."""
        return len(self.images) == 1 and not self.targets

    def pack_record(self, rows: Mapping[str, Pixels], landed: Mapping[str, Geometry]) -> Record:
        """Returns the record of a sample, of the rows of its images and the geometries of its pictures.

        That of one image is a view of its row.
        """
        if self.is_one_image:
            (row,) = rows.values()
            return _view_bytes(row)
        record = np.empty(self.nbytes, np.uint8)
        for name, (start, stop) in self.images.items():
            record[start:stop] = _view_bytes(rows[name])
        several = (landed[name] for name in self.targets)
        packed = (_GEOMETRY.pack(*of.source, *of.box, *of.place, of.is_cut, of.orientation) for of in several)
        record[self.pixel_bytes :] = np.frombuffer(b"".join(packed), np.uint8)
        return record

    def unpack_images(self, record: Record, rows: Mapping[str, Pixels]) -> None:
        """Writes the images of a record into the rows of a slot, each C-contiguous."""
        for name, (start, stop) in self.images.items():
            _view_bytes(rows[name])[...] = record[start:stop]

    def unpack_geometries(self, record: Record) -> dict[str, Geometry]:
        """Returns how the pictures of a record land; none where no label follows them."""
        found = _GEOMETRY.iter_unpack(record[self.pixel_bytes :].data)
        return {
            name: Geometry(
                (numbers[0], numbers[1]),
                (numbers[2], numbers[3], numbers[4], numbers[5]),
                target,
                (numbers[6], numbers[7], numbers[8], numbers[9]),
                numbers[10],
                numbers[11],
            )
            for (name, target), numbers in zip(self.targets.items(), found, strict=True)
        }


def _view_bytes(row: Pixels) -> Record:
    return row.reshape(-1).view(np.uint8)
