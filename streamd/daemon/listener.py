"""The socket that trainers knock at, which lets them in a few at a time, as far as there are descriptors.

libzmq accepts whoever connects to a socket that it listens at, and ends the process when it gets no descriptor for one
more. So it is never given the socket at the path: that one only collects knocks, `KNOCKS` at most. Those in it are let
in by taking its place at the path with a new one, and giving libzmq the old one, which nobody reaches any more.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamd.core import log
from streamd.limits import KNOCKS

_DIGITS: Final = string.digits + string.ascii_lowercase
_NAME_DIGITS: Final = 2  # with the mark before them as long as the descriptor socket's suffix: there is room for that
_REST_S: Final = 1.0
_UNSURE: Final = 2  # groups let in last, of whose knocks libzmq may not have told yet


@dataclass(slots=True)
class _Group:
    """Connections that were let in together: the listening socket is one descriptor, each connection another."""

    accepted: int = 0
    ended: int = 0

    def descriptors(self, *, is_sure: bool) -> int:
        return 1 + (self.accepted if is_sure else max(KNOCKS, self.accepted)) - self.ended


class Door:
    """Owns the socket at `path`, and counts what it let in. `most` descriptors are for listening and connections.

    `let_in` is given a listening socket with its name, to accept what waits there; `dismiss` ends it when its
    connections have. `accepted` and `ended` are told of each connection by that name. Lives on the event loop.
    """

    def __init__(
        self,
        path: Path,
        mode: int,
        most: int,
        let_in: Callable[[socket.socket, str], None],
        dismiss: Callable[[str], None],
    ) -> None:
        self._path, self._mode, self._most = path, mode, most
        self._let_in, self._dismiss = let_in, dismiss
        self._groups: dict[str, _Group] = {}  # by name, in the order in which they were let in
        self._names = itertools.cycle(map("".join, itertools.product(_DIGITS, repeat=_NAME_DIGITS)))
        self._queue, self._name = self._listen()
        self._is_full = False
        self._rest: asyncio.TimerHandle | None = None
        self._watch()

    @property
    def descriptors(self) -> int:
        """What listening and connections may take now, knocks that were let in and not told of included."""
        unsure = len(self._groups) - _UNSURE
        groups = enumerate(self._groups.values())
        return 1 + sum(group.descriptors(is_sure=place < unsure) for place, group in groups)

    def accepted(self, name: str) -> None:
        """libzmq has accepted a connection of that group."""
        if name in self._groups:
            self._groups[name].accepted += 1
            self._watch()

    def ended(self, name: str) -> None:
        """A connection of that group has ended."""
        if name not in self._groups:
            return
        self._groups[name].ended += 1
        for each, group in list(self._groups.items())[:-_UNSURE]:
            if group.ended == group.accepted:
                del self._groups[each]
                self._dismiss(each)
        self._watch()

    def close(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
        asyncio.get_running_loop().remove_reader(self._queue)
        self._queue.close()

    def _listen(self) -> tuple[socket.socket, str]:
        """A new socket in the place of the one at the path. Raises OSError."""
        name = next(name for name in map(f"{self._path}~{{}}".format, self._names) if self._is_free(name))
        aside = Path(name)
        aside.unlink(missing_ok=True)
        queue = socket.socket(socket.AF_UNIX)
        try:
            queue.setblocking(False)
            queue.bind(name)
            aside.chmod(self._mode)
            queue.listen(KNOCKS - 1)  # the kernel lets one more in
            aside.rename(self._path)
        except BaseException:
            queue.close()
            raise
        return queue, name

    def _is_free(self, name: str) -> bool:
        """Also where a daemon left its socket that was killed right here; other files are somebody else's."""
        return name not in self._groups and (not os.path.lexists(name) or Path(name).is_socket())

    def _watch(self) -> None:
        """Hears knocks while there is room for all that may come at a time, and the last ones were let in."""
        loop = asyncio.get_running_loop()
        last = next(reversed(self._groups.values()), None)
        is_full = self.descriptors + 1 + KNOCKS > self._most
        if is_full and not self._is_full:
            log.warning(
                "session.refused",
                f"no more connections for now: they take {self.descriptors} of the {self._most} descriptors that there "
                "are for them; who connects waits. Allow the daemon more open files (ulimit -n, LimitNOFILE=)",
            )
        self._is_full = is_full
        if is_full or (last is not None and not last.accepted):
            loop.remove_reader(self._queue)
        else:
            loop.add_reader(self._queue, self._open)

    def _open(self) -> None:
        asyncio.get_running_loop().remove_reader(self._queue)
        waiting, name = self._queue, self._name
        try:
            self._queue, self._name = self._listen()
        except OSError as error:  # the folder is full, or may not be written any more: who is here goes on
            log.warning("session.refused", f"no new trainer for {_REST_S:g} s: {self._path}: {error.strerror}")
            self._rest = asyncio.get_running_loop().call_later(_REST_S, self._watch)
            return
        self._groups[name] = _Group()
        self._let_in(waiting, name)
        self._watch()
