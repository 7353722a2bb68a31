"""What all stores of rows share: they gather the rows of listed files until one of these files has changed.

A few files are checked at every call, more only now and then.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from streamd.core.sampler import PAD_ID, Ids
from streamd.dataset.arrays.readahead import RowPrefetcher
from streamd.dataset.arrays.store import ListedRows, Mask, Pixels
from streamd.dataset.arrays.to_uint8 import PixelConverter, RawRows
from streamd.dataset.manifest.types import ArrayFiles
from streamd.dataset.paths.confined import format_path
from streamd.dataset.paths.open_beneath import UnfitFileError, check_file_unchanged, open_unchanged_file
from streamd.dataset.paths.root_proof import ABSENT_ERRNOS
from streamd.errors import ConfigError, DataAwayError
from streamd.ipc.mapping import map_readable

_FEW_FILES: Final = 4  # to check a file takes 1 to 4 us; to copy a task's rows takes 100 to 300 us
_CHECK_SHARE: Final = 100  # checks of more files take at most a hundredth of the time


class RowStore(ABC):
    """A SampleStore of one image of the samples of a manifest that lists arrays.

    Once a file has changed, the store holds no sample any more.
    """

    def __init__(self, listed: ListedRows, arrays: ArrayFiles, root: int) -> None:
        """Opens all files. Raises ConfigError when a file is not the listed one, OSError when it cannot be mapped."""
        self._listed = listed
        self._arrays = arrays
        self._converter = PixelConverter(arrays)
        self._files = ListedFiles(listed, root)
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
        self._descriptors.append(self._files.open_file(file))
        return self._descriptors[-1]

    def _map_file(self, file: int) -> memoryview:
        return map_readable(self._open_file(file), self._files.sizes[file])

    def find_gatherable(self, ids: Ids) -> Mask:
        """Returns the mask of all samples, or of none once a file has changed."""
        return self._files.find_gatherable(ids)

    def prefetch_rows(self, ids: Ids) -> None:
        """Requests the rows that are not in memory from the disk."""
        if self._prefetcher.is_worthwhile:
            self._prefetcher.prefetch_rows(self._locate_rows(self._listed.lookup_rows(ids[ids != PAD_ID])))

    def gather_rows(self, ids: Ids, images: Pixels) -> Mask:
        """Copies rows into `images`, (n, H, W, C). Returns the mask of the `ids` that were copied, (n,)."""
        raw = self._converter.prepare_read_buffer(images)
        # PAD_ID is negative. The first sample is read in its place, and the mask below leaves it out.
        damaged = self._copy_rows(self._listed.lookup_rows(np.maximum(ids, 0)), raw)
        self._prefetcher.record_page_faults()
        # The files are checked after the copy. If a file was found to be written meanwhile, no row is served, and what
        # could not be read is not held against a sample. With many files, only the next check that is due notices it.
        good = self.find_gatherable(ids)
        for place, reason in damaged.items():
            if good[place]:
                good[place] = False
                self._converter.faults[int(ids[place])] = reason
        return self._converter.convert_rows(raw, images, ids, good)

    def find_permanent_fault(self, sample_id: int) -> str:
        """See `SampleStore`."""
        return self._converter.faults.get(sample_id, "")

    def close(self) -> None:
        """Closes the files. A subclass drops what it has mapped before."""
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


class ListedFiles:
    """The files that a manifest lists, below the directory descriptor `root`."""

    def __init__(self, listed: ListedRows, root: int) -> None:
        seen = listed.sizes.tolist(), listed.mtimes_ns.tolist()
        self._files: list[tuple[bytes, int, int]] = list(zip(listed.array_file_names(), *seen, strict=True))
        self._root = root
        self._folder = listed.root
        self._unchanged = True
        self._next_check_s = 0.0

    @property
    def sizes(self) -> list[int]:
        """The size of each file, in bytes."""
        return [size for _, size, _ in self._files]

    def open_file(self, file: int) -> int:
        """Opens a file, and returns its descriptor.

        Raises DataAwayError when it is not there, ConfigError when it is not the listed one or cannot be opened.
        """
        name, size, mtime_ns = self._files[file]
        try:
            return open_unchanged_file(self._root, name, size, mtime_ns)
        except UnfitFileError as error:
            raise ConfigError(f"{os.fsdecode(name)!r} is {error}") from error
        except OSError as error:
            if error.errno in ABSENT_ERRNOS:
                raise DataAwayError(
                    f"{format_path(name)} is not in {format_path(self._folder)} any more; bring it back, or set "
                    "source.path to where it is now"
                ) from error
            path = self._folder / os.fsdecode(name)
            raise ConfigError(f"{format_path(path)} cannot be opened: {error.strerror}") from error

    def find_gatherable(self, ids: Ids) -> Mask:
        """Returns the mask of all samples, or of none once a file has changed."""
        return ids != PAD_ID if self.are_unchanged() else np.zeros(ids.size, np.bool_)

    def are_unchanged(self) -> bool:
        """Returns whether all files are still the same.

        Of more than `_FEW_FILES`, it may return the result of the last check.
        """
        # A check calls stat once for each file. With more than `_FEW_FILES`, the next check waits a hundred times as
        # long as this one takes, so that a slow disk or thousands of files do not slow down every task.
        now_s = time.monotonic()
        if len(self._files) <= _FEW_FILES or now_s >= self._next_check_s:
            self._unchanged = all(self._is_unchanged(*file) for file in self._files)
            self._next_check_s = now_s + _CHECK_SHARE * (time.monotonic() - now_s)
        return self._unchanged

    def _is_unchanged(self, name: bytes, size: int, mtime_ns: int) -> bool:
        try:
            check_file_unchanged(os.stat(name, dir_fd=self._root), size, mtime_ns)
        except (OSError, UnfitFileError):
            return False
        return True
