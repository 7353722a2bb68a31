"""Opens an HDF5 file for reading, without locks, which a read-only disk may refuse; its errors give the reason."""

from __future__ import annotations

import fcntl
import importlib
import os
from contextlib import suppress
from typing import Any, Final

from streamd.errors import MissingExtraError

_PURPOSE: Final = "a source of kind hdf5"
_PLUGIN_MODULE: Final = "hdf5plugin"  # importing it, where it is installed, registers its decompressors
_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
# What h5py raises for damage, by the place where the library notices it; KeyError is a LookupError.
LIBRARY_ERRORS: Final = (OSError, RuntimeError, LookupError, ValueError, TypeError)
_FIRST_OFFSET: Final = 512  # the signature is at 0, 512, 1024, 2048, ..., after a user block, if there is one


class UnfitHdf5Error(Exception):
    """A file that the library cannot read; the message has the reason, and what to do."""


def import_h5py() -> Any:
    """Returns the module h5py. Raises MissingExtraError."""
    try:
        import h5py  # noqa: PLC0415 - an extra, which takes a while to load
    except ModuleNotFoundError as error:
        raise MissingExtraError("h5py", "hdf5", _PURPOSE) from error
    return h5py


def open_hdf5_file(descriptor: int, *, cache_bytes: int | None = None) -> Any:
    """Returns the h5py.File behind a descriptor; the caller closes it. Raises UnfitHdf5Error, MissingExtraError.

    `cache_bytes` limits what HDF5 keeps of the chunks it has read.
    """
    h5py = import_h5py()
    with suppress(ModuleNotFoundError):
        importlib.import_module(_PLUGIN_MODULE)
    _check_readable(descriptor)
    try:
        # h5py opens the file again through /proc, so its position and its closing are independent of the descriptor.
        return h5py.File(f"/proc/self/fd/{descriptor}", "r", locking=False, rdcc_nbytes=cache_bytes)
    except OSError as error:
        raise UnfitHdf5Error(_explain_failure(str(error))) from error


def _check_readable(descriptor: int) -> None:
    """Raises UnfitHdf5Error unless the file is an HDF5 file that no process has open for writing.

    Writers lock their file. Where the lock fails for another reason, nothing is known, and the file passes.
    """
    if not _has_signature(descriptor):
        raise UnfitHdf5Error("it is not an HDF5 file; correct the path")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UnfitHdf5Error("another process has it open for writing; wait until it is closed there") from error
    except OSError:
        return
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def _has_signature(descriptor: int) -> bool:
    place, size = 0, os.fstat(descriptor).st_size
    while place < size:
        if os.pread(descriptor, len(_SIGNATURE), place) == _SIGNATURE:
            return True
        place = 2 * place or _FIRST_OFFSET
    return False


def _explain_failure(message: str) -> str:
    """Translates a message of the library where the cause is known."""
    if "truncated file" in message:
        return "it is truncated; copy it again, or write it again"
    if "already open for write" in message:
        return "the program that wrote it did not close it; wait until it does, or repair it: h5clear --status FILE"
    reason = message.partition("(")[2].rpartition(")")[0] or message
    return f"it is damaged: {reason}; copy it again, or write it again"
