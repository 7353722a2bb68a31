"""A wait for mount changes ends with a change or at its timeout."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamd.daemon import file_system_events
from streamd.daemon.file_system_events import FileSystemEvents

LONG_S = 20.0


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket in the place of the list of mounts: urgent data are an exception to it, as a change is."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        descriptor = theirs.detach()
        monkeypatch.setattr(file_system_events, "_open_mounts", lambda: descriptor)
        yield ours


async def test_without_a_mount_change_a_wait_ends_at_its_timeout() -> None:
    events = FileSystemEvents()
    woken: list[None] = []
    events._on_change = lambda: woken.append(None)  # type: ignore[method-assign]  # what the loop would call
    await events.wait_for_change(0.01)
    assert woken == []
    events.close()


async def test_a_mount_change_wakes_every_waiter(stand_in: socket.socket) -> None:
    events = FileSystemEvents()
    waits = [asyncio.ensure_future(events.wait_for_change(1e6)) for _ in range(2)]
    await asyncio.sleep(0)
    stand_in.send(b"!", socket.MSG_OOB)
    await asyncio.wait_for(asyncio.gather(*waits), LONG_S)
    events.close()


def test_the_kernel_reports_mount_changes_as_urgent_data() -> None:
    descriptor = os.open("/proc/self/mountinfo", os.O_RDONLY)
    poll = select.poll()
    poll.register(descriptor, select.POLLPRI)
    assert poll.poll(0) == []  # it can be asked, and nothing has changed
    os.close(descriptor)
    assert Path("/proc/self/mountinfo").read_text()
