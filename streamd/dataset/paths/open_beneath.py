"""Reads a file that a manifest names, and nothing outside its root.

With openat2(RESOLVE_BENEATH) the kernel refuses every way out: `..`, absolute links, links that point outside. Python
has no wrapper for it, hence ctypes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from typing import Final

from streamd.limits import MAX_FILE_BYTES

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
