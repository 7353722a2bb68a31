"""Reads a file that a manifest names, and nothing outside its root; and tells whether that root is the listed folder.

With openat2(RESOLVE_BENEATH) the kernel refuses every way out: `..`, absolute links, links that point outside. Python
has no wrapper for it, hence ctypes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from streamd.core.sampler import derive_epoch_keys, permute_positions
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.paths.confined import format_path
from streamd.errors import DataAwayError
from streamd.limits import MAX_FILE_BYTES, PROOF_SAMPLES

_SYS_OPENAT2: Final = ctypes.c_long(437)  # the same on every Linux architecture
_RESOLVE_BENEATH: Final = 0x08
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # NONBLOCK: a FIFO posing as an image must not hang us


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW: Final = _OpenHow(_FLAGS, 0, _RESOLVE_BENEATH)
_HOW_POINTER: Final = ctypes.byref(_HOW)
_HOW_BYTES: Final = ctypes.c_size_t(ctypes.sizeof(_HOW))
_syscall = ctypes.CDLL(None, use_errno=True).syscall  # without argtypes: most arguments are ctypes objects
_syscall.restype = ctypes.c_long


class UnfitFileError(Exception):
    """A file that must not or cannot be an image: not regular, too large, or changed since the manifest was made."""


class OtherFileError(UnfitFileError):
    """A name leads to something else than the listed file: out of the root, to no regular file, or to a changed one."""


def _open_beneath(root: int, name: bytes) -> int:
    descriptor = int(_syscall(_SYS_OPENAT2, root, name, _HOW_POINTER, _HOW_BYTES))
    if descriptor >= 0:
        return descriptor
    code = ctypes.get_errno()
    if code == errno.EXDEV:
        raise OtherFileError("it lies outside the data's root")
    raise OSError(code, os.strerror(code), os.fsdecode(name))


def read_file(root: int, name: bytes, size: int, mtime_ns: int) -> bytes:
    """Returns the bytes of `name` under the directory descriptor `root`.

    Raises UnfitFileError when the file is not the one in the manifest, OSError when it cannot be read.
    """
    # No more than the listed size is read, so the limit on that size also limits the memory.
    check_file_size(size)
    descriptor = _open_beneath(root, name)
    try:
        try:
            data = os.read(descriptor, size)
            while len(data) < size and (more := os.read(descriptor, size - len(data))):
                data += more
        except OSError:  # from a folder or a pipe, for example
            _check_regular_file(os.fstat(descriptor))
            raise
        # The file is checked after it was read: one that was written meanwhile would be half old and half new.
        found = os.fstat(descriptor)
        _check_regular_file(found)
        check_file_size(found.st_size)
        check_file_unchanged(found, size, mtime_ns)
        if len(data) != size:
            raise OtherFileError(f"stale: it has {len(data)} bytes, but {size} were listed")
        return data
    finally:
        os.close(descriptor)


def open_unchanged_file(root: int, name: bytes, size: int, mtime_ns: int) -> int:
    """Returns a descriptor of the file `name`, of any size, under the directory descriptor `root`.

    Raises as `read_file`.
    """
    descriptor = _open_beneath(root, name)
    try:
        check_file_unchanged(os.fstat(descriptor), size, mtime_ns)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_file_size(size: int) -> None:
    """Raises UnfitFileError for a file larger than any image may be."""
    if size > MAX_FILE_BYTES:
        raise UnfitFileError(f"the file has {size} bytes, and at most {MAX_FILE_BYTES} are allowed")


def _check_regular_file(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OtherFileError("not a regular file")


def check_file_unchanged(found: os.stat_result, size: int, mtime_ns: int) -> None:
    """Raises UnfitFileError unless the size and mtime are those in the manifest."""
    if found.st_size != size or found.st_mtime_ns != mtime_ns:
        raise OtherFileError("stale: changed since it was listed; restart with --rescan to list it again")


# --- Tells whether the data that a manifest lists are there: a few of its files, drawn by seed, prove the root.
#
# An empty mount point, or another disk in place of the listed one, has none of the listed files; without a proof each
# of them would look like a sample that was deleted. Only names and sizes count, which a copy or a new mount does not
# change.


ABSENT_ERRNOS: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})

NameAndSize = tuple[bytes, int]  # a name, relative to the root, and a size in bytes

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class ExpectedFiles:
    """The files that must lie below `root`: half of `chosen_files`, and all `required_files`, which a store needs.

    `elsewhere` has the files that a store needs below other roots.
    """

    root: Path
    chosen_files: tuple[NameAndSize, ...]
    required_files: tuple[bytes, ...] = ()
    elsewhere: tuple[tuple[Path, tuple[bytes, ...]], ...] = ()


def choose_expected_files(manifest: Manifest) -> ExpectedFiles:
    """Returns the files by which the data of a manifest are recognised. Does not touch the data."""
    needs = tuple(manifest.array_file_names()) if manifest.shards is None else manifest.shards.names
    more = [(image.root, tuple(image.array_file_names())) for image in manifest.image_arrays.values()]
    inside = {name: None for root, names in more if root == manifest.root for name in names}
    # Samples are drawn: the same for equal lists, wherever the data are; all if there are fewer.
    positions = np.arange(min(PROOF_SAMPLES, manifest.samples), dtype=np.int64)
    drawn = permute_positions(positions, manifest.samples, derive_epoch_keys(0, 0, f"root {manifest.content_id}"))
    chosen: Iterable[NameAndSize]
    if manifest.shards is not None:
        shards = manifest.find_extra_column("shard")[drawn].tolist()
        chosen = [(manifest.shards.names[shard], manifest.shards.sizes[shard]) for shard in shards]
    elif manifest.arrays is not None:
        files = [manifest.arrays.locate_row(row)[0] for row in manifest.lookup_rows(drawn).tolist()]
        chosen = [(manifest.array_file_names()[file], int(manifest.sizes[file])) for file in files]
    else:
        chosen = zip(manifest.file_names(drawn), manifest.sizes[drawn].tolist(), strict=True)
    return ExpectedFiles(
        manifest.root,
        tuple(chosen),
        (*needs, *(name for name in inside if name not in needs)),
        tuple(each for each in more if each[0] != manifest.root),
    )


def is_root_proven(root: int, chosen_files: Iterable[NameAndSize]) -> bool:
    """Returns whether the directory descriptor `root` is the listed folder: half of `chosen_files` are there."""
    # Single samples may have been deleted or replaced since the listing. That another folder has half of the names and
    # sizes does not happen by chance.
    seen = [(_stat_below_root(root, name), size) for name, size in chosen_files]
    found = [each is not None and stat.S_ISREG(each.st_mode) and each.st_size == size for each, size in seen]
    return 2 * sum(found) >= len(found)


def _stat_below_root(root: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=root)
    except OSError:
        return None


def open_root_folder(root: Path) -> int:
    """Returns a descriptor of the folder that a path leads to now. Raises DataAwayError when there is none."""
    try:
        return os.open(root, _FOLDER_FLAGS)
    except OSError as error:
        raise DataAwayError(f"{format_path(root)} cannot be opened: {error.strerror}") from error


def reopen_root_folder(root: Path, descriptor: int) -> None:
    """Lets `descriptor` refer to the folder that a path leads to now. Raises DataAwayError when there is none.

    One that was opened before a mount leads below the mount point for ever.
    """
    opened = open_root_folder(root)
    # Other threads use the same number. dup2 replaces what it refers to in one step, so they never find it closed.
    os.dup2(opened, descriptor, inheritable=False)
    os.close(opened)


def find_absence_reason(expected: ExpectedFiles) -> str:
    """Returns why the data are not there; an empty text if they are. Blocks for as long as the file system does."""
    try:
        # The path is opened again each time: a descriptor from before a mount still leads to the folder below the mount
        # point.
        root = open_root_folder(expected.root)
        try:
            check_files_present(root, expected)
        finally:
            os.close(root)
    except DataAwayError as error:
        return str(error)
    return ""


def check_files_present(root: int, expected: ExpectedFiles) -> None:
    """Raises DataAwayError unless the data are below an open root.

    The files of a store may have changed nevertheless: that is checked when they are opened.
    """
    # A store needs every one of its files, so all of them must exist. Where each image is a file of its own, some may
    # be missing.
    if expected.required_files:
        _check_all_present(root, expected.root, expected.required_files)
        for folder, names in expected.elsewhere:
            other = open_root_folder(folder)
            try:
                _check_all_present(other, folder, names)
            finally:
                os.close(other)
    elif not is_root_proven(root, expected.chosen_files):
        raise DataAwayError(
            f"{format_path(expected.root)} is empty, or not the folder that was listed: of "
            f"{len(expected.chosen_files)} files drawn from the list, fewer than half are there with their listed sizes"
        )


def _check_all_present(root: int, folder: Path, names: Iterable[bytes]) -> None:
    """Raises DataAwayError unless all files are below an open root, which is that of `folder`."""
    missing = next((name for name in names if _stat_below_root(root, name) is None), None)
    if missing is not None:
        raise DataAwayError(f"{format_path(missing)} is not in {format_path(folder)}")
