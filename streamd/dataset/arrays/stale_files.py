"""Whether the files of a store are still the listed ones.

A few files are checked at every call, more only now and then.
"""

from __future__ import annotations

import os
import time
from typing import Final

import numpy as np

from streamd.core.sampler import PAD_ID, Ids
from streamd.dataset.arrays.store import Mask
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.paths.confined import format_path
from streamd.dataset.paths.open_beneath import UnfitFileError, check_file_unchanged, open_unchanged_file
from streamd.dataset.paths.root_proof import ABSENT_ERRNOS
from streamd.errors import ConfigError, DataAwayError

_FEW_FILES: Final = 4  # to check a file takes 1 to 4 us; to copy a task's rows takes 100 to 300 us
_CHECK_SHARE: Final = 100  # checks of more files take at most a hundredth of the time


class ListedFiles:
    """The files that a manifest lists, below the directory descriptor `root`."""

    def __init__(self, manifest: Manifest, root: int) -> None:
        seen = manifest.sizes.tolist(), manifest.mtimes_ns.tolist()
        self._files: list[tuple[bytes, int, int]] = list(zip(manifest.array_file_names(), *seen, strict=True))
        self._root = root
        self._folder = manifest.root
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
                    f"{format_path(name)} is not in {format_path(self._folder)} any more; bring it back, or name in "
                    "source.path where it is now"
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
