"""The ROUTER: one endpoint, locked, with modest permissions, that nobody's frames can hurt."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import stat
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import zmq

from streamd.daemon.router import Router
from streamd.errors import ConfigError
from streamd.limits import MAX_CLIENT_FRAME_BYTES

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


def mode(path: Path | str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


class Heard:
    """What a server received, and a way to wait for more of it."""

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


def serve(place: Path, what: Callable[[Router, Heard], Awaitable[None]]) -> None:
    """Runs `what` beside a listening server."""

    async def run() -> None:
        server, heard = Router(f"ipc://{place}"), Heard()
        try:
            server.start_listening(heard)
            await what(server, heard)
        finally:
            server.close()

    asyncio.run(run())


def test_a_frame_that_comes_while_one_is_sent_to_nobody_is_heard(place: Path, dealer: zmq.Socket[bytes]) -> None:
    """What is sent may take the signal of a frame with it: libzmq gives one signal for all that has come."""

    async def talk(server: Router, heard: Heard) -> None:
        dealer.send(b"hello")
        await heard.count(1)
        dealer.send(b"question")
        router = server._socket
        assert router is not None
        assert select.select([router.fileno()], [], [], LIMIT_S)[0]  # the loop stands still meanwhile
        assert not server.send_frame(b"nobody", b"news")
        assert not select.select([router.fileno()], [], [], 0)[0]
        assert [frame for _, frame in await heard.count(2)] == [b"hello", b"question"]

    serve(place, talk)


def test_a_frame_reaches_the_receiver_and_an_answer_the_client(place: Path, dealer: zmq.Socket[bytes]) -> None:
    async def talk(server: Router, heard: Heard) -> None:
        dealer.send(b"question")
        [(identity, question)] = await heard.count(1)
        assert question == b"question"
        assert server.send_frame(identity, b"answer")
        assert dealer.recv_multipart() == [b"answer"]
        assert server.send_frame(identity, b"header", memoryview(b"pixels"))
        assert dealer.recv_multipart() == [b"header", b"pixels"]

    serve(place, talk)


def test_only_owner_and_group_may_open_the_socket(place: Path) -> None:
    async def look(_server: Router, _heard: Heard) -> None:
        assert mode(place) == 0o660
        assert mode(place.parent) & 0o007 == 0
        assert mode(f"{place}.lock") == 0o600

    before = os.umask(0o022)
    try:
        serve(place, look)
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


def test_frames_of_several_parts_arrive_as_an_empty_one(place: Path, dealer: zmq.Socket[bytes]) -> None:
    async def talk(_server: Router, heard: Heard) -> None:
        dealer.send_multipart([b"one", b"two"])
        dealer.send(b"")
        dealer.send(b"after")
        assert [data for _, data in await heard.count(3)] == [b"", b"", b"after"]

    serve(place, talk)


def test_a_frame_over_the_limit_is_never_received(place: Path, dealer: zmq.Socket[bytes]) -> None:
    async def talk(_server: Router, heard: Heard) -> None:
        dealer.send(b"x" * MAX_CLIENT_FRAME_BYTES)
        assert len((await heard.count(1))[0][1]) == MAX_CLIENT_FRAME_BYTES
        dealer.send(b"x" * (MAX_CLIENT_FRAME_BYTES + 1))
        with zmq.Context() as context, context.socket(zmq.DEALER) as other:
            other.linger = 0
            other.connect(f"ipc://{place}")
            other.send(b"from another client")
            assert (await heard.count(2))[1][1] == b"from another client"

    serve(place, talk)


def test_a_thousand_frames_at_once_are_all_received(place: Path, dealer: zmq.Socket[bytes]) -> None:
    async def talk(_server: Router, heard: Heard) -> None:
        for number in range(1000):
            dealer.send(number.to_bytes(2, "little"))
        assert [int.from_bytes(data, "little") for _, data in await heard.count(1000)] == list(range(1000))

    serve(place, talk)


def test_sending_to_nobody_is_a_no_and_never_waits(place: Path) -> None:
    async def talk(server: Router, _heard: Heard) -> None:
        assert server.send_frame(b"nobody", b"data") is False
        server.close()
        assert server.send_frame(b"nobody", b"data") is False

    serve(place, talk)


def test_a_taken_endpoint_is_refused_and_the_first_server_goes_on(place: Path, dealer: zmq.Socket[bytes]) -> None:
    async def talk(_server: Router, heard: Heard) -> None:
        second = Router(f"ipc://{place}")
        with pytest.raises(ConfigError, match=r"another streamd serves .*: stop it, or choose another endpoint"):
            second.start_listening(Heard())
        second.close()
        dealer.send(b"still there?")
        assert len(await heard.count(1)) == 1

    serve(place, talk)


def test_what_a_dead_daemon_left_is_replaced_and_closing_gives_the_endpoint_up(place: Path) -> None:
    place.parent.mkdir()
    place.touch()
    beside = Path(f"{place}.fd")
    beside.touch()

    def look() -> None:
        assert stat.S_ISSOCK(place.stat().st_mode)
        assert not beside.exists()
        beside.touch()

    async def look_around(server: Router, _heard: Heard) -> None:
        assert server.descriptor_socket_path == str(beside)
        look()

    serve(place, look_around)
    assert not place.exists()
    assert not beside.exists()
    serve(place, look_around)


def test_sockets_that_were_handed_over_are_served_and_outlive_the_server(
    place: Path, dealer: zmq.Socket[bytes]
) -> None:
    place.parent.mkdir()
    paths = [place, Path(f"{place}.fd")]
    kinds = [socket.SOCK_STREAM, socket.SOCK_SEQPACKET]
    held = [socket.socket(socket.AF_UNIX, kind) for kind in kinds]
    for link, path in zip(held, paths, strict=True):
        link.bind(str(path))
        link.listen()

    async def hear(said: bytes) -> None:
        server, heard = (
            Router(f"ipc://{place}", {path: link.dup() for path, link in zip(paths, held, strict=True)}),
            Heard(),
        )
        try:
            assert server.handed_descriptor_socket is not None
            server.start_listening(heard)
            dealer.send(said)
            assert [data for _, data in await heard.count(1)] == [said]
        finally:
            server.close()
        assert all(path.exists() for path in paths)

    for said in (b"to the first", b"to its successor"):
        asyncio.run(hear(said))
    for link in held:
        link.close()


def test_a_place_that_cannot_be_listened_at_is_named(place: Path) -> None:
    place.parent.write_text("a file where a folder is needed")

    async def nothing(_server: Router, _heard: Heard) -> None:
        pytest.fail("it listens")

    with pytest.raises(ConfigError, match=f"cannot listen at {place}: .*; choose another with `listen:`"):
        serve(place, nothing)


def test_a_folder_is_no_endpoint_and_stays_as_it_is(place: Path) -> None:
    place.mkdir(parents=True)
    server = Router(f"ipc://{place}")
    with pytest.raises(ConfigError, match="it is a folder; name a file in it"):
        server.lock_endpoint()
    asyncio.run(_close(server))
    assert list(place.parent.iterdir()) == [place]


def test_a_link_in_the_lock_files_place_is_not_followed(place: Path) -> None:
    place.parent.mkdir()
    victim = place.parent / "victim"
    Path(f"{place}.lock").symlink_to(victim)
    server = Router(f"ipc://{place}")
    with pytest.raises(ConfigError, match="cannot listen"):
        server.start_listening(Heard())
    asyncio.run(_close(server))
    assert not victim.exists()


async def _close(server: Router) -> None:
    server.close()
