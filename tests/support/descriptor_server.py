"""A descriptor server with one slot, and clients of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

from streamd.ipc.fd_passing import DescriptorServer, LifelineCallbacks
from streamd.ipc.lifeline import Lifeline
from streamd.ipc.slots import SlotStore

NBYTES = 4096
SOON_S = 40.0


class Desk:
    """A descriptor server with one slot, and what it has said of sessions."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.slots = SlotStore()
        self.lost: list[tuple[int, str]] = []
        self.told: list[tuple[object, ...]] = []
        news = LifelineCallbacks(
            self._lose, lambda *what: self._tell("parted", *what), lambda *what: self._tell("dropped", *what)
        )
        self.pauses_s: list[float] = []  # that users have to make after their next messages
        self.server = DescriptorServer(self.slots.open_readable, news, measure_pause_s=self._take_pause_s)
        self._news = asyncio.Event()

    def _take_pause_s(self, _user: int, _took_s: float) -> float:
        return self.pauses_s.pop(0) if self.pauses_s else 0.0

    def _lose(self, session: int, reason: str) -> None:
        self.lost.append((session, reason))
        self._news.set()

    def _tell(self, *what: object) -> None:
        self.told.append(what)

    async def news(self) -> tuple[int, str]:
        """The only loss, once there is one."""
        await asyncio.wait_for(self._news.wait(), SOON_S)
        await answered()
        assert len(self.lost) == 1
        return self.lost[0]

    async def connect(self, session: int = 1) -> Lifeline:
        return await asyncio.to_thread(Lifeline, self.path, self.server.issue_secret(session))


async def answered() -> None:
    """Lets the server read all that has been said to it."""
    for _ in range(5):
        await asyncio.sleep(0)


async def ended(link: socket.socket) -> bool:
    """Whether the server closes this connection; waits for it."""
    link.setblocking(False)
    return not await asyncio.wait_for(asyncio.get_running_loop().sock_recv(link, 1), SOON_S)


def raw(path: str) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(path)
    return link


@contextlib.asynccontextmanager
async def opened(path: str) -> AsyncIterator[Desk]:
    desk = Desk(path)
    desk.server.start_listening(path, 0o600)
    desk.slots.ensure_slot(7, NBYTES)
    try:
        yield desk
    finally:
        desk.server.close()
        desk.slots.close()


def at_desk_of(path: str, scene: Callable[[Desk], Awaitable[None]]) -> None:
    """Plays a scene at a desk there."""

    async def play() -> None:
        async with opened(path) as desk:
            await scene(desk)

    asyncio.run(play())
