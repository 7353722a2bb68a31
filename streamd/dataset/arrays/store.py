"""Samples that need no decoding: a `Store` writes their pixels straight into the slot.

A stream has a store when its source has one, or when it has a cache. `worker.fill_rows` asks the store first, and reads
and decodes what it does not hold.
"""

from __future__ import annotations

import os
import resource
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from streamd.core.sampler import PAD_ID, Ids
from streamd.dataset.arrays.pixels import can_copy_unconverted
from streamd.dataset.manifest.manifest import ListedArrays, Manifest
from streamd.dataset.manifest.types import ArrayFiles, StorageFormat
from streamd.dataset.paths.confined import format_path
from streamd.dataset.paths.open_beneath import ABSENT_ERRNOS, UnfitFileError, check_file_unchanged, open_unchanged_file
from streamd.decode.geometry import Draw, Geometry
from streamd.errors import ConfigError, DataAwayError
from streamd.ipc.mapping import map_readable
from streamd.ipc.slots import WorkerPhase

Mask = npt.NDArray[np.bool_]
Pixels = npt.NDArray[Any]  # uint8; in mode raw also uint16 and float32


# The files of one image of every sample, as a manifest lists them: those of its samples, or of a further image.
ListedRows = Manifest | ListedArrays

SampleRows = Mapping[str, Pixels]  # by image, a row a sample: each (n, H, W, C) and C-contiguous
SampleGeometries = Mapping[str, Geometry]  # how each image of a sample lands in its row
SampleDraws = Mapping[str, Sequence[Draw | None]]  # by image, one draw a sample
# This receives the place of the sample at work, and what is done: READING its rows, or DECODING, which resizes them.
ReportRow = Callable[[int, WorkerPhase], None]

NO_DRAWS: Final[SampleDraws] = {}


def ignore_row_report(place: int, phase: WorkerPhase) -> None:
    """Ignores the report, where no progress page is shared with a daemon."""


def build_whole_geometry(height: int, width: int) -> Geometry:
    """Returns the geometry of a picture that is served as it is stored."""
    return Geometry((height, width), (0, 0, width, height), (height, width), (0, 0, width, height))


class Store(ABC):
    """Samples by id that need no decoding, as one worker sees them. A store never holds PAD_ID.

    `find_gatherable` may be called from another thread. Where a mapped file has been cut off, access ends the worker
    with SIGBUS; the host is blamed for that, and no sample.
    """

    @abstractmethod
    def find_gatherable(self, ids: Ids) -> Mask:
        """Returns which of `ids` can be gathered, (n,). Their files need not be read ahead."""

    @abstractmethod
    def prefetch_rows(self, ids: Ids) -> None:
        """Requests samples that will be gathered soon, where they are not in memory. Waits for no disk."""

    @abstractmethod
    def gather(
        self, ids: Ids, rows: SampleRows, draws: SampleDraws = NO_DRAWS, report_row: ReportRow = ignore_row_report
    ) -> tuple[Mask, Sequence[SampleGeometries]]:
        """Writes samples into `rows` by image, each (n, H, W, C) and C-contiguous.

        Returns which of `ids` were written, (n,), and how the pictures of each land. The rows and geometries of the
        other samples may hold anything. `draws` are those of images that are cropped at random. It is called once a
        task, so a store of one image avoids Python code for each row where it can.
        """

    def find_permanent_fault(self, sample_id: int) -> str:
        """Returns why a sample that was not gathered is bad for good; an empty text if a later attempt may succeed."""
        del sample_id
        return ""

    @abstractmethod
    def close(self) -> None:
        """Closes the files. The store is not used afterwards."""


# --- Requests rows from the disk before they are gathered.
#
# A mapped row that is not in memory is read when it is first touched: one row at a time, with much of the file around
# it. Cold rows of 49,152 bytes came at 1,100 a second that way, and at 15,000 when they were requested a task or more
# ahead. Rows in memory gain nothing, and requesting them costs up to a fifth of the time it takes to gather them. So
# requests stop after many groups that took no time. They resume when a page had to come from a disk after all.


_QUICK_ASK_S: Final = 5e-6  # a row in memory takes a fifth of this; queueing one for a disk takes three times as long
_QUICK_BYTE_S: Final = 0.02e-9
_QUIET_GROUPS: Final = 64  # a cold row that was not requested costs 1 ms; requesting a warm group costs 30 us


class RowPrefetcher:
    """Learns whether rows of `row_bytes` come from memory, and requests them from the disk where they do not."""

    def __init__(self, row_bytes: int) -> None:
        self._row_bytes = row_bytes
        self._quick_s = _QUICK_ASK_S + row_bytes * _QUICK_BYTE_S
        self._faults = 0
        self._quiet_groups = 0

    @property
    def is_worthwhile(self) -> bool:
        """Whether the next rows should be requested."""
        return self._quiet_groups < _QUIET_GROUPS

    def prefetch_rows(self, rows: Iterable[tuple[int, int]]) -> None:
        """Requests rows, each given as a descriptor and an offset in bytes, without waiting for them."""
        started_s, count = time.monotonic(), 0
        for descriptor, offset in rows:
            os.posix_fadvise(descriptor, offset, self._row_bytes, os.POSIX_FADV_WILLNEED)
            count += 1
        # The time of the calls themselves shows where the rows were: queueing a read takes longer than finding a page
        # in memory.
        self._quiet_groups += 1
        if time.monotonic() - started_s > count * self._quick_s:
            self._quiet_groups = 0

    def record_page_faults(self) -> None:
        """Records whether the group that the calling thread has just gathered had to wait for a disk."""
        # The count is the thread's own, so that faults of a reading or publishing thread do not count. All groups of
        # one store must be gathered by the same thread.
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
        if faults != self._faults:
            self._faults, self._quiet_groups = faults, 0


# --- What all stores of rows share: they gather the rows of listed files until one of these files has changed.
#
# A few files are checked at every call, more only now and then.


_FEW_FILES: Final = 4  # to check a file takes 1 to 4 us; to copy a task's rows takes 100 to 300 us
_CHECK_SHARE: Final = 100  # checks of more files take at most a hundredth of the time


class RowStore(Store):
    """The rows of one image of the samples of a manifest that lists arrays, served as they are stored.

    Once a file has changed, the store holds no sample any more. With `by_row`, rows are asked for by their own numbers
    instead of samples, as for the frames of clips.
    """

    def __init__(self, listed: ListedRows, arrays: ArrayFiles, root: int, *, by_row: bool = False) -> None:
        """Opens all files below the directory descriptor `root`.

        Raises DataAwayError when a file is not there, ConfigError when it is not the listed one or cannot be opened,
        OSError when it cannot be mapped.
        """
        self._listed = listed
        self._arrays = arrays
        self._root = root
        self._by_row = by_row
        self._converter = PixelConverter(arrays)
        self._geometry = build_whole_geometry(*arrays.shape[:2])
        seen = listed.sizes.tolist(), listed.mtimes_ns.tolist()
        self._files: list[tuple[bytes, int, int]] = list(zip(listed.array_file_names(), *seen, strict=True))
        self._unchanged = True
        self._next_check_s = 0.0
        self._descriptors: list[int] = []
        self._prefetcher = RowPrefetcher(self._converter.row_bytes)
        try:
            self._open_files()
        except BaseException:
            # Files before the one that failed are open already.
            self._close_descriptors()
            raise

    @abstractmethod
    def _open_files(self) -> None:
        """Opens the files, and maps them where rows are copied from a mapping."""

    @abstractmethod
    def _locate_rows(self, rows: Ids) -> Iterable[tuple[int, int]]:
        """Returns where `rows` lie: descriptors, and offsets in bytes."""

    @abstractmethod
    def _copy_rows(self, rows: Ids, raw: RawRows) -> Mapping[int, str]:
        """Copies `rows` to `raw`, as they are stored. Returns the positions of the damaged ones, and why."""

    def _open_file(self, file: int) -> int:
        """Opens a file, and returns its descriptor. Raises DataAwayError and ConfigError."""
        name, size, mtime_ns = self._files[file]
        try:
            self._descriptors.append(open_unchanged_file(self._root, name, size, mtime_ns))
        except UnfitFileError as error:
            raise ConfigError(f"{os.fsdecode(name)!r} is {error}") from error
        except OSError as error:
            folder = self._listed.root
            if error.errno in ABSENT_ERRNOS:
                raise DataAwayError(
                    f"{format_path(name)} is not in {format_path(folder)} any more; bring it back, or set source.path "
                    "to where it is now"
                ) from error
            raise ConfigError(
                f"{format_path(folder / os.fsdecode(name))} cannot be opened: {error.strerror}"
            ) from error
        return self._descriptors[-1]

    def _map_file(self, file: int) -> memoryview:
        return map_readable(self._open_file(file), self._files[file][1])

    def find_gatherable(self, ids: Ids) -> Mask:
        """Returns the mask of all samples, or of none once a file has changed.

        Of more than `_FEW_FILES`, the result of the last check may count.
        """
        # A check calls stat once for each file. With more than `_FEW_FILES`, the next check waits a hundred times as
        # long as this one takes, so that a slow disk or thousands of files do not slow down every task.
        now_s = time.monotonic()
        if len(self._files) <= _FEW_FILES or now_s >= self._next_check_s:
            try:
                for name, size, mtime_ns in self._files:
                    check_file_unchanged(os.stat(name, dir_fd=self._root), size, mtime_ns)
            except (OSError, UnfitFileError):
                self._unchanged = False
            else:
                self._unchanged = True
            self._next_check_s = now_s + _CHECK_SHARE * (time.monotonic() - now_s)
        return ids != PAD_ID if self._unchanged else np.zeros(ids.size, np.bool_)

    def _lookup_rows(self, ids: Ids) -> Ids:
        return ids if self._by_row else self._listed.lookup_rows(ids)

    def prefetch_rows(self, ids: Ids) -> None:
        """Requests the rows that are not in memory from the disk."""
        if self._prefetcher.is_worthwhile:
            self._prefetcher.prefetch_rows(self._locate_rows(self._lookup_rows(ids[ids != PAD_ID])))

    def gather(
        self, ids: Ids, rows: SampleRows, draws: SampleDraws = NO_DRAWS, report_row: ReportRow = ignore_row_report
    ) -> tuple[Mask, Sequence[SampleGeometries]]:
        """See `Store`. `rows` has one image."""
        del draws, report_row  # nothing is cropped, and rows are copied together
        ((name, images),) = rows.items()
        raw = self._converter.prepare_read_buffer(images)
        # PAD_ID is negative. The first sample is read in its place, and the mask below leaves it out.
        damaged = self._copy_rows(self._lookup_rows(np.maximum(ids, 0)), raw)
        self._prefetcher.record_page_faults()
        # The files are checked after the copy. If a file was found to be written meanwhile, no row is served, and what
        # could not be read is not held against a sample. With many files, only the next check that is due notices it.
        good = self.find_gatherable(ids)
        for place, reason in damaged.items():
            if good[place]:
                good[place] = False
                self._converter.faults[int(ids[place])] = reason
        return self._converter.convert_rows(raw, images, ids, good), [{name: self._geometry}] * ids.size

    def find_permanent_fault(self, sample_id: int) -> str:
        """See `Store`."""
        return self._converter.faults.get(sample_id, "")

    def close(self) -> None:
        """Closes the files. A subclass drops what it has mapped before."""
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


# --- Converts stored rows of any dtype and channel order to rows as they are served: (height, width, channels).
#
# Pixels are served as uint8. In mode raw numbers keep their dtype, and only byte order and channel order may change.
#
# Numbers are clipped to the range, scaled to 0-255 and rounded, half to even. The arithmetic is in float32, or in
# float64 for dtypes that do not fit in float32, one operation after the other, so that every machine gets the same
# pixels. A row with a NaN is bad.


RawRows = npt.NDArray[Any]  # rows as they are stored

NOT_A_NUMBER: Final = "a pixel is not a number (NaN)"
_WHITE: Final = 255.0


class PixelConverter:
    """Converts the rows of one store. Not thread-safe, since it works in buffers of its own.

    `stored` is the format of the rows, and `shape`, `dtype` and `row_bytes` are those of a stored row. `is_needed` is
    False where rows are stored as they are served. `faults` has the samples that are bad for good, with the reason.
    """

    def __init__(self, arrays: ArrayFiles) -> None:
        self.stored = stored = arrays.stored or StorageFormat("")
        height, width, channels = arrays.shape
        self.shape = (channels, height, width) if stored.channels_first else arrays.shape
        self.dtype = np.dtype(stored.dtype)
        self.row_bytes = prod(self.shape) * self.dtype.itemsize
        self.is_needed = not can_copy_unconverted(stored)
        self._levels = np.empty(self.shape if stored.range else 0, np.result_type(self.dtype, np.float32))
        self.faults: dict[int, str] = {}
        self._raw: RawRows = np.empty((0, *self.shape), self.dtype)

    def prepare_read_buffer(self, images: Pixels) -> RawRows:
        """Returns the buffer to read rows into, (n, *shape) of `dtype`.

        It is `images` itself where no conversion is needed.
        """
        if not self.is_needed:
            return images
        # The buffer only grows, and the next task overwrites it: nothing may keep a view of it.
        if len(self._raw) < len(images):
            self._raw = np.empty((len(images), *self.shape), self.dtype)
        return self._raw[: len(images)]

    def convert_rows(self, raw: RawRows, images: Pixels, ids: Ids, held: Mask) -> Mask:
        """Converts the rows in the buffer of `prepare_read_buffer`.

        Returns the mask of the good ones among those `held`, (n,).
        """
        if not self.is_needed:
            return held
        good, levels = held.copy(), self._levels
        # One row at a time stays in the processor's cache through all steps.
        for place in np.flatnonzero(held).tolist():
            row, pixels = raw[place], images[place]
            if self.stored.range is not None:
                low, high = self.stored.range
                levels[...] = row
                np.clip(levels, low, high, out=levels)
                # One NaN makes the minimum NaN, and clipping keeps it. An infinity has become one of the bounds.
                if np.isnan(levels.min()):
                    good[place] = False
                    self.faults[int(ids[place])] = NOT_A_NUMBER
                    continue
                if low:
                    levels -= low
                if high - low != _WHITE:  # each step takes a sixth of the time
                    levels *= _WHITE
                    levels /= high - low
                row = np.rint(levels, out=levels)
            # Levels are whole and within 0-255 by now, and other numbers keep their type, so both branches convert
            # exactly. A single channel has the same bytes in either order.
            if self.stored.channels_first and len(row) > 1:
                cv2.merge(list(row.astype(pixels.dtype, copy=False)), pixels)  # NumPy takes four times as long
            else:
                pixels[...] = row.reshape(pixels.shape)
        return good
