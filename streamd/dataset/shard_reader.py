"""Reads encoded images inside larger files, such as the members of tars, at their offsets, from files kept open.

A shard is checked after each image, so that an image written meanwhile is never taken for the listed one. A changed
shard condemns no sample: as if all files of a folder had changed at once, the stream stops.
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
    ABSENT_ERRNOS,
    UnfitFileError,
    check_file_size,
    check_file_unchanged,
    open_unchanged_file,
)
from streamd.errors import ConfigError, DataAwayError
from streamd.limits import MAX_OPEN_SHARDS

_CHANGED: Final = "has changed since it was listed; restart with --rescan to list it again"


class ShardChangedError(Exception):
    """A shard is not the listed one any more."""


class _OpenShardFile:
    """An open shard. Its descriptor is closed when no thread refers to it any more.

    Another thread may still read from it when it is no longer kept.
    """

    __slots__ = ("__weakref__", "descriptor", "mtime_ns", "size")

    def __init__(self, root: int, name: bytes, size: int, mtime_ns: int) -> None:
        """Opens the shard. Raises UnfitFileError and OSError as `open_unchanged_file`."""
        self.descriptor = open_unchanged_file(root, name, size, mtime_ns)
        self.size, self.mtime_ns = size, mtime_ns
        weakref.finalize(self, os.close, self.descriptor)

    def check_as_listed(self) -> None:
        """Raises UnfitFileError unless the shard is still as it was listed, and not deleted."""
        found = os.fstat(self.descriptor)
        check_file_unchanged(found, self.size, self.mtime_ns)
        if not found.st_nlink:
            raise UnfitFileError("removed, or replaced by another")


def _raise_if_shard_absent(name: bytes, error: OSError) -> None:
    """Raises DataAwayError if the error means that the shard is not there."""
    if error.errno in ABSENT_ERRNOS:
        raise DataAwayError(f"{os.fsdecode(name)!r} is not there: {error.strerror}") from error


class ShardReader:
    """Reads images in shards, below the directory descriptor `root`. Thread-safe."""

    def __init__(self, manifest: Manifest, shards: ShardFiles, root: int) -> None:
        """Checks all shards. Raises ConfigError when one is not the listed one, DataAwayError when it is not there."""
        # As in `FileNames`: memory views cost a tenth of what array scalars do.
        self._shard, self._offsets = manifest.find_extra_column("shard").data, manifest.find_extra_column("offset").data
        self._sizes = manifest.sizes
        self._files = list(zip(shards.names, shards.sizes, shards.mtimes_ns, strict=True))
        for name, size, mtime_ns in self._files:
            try:
                check_file_unchanged(os.stat(name, dir_fd=root), size, mtime_ns)
            except UnfitFileError as error:
                raise ConfigError(f"{os.fsdecode(name)!r} is {error}") from error
            except OSError as error:
                _raise_if_shard_absent(name, error)
                raise
        # Two threads may open one shard at the same time; the cache keeps one of the two, and the other is closed after
        # use. An exception is not cached, so a shard that was away is opened by a later call.
        self._open_shard = lru_cache(MAX_OPEN_SHARDS)(lambda number: _OpenShardFile(root, *self._files[number]))

    def read_image(self, sample_id: int, size: int) -> bytes:
        """Returns the bytes of one image.

        Raises UnfitFileError when it is too large, ShardChangedError, DataAwayError, OSError.
        """
        check_file_size(size)
        return self.read_stored_bytes(sample_id, size)

    def read_bytes_at(self, sample_id: int, offset: int, size: int) -> bytes:
        """Returns the bytes of another image of a sample, at `offset` in the sample's shard. Raises as `read_image`."""
        check_file_size(size)
        return self.read_stored_bytes(sample_id, size, offset)

    def read_stored_bytes(self, sample_id: int, size: int, offset: int | None = None) -> bytes:
        """Returns `size` bytes of a sample's shard, from `offset` on; None means where its image begins.

        Raises as `read_image`, except that any size is allowed.
        """
        number = self._shard[sample_id]
        try:
            shard = self._open_shard(number)
            data = os.pread(shard.descriptor, size, self._offsets[sample_id] if offset is None else offset)
            shard.check_as_listed()
        except UnfitFileError as error:
            raise ShardChangedError(f"{os.fsdecode(self._files[number][0])!r} {_CHANGED}") from error
        except OSError as error:
            _raise_if_shard_absent(self._files[number][0], error)
            raise
        return data

    def close_shards(self) -> None:
        """Closes all shards. Later reads open them again, below the folder that `root` refers to by then."""
        # Threads that are reading hold their shard until they are done.
        self._open_shard.cache_clear()

    def prefetch_images(self, ids: Ids) -> None:
        """Requests images from the disk without waiting for them: cold images came two to four times as fast."""
        for sample_id, size in zip(ids.tolist(), self._sizes[ids].tolist(), strict=True):
            with contextlib.suppress(UnfitFileError, OSError):  # reading the image reports them
                shard = self._open_shard(self._shard[sample_id])
                os.posix_fadvise(shard.descriptor, self._offsets[sample_id], size, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Closes the shards, and drops the columns of the manifest."""
        self._open_shard.cache_clear()
        self._shard = self._offsets = memoryview(b"")
        self._sizes = np.empty(0, np.int64)
