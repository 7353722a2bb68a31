"""A folder for one training at a time: two that saved in one would each go on with the other's state, and drop it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from streamd.errors import ConfigError

if sys.platform != "win32":
    import fcntl

IsAtWork = Callable[[], bool]

_LOCK: Final = ".lock"


@dataclass(frozen=True, slots=True)
class _Claim:
    """Who has a folder in this process, and the file whose lock keeps other processes out; None where none can be."""

    is_at_work: IsAtWork
    descriptor: int | None


_CLAIMS: Final[dict[tuple[int, Path], _Claim]] = {}  # by process (a fork inherits none of its locks) and folder
_CLAIMING: Final = Lock()


def claim(folder: Path, is_at_work: IsAtWork) -> None:
    """Keeps others out of a folder: in this process while `is_at_work` says so, other processes as long as it lives.

    The same `is_at_work` may claim the folder again, and does so when the folder may have been made anew, or the lock
    lost. Raises ConfigError when another training has it, OSError when nothing can be written there. Where there are no
    locks (Windows, some network file systems), no other process is kept out.
    """
    with _CLAIMING:
        key = os.getpid(), folder.resolve()
        held = _CLAIMS.get(key)
        if held and held.is_at_work != is_at_work and held.is_at_work():
            raise ConfigError(f"another fit of this process saves in {folder}: give each one a folder of its own")
        _CLAIMS[key] = _Claim(is_at_work, _lock(folder, held.descriptor if held else None))


def _lock(folder: Path, descriptor: int | None) -> int | None:
    """The descriptor of the folder's lock file, which is locked; `descriptor` where that is it.

    That one is locked again, since the lock is lost when any descriptor of the file is closed in this process.
    """
    if sys.platform == "win32":
        return descriptor
    if descriptor is not None and _is_open_as(descriptor, folder / _LOCK):
        opened = descriptor
    else:
        opened = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    is_locked = True
    try:
        fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if isinstance(error, BlockingIOError | PermissionError):  # POSIX leaves open which of them it is
            if opened != descriptor:  # else it is kept, to be locked by a later claim
                os.close(opened)
            raise ConfigError(
                f"another trainer saves in {folder}: give each one, and each rank, a folder of its own"
            ) from error
        os.close(opened)
        is_locked = False
    if descriptor is not None and descriptor != opened:  # the lock of a folder that was removed
        os.close(descriptor)
    return opened if is_locked else None


def _is_open_as(descriptor: int, path: Path) -> bool:
    """Whether the file that was opened is the one that the path names now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
