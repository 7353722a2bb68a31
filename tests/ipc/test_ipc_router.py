"""The ROUTER socket: frames in both directions, and the connections of one user alone."""

from __future__ import annotations

import asyncio
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

from streamd.ipc.router import Router
from streamd.limits import KNOCKS, MAX_CLIENT_FRAME_BYTES

LIMIT_S = 10.0
MODE = 0o640


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
    place.parent.mkdir(exist_ok=True)
    router, received = Router(place, MODE), ReceivedFrames()
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


async def test_the_socket_has_the_given_permissions_whatever_the_umask_is(place: Path) -> None:
    before = os.umask(0o077)
    try:
        async with serving(place):
            assert stat.S_IMODE(place.stat().st_mode) == MODE
    finally:
        os.umask(before)


async def test_closing_removes_the_socket(place: Path) -> None:
    async with serving(place):
        assert place.is_socket()
    assert not place.exists()


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


async def test_a_socket_that_was_handed_over_is_served_and_outlives_the_router(
    place: Path, dealer: zmq.Socket[bytes]
) -> None:
    place.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(str(place))
        held.listen()
        for said in (b"to the first", b"to its successor"):
            received, router = ReceivedFrames(), Router(place, MODE, handed=held.dup())
            try:
                router.start_listening(received)
                dealer.send(said)
                assert [data for _, data in await received.count(1)] == [said]
            finally:
                router.close()
            assert place.exists()


async def test_frames_wait_while_reading_is_paused(place: Path, dealer: zmq.Socket[bytes]) -> None:
    async with serving(place) as (router, received):
        dealer.send(b"first")
        [(identity, _)] = await received.count(1)
        router.set_paused(True)
        dealer.send(b"second")
        assert router.send_frame(identity, b"answer")
        assert await asyncio.to_thread(dealer.recv_multipart) == [b"answer"]
        assert len(received.frames) == 1
        router.set_paused(False)
        assert [data for _, data in await received.count(2)] == [b"first", b"second"]


async def test_a_connection_of_another_user_is_rejected_and_the_next_ones_are_accepted(
    place: Path, dealer: zmq.Socket[bytes]
) -> None:
    place.parent.mkdir(exist_ok=True)
    for user, is_served in ((os.geteuid() + 1, False), (os.geteuid(), True)):
        received, router = ReceivedFrames(), Router(place, MODE, user=user)
        try:
            router.start_listening(received)
            if is_served:
                dealer.send(b"from this user")
                assert [data for _, data in await received.count(1)] == [b"from this user"]
                assert router.connection_count == 1
            else:
                for _ in range(3 * KNOCKS):  # more than one group: a rejected connection ends its group's wait too
                    await connect_and_wait_for_end(place)
                assert (received.frames, router.connection_count) == ([], 0)
        finally:
            router.close()


async def connect_and_wait_for_end(place: Path) -> None:
    """Connects to a ROUTER that rejects this user, and waits until it has closed the connection."""
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_unix_connection(str(place))
        await reader.read()
        writer.close()
