"""Locks on lists of samples: daemons that serve a list share its lock; a process that replaces it holds it alone.

Lists that depend on each other have one lock, NAME.lock in the state folder. The one process that lists them holds
NAME.turn; other processes that want to list them wait for it. The kernel releases both when their process ends, however
it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from streamd.core import log
from streamd.core.text import escape_unprintable
from streamd.errors import ConfigError

_LOCK_FILE_MODE: Final = 0o600
_TURN_SUFFIX: Final = ".turn"
_PROC_FOLDER: Final = Path("/proc")


class ManifestLock:
    """A daemon's shared lock on lists that it serves. The lock ends when nothing refers to this object any more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = _open_lock_file(path)
        if self._descriptor is not None:
            weakref.finalize(self, os.close, self._descriptor)

    def acquire_shared(self) -> bool:
        """Keeps other processes from replacing the lists from now on; returns False while one is replacing them."""
        return self._descriptor is None or _try_file_lock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, self.path)

    def release_lock(self) -> None:
        """Lets other processes replace the lists, until the lock is shared again."""
        if self._descriptor is not None:
            _try_file_lock(self._descriptor, fcntl.LOCK_UN, self.path)


class ManifestLocks:
    """The locks of one daemon: one for each path, for as long as one of its streams holds it."""

    def __init__(self) -> None:
        # flock() belongs to the open file, and each ManifestLock opens its own: were there two for one path, releasing
        # one would leave this daemon's other lock in the way of its own listing process.
        self._locks: weakref.WeakValueDictionary[Path, ManifestLock] = weakref.WeakValueDictionary()

    def get_or_create_locks(self, paths: Mapping[str, Path]) -> dict[str, ManifestLock]:
        """Returns the lock of each stream, given the `paths` by the same names. Acquires none of them."""
        return {
            name: self._locks.get(path) or self._locks.setdefault(path, ManifestLock(path))
            for name, path in paths.items()
        }


def acquire_shared_locks(locks: Iterable[ManifestLock]) -> bool:
    """Shares each of `locks` that no other process holds alone. Returns whether all are shared."""
    shared = [lock.acquire_shared() for lock in locks]  # a list: a lock that fails must not keep the rest from a try
    return all(shared)


@contextlib.contextmanager
def hold_listing_turns(paths: Iterable[Path]) -> Iterator[None]:
    """Holds the turns to list what the locks at `paths` protect; waits until other processes that list it are done."""
    with contextlib.ExitStack() as held:
        # All turns are taken before any lock, and in sorted order, so that two processes can never each hold a turn
        # that the other waits for. Locks are never waited for.
        for path in sorted(set(paths)):
            turn = path.with_suffix(_TURN_SUFFIX)
            if (descriptor := _open_lock_file(turn)) is None:
                continue
            held.callback(os.close, descriptor)
            if not _try_file_lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, turn):
                log.notice(
                    "manifest.waiting",
                    f"another streamd{_format_lock_holders(turn)} lists the same samples: waiting for it",
                )
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # blocks: only the listing process calls this, never the daemon
        yield


@contextlib.contextmanager
def hold_exclusive_locks(locks: Mapping[str, Path], streams: Collection[str]) -> Iterator[None]:
    """Holds the locks of the lists of `streams` alone; `locks` has the path of each. Their turns must be held.

    Raises ConfigError while a daemon serves one of the lists.
    """
    with contextlib.ExitStack() as held:
        for path in sorted({locks[name] for name in streams}):
            if (descriptor := _open_lock_file(path)) is None:
                continue
            held.callback(os.close, descriptor)
            # Never waits: a daemon keeps its lock for as long as it serves, which may be weeks.
            if not _try_file_lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, path):
                names = ", ".join(sorted(name for name in streams if locks[name] == path))
                raise ConfigError(
                    f"streams.{names}: another streamd{_format_lock_holders(path)} is serving these samples from the "
                    f"lists in {escape_unprintable(str(path.parent))}, and would lose those lists: stop that streamd "
                    "before the samples are listed again, or set STATE_DIRECTORY to another folder for this streamd"
                )
        yield


def _open_lock_file(path: Path) -> int | None:
    """Returns a descriptor of the lock file; logs a warning and returns None where it cannot be opened."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _LOCK_FILE_MODE)
    except OSError as error:
        _warn_lock_unavailable(path, error)
        return None


def _try_file_lock(descriptor: int, operation: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        # The file system has no locks. The caller continues as if it held this, since serving must not depend on it.
        _warn_lock_unavailable(path, error)
    return True


def _warn_lock_unavailable(path: Path, error: OSError) -> None:
    """Warns that lists cannot be locked: in a read-only folder, on a full disk or on a file system without locks.

    They are served all the same.
    """
    log.warning(
        "manifest.unlocked",
        f"the lists in {escape_unprintable(str(path.parent))} cannot be locked ({error.strerror}): make sure that "
        "nobody lists their samples again while they are served",
    )


def _format_lock_holders(path: Path) -> str:
    """Formats the pids of the other processes that hold the lock, as far as this user may see them."""
    pids = sorted(find_lock_holders(path) - {os.getpid()})
    return f" (pid {', '.join(map(str, pids))})" if pids else ""


def find_lock_holders(path: Path) -> set[int]:
    """Returns the pids of the processes that hold a lock on a file, as far as this user may see them.

    Reads /proc and does not touch the lock.
    """
    file = os.path.realpath(path)
    found = set()
    for folder in _PROC_FOLDER.glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):  # a process of another user, or one that has just ended
            for link in folder.iterdir():
                with contextlib.suppress(FileNotFoundError):  # the process has closed it meanwhile
                    if str(link.readlink()) == file and "lock:" in (folder.parent / "fdinfo" / link.name).read_text():
                        found.add(int(folder.parent.name))
    return found
