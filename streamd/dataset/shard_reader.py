"""Encoded images that lie in larger files, such as the members of tars: read where they lie, from files kept open.

After each image its shard is looked at, so that none that was written meanwhile is taken for the one listed. That a
shard has changed condemns no sample: it is as if all files of a folder had changed at once, and the stream stops.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from functools import lru_cache
from typing import Final

import numpy as np

from streamd.core.sampler import Ids
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.manifest.types import ShardFiles
from streamd.dataset.paths.open_beneath import (
    UnfitFileError,
    check_file_size,
    check_file_unchanged,
    open_unchanged_file,
)
from streamd.dataset.paths.root_proof import ABSENT_ERRNOS
from streamd.errors import ConfigError, DataAwayError
from streamd.limits import MAX_OPEN_SHARDS

_CHANGED: Final = "has changed since it was listed; restart with --rescan to list it anew"


class ShardChangedError(Exception):
    """A shard is not the one that was listed."""


class _OpenShardFile:
    """A shard, closed when nobody reads from it any more: another thread may still, when it is no longer kept."""

    __slots__ = ("__weakref__", "descriptor", "mtime_ns", "size")

    def __init__(self, root: int, name: bytes, size: int, mtime_ns: int) -> None:
        """Raises UnfitFileError, OSError as `open_unchanged_file`."""
        self.descriptor = open_unchanged_file(root, name, size, mtime_ns)
        self.size, self.mtime_ns = size, mtime_ns
        weakref.finalize(self, os.close, self.descriptor)

    def check_as_listed(self) -> None:
        """Raises UnfitFileError unless it is as it was listed."""
        found = os.fstat(self.descriptor)
        check_file_unchanged(found, self.size, self.mtime_ns)
        if not found.st_nlink:
            raise UnfitFileError("removed, or replaced by another")


def _check_listed_shard(root: int, name: bytes, size: int, mtime_ns: int) -> None:
    try:
        check_file_unchanged(os.stat(name, dir_fd=root), size, mtime_ns)
    except UnfitFileError as error:
        raise ConfigError(f"{os.fsdecode(name)!r} is {error}") from error
    except OSError as error:
        _raise_if_shard_absent(name, error)
        raise


def _raise_if_shard_absent(name: bytes, error: OSError) -> None:
    """Raises DataAwayError for an error of the system that says so."""
    if error.errno in ABSENT_ERRNOS:
        raise DataAwayError(f"{os.fsdecode(name)!r} is not there: {error.strerror}") from error


class ShardReader:
    """Reads images that lie in shards, below the directory descriptor `root`. Threads may share it."""

    def __init__(self, manifest: Manifest, shards: ShardFiles, root: int) -> None:
        """Raises ConfigError when a shard is not the one that was listed, DataAwayError when it is not there."""
        # As in `FileNames`: memory views cost a tenth of what array scalars do.
        self._shard, self._offsets = manifest.find_extra_column("shard").data, manifest.find_extra_column("offset").data
        self._sizes = manifest.sizes
        self._files = list(zip(shards.names, shards.sizes, shards.mtimes_ns, strict=True))
        for file in self._files:
            _check_listed_shard(root, *file)
        self._open_shard = lru_cache(MAX_OPEN_SHARDS)(lambda number: _OpenShardFile(root, *self._files[number]))

    def read_image(self, sample_id: int, size: int) -> bytes:
        """The bytes of one image. Raises UnfitFileError when it is too large, ShardChangedError, DataAwayError,
        OSError.
        """
        check_file_size(size)
        return self.read_stored_bytes(sample_id, size)

    def read_stored_bytes(self, sample_id: int, size: int) -> bytes:
        """The first `size` bytes from where an image begins. Raises as `read_image`, but for what is too large."""
        number = self._shard[sample_id]
        try:
            shard = self._open_shard(number)
            data = os.pread(shard.descriptor, size, self._offsets[sample_id])
            shard.check_as_listed()
        except UnfitFileError as error:
            raise ShardChangedError(f"{os.fsdecode(self._files[number][0])!r} {_CHANGED}") from error
        except OSError as error:
            _raise_if_shard_absent(self._files[number][0], error)
            raise
        return data

    def close_shards(self) -> None:
        """Opens shards anew from now on, where the root leads to now."""
        self._open_shard.cache_clear()

    def prefetch_images(self, ids: Ids) -> None:
        """Has a disk look for images without waiting for them: cold ones came two to four times as fast so."""
        for sample_id, size in zip(ids.tolist(), self._sizes[ids].tolist(), strict=True):
            with contextlib.suppress(UnfitFileError, OSError):  # which reading will tell
                shard = self._open_shard(self._shard[sample_id])
                os.posix_fadvise(shard.descriptor, self._offsets[sample_id], size, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Lets go of the shards and of the manifest."""
        self._open_shard.cache_clear()
        self._shard = self._offsets = memoryview(b"")
        self._sizes = np.empty(0, np.int64)
