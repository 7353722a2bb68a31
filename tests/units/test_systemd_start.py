"""Daemons that cannot start yet: odd paths, late file systems, mistakes while trainers wait; and who goes first."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.systemd_box import DATA, INSTALL, LIMIT_S, ROOT, Service, run, show

import streamd
from streamd.cli.service import (
    ServiceHost,
    find_folders_hidden_from_services,
    install_on_host,
    run_host_command,
)

pytestmark = [pytest.mark.systemd, pytest.mark.usefixtures("installed")]

Make = Callable[..., Service]

ODD = Path("/tmp/it's 100% mine")  # noqa: S108 - the box's own, which the services see only where it is bound
LATE = Path("/var/lib/late data")


def read_epoch(service: Service) -> int:
    """Trains for one epoch, as soon as a daemon answers; the batches."""
    with (
        streamd.connect(service.endpoint, timeout=LIMIT_S) as client,
        client.subscribe("train", epochs=1) as stream,
    ):
        return sum(1 for _ in stream)


@pytest.fixture
def odd_command() -> Iterator[Path]:
    """A command whose path has what units take for syntax, installed as the service; and the usual one again."""
    command = ODD / "bin" / "streamd"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec {ROOT}/.venv/bin/streamd "$@"\n')
    for path in (ODD, command.parent, command):
        path.chmod(0o755)
    install_on_host(ServiceHost(print, run_host_command), command, [ODD, *find_folders_hidden_from_services()])
    yield command
    shutil.rmtree(ODD)
    run(str(INSTALL))


def test_a_command_at_a_path_with_spaces_percents_and_quotes_starts(odd_command: Path, make_service: Make) -> None:
    assert run("systemd-analyze", "--man=no", "verify", "streamd.service", "streamd-train@a.service") == ""
    service = make_service()
    service.start()
    assert read_epoch(service) == 8
    assert str(odd_command) in service.show("ExecStart")


def test_trainers_wait_while_the_configuration_is_mended(make_service: Make) -> None:
    service = make_service(batch_size=-1)
    run("systemctl", "start", "streamd.socket")
    with ThreadPoolExecutor(1) as pool:
        epoch = pool.submit(read_epoch, service)
        service.wait_for("StatusText", "cannot start; it will be tried again: ")
        assert "batch_size" in service.show("StatusText")
        assert (service.show("ActiveState"), show("streamd.socket", "ActiveState")) == ("activating", "active")
        service.configure()
        run("systemctl", "restart", service.unit)
        assert epoch.result(LIMIT_S) == 8


@pytest.fixture
def late_place(tmp_path: Path) -> Iterator[Path]:
    """An empty folder, on which the images are mounted some time."""
    run("mount", "--make-rshared", "/")  # as it is on every host
    place = LATE / tmp_path.name  # another for each test: what was listed once is known
    place.mkdir(parents=True)
    yield place
    place.rmdir()


@contextmanager
def images_mounted(place: Path) -> Iterator[None]:
    """The images at `place`, too."""
    run("mount", "--bind", str(DATA), str(place))
    try:
        yield
    finally:
        run("umount", "--lazy", str(place))


@pytest.mark.parametrize("there", ["empty", "not there"])
def test_data_on_a_file_system_that_is_mounted_late_are_waited_for(
    make_service: Make, late_place: Path, there: str
) -> None:
    if there == "not there":
        late_place.rmdir()
    service = make_service(source={"kind": "folder", "path": str(late_place)})
    run("systemctl", "start", "streamd.socket")
    with ThreadPoolExecutor(1) as pool:
        epoch = pool.submit(read_epoch, service)
        service.wait_for("StatusText", f"waits for '{late_place}': not there, or empty")
        late_place.mkdir(exist_ok=True)
        with images_mounted(late_place):
            assert epoch.result(LIMIT_S) == 8
    assert service.show("NRestarts") == "0"


def test_a_mount_that_fails_keeps_no_daemon_from_starting(make_service: Make, late_place: Path) -> None:
    unit = run("systemd-escape", "--path", "--suffix=mount", str(late_place)).strip()
    Path("/run/systemd/system", unit).write_text(f"[Mount]\nWhat=nothing\nWhere={late_place}\nType=nosuch\n")
    service = make_service(source={"kind": "folder", "path": str(late_place)})
    drop_in = Path("/usr/local/lib/systemd/system/streamd.service.d/30-data.conf")
    try:
        run(str(INSTALL))
        for key in ("Wants", "After"):
            assert unit in service.show(key).replace(r"\\", "\\")
        run("systemctl", "start", "--no-block", service.unit)
        service.wait_for("StatusText", f"waits for '{late_place}'")
        assert show(unit, "ActiveState") == "failed"
        with images_mounted(late_place):
            service.wait_for("ActiveState", "active")
    finally:
        drop_in.unlink()
        Path("/run/systemd/system", unit).unlink()
        run("systemctl", "daemon-reload")


def test_when_memory_is_full_workers_go_before_the_daemon(make_service: Make) -> None:
    service = make_service()
    service.start()
    assert service.show("OOMScoreAdjust") == "-200"  # where systemd may not set it, in a container, it goes on without
    children = Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text().split()
    daemon, worker = (int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (service.pid, *children))
    assert worker == daemon + 300
