"""The gate of one user: its clients' frames, and the lifelines that it hands to the daemon."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.other_users import DAEMON_USER, connect_as_member
from support.sample_specs import SPEC

from streamd.gate.user_gate import LifelineHall, LinkLogHandler, find_secret
from streamd.ipc.messages import (
    EMPTY_HEADER,
    CreditNow,
    DaemonMessage,
    Draining,
    FrameHeader,
    Refused,
    Welcome,
    encode_frame,
)
from streamd.ipc.record_link import LinkCallbacks, RecordKind, RecordLink
from streamd.limits import KNOCKS, SECRET_BYTES

LIMIT_S = 10.0
SECRET = bytes(range(SECRET_BYTES))


def test_the_secret_of_a_welcome_is_found() -> None:
    welcome = Welcome(SECRET, SPEC, 8, "shared")
    assert find_secret(encode_frame(FrameHeader(1 << 55, 3, 0), welcome)) == SECRET


@pytest.mark.parametrize("message", [CreditNow(3), Draining(), Refused("busy", "C" * 300)])
def test_another_message_has_no_secret(message: DaemonMessage) -> None:
    assert find_secret(encode_frame(EMPTY_HEADER, message)) is None


async def test_a_warning_of_the_gate_is_sent_to_the_daemon() -> None:
    records: list[tuple[RecordKind, bytes]] = []
    received = asyncio.Event()

    def keep_record(kind: RecordKind, body: bytes) -> None:
        records.append((kind, body))
        received.set()

    ours, theirs = socket.socketpair()
    daemon = await RecordLink.open(ours, LinkCallbacks(keep_record, lambda: None))
    link = await RecordLink.open(theirs, LinkCallbacks(lambda _kind, _body: None, lambda: None))
    logger = logging.getLogger("streamd.of_a_gate")
    logger.addHandler(LinkLogHandler(link))
    logger.info("not worth a word")
    logger.warning("no more connections for now")
    async with asyncio.timeout(LIMIT_S):
        await received.wait()
    assert [(kind, json.loads(body)) for kind, body in records] == [(RecordKind.LOG, "no more connections for now")]
    for each in (daemon, link):
        each.close()


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        yield Path(folder) / "s.fd"


class HallRig:
    """A hall at `place`, and the daemon's end of what it passes on."""

    def __init__(self, place: Path, user: int) -> None:
        self.place = place
        self.daemon, self._passed = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.daemon.setblocking(False)
        self.hall = LifelineHall(self._passed, user)
        self.hall.start_listening(str(place))

    def connect(self) -> socket.socket:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.connect(str(self.place))
        link.setblocking(False)
        return link

    async def wait_for_passed(self) -> tuple[bytes, socket.socket]:
        """Returns the secret and the connection that the hall passes on next."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.daemon, ready.set)
        async with asyncio.timeout(LIMIT_S):
            await ready.wait()
        loop.remove_reader(self.daemon)
        secret, descriptors, _, _ = socket.recv_fds(self.daemon, 100, 1)
        return secret, socket.socket(fileno=descriptors[0])

    def close(self) -> None:
        self.hall.close()
        self.daemon.close()
        self._passed.close()


@asynccontextmanager
async def opened(place: Path, user: int | None = None) -> AsyncIterator[HallRig]:
    rig = HallRig(place, os.geteuid() if user is None else user)
    try:
        yield rig
    finally:
        rig.close()


async def is_closed_by_hall(link: socket.socket) -> bool:
    async with asyncio.timeout(LIMIT_S):
        try:
            return await asyncio.get_running_loop().sock_recv(link, 1) == b""
        except ConnectionResetError:
            return True


async def test_a_lifeline_with_an_expected_secret_is_passed_to_the_daemon(place: Path) -> None:
    async with opened(place) as rig:
        rig.hall.expect_secret(SECRET)
        with rig.connect() as trainer:
            trainer.send(SECRET)
            secret, link = await rig.wait_for_passed()
            assert secret == SECRET
            with link:
                rig.hall.close()
                link.send(b"from the daemon")
                assert await asyncio.get_running_loop().sock_recv(trainer, 100) == b"from the daemon"


@pytest.mark.parametrize("said", [bytes(SECRET_BYTES), SECRET[:-1], SECRET + b"x", b"x" * 5000])
async def test_a_lifeline_without_an_expected_secret_is_closed(place: Path, said: bytes) -> None:
    async with opened(place) as rig:
        rig.hall.expect_secret(SECRET)
        with rig.connect() as trainer:
            trainer.send(said)
            assert await is_closed_by_hall(trainer)


async def test_a_secret_opens_one_lifeline_alone(place: Path) -> None:
    async with opened(place) as rig:
        rig.hall.expect_secret(SECRET)
        with rig.connect() as first, rig.connect() as second:
            first.send(SECRET)
            (await rig.wait_for_passed())[1].close()
            second.send(SECRET)
            assert await is_closed_by_hall(second)


async def test_idle_connections_make_room_for_a_trainer(place: Path) -> None:
    async with opened(place) as rig:
        rig.hall.expect_secret(SECRET)
        idle = [rig.connect() for _ in range(4 * KNOCKS + 3)]
        with rig.connect() as trainer:
            trainer.send(SECRET)
            (await rig.wait_for_passed())[1].close()
        assert await is_closed_by_hall(idle[0])
        for each in idle:
            each.close()


async def test_a_lifeline_of_another_user_is_closed(place: Path) -> None:
    place.parent.chmod(0o711)
    async with opened(place, DAEMON_USER):
        with connect_as_member(place, socket.SOCK_SEQPACKET) as trainer:
            trainer.setblocking(False)
            assert await is_closed_by_hall(trainer)
