"""What every test gets: nothing may be left behind, and a daemon in a process of its own for those that ask."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import DaemonProcess, wait_until
from support.fork_server import ForkServer

import streamd
from streamd.client import Client
from streamd.ipc.mapping import PRIVATE_WANTED

pytest_plugins = [
    f"support.{name}"
    for name in (
        "dashboard_daemon",
        "systemd_box",
        "chromium",
        "opened_streams",
        "installed_packages",
        "transform_programs",
        "pack_streams",
        "probed_daemon",
        "coroutine_tests",
    )
]


def _descriptors() -> set[str]:
    links = set()
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - twice a test, and a Path for each would take as long again
        try:
            links.add(f"{number} -> {os.readlink(f'/proc/self/fd/{number}')}")  # noqa: PTH115 - as above
        except FileNotFoundError:
            continue
    lasting = ("/proc/", "/dev/", "pipe:", "/mpl-data/")  # matplotlib keeps the files of its fonts open
    return {link for link in links if not any(part in link for part in lasting)}


def pytest_configure() -> None:
    """A shell that starts the tests with & has them ignore Ctrl-C, and what they start too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What thousands of tests are made of is there to the end: the collector need not look at it again each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def fork_server() -> Iterator[ForkServer]:
    """Where the daemons come from; it begins with the first of them."""
    with ForkServer() as DaemonProcess.fork_server:
        yield DaemonProcess.fork_server


def _children(fork_server: ForkServer) -> set[int]:
    parents = [os.getpid(), *fork_server.pids]
    listed = [Path(f"/proc/{pid}/task/{pid}/children").read_text().split() for pid in parents]
    return {int(pid) for pids in listed for pid in pids} - fork_server.pids


@pytest.fixture(autouse=True)
def no_private_slots() -> Iterator[None]:
    """A process maps its slots privately once it has made a tensor: here a test begins as a new process does."""
    yield
    PRIVATE_WANTED.clear()


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest, fork_server: ForkServer) -> Iterator[None]:
    """Threads, descriptors and child processes that a test leaves behind fail it."""
    if request.node.get_closest_marker("train"):
        yield  # TensorFlow keeps threads and descriptors of its own
        return
    threads, descriptors, children = set(threading.enumerate()), _descriptors(), _children(fork_server)

    def open_still() -> set[str]:
        return {link for link in _descriptors() - descriptors if "anon_inode:[eventpoll]" not in link}

    yield
    wait_until(lambda: not (set(threading.enumerate()) - threads), "threads end")
    wait_until(lambda: not (_children(fork_server) - children), "child processes end")
    if open_still():
        gc.collect()  # what only a cycle keeps is not leaked; collecting after every test would take most of their time
    assert not open_still(), f"descriptors left open: {open_still()}"


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    """The logger as it was, afterwards: a command that ran in here has pointed it at a stream that is gone."""
    logger = logging.getLogger("streamd")
    before = logger.handlers[:], logger.level, logger.propagate
    yield logger
    logger.handlers[:], level, logger.propagate = before
    logger.setLevel(level)  # not by assignment: what is enabled is remembered


@pytest.fixture
def without_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory was removed."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()


@pytest.fixture
def start_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., DaemonProcess]]:
    """Starts `streamd serve` on a configuration; every daemon is gone after the test."""
    with ExitStack() as started:

        def start(config: dict[str, object], **options: Any) -> DaemonProcess:
            place = tmp_path_factory.mktemp("d", numbered=True)
            return started.enter_context(DaemonProcess(place, config, **options))

        yield start


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[Client]:
    """A client of the daemon that is a module's fixture `daemon`."""
    with streamd.connect(daemon.endpoint) as client:
        yield client
