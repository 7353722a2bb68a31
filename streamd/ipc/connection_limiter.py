"""Limits the connections to a ZeroMQ socket, which has no limit of its own.

libzmq accepts every connection to a socket that it listens at, and ends the process when it gets no descriptor for one.
So libzmq never gets the socket at the path, which only collects connections, `KNOCKS` at most. To admit them, the
limiter binds a new socket, renames it to the path, and gives the old one to libzmq. No client can reach the old one any
more.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import socket
import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamd.core import log
from streamd.ipc.endpoint import identify_file
from streamd.limits import KNOCKS

_NAME_CHARACTERS: Final = string.digits + string.ascii_lowercase
_NAME_LENGTH: Final = 2  # with the `~` before it as long as the descriptor socket's suffix, for which a path has room
_LISTEN_RETRY_S: Final = 1.0
_UNCONFIRMED_GROUPS: Final = 2  # the last groups, whose connections libzmq may not have reported yet


@dataclass(slots=True)
class _ConnectionGroup:
    """Connections admitted together. Their listening socket takes one descriptor, and each connection another."""

    accepted: int = 0
    ended: int = 0

    def count_group_descriptors(self, *, is_sure: bool) -> int:
        return 1 + (self.accepted if is_sure else max(KNOCKS, self.accepted)) - self.ended


class ConnectionLimiter:
    """Owns the socket at `path`, and counts the connections that it admitted.

    Listening and connections take at most `max_descriptors` descriptors. `accept_waiting` gets a listening socket and
    its name, and accepts the connections that wait there; `stop_accepting` ends that socket when its connections have
    ended. `on_connection_accepted` and `on_connection_ended` are called for each connection with that name. Lives on
    the event loop.
    """

    def __init__(
        self,
        path: Path,
        mode: int,
        max_descriptors: int,
        accept_waiting: Callable[[socket.socket, str], None],
        stop_accepting: Callable[[str], None],
    ) -> None:
        self._path, self._mode, self._max_descriptors = path, mode, max_descriptors
        self._accept_waiting, self._stop_accepting = accept_waiting, stop_accepting
        self._groups: dict[str, _ConnectionGroup] = {}  # by name, in the order in which they were admitted
        self._names = itertools.cycle(map("".join, itertools.product(_NAME_CHARACTERS, repeat=_NAME_LENGTH)))
        self._place: tuple[int, int] | None = None  # of the socket at the path, as the file system knows it
        self._queue, self._name = self._open_listening_socket()
        self._is_full = False
        self._retry_timer: asyncio.TimerHandle | None = None
        self._pause_or_resume_listening()

    @property
    def connection_count(self) -> int:
        """The connections that are open, as far as libzmq has reported them."""
        return sum(group.accepted - group.ended for group in self._groups.values())

    @property
    def used_descriptor_count(self) -> int:
        """The most descriptors that listening and connections may take now, with connections not reported yet."""
        # libzmq may not have reported all connections of the last groups, so each of these groups counts as if it were
        # full.
        unsure = len(self._groups) - _UNCONFIRMED_GROUPS
        groups = enumerate(self._groups.values())
        return 1 + sum(group.count_group_descriptors(is_sure=place < unsure) for place, group in groups)

    def on_connection_accepted(self, name: str) -> None:
        """Counts a connection of a group that libzmq has accepted."""
        if name in self._groups:
            self._groups[name].accepted += 1
            self._pause_or_resume_listening()

    def on_connection_ended(self, name: str) -> None:
        """Counts an ended connection of a group, and ends earlier groups that have none left."""
        if name not in self._groups:
            return
        self._groups[name].ended += 1
        # The last groups are kept even if all known connections have ended, since others may not be reported yet.
        for each, group in list(self._groups.items())[:-_UNCONFIRMED_GROUPS]:
            if group.ended == group.accepted:
                del self._groups[each]
                self._stop_accepting(each)
        self._pause_or_resume_listening()

    def renew_if_gone(self) -> bool:
        """Puts a listening socket at the path again if it is gone. Returns whether it was. Raises OSError."""
        if identify_file(self._path) == self._place:
            return False
        waiting, name = self._queue, self._name
        self._queue, self._name = self._open_listening_socket()
        asyncio.get_running_loop().remove_reader(waiting)
        arrived = select.poll()
        arrived.register(waiting, select.POLLIN)
        if arrived.poll(0):
            self._groups[name] = _ConnectionGroup()
            self._accept_waiting(waiting, name)
        else:  # nobody can connect to it any more, so libzmq would never report a connection of it
            waiting.close()
        self._pause_or_resume_listening()
        return True

    def close(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        asyncio.get_running_loop().remove_reader(self._queue)
        self._queue.close()

    def _open_listening_socket(self) -> tuple[socket.socket, str]:
        """Puts a new listening socket in place of the one at the path; returns it and its name. Raises OSError."""
        name = next(name for name in map(f"{self._path}~{{}}".format, self._names) if self._is_socket_name_free(name))
        # The rename replaces the old socket in one step, so there is always one at the path for clients to connect to.
        aside = Path(name)
        aside.unlink(missing_ok=True)
        queue = socket.socket(socket.AF_UNIX)
        try:
            queue.setblocking(False)
            queue.bind(name)
            aside.chmod(self._mode)
            queue.listen(KNOCKS - 1)  # the kernel lets one more in
            self._place = identify_file(aside)
            aside.rename(self._path)
        except BaseException:
            queue.close()
            raise
        return queue, name

    def _is_socket_name_free(self, name: str) -> bool:
        """Whether a name is free, or has a socket that a killed daemon left there. Other files are not touched."""
        return name not in self._groups and (not os.path.lexists(name) or Path(name).is_socket())

    def _pause_or_resume_listening(self) -> None:
        """Listens while there is room for KNOCKS more connections, and libzmq has accepted one of the last group."""
        loop = asyncio.get_running_loop()
        last = next(reversed(self._groups.values()), None)
        is_full = self.used_descriptor_count + 1 + KNOCKS > self._max_descriptors
        if is_full and not self._is_full:
            log.warning(
                "session.refused",
                f"no more connections for now: they take {self.used_descriptor_count} of the {self._max_descriptors} "
                "descriptors that there are for them; new clients wait. Allow the daemon more open files (ulimit "
                "-n, LimitNOFILE=)",
            )
        self._is_full = is_full
        if is_full or (last is not None and not last.accepted):
            loop.remove_reader(self._queue)
        else:
            loop.add_reader(self._queue, self._admit_waiting_clients)

    def _admit_waiting_clients(self) -> None:
        asyncio.get_running_loop().remove_reader(self._queue)
        waiting, name = self._queue, self._name
        try:
            self._queue, self._name = self._open_listening_socket()
        except OSError as error:  # the folder is full or not writable now: present trainers continue
            log.warning(
                "session.refused",
                f"no new trainer can connect for {_LISTEN_RETRY_S:g} s: {self._path}: {error.strerror}",
            )
            self._retry_timer = asyncio.get_running_loop().call_later(_LISTEN_RETRY_S, self._pause_or_resume_listening)
            return
        # The group is known before libzmq can report its connections.
        self._groups[name] = _ConnectionGroup()
        self._accept_waiting(waiting, name)
        self._pause_or_resume_listening()
