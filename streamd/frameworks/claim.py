"""A folder for one process at a time: two trainers that saved in one would each go on with the other's state."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from streamd.errors import ConfigError

if sys.platform != "win32":
    import fcntl

_LOCK: Final = ".lock"
_HELD: Final[dict[tuple[int, Path], int]] = {}  # descriptors, by process (a fork inherits none of its locks) and folder


def claim(folder: Path) -> None:
    """Keeps other processes out of a folder as long as this one lives; it may claim the folder again.

    Raises ConfigError when another process has it, OSError when nothing can be written there. Where there are no locks
    (Windows, some network file systems), nobody is kept out.
    """
    if sys.platform == "win32" or (os.getpid(), folder.resolve()) in _HELD:
        return
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError | PermissionError):  # POSIX leaves open which of them it is
            raise ConfigError(
                f"another trainer saves in {folder}: give each one, and each rank, a folder of its own"
            ) from error
        return
    _HELD[os.getpid(), folder.resolve()] = descriptor
