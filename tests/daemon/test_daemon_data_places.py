"""Where data lie, and whether they are there yet."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from streamd.config.load import load_config
from streamd.config.schema import Config, StreamConfig
from streamd.daemon import data_places as places
from streamd.daemon import slow_lookup
from streamd.daemon.daemon import Daemon
from streamd.daemon.data_places import DataPlaceLookups, list_data_places, wait_for_mount
from streamd.daemon.systemd import ServiceManager
from streamd.errors import ConfigError

LIMIT_S = 20.0


def config(*sources: Mapping[str, object]) -> Config:
    streams = {f"s{number}": {"source": source, "image": {"size": [8, 8]}} for number, source in enumerate(sources)}
    return load_config({"streams": streams})


def folder(path: Path) -> dict[str, object]:
    return {"kind": "folder", "path": str(path)}


def absences(*streams: StreamConfig) -> list[str]:
    return asyncio.run(DataPlaceLookups(streams).find_absence_reasons())


def test_each_path_of_a_source_is_named_once_and_a_pattern_by_its_folder(tmp_path: Path) -> None:
    table = {"kind": "table", "path": str(tmp_path / "a.csv"), "image": "x", "root": str(tmp_path / "r")}
    tars = {"kind": "tar", "path": str(tmp_path / "shards" / "*" / "*.tar")}
    found = list_data_places(config(table, tars, {**table, "image": "y"}).streams.values())
    assert found == [tmp_path / "a.csv", tmp_path / "r", tmp_path / "shards"]


def test_arrays_of_labels_and_weights_are_places_and_absent_while_they_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "data" / "cat").mkdir(parents=True)
    source, arrays = folder(tmp_path / "data"), [tmp_path / name for name in ("y.npy", "w.npy")]
    stream = {"source": source, "image": {"size": [8, 8]}, "weights": str(arrays[1])}
    streams = load_config(
        {"streams": {"s": {**stream, "labels": {"y": {"type": "int", "from": str(arrays[0])}}}}}
    ).streams
    assert list_data_places(streams.values()) == [tmp_path / "data", *arrays]
    arrays[0].touch()
    assert absences(*streams.values()) == [f"'{arrays[1]}': not there, or empty"]


def test_what_is_not_there_or_empty_is_absent_and_the_rest_is_not(tmp_path: Path) -> None:
    for name in ("empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "a.txt").touch()
    names = ("full", "empty", "gone", "full/a.txt", "full/a.txt/b")
    found = absences(*config(*(folder(tmp_path / name) for name in names)).streams.values())
    assert found == [f"'{tmp_path / name}': not there, or empty" for name in ("empty", "gone")]


def test_a_wait_for_a_mount_ends_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "LOOK_FOR_DATA_S", 0.01)
    asyncio.run(wait_for_mount(asyncio.Event()))


async def test_a_wait_for_a_mount_ends_when_a_look_is_wanted() -> None:
    wanted = asyncio.Event()
    wanted.set()
    async with asyncio.timeout(LIMIT_S / 4):
        await wait_for_mount(wanted)


class Late:
    """Stands for the wait: the data come while it lasts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waits = 0

    async def __call__(self, _: asyncio.Event) -> None:
        self.waits += 1
        if self.waits > 1:
            (self.path / "cat").mkdir(parents=True)


@pytest.mark.parametrize(
    ("manager", "waits"),
    [(ServiceManager("/no/such/socket"), 2), pytest.param(ServiceManager(), 0, marks=pytest.mark.long)],
)
async def test_a_service_waits_for_its_data_and_at_a_terminal_nobody_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manager: ServiceManager, waits: int
) -> None:
    late = Late(tmp_path / "data")
    monkeypatch.setattr("streamd.daemon.daemon.wait_for_mount", late)
    wanted = {
        "listen": [f"ipc://{tmp_path}/s"],
        "streams": {"t": {"source": folder(late.path), "image": {"size": [8, 8]}}},
    }
    with pytest.raises(ConfigError, match="no images in" if waits else r"there is no .*data"):
        await Daemon(wanted, state=tmp_path / "state", manager=manager).run()
    assert late.waits == waits


class Said(logging.Handler):
    """Events that are logged while a loop runs, to be waited for."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._said: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        logging.getLogger("streamd").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._said.put_nowait((record.__dict__["event"], record.getMessage()))

    async def event(self, name: str) -> str:
        async with asyncio.timeout(LIMIT_S):
            while True:
                event, message = await self._said.get()
                if event == name:
                    return message


async def test_a_service_whose_mount_hangs_says_so_and_ends_when_it_is_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(places, "_is_absent_or_empty", lambda _: answers.wait(LIMIT_S))
    monkeypatch.setattr(slow_lookup, "PROOF_S", 0.001)
    wanted = {
        "listen": [f"ipc://{tmp_path}/s"],
        "streams": {"t": {"source": folder(tmp_path / "data"), "image": {"size": [8, 8]}}},
    }
    said, daemon = Said(), Daemon(wanted, state=tmp_path / "state", manager=ServiceManager("/no/such/socket"))
    running = asyncio.create_task(daemon.run())
    assert f"waits for '{tmp_path}/data': does not answer within" in await said.event("data.absent")
    daemon.request_stop()
    await running
    answers.set()


@pytest.mark.long
async def test_a_service_that_waits_for_its_data_reads_the_configuration_again_when_it_is_asked_to(
    tmp_path: Path,
) -> None:
    (tmp_path / "right" / "cat").mkdir(parents=True)
    written = tmp_path / "config.yaml"

    def write(source: str, more: str = "") -> None:
        stream = f"{{source: {{kind: folder, path: {source}}}, image: {{size: [8, 8]}}{more}}}"
        written.write_text(f"listen: ['ipc://{tmp_path}/s']\nstreams:\n  t: {stream}\n")

    write("wrong")
    said, daemon = Said(), Daemon(written, state=tmp_path / "state", manager=ServiceManager("/no/such/socket"))
    running = asyncio.create_task(daemon.run())
    assert f"waits for '{tmp_path}/wrong'" in await said.event("data.absent")
    write("right", ", batch: 3")
    os.kill(os.getpid(), signal.SIGHUP)
    assert "batch" in await said.event("reload.failed")
    assert f"waits for '{tmp_path}/wrong'" in await said.event("data.absent")
    write("right")
    os.kill(os.getpid(), signal.SIGHUP)
    with pytest.raises(ConfigError, match=r"no images in .*right"):
        await running
