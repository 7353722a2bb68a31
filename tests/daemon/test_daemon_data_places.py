"""Where data lies, whether it is there yet, and which label files are newer than their list."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from support.daemon_process import stream_config, write_images
from support.served_folder import change_times

from streamd.config.load import load_config
from streamd.config.schema import Config, StreamConfig
from streamd.daemon import data_watch
from streamd.daemon.daemon import Daemon
from streamd.daemon.data_watch import (
    build_place_lookups,
    find_files_newer_than_manifest,
    list_data_places,
    wait_for_mount,
    warn_of_newer_label_files,
)
from streamd.daemon.streams.catalog import has_all_manifests, open_streams, write_sample_manifests
from streamd.daemon.streams.served_stream import ServedStream
from streamd.daemon.systemd import ServiceManager
from streamd.errors import ConfigError

LIMIT_S = 20.0


def config(*sources: Mapping[str, object]) -> Config:
    streams = {f"s{number}": {"source": source, "image": {"size": [8, 8]}} for number, source in enumerate(sources)}
    return load_config({"streams": streams})


def folder_source(path: Path) -> dict[str, object]:
    return {"kind": "folder", "path": str(path)}


def absences(*streams: StreamConfig) -> list[str]:
    async def ask() -> list[str]:
        return await asyncio.gather(*(each.wait_for_answer() for each in build_place_lookups(streams)))

    return [reason for reason in dict.fromkeys(asyncio.run(ask())) if reason]


def test_each_path_of_a_source_is_named_once_and_a_pattern_by_its_folder(tmp_path: Path) -> None:
    table = {"kind": "table", "path": str(tmp_path / "a.csv"), "image": "x", "root": str(tmp_path / "r")}
    tars = {"kind": "tar", "path": str(tmp_path / "shards" / "*" / "*.tar")}
    found = list_data_places(config(table, tars, {**table, "image": "y"}).streams.values())
    assert found == [tmp_path / "a.csv", tmp_path / "r", tmp_path / "shards"]


def test_arrays_of_labels_and_weights_are_data_places_too(tmp_path: Path) -> None:
    (tmp_path / "data" / "cat").mkdir(parents=True)
    source, arrays = folder_source(tmp_path / "data"), [tmp_path / name for name in ("y.npy", "w.npy")]
    stream = {"source": source, "image": {"size": [8, 8]}, "weights": str(arrays[1])}
    streams = load_config(
        {"streams": {"s": {**stream, "labels": {"y": {"type": "int", "from": str(arrays[0])}}}}}
    ).streams
    assert list_data_places(streams.values()) == [tmp_path / "data", *arrays]
    arrays[0].touch()
    assert absences(*streams.values()) == [f"'{arrays[1]}': not there, or empty"]


def test_missing_files_and_empty_folders_are_absent(tmp_path: Path) -> None:
    for name in ("empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "a.txt").touch()
    names = ("full", "empty", "gone", "full/a.txt", "full/a.txt/b")
    found = absences(*config(*(folder_source(tmp_path / name) for name in names)).streams.values())
    assert found == [f"'{tmp_path / name}': not there, or empty" for name in ("empty", "gone")]


def test_a_wait_for_a_mount_ends_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_watch, "LOOK_FOR_DATA_S", 0.01)
    asyncio.run(wait_for_mount(asyncio.Event()))


async def test_a_wait_for_a_mount_ends_when_a_check_is_requested() -> None:
    wanted = asyncio.Event()
    wanted.set()
    async with asyncio.timeout(LIMIT_S / 4):
        await wait_for_mount(wanted)


class LateData:
    """Stands for the wait for a mount: the data appears during the second wait."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waits = 0

    async def __call__(self, _: asyncio.Event) -> None:
        self.waits += 1
        if self.waits > 1:
            (self.path / "cat").mkdir(parents=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("manager", "waits"),
    [(ServiceManager("/no/such/socket"), 2), (ServiceManager(), 0)],
)
async def test_a_service_waits_for_its_data_and_a_terminal_command_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manager: ServiceManager, waits: int
) -> None:
    late = LateData(tmp_path / "data")
    monkeypatch.setattr("streamd.daemon.daemon.wait_for_mount", late)
    with pytest.raises(ConfigError, match="no images in" if waits else r"there is no .*data"):
        await Daemon(settings(tmp_path, late.path), state=tmp_path / "state", manager=manager).run()
    assert late.waits == waits


class LoggedEvents(logging.Handler):
    """Collects the events that are logged while a loop runs."""

    def __init__(self, level: int = logging.INFO) -> None:
        super().__init__(level)
        self.queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        logging.getLogger("streamd").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.queue.put_nowait((record.__dict__["event"], record.getMessage()))

    async def wait_for_event(self, name: str) -> str:
        """Returns the message of the next event of this name."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                event, message = await self.queue.get()
                if event == name:
                    return message


def settings(tmp_path: Path, data: Path) -> dict[str, object]:
    """One stream over a folder, and an endpoint of its own."""
    stream = {"source": folder_source(data), "image": {"size": [8, 8]}}
    return {"listen": [f"ipc://{tmp_path}/s"], "streams": {"t": stream}}


async def test_a_service_with_a_hanging_mount_logs_it_and_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(data_watch, "find_place_absence_reason", lambda _: str(answers.wait(LIMIT_S)))
    monkeypatch.setattr(data_watch, "PROOF_S", 0.001)
    wanted, logged = settings(tmp_path, tmp_path / "data"), LoggedEvents()
    daemon = Daemon(wanted, state=tmp_path / "state", manager=ServiceManager("/no/such/socket"))
    running = asyncio.create_task(daemon.run())
    assert f"the daemon waits for data: '{tmp_path}/data': does not answer within" in await logged.wait_for_event(
        "data.absent"
    )
    daemon.request_stop()
    await running
    answers.set()


@pytest.mark.long
async def test_a_service_that_waits_for_its_data_rereads_its_configuration_on_sighup(
    tmp_path: Path,
) -> None:
    (tmp_path / "right" / "cat").mkdir(parents=True)
    written = tmp_path / "config.yaml"

    def write(source: str, more: str = "") -> None:
        stream = f"{{source: {{kind: folder, path: {source}}}, image: {{size: [8, 8]}}{more}}}"
        written.write_text(f"listen: ['ipc://{tmp_path}/s']\nstreams:\n  t: {stream}\n")

    write("wrong")
    logged, daemon = (
        LoggedEvents(),
        Daemon(written, state=tmp_path / "state", manager=ServiceManager("/no/such/socket")),
    )
    running = asyncio.create_task(daemon.run())
    assert f"the daemon waits for data: '{tmp_path}/wrong'" in await logged.wait_for_event("data.absent")
    write("right", ", batch: 3")
    os.kill(os.getpid(), signal.SIGHUP)
    assert "batch" in await logged.wait_for_event("reload.failed")
    assert f"the daemon waits for data: '{tmp_path}/wrong'" in await logged.wait_for_event("data.absent")
    write("right")
    os.kill(os.getpid(), signal.SIGHUP)
    with pytest.raises(ConfigError, match=r"no images in .*right"):
        await running


# --- newer labels


LATER_NS = 10**9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", {"cat": 2, "dog": 2}, size=(8, 8))


def over_table(folder: Path) -> tuple[Config, Path]:
    """A stream over a table of the images in `folder`."""
    names = sorted(path.relative_to(folder) for path in folder.rglob("*.jpg"))
    table = folder.with_name("all.csv")
    table.write_text("image,score\n" + "".join(f"{name},1\n" for name in names))
    source = {"kind": "table", "path": str(table), "image": "image", "root": str(folder)}
    return load_config({"streams": {"train": stream_config(folder, source=source, labels={"score": "int"})}}), table


def served(config: Config, state: Path) -> list[ServedStream]:
    if not has_all_manifests(config, state):
        write_sample_manifests(config, state, lambda *_: None)
    return open_streams(config, state)


def call_before_stat(call: Callable[[], None], file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every `os.stat` of a file make a call first."""
    stat = os.stat

    def stat_after_call(path: str | Path, **how: bool) -> os.stat_result:
        if Path(path) == file:
            call()
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", stat_after_call)


async def collect_warning(config: Config, streams: list[ServedStream], answers: threading.Event) -> str:
    """Returns the one warning about label files, which comes only when file systems answer."""
    logged = LoggedEvents(logging.WARNING)
    warn_of_newer_label_files(config, streams)
    assert logged.queue.empty()
    answers.set()
    warning = await logged.wait_for_event("manifest.older")
    assert logged.queue.empty()
    return warning


def test_a_newer_table_is_warned_of_without_waiting_for_its_file_system(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, table = over_table(folder)
    (before,) = served(config, tmp_path / "state")
    change_times(table, before.manifest_path.stat().st_mtime_ns + LATER_NS)
    answers = threading.Event()

    def wait_for_answer() -> None:
        assert threading.current_thread() is not threading.main_thread()
        answers.wait(LIMIT_S)

    call_before_stat(wait_for_answer, table, monkeypatch)
    after = served(config, tmp_path / "state")
    said = asyncio.run(collect_warning(config, after, answers))
    assert "all.csv' was written after its samples were listed: restart with --rescan" in said
    assert after[0].spec.order_id == before.spec.order_id


def test_a_stream_opens_though_its_table_is_on_a_dead_mount(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, table = over_table(folder)
    served(config, tmp_path / "state")

    def fail() -> None:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    call_before_stat(fail, table, monkeypatch)
    streams = served(config, tmp_path / "state")
    assert [stream.spec.samples for stream in streams] == [4]
    assert find_files_newer_than_manifest([table], streams[0].manifest_path) == []


def test_an_older_table_is_not_warned_of(folder: Path, tmp_path: Path) -> None:
    config, table = over_table(folder)
    (stream,) = served(config, tmp_path / "state")
    assert find_files_newer_than_manifest([table], stream.manifest_path) == []


@pytest.mark.parametrize("key", ["labels", "weights"])
def test_newer_arrays_of_labels_and_weights_are_warned_of(folder: Path, tmp_path: Path, key: str) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 8, 8, 3), np.uint8))
    np.save(tmp_path / "y.npy", np.arange(4))
    named = {"labels": {"y": {"type": "int", "from": str(tmp_path / "y.npy")}}, "weights": str(tmp_path / "y.npy")}
    source = {"kind": "npy", "path": str(tmp_path / "x.npy")}
    config = load_config({"streams": {"train": stream_config(folder, source=source, image={}, **{key: named[key]})}})
    streams = served(config, tmp_path / "state")
    change_times(tmp_path / "y.npy", streams[0].manifest_path.stat().st_mtime_ns + LATER_NS)
    said = asyncio.run(collect_warning(config, streams, threading.Event()))
    assert "y.npy' was written after" in said
