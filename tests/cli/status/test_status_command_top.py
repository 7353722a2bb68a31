"""`streamd top`: one frame without a terminal, many with one, and how it ends."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

import pytest
from rich.console import Console
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.cli.status.command import create_interval_waiter, show_live_frames
from streamd.core.activity import DaemonActivity, StatusSnapshot, compare_snapshots
from streamd.core.status import DaemonStatus, StreamStatus

STATUS = DaemonStatus(
    "1", 7, "ipc:///s", 60.0, 4, 0.5, 1 << 30, 1 << 20, draining=False,
    streams=(StreamStatus("train", 1000, 8, 125, 0, 10.0, 80.0, None, 0, 0, 0),),
)  # fmt: skip


@dataclass
class Daemon:
    """A client of a daemon that grows a second older from one look to the next."""

    looks: int = 0

    def status(self) -> DaemonStatus:
        self.looks += 1
        return replace(STATUS, uptime_s=60.0 + self.looks)

    def stats(self) -> Mapping[str, Mapping[str, float]]:
        return {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    one = Daemon()
    monkeypatch.setattr("streamd.connect", lambda *_, **__: one)
    monkeypatch.setattr("streamd.cli.status.command.find_socket", lambda _: "ipc:///s")
    return one


def test_without_a_terminal_it_prints_one_frame_and_ends_well(daemon: Daemon) -> None:
    done = CliRunner().invoke(app, ["top", "--every", "100ms"])
    assert done.exit_code == 0, done.output
    assert daemon.looks == 1
    assert done.stdout.count("streamd 1 at ipc:///s") == 1
    assert "80 samples/s" in done.stdout
    assert "over the last 10 s" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(("every", "said"), [("soon", "no duration"), ("10ms", "at least 0.1s")])
@pytest.mark.usefixtures("daemon")
def test_a_time_between_looks_that_cannot_be_is_a_usage_error(every: str, said: str) -> None:
    done = CliRunner().invoke(app, ["top", "--every", every])
    assert done.exit_code == 2
    assert said in done.stderr


def test_on_a_terminal_it_draws_until_ctrl_c_and_gives_the_screen_back() -> None:
    out = io.StringIO()

    def seen() -> Iterator[DaemonActivity]:
        for uptime_s in (1.0, 2.0):
            yield compare_snapshots(None, StatusSnapshot(replace(STATUS, uptime_s=uptime_s), {}))
        raise KeyboardInterrupt

    show_live_frames(seen(), Console(file=out, force_terminal=True, width=80, height=24, color_system="standard"))
    drawn = out.getvalue()
    assert drawn.index("up 1 s") < drawn.index("up 2 s")
    assert drawn.index("\x1b[?1049h") < drawn.index("\x1b[?1049l")  # into the other screen and back


def test_each_deadline_follows_the_one_before_and_missed_ones_are_left_out() -> None:
    times = iter([0.0, 0.25, 1.5, 7.0, 7.25])  # when it begins, and when it is asked to wait
    slept: list[float] = []
    wait = create_interval_waiter(1.0, lambda: next(times), slept.append)
    for _ in range(4):
        wait()
    assert slept == [0.75, 0.5, 0.0, 0.75]
