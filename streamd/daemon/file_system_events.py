"""Waits until a file system is mounted or unmounted on this host."""

from __future__ import annotations

import asyncio
import os
import select
from contextlib import suppress
from typing import Final

_MOUNTS: Final = "/proc/self/mountinfo"


def _open_mounts() -> int:
    return os.open(_MOUNTS, os.O_RDONLY | os.O_CLOEXEC)


class MountEvents:
    """Watches this host's mount table and wakes all waiting tasks when it changes. Belongs to the event loop."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._mounts = _open_mounts()
        # The kernel reports a change of this file as EPOLLPRI, and the file is always readable. The event loop watches
        # for readability alone, so it watches an epoll object instead, which is readable while EPOLLPRI is pending.
        self._changes = select.epoll()
        self._changes.register(self._mounts, select.EPOLLPRI)
        asyncio.get_running_loop().add_reader(self._changes.fileno(), self._on_change)

    def _on_change(self) -> None:
        self._changes.poll(0)  # consumes the event; the loop would call this again and again otherwise
        # Waiting tasks hold the event that is set here; later ones wait for the next change.
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self, max_s: float) -> None:
        """Returns at the next change, or after `max_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max_s):
                await self._changed.wait()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._changes.fileno())
        self._changes.close()
        os.close(self._mounts)
