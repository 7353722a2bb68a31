"""Notifications to the service manager: the sd_notify lines, and when the daemon counts as stalled."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.forked_child import in_a_forked_child

from streamd.core.status import DaemonStatus, SessionStatus, StreamStatus
from streamd.daemon.systemd import ProgressWatch, ServiceManager, format_status_headline


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """A manager's socket, of either kind."""
    with tempfile.TemporaryDirectory(prefix="sd") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.bind(f"{folder}/notify" if request.param == "path" else f"\0{folder}/notify")
        link.settimeout(10)
        yield link


def address_of(listener: socket.socket) -> str:
    name = listener.getsockname()
    return name if isinstance(name, str) else f"@{name[1:].decode()}"


def test_notifications_follow_the_sd_notify_protocol(listener: socket.socket) -> None:
    manager = ServiceManager(address_of(listener))
    manager.notify("starting", "lists the samples")
    manager.notify("ready", "serves train")
    manager.notify("working", "serves train still")
    manager.notify("stopping", "goes")
    said = [listener.recv(4096) for _ in range(4)]
    assert said == [
        b"STATUS=lists the samples",
        b"READY=1\nSTATUS=serves train",
        b"WATCHDOG=1\nSTATUS=serves train still",
        b"STOPPING=1\nSTATUS=goes",
    ]


def test_a_reload_notification_has_its_start_time(listener: socket.socket) -> None:
    before_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    ServiceManager(address_of(listener)).notify("reloading", "reads")
    found = re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=(\d+)\nSTATUS=reads", listener.recv(4096))
    assert found
    assert before_us <= int(found[1]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


def test_a_status_cannot_inject_lines(listener: socket.socket) -> None:
    ServiceManager(address_of(listener)).notify("ready", "serves a\nSTOPPING=1")
    assert listener.recv(4096) == b"READY=1\nSTATUS=serves a\\nSTOPPING=1"


def test_the_environment_names_the_manager_and_children_do_not_inherit_it() -> None:
    environment = {
        "NOTIFY_SOCKET": "/run/n",
        "WATCHDOG_USEC": "20000000",
        "WATCHDOG_PID": str(os.getpid()),
        "HOME": "/",
    }
    assert ServiceManager.from_environment(environment) == ServiceManager("/run/n", 20.0)
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize(
    ("environment", "manager"),
    [
        ({}, ServiceManager()),
        ({"NOTIFY_SOCKET": ""}, ServiceManager()),
        ({"NOTIFY_SOCKET": "vsock:2:1"}, ServiceManager()),
        ({"NOTIFY_SOCKET": "@n"}, ServiceManager("@n")),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "0"}, ServiceManager("/n")),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "soon"}, ServiceManager("/n")),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "1000000"}, ServiceManager("/n", 1.0)),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}, ServiceManager("/n")),
    ],
)
def test_variables_for_another_process_are_ignored(environment: dict[str, str], manager: ServiceManager) -> None:
    assert ServiceManager.from_environment(environment) == manager


def test_without_a_manager_no_socket_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", lambda *_: pytest.fail("it opens a socket"))
    ServiceManager().notify("ready", "serves")


def test_a_missing_manager_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "streamd"):
        ServiceManager(str(tmp_path / "gone")).notify("ready", "serves")
    assert "the service manager cannot be notified" in caplog.text


def test_a_refused_start_waits_for_sigterm(listener: socket.socket) -> None:
    def hold() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        os.kill(os.getpid(), signal.SIGTERM)
        ServiceManager(address_of(listener)).notify_refused_start_and_wait("a mistake\nand another")

    assert in_a_forked_child(hold) == 0
    assert listener.recv(4096) == b"STATUS=cannot start; it will be tried again: a mistake\\nand another"


def test_a_refused_start_waits_for_a_limited_time(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamd.daemon.systemd.REFUSED_START_S", 0.01)
    assert (
        in_a_forked_child(lambda: ServiceManager(address_of(listener)).notify_refused_start_and_wait("a mistake")) == 0
    )


# --- when the daemon is well, and how it says so in a line


STREAM = StreamStatus("train", 100, 8, 13, 1, 4.0, 1234.4, 1.0, 0, 3, 0)
SESSION = SessionStatus(1, "train", 0, 1, 0, 2, 3, 13, 8, 2, "reading", 1234.4, 9.0)
STATUS = DaemonStatus("1", 7, "ipc:///s", 9.0, 2, 0.5, 1, 1, draining=False, streams=(STREAM,))


@pytest.mark.parametrize(
    ("checks", "progressing"),  # a check: is producing, progress count, seconds
    [
        ([(False, 0, 5.0), (False, 0, 500.0), (False, 0, 50000.0)], [True, True, True]),
        ([(True, 1, 1.0), (True, 2, 10.5), (True, 2, 20.0), (True, 2, 20.5)], [True, True, True, False]),
        ([(False, 5, 100.0), (True, 5, 109.0), (True, 5, 110.0)], [True, True, False]),
        ([(True, 0, 11.0), (True, 1, 12.0)], [False, True]),
    ],
    ids=[
        "without requests it never stalls",
        "it stalls when its work stops",
        "time counts from the request, not from the last work",
        "new work ends the stall",
    ],
)
def test_a_daemon_stalls_after_ten_seconds_without_progress(
    checks: list[tuple[bool, int, float]], progressing: list[bool]
) -> None:
    watch = ProgressWatch(0.0, stalled_s=10.0)
    found = [
        watch.is_progressing(is_producing=producing, progress_count=count, now_s=now_s)
        for producing, count, now_s in checks
    ]
    assert found == progressing


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (STATUS, "serves train to 0 trainers"),
        (replace(STATUS, sessions=(SESSION,)), "serves train to 1 trainer: 1,234 images/s"),
        (replace(STATUS, streams=(STREAM, replace(STREAM, name="v"))), "serves train, v to 0 trainers"),
        (
            replace(STATUS, streams=(replace(STREAM, stopped="too many bad"),)),
            "serves train to 0 trainers; stream 'train' is stopped: too many bad",
        ),
    ],
)
def test_the_headline_names_streams_trainers_rate_and_troubles(status: DaemonStatus, said: str) -> None:
    assert format_status_headline(status) == said
