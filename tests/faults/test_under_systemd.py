"""A real systemd ends and restarts the daemon often within an epoch; the same oracle judges the logs."""

from __future__ import annotations

import html
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from killers import kill_together
from logged import LoggedTrainer, running
from oracle import Truth
from scene import dice, times
from strikes import agree, images_for, strike_often
from support.daemon_process import stream_config, write_images
from support.systemd_box import DATA, ROOT, Service, run

pytestmark = [pytest.mark.systemd, pytest.mark.timeout(300)]

PICTURES: Final = DATA / "struck"
REPORTED: Final = ("--junitxml=/dev/stderr", "--override-ini=junit_family=xunit1")
SAW: Final = re.compile(r'<property name="saw" value="([^"]*)"')

Record = Callable[[str, object], None]


class Unit:
    """The daemon as those who strike it know it, and what systemd does to it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._struck = 0

    def workers(self) -> list[int]:
        pid = self._service.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def start(self) -> None:
        self._service.wait_for_another(self._struck)

    def strike(self, way: str) -> None:
        self._struck = self._service.pid
        run("systemctl", "reset-failed", self._service.unit)  # so many starts a minute would be too many
        getattr(self, way)()

    def kill(self) -> None:
        kill_together([self._struck, *self.workers()])

    def restart(self) -> None:
        run("systemctl", "restart", self._service.unit)

    def hang(self) -> None:
        os.kill(self._struck, signal.SIGSTOP)


@pytest.mark.parametrize(("way", "strikes"), [("kill", times(20, 2)), ("restart", times(20, 2)), ("hang", times(3, 1))])
def test_a_service_that_ends_often_only_delays_three_trainers(
    tmp_path: Path, make_service: Callable[..., Service], record_property: Record, way: str, strikes: int
) -> None:
    images = images_for(strikes)
    write_images(PICTURES, {"cat": images // 2, "dog": images // 2}, size=(32, 32))
    run("chmod", "--recursive", "a+rX", str(PICTURES))
    stream = stream_config(PICTURES, batch_size=2)
    service = make_service(**stream)
    service.start()
    logs = [tmp_path / f"trainer-{place}.log" for place in range(3)]
    with (
        closing(Truth({"streams": {"train": stream}}, "train", tmp_path / "truth")) as truth,
        running(*(LoggedTrainer(service.endpoint, log, gated=True, prefetch=2) for log in logs)) as trainers,
    ):
        unit = Unit(service)
        course = strike_often(unit, trainers, strikes, dice(), lambda: unit.strike(way))
        agree(truth, trainers, course)
        record_property("saw", course.told(trainers[0]))
    assert "daemon.drain_timeout" not in service.said()


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(
            "kill",
            marks=pytest.mark.fault("5", "daemon and all its workers killed together, under systemd"),
        ),
        pytest.param("restart", marks=pytest.mark.fault("43", "systemctl restart under load")),
        pytest.param(
            "hang",
            marks=pytest.mark.fault(
                "42",
                "the daemon stopped until systemd's watchdog ends it and starts another",
                departs="the watchdog has 2 s instead of 30",
            ),
        ),
    ],
)
def test_the_oracle_finds_no_problem_under_systemd(way: str, record_property: Record) -> None:
    name = test_a_service_that_ends_often_only_delays_three_trainers.__name__
    inner = ["-m", "pytest", "-k", f"{name} and {way}", "-p", "no:cacheprovider", *REPORTED, __file__]
    command = [str(ROOT / "scripts" / "systemd-box"), sys.executable, *inner]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (saw,) = SAW.findall(done.stderr)
    record_property("saw", html.unescape(saw))
