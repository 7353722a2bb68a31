"""The ROUTER socket: one locked endpoint with limited permissions, and the gate for new connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq

from streamd.daemon.router import SOCKET_MODE, ConnectionGate, Router
from streamd.errors import ConfigError
from streamd.limits import KNOCKS, MAX_CLIENT_FRAME_BYTES

LIMIT_S = 10.0


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        yield Path(folder) / "deep" / "s"


@pytest.fixture
def dealer(place: Path) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.rcvtimeo = int(LIMIT_S * 1000)
        socket.connect(f"ipc://{place}")
        yield socket


class ReceivedFrames:
    """The frames that a router received, and a way to wait for more."""

    def __init__(self) -> None:
        self.frames: list[tuple[bytes, bytes]] = []
        self._more = asyncio.Event()

    def __call__(self, identity: bytes, data: bytes) -> None:
        self.frames.append((identity, data))
        self._more.set()

    async def count(self, wanted: int) -> list[tuple[bytes, bytes]]:
        async with asyncio.timeout(LIMIT_S):
            while len(self.frames) < wanted:
                self._more.clear()
                await self._more.wait()
        return self.frames


@asynccontextmanager
async def serving(place: Path) -> AsyncIterator[tuple[Router, ReceivedFrames]]:
    """Runs a listening router."""
    router, received = Router(f"ipc://{place}"), ReceivedFrames()
    try:
        router.start_listening(received)
        yield router, received
    finally:
        router.close()


async def test_a_frame_that_arrives_during_a_failing_send_is_received(place: Path, dealer: zmq.Socket[bytes]) -> None:
    """What is sent may take the signal of a frame with it: libzmq gives one signal for all that has come."""
    async with serving(place) as (router, received):
        dealer.send(b"hello")
        await received.count(1)
        dealer.send(b"question")
        link = router._socket
        assert link is not None
        assert select.select([link.fileno()], [], [], LIMIT_S)[0]  # the loop stands still meanwhile
        assert not router.send_frame(b"nobody", b"news")
        assert not select.select([link.fileno()], [], [], 0)[0]
        assert [frame for _, frame in await received.count(2)] == [b"hello", b"question"]


async def test_a_frame_reaches_the_receiver_and_an_answer_the_client(place: Path, dealer: zmq.Socket[bytes]) -> None:
    async with serving(place) as (router, received):
        dealer.send(b"question")
        [(identity, question)] = await received.count(1)
        assert question == b"question"
        assert router.send_frame(identity, b"answer")
        assert dealer.recv_multipart() == [b"answer"]
        assert router.send_frame(identity, b"header", memoryview(b"pixels"))
        assert dealer.recv_multipart() == [b"header", b"pixels"]


async def test_only_owner_and_group_may_open_the_socket(place: Path) -> None:
    before = os.umask(0o022)
    try:
        async with serving(place):
            modes = [stat.S_IMODE(path.stat().st_mode) for path in (place, place.parent, Path(f"{place}.lock"))]
        assert (modes[0], modes[1] & 0o007, modes[2]) == (0o660, 0, 0o600)
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


async def test_frames_of_several_parts_arrive_as_an_empty_one(place: Path, dealer: zmq.Socket[bytes]) -> None:
    async with serving(place) as (_, received):
        dealer.send_multipart([b"one", b"two"])
        dealer.send(b"")
        dealer.send(b"after")
        assert [data for _, data in await received.count(3)] == [b"", b"", b"after"]


async def test_a_frame_over_the_limit_is_never_received(place: Path, dealer: zmq.Socket[bytes]) -> None:
    async with serving(place) as (_, received):
        dealer.send(b"x" * MAX_CLIENT_FRAME_BYTES)
        assert len((await received.count(1))[0][1]) == MAX_CLIENT_FRAME_BYTES
        dealer.send(b"x" * (MAX_CLIENT_FRAME_BYTES + 1))
        with zmq.Context() as context, context.socket(zmq.DEALER) as other:
            other.linger = 0
            other.connect(f"ipc://{place}")
            other.send(b"from another client")
            assert (await received.count(2))[1][1] == b"from another client"


async def test_a_thousand_frames_at_once_are_all_received(place: Path, dealer: zmq.Socket[bytes]) -> None:
    async with serving(place) as (_, received):
        for number in range(1000):
            dealer.send(number.to_bytes(2, "little"))
        assert [int.from_bytes(data, "little") for _, data in await received.count(1000)] == list(range(1000))


async def test_sending_to_an_unknown_identity_returns_false_at_once(place: Path) -> None:
    async with serving(place) as (router, _):
        assert router.send_frame(b"nobody", b"data") is False
        router.close()
        assert router.send_frame(b"nobody", b"data") is False


async def test_a_taken_endpoint_is_refused_and_the_first_server_keeps_receiving(
    place: Path, dealer: zmq.Socket[bytes]
) -> None:
    async with serving(place) as (_, received):
        second = Router(f"ipc://{place}")
        with pytest.raises(
            ConfigError, match=r"another streamd is already listening on .*: stop it, or choose another endpoint"
        ):
            second.start_listening(ReceivedFrames())
        second.close()
        dealer.send(b"still there?")
        assert len(await received.count(1)) == 1


async def test_files_of_a_dead_daemon_are_replaced_and_closing_removes_them(place: Path) -> None:
    place.parent.mkdir()
    beside = Path(f"{place}.fd")
    place.touch()
    beside.touch()
    for _ in range(2):
        async with serving(place) as (router, _):
            assert router.descriptor_socket_path == str(beside)
            assert place.is_socket()
            assert not beside.exists()
            beside.touch()
        assert not place.exists()
        assert not beside.exists()


async def test_sockets_that_were_handed_over_are_served_and_outlive_the_server(
    place: Path, dealer: zmq.Socket[bytes]
) -> None:
    place.parent.mkdir()
    paths = [place, Path(f"{place}.fd")]
    kinds = [socket.SOCK_STREAM, socket.SOCK_SEQPACKET]
    held = [socket.socket(socket.AF_UNIX, kind) for kind in kinds]
    for link, path in zip(held, paths, strict=True):
        link.bind(str(path))
        link.listen()

    for said in (b"to the first", b"to its successor"):
        received = ReceivedFrames()
        router = Router(f"ipc://{place}", {path: link.dup() for path, link in zip(paths, held, strict=True)})
        try:
            assert router.handed_descriptor_socket is not None
            router.start_listening(received)
            dealer.send(said)
            assert [data for _, data in await received.count(1)] == [said]
        finally:
            router.close()
        assert all(path.exists() for path in paths)
    for link in held:
        link.close()


async def assert_cannot_listen(place: Path, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        async with serving(place):
            pytest.fail("it listens")


async def test_a_path_that_cannot_be_listened_on_is_named(place: Path) -> None:
    place.parent.write_text("a file where a folder is needed")
    await assert_cannot_listen(place, f"cannot listen on {place}: .*; choose another endpoint with `listen:`")


async def test_a_folder_is_refused_as_endpoint_and_kept(place: Path) -> None:
    place.mkdir(parents=True)
    await assert_cannot_listen(place, "it is a folder; give the path of a file in it")
    assert list(place.parent.iterdir()) == [place]


async def test_a_link_in_the_lock_files_place_is_not_followed(place: Path) -> None:
    place.parent.mkdir()
    victim = place.parent / "victim"
    Path(f"{place}.lock").symlink_to(victim)
    await assert_cannot_listen(place, "cannot listen")
    assert not victim.exists()


# --- the gate: it accepts a few connections at a time, and none without descriptors


class GateRig:
    """Stands for libzmq behind a gate: accepts the waiting connections of a socket when a test says so."""

    def __init__(self, place: Path, most: int) -> None:
        self.place = place
        self.sockets: dict[str, socket.socket] = {}
        self.clients: list[socket.socket] = []
        self.closed: list[str] = []
        self._news = asyncio.Event()
        self.gate = ConnectionGate(place, SOCKET_MODE, most, self._add_socket, self.closed.append)

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
        """Returns the name of the socket with this number, once the gate has handed it over."""
        async with asyncio.timeout(LIMIT_S):
            while len(self.sockets) <= number:
                self._news.clear()
                await self._news.wait()
        return list(self.sockets)[number]

    def accept(self, name: str) -> int:
        """Accepts the waiting connections of a socket, reports each to the gate, and returns their number."""
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                self.clients.append(self.sockets[name].accept()[0])
                self.gate.on_connection_accepted(name)
                count += 1
        return count

    def close(self) -> None:
        self.gate.close()
        for link in (*self.sockets.values(), *self.clients):
            link.close()


@asynccontextmanager
async def opened(place: Path, most: int = 100) -> AsyncIterator[GateRig]:
    place.parent.mkdir(exist_ok=True)
    rig = GateRig(place, most)
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
    assert found == [("s", SOCKET_MODE)]


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
        while rig.gate.used_descriptor_count + 1 + KNOCKS <= most:
            for _ in range(KNOCKS):
                rig.connect()
            names.append(await rig.group(len(names)))
            rig.accept(names[-1])
        rig.connect()
        await asyncio.sleep(0)
        assert len(rig.sockets) == len(names)
        assert rig.gate.used_descriptor_count <= most
        for _ in range(KNOCKS):
            rig.gate.on_connection_ended(names[0])
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
    monkeypatch.setattr("streamd.daemon.router._LISTEN_RETRY_S", 0.01)
    caplog.set_level(logging.WARNING, "streamd")
    async with opened(place) as rig:
        listen, refused = rig.gate._open_listening_socket, iter([OSError(28, "No space left on device")])

        def listen_later() -> tuple[socket.socket, str]:
            for error in refused:
                raise error
            return listen()

        monkeypatch.setattr(rig.gate, "_open_listening_socket", listen_later)
        assert rig.connect()
        assert rig.accept(await rig.group(0)) == 1
    assert caplog.messages == [f"no new trainer can connect for 0.01 s: {place}: No space left on device"]
