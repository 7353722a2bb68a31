"""The descriptor socket: slots for clients with a secret, and the end of a client at once."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from support.daemon_process import wait_until
from support.descriptor_server import NBYTES, Desk, answered, at_desk_of, ended, raw

from streamd.errors import ConnectError
from streamd.ipc import fd_passing
from streamd.ipc.lifeline import DROPPED, RETIRED, STILL_HELD, Lifeline
from streamd.ipc.mapping import map_readable, map_writable
from streamd.limits import SECRET_BYTES

# A client that forks, in a process of its own: the child keeps the lifeline open for as long as its input lasts.
FORKING = """
import os, sys
from streamd.ipc.lifeline import DROPPED, RETIRED, STILL_HELD, Lifeline
line = Lifeline(sys.argv[1], bytes.fromhex(sys.argv[2]))
child = os.fork()
if child == 0:
    os.read(0, 1)
    os._exit(0)
os.close(0)
print("paired", flush=True)
os.waitpid(child, 0)
"""


def fork_a_client(path: str, secret: bytes, reading: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", FORKING, path, secret.hex()]
    return subprocess.Popen(command, stdin=reading, stdout=subprocess.PIPE)


@pytest.fixture
def path() -> Iterator[str]:
    """A short place, whatever pytest calls its folders."""
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        yield f"{folder}/d"


@pytest.fixture
def brief_pairing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fd_passing, "PAIR_S", 0.05)


@pytest.fixture
def patient_pairing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fd_passing, "PAIR_S", 60.0)  # for a process that has to start first


def at_desk(scene: Callable[[Desk], Awaitable[None]]) -> Callable[[str], None]:
    """Makes a test of what happens at a desk."""

    def test(path: str) -> None:
        at_desk_of(path, scene)

    return test


@at_desk
async def test_a_paired_client_gets_its_slots_read_only(desk: Desk) -> None:
    map_writable(desk.slots.ensure_slot(7, NBYTES), NBYTES)[:3] = b"abc"
    line = await desk.connect()
    for _ in range(2):
        descriptor = await asyncio.to_thread(line.fetch_descriptor, 7)
        assert bytes(map_readable(descriptor, NBYTES)[:3]) == b"abc"
        with pytest.raises(PermissionError):
            map_writable(descriptor, NBYTES)
        os.close(descriptor)
    assert not line.has_ended()
    line.close()
    assert await desk.news() == (1, "its connection ended")


@at_desk
async def test_fetching_a_dropped_slot_is_an_error(desk: Desk) -> None:
    line = await desk.connect()
    with pytest.raises(ConnectError, match="slot 8 is gone"):
        await asyncio.to_thread(line.fetch_descriptor, 8)
    os.close(await asyncio.to_thread(line.fetch_descriptor, 7))
    line.close()


@at_desk
async def test_a_wrong_secret_ends_the_connection(desk: Desk) -> None:
    secret = desk.server.issue_secret(1)
    with raw(desk.path) as link:
        link.send(bytes(SECRET_BYTES))
        assert await ended(link)
    assert desk.lost == []
    Lifeline(desk.path, secret).close()
    assert (await desk.news())[0] == 1


@at_desk
async def test_a_secret_is_valid_once(desk: Desk) -> None:
    secret = desk.server.issue_secret(1)
    with raw(desk.path) as first, raw(desk.path) as second:
        first.send(secret)
        await answered()
        second.send(secret)
        assert await ended(second)
        assert desk.lost == []


@at_desk
async def test_each_session_has_a_secret_of_its_own(desk: Desk) -> None:
    lines = [await desk.connect(session) for session in (1, 2)]
    await answered()
    lines[1].close()
    assert (await desk.news())[0] == 2
    lines[0].close()


@pytest.mark.usefixtures("patient_pairing")
@at_desk
async def test_a_killed_client_is_lost_while_its_child_keeps_the_connection(desk: Desk) -> None:
    secret = desk.server.issue_secret(3)
    reading, writing = os.pipe()
    client = await asyncio.to_thread(fork_a_client, desk.path, secret, reading)
    os.close(reading)
    with client:
        assert client.stdout is not None
        assert await asyncio.to_thread(client.stdout.readline) == b"paired\n"
        await answered()
        assert desk.lost == []
        client.send_signal(signal.SIGKILL)
        try:
            assert await desk.news() == (3, f"its process {client.pid} is dead")
        finally:
            os.close(writing)


@pytest.mark.usefixtures("brief_pairing")
@at_desk
async def test_a_client_that_never_pairs_is_lost_after_a_timeout(desk: Desk) -> None:
    secret = desk.server.issue_secret(5)
    assert await desk.news() == (5, "it did not open its lifeline within 0.05 s")
    with raw(desk.path) as link:
        link.send(secret)
        assert await ended(link)


@pytest.mark.parametrize("nonsense", [b"x", bytes(7), bytes(9), bytes(16)])
def test_a_client_that_sends_a_malformed_request_is_lost(path: str, nonsense: bytes) -> None:
    async def scene(desk: Desk) -> None:
        with raw(desk.path) as link:
            link.send(desk.server.issue_secret(6))
            link.send(nonsense)
            assert await ended(link)
        assert await desk.news() == (6, "it spoke nonsense on the descriptor socket")

    at_desk_of(path, scene)


@at_desk
async def test_closing_a_session_does_not_report_it_lost(desk: Desk) -> None:
    line = await desk.connect(1)
    await answered()
    unused = desk.server.issue_secret(2)
    desk.server.close_session(1)
    desk.server.close_session(2)
    assert line.has_ended()
    line.close()
    with raw(desk.path) as link:
        link.send(unused)
        assert await ended(link)
    assert desk.lost == []


@at_desk
async def test_a_client_that_does_not_read_its_slots_is_lost(desk: Desk) -> None:
    with raw(desk.path) as link:
        link.send(desk.server.issue_secret(1))
        link.send(struct.pack("<Q", 7))
        link.send(struct.pack("<Q", 7))
        assert await desk.news() == (1, "it asked for a slot before it had read the last answer")


@at_desk
async def test_a_client_sees_the_end_of_its_daemon(desk: Desk) -> None:
    line = await desk.connect()
    await answered()
    desk.server.close()
    assert line.has_ended()
    with pytest.raises(ConnectError):
        line.fetch_descriptor(7)
    line.close()


def test_no_daemon_is_a_connect_error(tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match="cannot connect to its descriptor socket: No such file"):
        Lifeline(str(tmp_path / "none"), bytes(SECRET_BYTES))


@at_desk
async def test_the_socket_has_the_mode_it_was_given(desk: Desk) -> None:
    assert (await asyncio.to_thread(Path(desk.path).stat)).st_mode & 0o777 == 0o600


def test_without_free_descriptors_new_clients_wait_and_no_session_ends(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fd_passing, "_REST_S", 0.01)

    async def scene(desk: Desk) -> None:
        failures = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        line = await desk.connect()
        await answered()
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        with raw(desk.path) as link:
            os.close(lowest := os.dup(link.fileno()))
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
            try:
                await answered()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            link.send(b"x" * SECRET_BYTES)
            assert await ended(link), "served later, and shown out for its secret"
        assert not line.has_ended()
        assert (failures, desk.lost) == ([], [])
        assert "Too many open files" in caplog.text
        line.close()

    at_desk_of(path, scene)


@at_desk
async def test_without_free_descriptors_a_slot_takes_the_place_of_the_spare_one(desk: Desk) -> None:
    line = await desk.connect()
    open_slot, asked = desk.slots.open_readable, list[int]()

    def open_only_in_place_of_the_spare(slot: int) -> int | None:
        asked.append(slot)
        if desk.server._spare is not None:
            raise OSError(errno.EMFILE, "Too many open files")
        return open_slot(slot)

    assert desk.server._spare is not None
    desk.server._open_slot = open_only_in_place_of_the_spare
    for _ in range(2):
        os.close(await asyncio.to_thread(line.fetch_descriptor, 7))
    assert asked == [7] * 4
    await answered()
    assert desk.server._spare is not None
    assert desk.lost == []
    line.close()


@at_desk
async def test_without_any_descriptor_for_a_slot_only_the_asking_session_loses_its_connection(desk: Desk) -> None:
    def fail(slot: int) -> int | None:
        raise OSError(errno.EMFILE, "Too many open files", slot)

    line = await desk.connect()
    desk.server._open_slot = fail
    with pytest.raises(ConnectError):
        await asyncio.to_thread(line.fetch_descriptor, 7)
    assert (await desk.news())[0] == 1
    line.close()


def test_a_full_server_hangs_up_on_newcomers_at_once_and_on_silent_clients_soon(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(desk: Desk) -> None:
        desk.server._max_links = 2
        line = await desk.connect()
        await answered()
        monkeypatch.setattr(fd_passing, "PAIR_S", 0.05)
        with raw(desk.path) as silent, raw(desk.path) as beyond:
            assert await ended(beyond)
            assert await ended(silent)
        assert (line.has_ended(), desk.lost) == (False, [])
        line.close()

    at_desk_of(path, scene)


# --- sessions that are over while batches of them are held


@at_desk
async def test_a_client_reports_leases_held_and_dropped_after_its_session(desk: Desk) -> None:
    line = await desk.connect(4)
    line.report_leases(STILL_HELD, (3, 5, 8))
    line.report_leases(DROPPED, (5,))
    line.report_leases(RETIRED, (8,))
    await answered()
    assert desk.told == [
        ("parted", 4, (3, 5, 8), "its connection ended"),
        ("dropped", 4, (5,), ()),
        ("dropped", 4, (8,), (8,)),
    ]
    assert desk.lost == []
    line.close()
    assert await desk.news() == (4, "its connection ended")


@at_desk
async def test_a_half_closed_session_sees_the_end_and_can_still_report(desk: Desk) -> None:
    line = await desk.connect(4)
    await answered()
    assert desk.server.half_close_session(4)
    assert line.has_ended()
    line.report_leases(DROPPED, (1,))
    await answered()
    assert desk.told == [("dropped", 4, (1,), ())]
    line.close()
    assert await desk.news() == (4, "its connection ended")


@at_desk
async def test_a_half_closed_session_cannot_fetch_a_slot(desk: Desk) -> None:
    line = await desk.connect(4)
    await answered()
    desk.server.half_close_session(4)
    with pytest.raises(ConnectError, match="the daemon is gone"):
        await asyncio.to_thread(line.fetch_descriptor, 7)
    assert desk.lost == []
    line.close()


@at_desk
async def test_a_session_without_a_lifeline_cannot_be_half_closed(desk: Desk) -> None:
    secret = desk.server.issue_secret(4)
    assert not desk.server.half_close_session(4)
    with raw(desk.path) as link:
        link.send(secret)
        assert await ended(link)


@at_desk
async def test_a_user_over_its_share_waits_with_all_its_connections_and_its_messages_keep_their_order(
    desk: Desk,
) -> None:
    lines = [await desk.connect(session) for session in (1, 2, 3)]
    await answered()
    desk.pauses_s += [0.5, 0.05]  # the first is looked into
    for number, line in enumerate(lines, 1):
        line.report_leases(DROPPED, (number,))
    await answered()
    assert desk.told == [("dropped", 1, (1,), ())]
    lines[1].report_leases(DROPPED, (22,))
    await asyncio.to_thread(wait_until, lambda: len(desk.told) == 4, "the others had their turns")
    assert desk.told[1] == ("dropped", 2, (2,), ())
    assert {numbers for _, _, numbers, _ in desk.told[2:]} == {(3,), (22,)}
    for line in lines:
        line.close()
    await asyncio.to_thread(wait_until, lambda: len(desk.lost) == 3, "all sessions have ended")


@at_desk
async def test_a_connection_that_ends_while_its_user_waits_is_lost_when_the_wait_is_over(desk: Desk) -> None:
    lines = [await desk.connect(session) for session in (1, 2)]
    await answered()
    desk.pauses_s.append(0.5)
    for line in lines:
        line.close()
    await answered()
    assert [session for session, _ in desk.lost] == [1]
    await asyncio.to_thread(wait_until, lambda: len(desk.lost) == 2, "the other session has ended, too")


@at_desk
async def test_only_sessions_that_were_sent_a_slot_are_named_when_it_is_gone(desk: Desk) -> None:
    desk.slots.ensure_slot(8, NBYTES)
    lines = [await desk.connect(session) for session in (1, 2, 3)]
    for line, slots in zip(lines, ([7, 8], [7], []), strict=True):
        for slot in slots:
            os.close(await asyncio.to_thread(line.fetch_descriptor, slot))
    assert desk.server.forget_slots([8]) == [(1, (8,))]
    assert sorted(desk.server.forget_slots([7, 8])) == [(1, (7,)), (2, (7,))]
    assert desk.server.forget_slots([7, 8]) == []
    for line in lines:
        line.close()


@at_desk
async def test_a_descriptor_socket_that_was_removed_is_made_anew_and_lifelines_last(desk: Desk) -> None:
    before = await desk.connect(1)
    assert not desk.server.renew_if_gone()
    Path(desk.path).unlink()
    assert desk.server.renew_if_gone()
    after = await desk.connect(2)
    desk.slots.ensure_slot(7, NBYTES)
    for line in (before, after):
        os.close(await asyncio.to_thread(line.fetch_descriptor, 7))
        line.close()
