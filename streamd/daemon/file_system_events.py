"""Wakes tasks when a file system is mounted or unmounted on this host, or files of watched folders are removed.

Python has no wrapper for inotify, hence ctypes.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_MOUNTS: Final = "/proc/self/mountinfo"
_EVENT_BYTES: Final = 1 << 16  # of inotify, read at a time and not looked at: tasks look at the files themselves
# From <sys/inotify.h>. What happens in a folder, ...
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_IN_FOLDER: Final = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
# ... and to a folder itself: a path ends to lead to a file also where one of its parents is renamed.
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_OF_FOLDER: Final = _DELETE_SELF | _MOVE_SELF
_libc = ctypes.CDLL(None, use_errno=True)


def _open_mounts() -> int:
    return os.open(_MOUNTS, os.O_RDONLY | os.O_CLOEXEC)


class FileSystemEvents:
    """Watches this host's mount table, and wakes all waiting tasks when it changes. Belongs to the event loop.

    With `watch_folders` it watches folders too. `sees_folders`: whether the kernel lets it.
    """

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._mounts = _open_mounts()
        self._inotify = -1
        self.sees_folders = False
        # The kernel reports a change of this file as EPOLLPRI, and the file is always readable. The event loop watches
        # for readability alone, so it watches an epoll object instead, which is readable while EPOLLPRI is pending.
        self._changes = select.epoll()
        self._changes.register(self._mounts, select.EPOLLPRI)
        asyncio.get_running_loop().add_reader(self._changes.fileno(), self._on_change)

    def watch_folders(self, folders: Iterable[Path]) -> None:
        """Watches these folders and their parents from now on, as they are now. Those watched already stay so."""
        if self._inotify < 0:
            self._inotify = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._inotify < 0:  # this user has no instance left: see fs.inotify.max_user_instances
                return
            self._changes.register(self._inotify, select.EPOLLIN)
        wanted = dict.fromkeys(folders, _IN_FOLDER | _OF_FOLDER)
        for parent in [parent for folder in wanted for parent in folder.parents]:
            wanted.setdefault(parent, _OF_FOLDER)
        # A parent that this user may not read cannot be watched, and a folder that is gone wakes by its parent.
        added = {path: _libc.inotify_add_watch(self._inotify, os.fsencode(path), mask) for path, mask in wanted.items()}
        self.sees_folders = all(watch >= 0 for path, watch in added.items() if wanted[path] & _IN_FOLDER)

    def _on_change(self) -> None:
        self._changes.poll(0)  # consumes the event; the loop would call this again and again otherwise
        if self._inotify >= 0:
            with suppress(BlockingIOError):
                os.read(self._inotify, _EVENT_BYTES)
        # Waiting tasks hold the event that is set here; later ones wait for the next change.
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self, max_s: float | None) -> None:
        """Returns at the next change, or after `max_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max_s):
                await self._changed.wait()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._changes.fileno())
        self._changes.close()
        os.close(self._mounts)
        if self._inotify >= 0:
            os.close(self._inotify)
