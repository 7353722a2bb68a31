"""The limit of connections to a ZeroMQ socket: a few at a time, and none without descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from streamd.ipc.router import ConnectionLimiter
from streamd.limits import KNOCKS

LIMIT_S = 10.0
MODE = 0o660


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        yield Path(folder) / "deep" / "s"


class LimiterRig:
    """Stands for libzmq behind a limiter: accepts the waiting connections of a socket when a test says so."""

    def __init__(self, place: Path, most: int) -> None:
        self.place = place
        self.sockets: dict[str, socket.socket] = {}
        self.clients: list[socket.socket] = []
        self.closed: list[str] = []
        self._news = asyncio.Event()
        self.limiter = ConnectionLimiter(place, MODE, most, self._add_socket, self.closed.append)

    def _add_socket(self, waiting: socket.socket, name: str) -> None:
        self.sockets[name] = waiting
        self._news.set()

    def connect(self) -> bool:
        """Connects a client; returns whether it is at least in the queue."""
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        self.clients.append(client)
        return not client.connect_ex(str(self.place))

    async def group(self, number: int) -> str:
        """Returns the name of the socket with this number, once the limiter has handed it over."""
        async with asyncio.timeout(LIMIT_S):
            while len(self.sockets) <= number:
                self._news.clear()
                await self._news.wait()
        return list(self.sockets)[number]

    def accept(self, name: str) -> int:
        """Accepts the waiting connections of a socket, reports each to the limiter, and returns their number."""
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                self.clients.append(self.sockets[name].accept()[0])
                self.limiter.on_connection_accepted(name)
                count += 1
        return count

    def close(self) -> None:
        self.limiter.close()
        for link in (*self.sockets.values(), *self.clients):
            link.close()


@asynccontextmanager
async def opened(place: Path, most: int = 100) -> AsyncIterator[LimiterRig]:
    place.parent.mkdir(exist_ok=True)
    rig = LimiterRig(place, most)
    try:
        yield rig
    finally:
        rig.close()


async def test_each_connection_is_accepted_through_a_new_socket(place: Path) -> None:
    async with opened(place) as rig:
        for number in range(5):
            assert rig.connect()
            assert rig.accept(await rig.group(number)) == 1
        found = [(path.name, stat.S_IMODE(path.stat().st_mode)) for path in place.parent.iterdir()]
    assert found == [("s", MODE)]


async def test_at_most_one_backlog_of_connections_is_accepted_at_a_time(place: Path) -> None:
    async with opened(place) as rig:
        assert [rig.connect() for _ in range(KNOCKS + 2)] == [True] * KNOCKS + [False] * 2
        first = await rig.group(0)
        assert rig.connect()  # at the next socket
        await asyncio.sleep(0)
        assert len(rig.sockets) == 1, "the next group waits until the first is known to be accepted"
        assert rig.accept(first) == KNOCKS
        assert rig.accept(await rig.group(1)) == 1


async def test_without_descriptors_new_connections_wait_until_others_have_ended(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    most = 1 + 4 * (1 + KNOCKS)
    caplog.set_level(logging.WARNING, "streamd")
    async with opened(place, most) as rig:
        names: list[str] = []
        while rig.limiter.used_descriptor_count + 1 + KNOCKS <= most:
            for _ in range(KNOCKS):
                rig.connect()
            names.append(await rig.group(len(names)))
            rig.accept(names[-1])
        rig.connect()
        await asyncio.sleep(0)
        assert len(rig.sockets) == len(names)
        assert rig.limiter.used_descriptor_count <= most
        for _ in range(KNOCKS):
            rig.limiter.on_connection_ended(names[0])
        assert rig.closed == names[:1]
        assert rig.accept(await rig.group(len(names))) == 1
    assert {each.message.partition(";")[0] for each in caplog.records} == {
        f"no more connections for now: they take {most} of the {most} descriptors that there are for them"
    }


async def test_files_that_a_killed_daemon_left_beside_the_path_do_not_matter(place: Path) -> None:
    place.parent.mkdir()
    mine = Path(f"{place}~01")
    mine.touch()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{place}~00")
    async with opened(place) as rig:
        for number in range(3):
            assert rig.connect()
            assert rig.accept(await rig.group(number)) == 1
    assert sorted(place.parent.iterdir()) == [place, mine]


async def test_listening_is_retried_when_the_folder_cannot_be_written(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("streamd.ipc.router._LISTEN_RETRY_S", 0.01)
    caplog.set_level(logging.WARNING, "streamd")
    async with opened(place) as rig:
        listen, refused = rig.limiter._open_listening_socket, iter([OSError(28, "No space left on device")])

        def listen_later() -> tuple[socket.socket, str]:
            for error in refused:
                raise error
            return listen()

        monkeypatch.setattr(rig.limiter, "_open_listening_socket", listen_later)
        assert rig.connect()
        assert rig.accept(await rig.group(0)) == 1
    assert caplog.messages == [f"no new trainer can connect for 0.01 s: {place}: No space left on device"]


async def test_a_socket_that_was_removed_is_made_anew_and_who_waited_at_it_is_let_in(place: Path) -> None:
    async with opened(place) as rig:
        assert not rig.limiter.renew_if_gone()
        for waits in (False, True):
            if waits:
                rig.connect()
            place.unlink()
            assert not rig.connect()
            assert rig.limiter.renew_if_gone()
            assert not rig.limiter.renew_if_gone()
            if waits:
                assert rig.accept(await rig.group(0)) == 1
        assert rig.connect()
        assert rig.accept(await rig.group(1)) == 1


async def test_a_socket_in_place_of_ours_is_replaced(place: Path) -> None:
    async with opened(place) as rig:
        place.unlink()
        place.touch()
        assert rig.limiter.renew_if_gone()
        assert rig.connect()
