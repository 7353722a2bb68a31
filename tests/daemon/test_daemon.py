"""The daemon as a process: it starts, serves, drains and stops, and reports why it cannot."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from support.daemon_process import LIMIT_S, DaemonProcess, stream_config, wait_until, write_images

import streamd
import streamd.daemon.daemon
from streamd.core import log
from streamd.daemon.daemon import Daemon
from streamd.daemon.dispatcher import Dispatcher
from streamd.daemon.engine.engine import BatchEngine
from streamd.daemon.start_libraries import import_monitor
from streamd.daemon.systemd import ProgressWatch, ServiceManager
from streamd.errors import ConfigError

Start = Callable[..., DaemonProcess]


@pytest.fixture
def config(tmp_path: Path) -> dict[str, object]:
    return {"streams": {"train": stream_config(write_images(tmp_path / "data", {"cat": 16, "dog": 16}))}}


def sockets(daemon: DaemonProcess) -> list[bool]:
    place = daemon.endpoint.removeprefix("ipc://")
    return [Path(place).exists(), Path(f"{place}.d").exists()]


def serves(daemon: DaemonProcess) -> bool:
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=1) as stream:
        return len([batch.index for batch in stream]) == 4 and stream.receipts[0].ok


def serve(config: Path, state: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "streamd.cli.main", "serve", "--config", str(config), *options]
    environment = os.environ | {"STATE_DIRECTORY": str(state)}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_signal_stops_the_daemon_cleanly_and_removes_its_sockets(
    start_daemon: Start, config: dict[str, object], number: signal.Signals
) -> None:
    daemon = start_daemon(config)
    workers = daemon.workers()
    assert sockets(daemon) == [True, True]
    daemon.process.send_signal(number)
    assert daemon.process.wait(LIMIT_S) == 0
    assert sockets(daemon) == [False, False]
    assert "daemon.stopped: done" in daemon.log.read_text()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "its workers have ended")


@pytest.mark.long
def test_workers_start_no_openblas_threads(
    start_daemon: Start, config: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    for pid in start_daemon(config).workers():
        assert b"\0OPENBLAS_NUM_THREADS=1\0" in Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.long
def test_a_second_daemon_is_refused_and_the_first_keeps_serving(start_daemon: Start, config: dict[str, object]) -> None:
    first = start_daemon(config)
    before = [path.stat() for path in sorted(first.state.iterdir())]
    second = serve(first.config, first.state, "--rescan")
    _, said = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 2
    place = first.endpoint.removeprefix("ipc://")
    assert said == (
        f"streamd: another streamd is already listening on {place}: stop it, or choose another endpoint with "
        "`listen:`\n"
    )
    assert [path.stat() for path in sorted(first.state.iterdir())] == before
    assert sockets(first) == [True, True]
    assert serves(first)


@pytest.mark.long
def test_closing_its_terminal_stops_the_daemon(config: dict[str, object], tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path, config)
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "streamd.cli.main", "serve", "--config", str(daemon.config)]
    environment = os.environ | {"STATE_DIRECTORY": str(daemon.state)}
    # As a shell starts it: in a new session, whose terminal this is.
    enter = ["setsid", "--ctty", *command]
    process = subprocess.Popen(enter, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        said = b""
        while b"daemon.ready" not in said:
            said += os.read(ours, 4096)
    finally:
        os.close(ours)  # the terminal's window is closed: SIGHUP to all who run in it
    try:
        assert process.wait(LIMIT_S) == 0
        assert sockets(daemon) == [False, False]
    finally:
        daemon.kill()


@pytest.mark.long
def test_samples_are_listed_again_only_with_rescan(start_daemon: Start, config: dict[str, object]) -> None:
    daemon = start_daemon(config)  # which finds its samples listed
    assert daemon.terminate() == 0
    said = daemon.log.read_text()
    assert (said.count("manifest.made"), said.count("manifest.reused")) == (0, 1)
    again = serve(daemon.config, daemon.state, "--rescan")
    assert again.stderr is not None
    line = next(line for line in again.stderr if "manifest.listing" not in line)
    again.kill()
    again.communicate(timeout=LIMIT_S)
    assert "manifest.made" in line


@pytest.mark.long
def test_a_verdict_that_cannot_be_recorded_stops_its_stream_and_says_why(start_daemon: Start, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 16})
    (folder / "cat" / "0003.jpg").write_bytes(b"\xff\xd8\xff no picture" * 9)
    daemon = start_daemon({"workers": 1, "streams": {"train": stream_config(folder)}})
    (manifest,) = daemon.state.glob("*.manifest")
    manifest.with_suffix(".bad.jsonl").mkdir()
    stopped = pytest.raises(streamd.StreamStoppedError, match=r"0003\.jpg .* cannot be recorded: Is a directory")
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=1) as stream, stopped:
        assert sum(1 for _ in stream) < 2
    assert "Traceback" not in daemon.log.read_text()
    assert daemon.terminate() == 0


class NotifySocket:
    """The socket of a service manager, and the datagrams it received."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._link.bind(str(self.path))
        self._link.settimeout(LIMIT_S)

    def read_until(self, first: str) -> list[str]:
        """Reads datagrams until one begins with this line; returns all first lines, and its last line."""
        firsts = []
        while True:
            lines = self._link.recv(4096).decode().splitlines()
            firsts.append(lines[0])
            if lines[0] == first:
                return [*firsts, lines[-1]]

    def close(self) -> None:
        self._link.close()


@pytest.fixture
def notified() -> Iterator[NotifySocket]:
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        listener = NotifySocket(Path(folder))
        yield listener
        listener.close()


def test_the_service_manager_is_notified_of_start_health_reload_and_stop(
    start_daemon: Start, config: dict[str, object], notified: NotifySocket
) -> None:
    environment = {"NOTIFY_SOCKET": str(notified.path), "WATCHDOG_USEC": "100000"}
    daemon = start_daemon(config, environment=environment, apart=False)
    serves_nobody = "STATUS=serves train to 0 trainers"
    assert notified.read_until("READY=1") == [
        "STATUS=lists the samples",
        "STATUS=starts the workers",
        "READY=1",
        serves_nobody,
    ]
    assert notified.read_until("WATCHDOG=1") == ["WATCHDOG=1", serves_nobody]
    daemon.config.write_text("nonsense")
    daemon.process.send_signal(signal.SIGHUP)
    assert "READY=1" not in notified.read_until("RELOADING=1")
    assert notified.read_until("READY=1")[-1].startswith(f"{serves_nobody}; the last reload failed, see the log")
    assert notified.read_until("WATCHDOG=1")[-1].startswith(f"{serves_nobody}; the last reload failed, see the log")
    daemon.process.terminate()
    assert notified.read_until("STOPPING=1")[-1] == "STATUS=disconnecting 0 trainers"


def test_a_stuck_daemon_logs_it_and_sends_no_watchdog_message(
    config: dict[str, object], notified: NotifySocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck:
        is_producing, finished_work_count = True, 0

    daemon = Daemon(config, manager=ServiceManager(str(notified.path)))
    monkeypatch.setattr(streamd.daemon.daemon, "ProgressWatch", partial(ProgressWatch, stalled_s=0.0))

    async def be_watched() -> list[str]:
        events: asyncio.Queue[str] = asyncio.Queue()
        monkeypatch.setattr(log, "error", lambda event, _: events.put_nowait(event))
        watching = asyncio.create_task(daemon._notify_watchdog(cast("Dispatcher", Stuck()), 0.001))
        found = [await events.get() for _ in range(3)]
        watching.cancel()
        return found

    assert asyncio.run(asyncio.wait_for(be_watched(), LIMIT_S)) == ["daemon.stuck"] * 3
    daemon._close_endpoint()
    daemon._manager.notify("stopping", "goes")
    assert notified.read_until("STOPPING=1") == ["STOPPING=1", "STATUS=goes"]


def test_a_start_that_goes_on_while_the_daemon_ends_leaves_nothing_behind(
    config: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The monitor has failed, and its failure has not reached the start yet."""

    is_ready = threading.Event()

    def import_late() -> Callable[[str], object]:
        is_ready.wait(LIMIT_S)
        return import_monitor()

    async def find_nothing(_: BatchEngine) -> None:
        opening = next(task for task in asyncio.all_tasks() if task.get_name() == "opening the monitor")
        is_ready.set()
        while not opening.done():  # noqa: ASYNC110 - the step of the loop counts in which this goes on
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    monkeypatch.setattr(streamd.daemon.daemon, "import_monitor", import_late)
    monkeypatch.setattr(BatchEngine, "find_missing_data", find_nothing)
    listen = f"ipc://{tmp_path}/s"
    wanted = {**config, "monitor": "192.0.2.1:9191", "listen": listen, "memory": "64MiB", "workers": 1}
    daemon = Daemon(wanted, state=tmp_path / "state", manager=ServiceManager("/no/such/socket"))
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:9191"):
        asyncio.run(daemon.run())
    gc.collect()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []
