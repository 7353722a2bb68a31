"""The door: whom it refers where, who waits, and who is sent away."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.other_users import DAEMON_USER, MEMBER, connect_as_member

from streamd.gate import door
from streamd.gate.door import Door
from streamd.ipc.fd_passing import read_peer
from streamd.ipc.record_link import USER, LinkCallbacks, RecordKind, RecordLink
from streamd.limits import DOOR_WAITING

LIMIT_S = 10.0


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder) / "s"


class DaemonEnd:
    """The daemon's end of the link; the test decides what it answers."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.wanted: list[int] = []
        self._link: RecordLink | None = None
        self._more = asyncio.Event()

    async def start(self, end: socket.socket, own_user: int) -> None:
        self._link = await RecordLink.open(end, LinkCallbacks(self._add_wanted, lambda: None))
        settings = {"own_user": own_user, "own_path": "/own/s"}
        self._link.send_record(RecordKind.SETTINGS, json.dumps(settings).encode())

    def _add_wanted(self, kind: RecordKind, body: bytes) -> None:
        assert kind is RecordKind.WANTED
        self.wanted += USER.unpack(body)
        self._more.set()

    async def wait_for_wanted(self, count: int) -> list[int]:
        async with asyncio.timeout(LIMIT_S):
            while len(self.wanted) < count:
                self._more.clear()
                await self._more.wait()
        return self.wanted

    def refer(self, user: int, path: bytes) -> None:
        assert self._link is not None
        self._link.send_record(RecordKind.REFERRAL, USER.pack(user) + path)

    def close(self) -> None:
        assert self._link is not None
        self._link.close()

    async def knock(self) -> bytes:
        """Connects to the door as MEMBER, and returns all that it says."""
        async with asyncio.timeout(LIMIT_S):
            reader, writer = await asyncio.open_connection(sock=connect_as_member(self.place))
            try:
                return await reader.read()
            except ConnectionResetError:
                return b""
            finally:
                writer.close()


@asynccontextmanager
async def opened(place: Path, own_user: int = DAEMON_USER) -> AsyncIterator[DaemonEnd]:
    ours, theirs = socket.socketpair()
    daemon = DaemonEnd(place)
    with socket.socket(socket.AF_UNIX) as knocks:
        knocks.setblocking(False)
        knocks.bind(str(place))
        place.chmod(0o666)
        knocks.listen(256)
        running = asyncio.ensure_future(Door(knocks).run(theirs))
        try:
            await daemon.start(ours, own_user)
            yield daemon
        finally:
            daemon.close()
            async with asyncio.timeout(LIMIT_S):
                await running
            asyncio.get_running_loop().remove_reader(knocks)


async def test_the_daemons_own_user_is_referred_to_the_daemon_at_once(place: Path) -> None:
    async with opened(place, own_user=MEMBER) as daemon:
        assert await daemon.knock() == b"streamd /own/s\n"
        assert daemon.wanted == []


async def test_a_client_waits_until_its_users_gate_is_ready(place: Path) -> None:
    async with opened(place) as daemon:
        client = asyncio.ensure_future(daemon.knock())
        assert await daemon.wait_for_wanted(1) == [MEMBER]
        daemon.refer(MEMBER, b"/gate/s")
        assert await client == b"streamd /gate/s\n"
        assert await daemon.knock() == b"streamd /gate/s\n"
        assert daemon.wanted == [MEMBER], "the second client is referred at once"


async def test_a_client_of_a_user_without_a_gate_is_sent_away(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "DOOR_REFUSAL_S", 0.0)
    async with opened(place) as daemon:
        for count in (1, 2):
            client = asyncio.ensure_future(daemon.knock())
            await daemon.wait_for_wanted(count)
            daemon.refer(MEMBER + 1, b"/others/s")
            daemon.refer(MEMBER, b"")
            assert await client == b""


async def test_many_clients_of_a_user_without_a_gate_cost_the_daemon_one_question(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "DOOR_REFUSAL_S", 3600.0)
    async with opened(place) as daemon:
        clients = [asyncio.ensure_future(daemon.knock()) for _ in range(9)]
        await daemon.wait_for_wanted(1)
        daemon.refer(MEMBER, b"")
        assert await asyncio.gather(*clients) == [b""] * 9
        assert [await daemon.knock() for _ in range(9)] == [b""] * 9
        assert daemon.wanted == [MEMBER]


async def test_a_gate_that_has_ended_is_asked_for_again(place: Path) -> None:
    async with opened(place) as daemon:
        daemon.refer(MEMBER, b"/first/s")
        assert await daemon.knock() == b"streamd /first/s\n"
        daemon.refer(MEMBER, b"")
        client = asyncio.ensure_future(daemon.knock())
        await daemon.wait_for_wanted(1)
        daemon.refer(MEMBER, b"/second/s")
        assert await client == b"streamd /second/s\n"


async def test_of_too_many_waiting_clients_the_oldest_are_sent_away(place: Path) -> None:
    async with opened(place) as daemon:
        clients = [asyncio.ensure_future(daemon.knock()) for _ in range(DOOR_WAITING + 3)]
        async with asyncio.timeout(LIMIT_S):
            while sum(each.done() for each in clients) < 3:
                await asyncio.wait(clients, return_when=asyncio.FIRST_COMPLETED)
                clients.sort(key=lambda each: not each.done())
                await asyncio.sleep(0)
        assert [each.result() for each in clients[:3]] == [b""] * 3
        await daemon.wait_for_wanted(1)
        daemon.refer(MEMBER, b"/gate/s")
        assert set(await asyncio.gather(*clients[3:])) == {b"streamd /gate/s\n"}


async def test_clients_that_never_read_hold_up_nobody(place: Path) -> None:
    async with opened(place, own_user=MEMBER) as daemon:
        silent = [connect_as_member(place) for _ in range(100)]
        assert await daemon.knock() == b"streamd /own/s\n"
        for each in silent:
            assert read_peer(each)[0] == os.getpid()
            each.close()


async def test_garbage_sent_to_the_door_is_never_read(place: Path) -> None:
    async with opened(place, own_user=MEMBER) as daemon:
        with connect_as_member(place) as hostile:
            hostile.setblocking(False)
            hostile.send(b"\xff" * 10_000)
        assert await daemon.knock() == b"streamd /own/s\n"
