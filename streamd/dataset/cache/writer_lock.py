"""Who writes a cache: the daemon that holds the lock of its file. All others read what is there."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from streamd.core import log
from streamd.core.text import printable

_MODE = 0o600
_FOLDER_MODE = 0o700


class WriterLocks:
    """The locks of this process, by path, each held as often as it was taken: two streams may share a cache.

    They end with the process, however it ends.
    """

    def __init__(self) -> None:
        self._held: dict[Path, tuple[int, int]] = {}  # descriptor, how often

    def take(self, path: Path) -> bool:
        """Whether this process may write from now on. If not, it is said why."""
        descriptor, times = self._held.get(path) or (_locked(path), 0)
        if descriptor is None:
            return False
        self._held[path] = descriptor, times + 1
        return True

    def release(self, path: Path) -> None:
        """Gives back what `take` gave. KeyError for a lock that is not held."""
        descriptor, times = self._held.pop(path)
        if times > 1:
            self._held[path] = descriptor, times - 1
        else:
            os.close(descriptor)


def _locked(path: Path) -> int | None:
    """A descriptor that holds the lock of `path`; None when another has it, or it cannot be made."""
    try:
        path.parent.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
    except OSError as error:
        _warn(path, f"it cannot be written ({error.strerror})")
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        _warn(path, "another streamd writes it" if isinstance(error, BlockingIOError) else f"no lock: {error.strerror}")
        return None
    return descriptor


def _warn(path: Path, why: str) -> None:
    folder = printable(str(path.parent))
    log.warning("cache.read_only", f"of the cache in {folder} only what is there is used, nothing is added: {why}")
