"""Who uses a list of samples: daemons that serve it share its lock, and a process that lists it anew has it alone.

Lists that depend on each other have one lock, NAME.lock in the state folder. NAME.turn is held by the one process that
lists them; others that want to wait for it. Both end with the process that holds them, however it ends.
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
    """A daemon's hold on lists that it serves. It ends when nothing refers to it any more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = _open_lock_file(path)
        if self._descriptor is not None:
            weakref.finalize(self, os.close, self._descriptor)

    def acquire_shared(self) -> bool:
        """Whether nobody lists anew what is served, from now on; False while another process is about to."""
        return self._descriptor is None or _try_file_lock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, self.path)

    def release_lock(self) -> None:
        """Lets others list anew, until it is shared again."""
        if self._descriptor is not None:
            _try_file_lock(self._descriptor, fcntl.LOCK_UN, self.path)


class ManifestLocks:
    """The locks of one daemon, one a path, each as long as one of its streams has it."""

    def __init__(self) -> None:
        self._locks: weakref.WeakValueDictionary[Path, ManifestLock] = weakref.WeakValueDictionary()

    def get_or_create_locks(self, paths: Mapping[str, Path]) -> dict[str, ManifestLock]:
        """The lock of each stream; `paths` by the same names. None of them is taken by this."""
        return {
            name: self._locks.get(path) or self._locks.setdefault(path, ManifestLock(path))
            for name, path in paths.items()
        }


def acquire_shared_locks(locks: Iterable[ManifestLock]) -> bool:
    """Shares each of `locks` that is to be had. Whether all are."""
    shared = [lock.acquire_shared() for lock in locks]
    return all(shared)


@contextlib.contextmanager
def hold_listing_turn(path: Path) -> Iterator[None]:
    """The turn to list what the lock at `path` is for; waits until other processes that list it are done."""
    turn = path.with_suffix(_TURN_SUFFIX)
    with _hold_open_lock_file(turn) as descriptor:
        if descriptor is not None and not _try_file_lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, turn):
            log.notice(
                "manifest.waiting",
                f"another streamd{_format_lock_holders(turn)} lists the same samples: waiting for it",
            )
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def hold_exclusive_lock(path: Path, streams: Collection[str]) -> Iterator[None]:
    """Holds the lock at `path`, by whose turn this is, alone. Raises ConfigError while a daemon serves the lists."""
    with _hold_open_lock_file(path) as descriptor:
        if descriptor is not None and not _try_file_lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, path):
            raise ConfigError(
                f"streams.{', '.join(sorted(streams))}: another streamd{_format_lock_holders(path)} serves these "
                "samples from the "
                f"lists in {escape_unprintable(str(path.parent))}, and would lose them: stop it before they are "
                "listed anew, or set STATE_DIRECTORY to another folder for this one"
            )
        yield


@contextlib.contextmanager
def _hold_open_lock_file(path: Path) -> Iterator[int | None]:
    descriptor = _open_lock_file(path)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open_lock_file(path: Path) -> int | None:
    """A descriptor of the file; None, which is said, where none can be made."""
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
        _warn_lock_unavailable(path, error)
    return True


def _warn_lock_unavailable(path: Path, error: OSError) -> None:
    """Lists in a read-only folder, on a full disk or on a file system without locks can be served all the same."""
    log.warning(
        "manifest.unlocked",
        f"the lists in {escape_unprintable(str(path.parent))} cannot be locked ({error.strerror}): make sure that "
        "nobody lists their samples anew while they are served",
    )


def _format_lock_holders(path: Path) -> str:
    """The processes that hold the lock, by number, as far as this user may see them."""
    pids = sorted(find_lock_holders(path) - {os.getpid()})
    return f" (pid {', '.join(map(str, pids))})" if pids else ""


def find_lock_holders(path: Path) -> set[int]:
    """The processes that hold a lock on a file, as far as this user may see them; the lock itself is not touched."""
    file = os.path.realpath(path)
    found = set()
    for folder in _PROC_FOLDER.glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):  # a process of another user, or one that has just ended
            if any(_is_lock_descriptor(link, file) for link in folder.iterdir()):
                found.add(int(folder.parent.name))
    return found


def _is_lock_descriptor(link: Path, file: str) -> bool:
    """Whether a process's descriptor is of `file`, and holds a lock on it."""
    try:
        return str(link.readlink()) == file and "lock:" in (link.parents[1] / "fdinfo" / link.name).read_text()
    except FileNotFoundError:  # closed meanwhile
        return False
