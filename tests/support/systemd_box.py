"""streamd as a systemd service of the box that a test runs in: installed, configured and queried."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from support.daemon_process import stream_config, wait_until, write_images

ROOT: Final = Path(__file__).resolve().parents[2]
INSTALL: Final = ROOT / "scripts" / "install-service"
DATA: Final = Path("/var/lib/pictures")  # the box's own
DROP_INS: Final = Path("/run/systemd/system")
LIMIT_S: Final = 50.0


def is_boxed() -> bool:
    """Whether process 1 is the systemd that scripts/systemd-box has booted."""
    name = os.environ.get("container")  # noqa: SIM112 - systemd spells it so
    return name == "systemd-box" and Path("/run/systemd/system").is_dir()


def run(*command: str, fails: bool = False) -> str:
    """What a command says; it must end well, or not, if it `fails`."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert bool(done.returncode) is fails, f"{command}: status {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def show(unit: str, name: str) -> str:
    """What systemd knows of a unit, such as MainPID or StatusText."""
    return run("systemctl", "show", "--property", name, "--value", unit).strip()


class Service:
    """One daemon under systemd: `streamd`, or `streamd@NAME`, on 64 images in batches of 8 unless told otherwise."""

    def __init__(self, name: str = "streamd") -> None:
        self.name = name
        self.unit = f"{name}.service"
        self.folder = Path("/etc") / name
        self.socket = Path("/run") / name / "streamd.sock"
        self.endpoint = f"ipc://{self.socket}"
        self._began = run("journalctl", "--show-cursor", "--lines=0").rpartition("-- cursor: ")[2].strip()

    def configure(self, **changes: object) -> None:
        """Writes the configuration; `changes` are keys of its stream `train`."""
        self.folder.mkdir(exist_ok=True)
        streams = {"train": stream_config(DATA, **changes)}
        (self.folder / "config.yaml").write_text(json.dumps({"memory": "64MiB", "workers": 1, "streams": streams}))

    def start(self) -> None:
        """Until systemd takes it for ready."""
        run("systemctl", "start", self.unit)

    def stop(self) -> None:
        """For good: the socket would start it again for a trainer that waits."""
        run("systemctl", "stop", f"{self.name}.socket", self.unit)
        run("systemctl", "reset-failed")  # of all: it minds a unit that is not loaded any more

    def show(self, name: str) -> str:
        """What systemd knows of it."""
        return show(self.unit, name)

    @property
    def pid(self) -> int:
        return int(self.show("MainPID"))

    def wait_for(self, name: str, value: str) -> None:
        """Until systemd knows that of it."""
        wait_until(lambda: value in self.show(name), f"{self.unit}: {name} has {value!r}", LIMIT_S)

    def wait_for_another(self, pid: int) -> None:
        """Until a daemon serves that is not the one of that pid."""
        wait_until(
            lambda: self.show("ActiveState") == "active" and self.pid not in {0, pid}, "another daemon serves", LIMIT_S
        )

    def said(self) -> str:
        """What it has written to the journal since this test began."""
        run("journalctl", "--sync")  # what was said just now may not have been read yet
        return run("journalctl", "--no-pager", "--output=cat", "--unit", self.unit, f"--after-cursor={self._began}")


def install() -> None:
    """The service as its users install it, data for it, and a watchdog that tests need not wait for."""
    run(str(INSTALL))
    write_images(DATA, {"cat": 32, "dog": 32})
    for path in (DATA, *DATA.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    drop_in = DROP_INS / "streamd.service.d" / "watchdog.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text("[Service]\nWatchdogSec=2\n")
    run("systemctl", "daemon-reload")
    run("systemctl", "log-target", "journal")  # a box boots with its words on the console


@pytest.fixture(scope="session")
def installed() -> None:
    """Units, users and data, once for all tests."""
    if not is_boxed():
        pytest.fail(
            "this test needs a systemd of its own: run  scripts/systemd-box env PYTHONPATH=tests .venv/bin/python -m "
            "pytest -m systemd tests/units  as root, with systemd, util-linux, overlayfs and cgroup v2"
        )
    install()


@pytest.fixture
def make_service(installed: None) -> Iterator[Callable[..., Service]]:  # noqa: ARG001 - wanted for what it does
    """Makes a service by name, configured and not started; none runs after the test."""
    made: list[Service] = []

    def make(name: str = "streamd", **changes: object) -> Service:
        made.append(Service(name))
        made[-1].configure(**changes)
        return made[-1]

    yield make
    for service in made:
        service.stop()


@pytest.fixture
def service(make_service: Callable[..., Service]) -> Service:
    """`streamd.service`, ready."""
    made = make_service()
    made.start()
    return made
