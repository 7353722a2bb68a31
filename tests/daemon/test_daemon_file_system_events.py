"""A wait for changes of mounts and of folders ends with a change or at its timeout."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from streamd.daemon import data_watch
from streamd.daemon.data_watch import FileSystemEvents

LONG_S = 20.0


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket in the place of the list of mounts: urgent data are an exception to it, as a change is."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        descriptor = theirs.detach()
        monkeypatch.setattr(data_watch, "_open_mounts", lambda: descriptor)
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


def make(folder: Path) -> None:
    (folder / "made").touch()


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file is made": make,
    "a file is removed": lambda folder: (folder / "file").unlink(),
    "a file is renamed": lambda folder: (folder / "file").rename(folder / "other"),
    "the folder is removed": shutil.rmtree,
    "the folder is renamed": lambda folder: folder.rename(folder.with_name("away")),
    "a parent is renamed": lambda folder: folder.parent.rename(folder.parent.with_name("away")),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_in_a_watched_folder_or_of_its_parents_wakes(tmp_path: Path, change: str) -> None:
    folder = tmp_path / "parent" / "folder"
    folder.mkdir(parents=True)
    (folder / "file").touch()
    events = FileSystemEvents()
    events.watch_folders([folder])
    assert events.sees_folders
    CHANGES[change](folder)
    await asyncio.wait_for(events.wait_for_change(None), LONG_S)
    events.close()


async def test_a_write_to_a_file_in_a_watched_folder_wakes_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    events = FileSystemEvents()
    woken: list[None] = []
    events._on_change = lambda: woken.append(None)  # type: ignore[method-assign]  # what the loop would call
    events.watch_folders([tmp_path])
    (tmp_path / "file").write_text("x")
    await events.wait_for_change(0.01)
    assert woken == []
    events.close()


async def test_without_an_inotify_instance_it_says_that_it_sees_no_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = FileSystemEvents()
    monkeypatch.setattr(data_watch, "_libc", SimpleNamespace(inotify_init1=lambda _flags: -1))
    events.watch_folders([tmp_path])
    assert not events.sees_folders
    events.close()
