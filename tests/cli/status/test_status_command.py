"""`streamd status` and `streamd top`: what they print and how they end."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Self, get_args

import pytest
from msgspec.structs import replace
from rich.console import Console
from support.daemon_process import DaemonProcess, stream_config, wait_until, write_images
from support.monitor_requests import fetch
from typer.testing import CliRunner

import streamd
from streamd.cli.main import app, main
from streamd.cli.status.command import create_interval_waiter, show_live_frames, watch_status
from streamd.cli.status.table import TopFrame
from streamd.client import Client
from streamd.core.counters import (
    DaemonGauge,
    EngineCounter,
    EngineStage,
    StreamCounter,
    StreamStage,
    WireCounter,
)
from streamd.core.status import DaemonStatus, StreamStatus
from streamd.errors import ConnectError


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    place = tmp_path_factory.mktemp("d")
    folder = write_images(place / "data", {"cat": 16, "dog": 16})
    process = DaemonProcess(place, {"monitor": "127.0.0.1:0", "streams": {"train": stream_config(folder)}}).start()
    yield process
    process.kill()


def test_status_names_the_daemon_its_streams_and_its_trainers(daemon: DaemonProcess) -> None:
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", name="lr-0.01") as stream:
        next(iter(stream))
        done = CliRunner().invoke(app, ["status", "--endpoint", daemon.endpoint])
    assert done.exit_code == 0, done.stderr
    first, second, *rest = done.stdout.splitlines()
    assert first == f"streamd {streamd.__version__} at {daemon.endpoint}"
    assert f"pid {daemon.pid}," in second
    assert [line.split()[1:4] for line in rest if line.startswith("train ")] == [["32", "4", "1"]]
    assert [line.split()[:2] for line in rest if line.startswith("lr-0.01 ")] == [["lr-0.01", "train"]]
    assert [line.split()[:4] for line in rest if line.startswith("pid ")] == [["pid", str(os.getpid()), "batch", "8"]]


def test_a_single_trainer_is_shown_at_its_own_step_and_decodes_once(
    start_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    # A daemon of its own: what trainers of other tests have read counts for some seconds.
    folder = write_images(tmp_path / "data", {"cat": 16, "dog": 16})
    with streamd.connect(start_daemon({"streams": {"train": stream_config(folder)}}).endpoint) as client:

        def own_place() -> tuple[int, int, int]:
            (session,) = client.status().sessions
            return session.epoch, session.own_step, session.own_steps

        with client.subscribe("train", batch_size=4, epochs=None) as stream:
            assert own_place() == (0, 0, 8), "sent, and not taken"
            for _ in next(stream.epochs()):
                pass
            wait_until(lambda: own_place() == (1, 0, 8), "it has read an epoch")
            (told,) = client.status().streams
            assert (told.decodes_per_batch, told.decodes_unknown) == (1.0, None)
            batches = iter(stream)

            def take_step_and_see_it() -> bool:
                taken = next(batches)
                epoch, step, steps = own_place()
                # The stream's batch, two of the trainer's, is reported as taken at once or with a later one.
                assert (step % 2, steps) == (0, 8)
                assert (epoch, step) <= (taken.epoch, taken.index + 2)
                return (epoch, step > 0) == (taken.epoch, True)

            wait_until(take_step_and_see_it, "it is seen within an epoch")


def test_every_number_of_a_daemon_is_in_the_list_of_its_group(daemon: DaemonProcess) -> None:
    with streamd.connect(daemon.endpoint) as client:
        with client.subscribe("train", epochs=1) as stream:
            for _ in stream:
                pass
        wait_until(lambda: client.stats()["stream.train"].get("receipts_ok"), "the epoch is accounted for")
        numbers = client.stats()

    def list_names(counters: object, stages: object) -> set[str]:
        units = ("count", "s", "longest_s")
        return {*get_args(counters)} | {f"{stage}_{unit}" for stage in get_args(stages) for unit in units}

    listed = {
        "stream.train": list_names(StreamCounter, StreamStage),
        "engine": list_names(EngineCounter, EngineStage),
        "daemon": list_names(DaemonGauge, None),
        "wire": list_names(WireCounter, None),
        "rules": set(numbers["rules"]),
    }
    assert [name for group, names in numbers.items() for name in names if name not in listed[group]] == []
    assert set(numbers["daemon"]) == listed["daemon"]
    never = {"bad_samples", "receipts_bad", "cache_hits", "cache_misses"}  # nothing is bad, and there is no cache
    assert set(numbers["stream.train"]) >= listed["stream.train"] - never


def test_in_a_narrow_window_no_number_is_cut(daemon: DaemonProcess) -> None:
    done = CliRunner().invoke(app, ["status", "--endpoint", daemon.endpoint], env={"COLUMNS": "30"})
    (numbers,) = (line.split() for line in done.stdout.splitlines() if line.startswith("train "))
    assert (numbers[1:4], numbers[-1], len(numbers)) == (["32", "4", "0"], "ok", 10)


def test_json_is_one_object_with_the_status_and_the_troubles(daemon: DaemonProcess) -> None:
    done = CliRunner().invoke(app, ["status", "--endpoint", daemon.endpoint, "--json"])
    assert done.exit_code == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    told = json.loads(done.stdout)
    assert (told["pid"], told["endpoint"], told["ok"], told["troubles"]) == (daemon.pid, daemon.endpoint, True, [])
    assert told["memory_bytes"] == 64 << 20
    assert [(each["name"], each["samples"], each["batches"]) for each in told["streams"]] == [("train", 32, 4)]


def test_the_url_is_the_dashboard_address_with_its_token(daemon: DaemonProcess) -> None:
    said, as_json = (
        CliRunner().invoke(app, ["status", "--endpoint", daemon.endpoint, "--url", *more]).stdout
        for more in ([], ["--json"])
    )
    assert json.loads(as_json) == {"url": said.strip()}
    page, _, token = said.strip().partition("#")
    assert "<title>" in fetch(page)
    assert json.loads(fetch(f"{page}bad/train", Authorization=f"Bearer {token}"))["bad"] == 0


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_trouble_is_printed_and_the_exit_status_is_1(
    daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    asked = Client.status

    def status(client: Client) -> DaemonStatus:
        return replace(asked(client), draining=True)

    monkeypatch.setattr(Client, "status", status)
    done = CliRunner().invoke(app, ["status", "--endpoint", daemon.endpoint, *options])
    assert done.exit_code == 1
    assert "the daemon is shutting down" in done.stdout
    if options:
        told = json.loads(done.stdout)
        assert (told["ok"], told["troubles"]) == (False, ["the daemon is shutting down"])


def test_dead_workers_are_counted_and_a_failed_reload_is_trouble_until_one_succeeds(
    daemon: DaemonProcess,
) -> None:
    good = daemon.config.read_text()
    with streamd.connect(daemon.endpoint) as client:
        os.kill(daemon.workers()[0], signal.SIGKILL)
        wait_until(lambda: client.status().deaths_lately, "the death was seen")
        daemon.config.write_text("nonsense")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: client.status().reload_failed, "the reload has failed")
        daemon.config.write_text(good)
        bad = CliRunner().invoke(app, ["status", "--endpoint", daemon.endpoint])
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: not client.status().reload_failed, "the next one has not")
    assert (bad.exit_code, bad.stdout.startswith("trouble: the last reload failed")) == (1, True)
    done = CliRunner().invoke(app, ["status", "--endpoint", daemon.endpoint])
    assert done.exit_code == 0
    assert " busy, 1 replaced; memory" in done.stdout


def test_without_a_daemon_status_names_the_endpoint_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("streamd.connect", partial(streamd.connect, timeout=0.1))
    monkeypatch.setattr("sys.argv", ["streamd", "status", "--endpoint", "ipc:///run/nobody/is/here"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert said.err.startswith("streamd: no streamd daemon at ipc:///run/nobody/is/here")
    assert said.out == ""


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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


@pytest.fixture
def aging_daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    one = Daemon()
    monkeypatch.setattr("streamd.connect", lambda *_, **__: one)
    monkeypatch.setattr("streamd.cli.options.find_socket", lambda _: "ipc:///s")
    return one


def test_without_a_terminal_top_prints_one_frame_and_exits_with_0(aging_daemon: Daemon) -> None:
    done = CliRunner().invoke(app, ["top", "--every", "100ms"])
    assert done.exit_code == 0, done.output
    assert aging_daemon.looks == 1
    assert done.stdout.count("streamd 1 at ipc:///s") == 1
    assert "80 samples/s" in done.stdout
    assert "over the last 10 s" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(("every", "said"), [("soon", "not a duration"), ("10ms", "at least 0.1s")])
@pytest.mark.usefixtures("aging_daemon")
def test_an_impossible_interval_is_a_usage_error(every: str, said: str) -> None:
    done = CliRunner().invoke(app, ["top", "--every", every])
    assert done.exit_code == 2
    assert said in done.stderr


def test_on_a_terminal_top_draws_until_ctrl_c_and_restores_the_screen() -> None:
    out = io.StringIO()

    def seen() -> Iterator[TopFrame]:
        for uptime_s in (1.0, 2.0):
            yield TopFrame(replace(STATUS, uptime_s=uptime_s), {})
        raise KeyboardInterrupt

    show_live_frames(seen(), Console(file=out, force_terminal=True, width=80, height=24, color_system="standard"))
    drawn = out.getvalue()
    assert drawn.index("up 1 s") < drawn.index("up 2 s")
    assert drawn.index("\x1b[?1049h") < drawn.index("\x1b[?1049l")  # into the other screen and back


def test_deadlines_are_an_interval_apart_and_missed_ones_are_skipped() -> None:
    times = iter([0.0, 0.25, 1.5, 7.0, 7.25])  # when it begins, and when it is asked to wait
    slept: list[float] = []
    wait = create_interval_waiter(1.0, lambda: next(times), slept.append)
    for _ in range(4):
        wait()
    assert slept == [0.75, 0.5, 0.0, 0.75]


def answer_in_turn(*answers: DaemonStatus | ConnectError) -> Callable[[], DaemonStatus]:
    """Returns one answer after the other, or raises it."""
    given = iter(answers)

    def fetch() -> DaemonStatus:
        answer = next(given)
        if isinstance(answer, ConnectError):
            raise answer
        return answer

    return fetch


def with_bad(bad: int, uptime_s: float, pid: int = 7) -> DaemonStatus:
    return replace(STATUS, pid=pid, uptime_s=uptime_s, streams=(replace(STATUS.streams[0], bad=bad),))


def test_an_unreachable_daemon_keeps_its_last_status_and_restarts_with_new_counts() -> None:
    away = ConnectError("ipc:///s", "no answer")
    one, two, again = with_bad(3, 60.0), with_bad(5, 62.0), with_bad(9, 1.0, pid=8)
    now_s = iter([10.0, 11.0, 13.0, 14.0, 20.0])
    waits: list[None] = []
    seen = watch_status(answer_in_turn(one, two, away, away, again), lambda: waits.append(None), lambda: next(now_s))
    assert list(islice(seen, 5)) == [
        TopFrame(one, {"train": 0}),
        TopFrame(two, {"train": 2}),
        TopFrame(two, {"train": 2}, 2.0),
        TopFrame(two, {"train": 2}, 3.0),
        TopFrame(again, {"train": 0}),
    ]
    assert len(waits) == 4


def test_watching_an_absent_daemon_fails_at_once() -> None:
    with pytest.raises(ConnectError):
        next(watch_status(answer_in_turn(ConnectError("ipc:///s", "no answer")), lambda: None, lambda: 0.0))
