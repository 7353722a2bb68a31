"""The door and the gates as processes: who is let in, whose frames arrive, and what happens when one of them ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq
from support.coroutine_tests import wait_for_condition
from support.other_users import DAEMON_USER, MEMBER, as_member, connect_as_member

from streamd.daemon.gate_keeper import GateKeeper, GateProcess
from streamd.ipc.record_link import USER, RecordKind, RecordLink
from streamd.limits import QUESTION_WEIGHT

LIMIT_S = 30.0


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sd") as name:
        Path(name).chmod(0o711)
        yield Path(name)


class Listener:
    """Keeps what the gates pass on."""

    def __init__(self) -> None:
        self.frames: list[tuple[bytes, bytes, int]] = []
        self.lifelines: list[bytes] = []
        self.charged_s = 0.0
        self.released_batches = False  # by each frame
        self.unreachable: list[bytes] = []
        self.ended: list[bytes] = []

    def handle_frame(self, identity: bytes, data: bytes, user: int) -> bool:
        self.frames.append((identity, data, user))
        return self.released_batches

    def charge_user(self, user: int, took_s: float) -> float:
        assert user == MEMBER
        self.charged_s += took_s
        return 0.0

    def adopt_lifeline(self, connection: socket.socket, secret: bytes) -> None:
        connection.close()
        self.lifelines.append(secret)

    def on_client_unreachable(self, identity: bytes) -> None:
        self.unreachable.append(identity)

    def on_gate_ended(self, prefix: bytes) -> None:
        self.ended.append(prefix)


class NoClients:
    """Stands for the router of the daemon's own user, which has no clients."""

    def send_frame(self, identity: bytes, data: bytes, pixels: memoryview | None = None) -> bool:
        del identity, data, pixels
        return False


class Rig:
    """A keeper whose daemon has no clients of its own, and a listening socket at `public`."""

    def __init__(self, folder: Path, group: asyncio.TaskGroup, most_gates: int) -> None:
        self.public, gates = folder / "s", folder / "gates"
        gates.mkdir(mode=0o711)
        self.listener = Listener()
        self.keeper = GateKeeper(NoClients(), gates, own_user=DAEMON_USER, most_gates=most_gates)
        knocks = socket.socket(socket.AF_UNIX)
        knocks.setblocking(False)
        knocks.bind(str(self.public))
        self.public.chmod(0o666)
        knocks.listen(16)
        self.keeper.start(self.listener, group.create_task, knocks)

    def list_pids(self) -> list[int]:
        """Returns the processes of the door and the gates."""
        processes = [self.keeper._door, *(each.process for each in self.keeper._running.values())]
        return [each._process.pid for each in processes if each is not None and each._process is not None]

    async def knock(self) -> Path | None:
        """Returns where the door refers a client of MEMBER; None if it is sent away."""
        async with asyncio.timeout(LIMIT_S):
            reader, writer = await asyncio.open_connection(sock=connect_as_member(self.public))
            line = await reader.read()
            writer.close()
        return Path(os.fsdecode(line.removeprefix(b"streamd ").rstrip())) if line else None

    async def knock_until_referred(self) -> Path:
        async with asyncio.timeout(LIMIT_S):
            while (path := await self.knock()) is None:
                pass
        return path


@asynccontextmanager
async def kept(folder: Path, most_gates: int = 4) -> AsyncIterator[Rig]:
    async with asyncio.TaskGroup() as group:
        rig = Rig(folder, group, most_gates)
        try:
            yield rig
        finally:
            rig.keeper.close()


@asynccontextmanager
async def dealing(path: Path) -> AsyncIterator[zmq.Socket[bytes]]:
    """A DEALER of MEMBER that is connected to a gate."""
    with as_member(), zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        monitor = dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        dealer.connect(f"ipc://{path}")
        await wait_for_condition(lambda: monitor.poll(0), "it is connected")
        dealer.disable_monitor()
        monitor.close(0)
        yield dealer


async def test_without_a_knock_no_process_runs(folder: Path) -> None:
    async with kept(folder) as rig:
        assert rig.list_pids() == []


@pytest.mark.long
@pytest.mark.parametrize(("releases", "weight"), [(True, 1.0), (False, QUESTION_WEIGHT)])
async def test_a_frame_that_releases_no_batch_is_charged_beyond_its_time(
    folder: Path, releases: bool, weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.ipc.record_link.time.thread_time", iter(range(1000)).__next__)
    monkeypatch.setattr("streamd.ipc.record_link.LINK_TURN_S", LIMIT_S)  # else a turn may be over before its frame
    async with kept(folder) as rig:
        rig.listener.released_batches = releases
        path = await rig.knock_until_referred()
        async with dealing(path) as dealer:
            before_s = rig.listener.charged_s
            dealer.send(b"a frame")
            await wait_for_condition(lambda: rig.listener.frames, "the frame has passed")
            assert rig.listener.charged_s - before_s == 3 * weight, "the clock was read four times in a turn"


async def test_frames_of_a_member_pass_its_gate_in_both_directions(folder: Path) -> None:
    async with kept(folder) as rig:
        path = await rig.knock_until_referred()
        async with dealing(path) as dealer:
            dealer.send(b"question")
            await wait_for_condition(lambda: rig.listener.frames, "the frame has passed")
            [(identity, frame, user)] = rig.listener.frames
            assert (frame, user) == (b"question", MEMBER)
            assert rig.listener.charged_s > 0
            assert rig.keeper.send_frame(identity, b"x" * 3_000_000)
            await wait_for_condition(lambda: dealer.poll(0), "the answer has passed")
            assert dealer.recv_multipart() == [b"x" * 3_000_000]
        assert await rig.knock() == path, "one gate a user"


@pytest.mark.long
async def test_a_client_that_is_gone_is_reported(folder: Path) -> None:
    async with kept(folder) as rig:
        async with dealing(await rig.knock_until_referred()) as dealer:
            dealer.send(b"hello")
            await wait_for_condition(lambda: rig.listener.frames, "the frame has passed")
        identity = rig.listener.frames[0][0]

        def is_reported() -> bool:
            rig.keeper.send_frame(identity, b"are you there?")
            return bool(rig.listener.unreachable)

        await wait_for_condition(is_reported, "it is reported")
        assert set(rig.listener.unreachable) == {identity}


async def test_no_other_user_can_use_a_members_gate(folder: Path) -> None:
    async with kept(folder) as rig:
        path = await rig.knock_until_referred()
        assert path.parent.parent == folder / "gates"
        listed = Path("/proc/net/unix").read_text()
        assert path.parent.name not in listed, "the kernel shows bound paths to every user"
        assert len(path.parent.name) >= 20


@pytest.mark.long
async def test_a_gate_that_is_killed_is_reported_and_started_again(folder: Path) -> None:
    async with kept(folder) as rig:
        first = await rig.knock_until_referred()
        pids = rig.list_pids()
        os.kill(pids[1], signal.SIGKILL)
        await wait_for_condition(lambda: rig.listener.ended, "its end is reported")
        second = await rig.knock_until_referred()
        assert second != first
        assert rig.list_pids()[0] == pids[0], "the door lives on"


@pytest.mark.long
async def test_a_user_that_ends_its_gate_again_and_again_waits_longer_each_time(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "streamd")
    monkeypatch.setattr("streamd.daemon.gate_keeper.GATE_START_S", LIMIT_S)
    async with kept(folder) as rig:
        began_s = time.monotonic()
        for _ in range(3):
            await rig.knock_until_referred()
            os.kill(rig.list_pids()[1], signal.SIGABRT)
            await wait_for_condition(lambda: rig.listener.ended, "its end is reported")
            rig.listener.ended.clear()
        await rig.knock_until_referred()
        assert time.monotonic() - began_s >= 0.25 + 0.5 + 1.0
    ended = [each for each in caplog.records if "has ended" in each.message]
    assert [vars(each)["fields"]["pause_s"] for each in ended[:3]] == [0.25, 0.5, 1.0]


@pytest.mark.long
async def test_the_door_is_started_again_after_its_end(folder: Path) -> None:
    async with kept(folder) as rig:
        path = await rig.knock_until_referred()
        os.kill(rig.list_pids()[0], signal.SIGKILL)
        await wait_for_condition(lambda: len(rig.list_pids()) == 1, "the door has ended")
        assert await rig.knock_until_referred() == path


async def test_more_users_than_gates_are_sent_away(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "streamd")
    async with kept(folder, most_gates=0) as rig:
        assert await rig.knock() is None
    assert f"no gate for user {MEMBER}: 0 users have one, which is the limit" in caplog.text


@pytest.mark.long
async def test_closing_ends_the_door_and_every_gate(folder: Path) -> None:
    async with kept(folder) as rig:
        await rig.knock_until_referred()
        pids = rig.list_pids()
        assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


async def test_a_door_that_asks_after_the_end_gets_no_gate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doors: list[StandInProcess] = []

    class StandInProcess:
        """A process that says what the test has it say, and ends when it is killed."""

        pid = 0

        def __init__(self, on_record: Callable[[RecordKind, bytes], None], *_: object) -> None:
            self.on_record, self.ended = on_record, asyncio.Event()
            doors.append(self)

        async def start(self, *_: object) -> None:
            """Starts nothing."""

        def send_record(self, *_: object) -> None:
            """Nobody reads what is sent to it."""

        def kill(self) -> None:
            self.ended.set()

        async def wait_until_ended(self) -> str:
            await self.ended.wait()
            return "it was killed"

    monkeypatch.setattr("streamd.daemon.gate_keeper.GateProcess", StandInProcess)
    async with kept(folder) as rig:
        connect_as_member(rig.public).close()
        await wait_for_condition(lambda: doors, "the door runs")
        rig.keeper.close()
        doors[0].on_record(RecordKind.WANTED, USER.pack(MEMBER))
        assert len(doors) == 1


@pytest.mark.long
async def test_a_door_whose_socket_was_removed_gives_way_to_one_at_the_new_socket(folder: Path) -> None:
    async with kept(folder) as rig:
        for started in (False, True):
            if started:
                await rig.knock_until_referred()
            rig.public.unlink()
            knocks = socket.socket(socket.AF_UNIX)
            knocks.setblocking(False)
            knocks.bind(str(rig.public))
            rig.public.chmod(0o666)
            knocks.listen(16)
            rig.keeper.listen_anew(knocks)
            assert (await rig.knock_until_referred()).is_socket()


@pytest.mark.long
async def test_a_gate_whose_socket_was_removed_ends_and_its_clients_come_to_the_next(folder: Path) -> None:
    async with kept(folder) as rig:
        path = await rig.knock_until_referred()
        assert rig.keeper.list_socket_folders() == [path.parent]
        assert rig.keeper.end_unreachable_gates() == []
        path.unlink()
        assert rig.keeper.end_unreachable_gates() == [path]
        assert rig.keeper.end_unreachable_gates() == []
        await wait_for_condition(lambda: rig.listener.ended, "the gate has ended")
        after = await rig.knock_until_referred()
        assert after != path
        assert after.is_socket()


@pytest.mark.long
async def test_a_gate_that_is_behind_is_waited_for_and_one_that_reads_nothing_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streamd.daemon.gate_keeper.GATE_UNREAD_S", 2.0)
    ours, theirs = socket.socketpair()
    gate = GateProcess(lambda _kind, _body: None)
    gate._process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import signal; signal.pause()", stderr=asyncio.subprocess.PIPE
    )
    gate._link = await RecordLink.open(ours, gate._callbacks, is_of_gate=True)
    ended, loop = asyncio.ensure_future(gate.wait_until_ended()), asyncio.get_running_loop()
    for _ in range(40):
        assert gate.send_frame(b"client", bytes(1 << 20))
    with theirs:
        theirs.setblocking(False)
        until_s = loop.time() + 4.0
        while loop.time() < until_s:
            theirs.recv(1 << 20)
            await asyncio.wait({ended}, timeout=0.5)
        assert not ended.done()
        assert await asyncio.wait_for(ended, LIMIT_S) == "signal 9"
