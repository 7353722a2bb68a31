"""Whether the disk has room for a pack: asked before, and said when it turns out that it has none."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from streamd.config.units import format_bytes
from streamd.errors import PackError
from streamd.pack.work import Work
from streamd.printable import printable

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_SPACE: Final = os.strerror(errno.ENOSPC)
_BLOCK_BYTES: Final = 512  # what st_blocks counts, whatever the file system


def make_sure_of_room(work: Work, needed_bytes: int) -> None:
    """Raises PackError, with the arithmetic, when a pack of so many bytes, less what is there of it, cannot fit."""
    there, free = allocated_bytes(work.product), _free_bytes(work.folder)
    lacking = needed_bytes - there - free
    if lacking > 0:
        raise PackError(
            f"{_shown(work)} takes about {format_bytes(needed_bytes)}, of which {format_bytes(there)} are written, and "
            f"{format_bytes(free)} are free: make room for {format_bytes(lacking)} more, or name another disk"
        )


@contextmanager
def full_disk_named(work: Work, needed_bytes: Callable[[], int]) -> Iterator[None]:
    """Makes a PackError of what the system says when there is no room."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL and _NO_SPACE not in str(error):  # HDF5 has the reason in its words alone
            raise
        left = max(0, needed_bytes() - allocated_bytes(work.product))
        raise PackError(
            f"{_shown(work)}: {error.strerror or _NO_SPACE}: about {format_bytes(left)} are still to be written, and "
            f"{format_bytes(_free_bytes(work.folder))} are free. Nothing is there yet: make room, and the same command "
            "goes on where it was"
        ) from error


def allocated_bytes(path: Path) -> int:
    """What a file, or all in a folder, take on the disk; 0 for what is not there."""
    if not path.exists():
        return 0
    entries = path.rglob("*") if path.is_dir() else [path]
    return sum(entry.lstat().st_blocks * _BLOCK_BYTES for entry in entries)


def _free_bytes(folder: Path) -> int:
    """What the file system has left for this user."""
    system = os.statvfs(folder)
    return system.f_bavail * system.f_frsize


def _shown(work: Work) -> str:
    return printable(str(work.destination))
