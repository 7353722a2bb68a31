"""Files of labels that were written after their samples were listed are spoken of, when their file systems answer."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from support.daemon_process import stream_config, write_images
from support.served_folder import change_times

from streamd.config.load import load_config
from streamd.config.schema import Config
from streamd.daemon.data_places import find_files_newer_than_manifest, warn_of_newer_label_files
from streamd.daemon.streams.catalog import has_all_manifests, open_streams, write_sample_manifests
from streamd.daemon.streams.served_stream import ServedStream

LIMIT_S = 20.0
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


class Warnings(logging.Handler):
    """What is warned of while a loop runs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []
        self.came = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        self.came.set()


async def warned(config: Config, streams: list[ServedStream], answers: threading.Event) -> list[str]:
    """What it says at last of files of which one was written since."""
    handler = Warnings()
    logging.getLogger("streamd").addHandler(handler)
    warn_of_newer_label_files(config, streams)
    assert handler.said == []
    answers.set()
    async with asyncio.timeout(LIMIT_S):
        await handler.came.wait()
    return handler.said


def test_a_table_that_was_written_since_is_spoken_of_when_its_file_system_answers_and_its_samples_stay(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, table = over_table(folder)
    (before,) = served(config, tmp_path / "state")
    change_times(table, before.manifest_path.stat().st_mtime_ns + LATER_NS)
    answers, stat = threading.Event(), os.stat

    def stat_late(path: str | Path, **how: bool) -> os.stat_result:
        if Path(path) == table:
            assert threading.current_thread() is not threading.main_thread()
            answers.wait(LIMIT_S)
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", stat_late)
    after = served(config, tmp_path / "state")
    (said,) = asyncio.run(warned(config, after, answers))
    assert "all.csv' was written after its samples were listed: --rescan" in said
    assert after[0].spec.order_id == before.spec.order_id


def test_a_table_on_a_dead_mount_keeps_no_stream_from_being_opened(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, table = over_table(folder)
    served(config, tmp_path / "state")
    stat = os.stat

    def stat_dead(path: str | Path, **how: bool) -> os.stat_result:
        if Path(path) == table:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", stat_dead)
    streams = served(config, tmp_path / "state")
    assert [stream.spec.samples for stream in streams] == [4]
    assert find_files_newer_than_manifest([table], streams[0].manifest_path) == []


def test_a_table_that_was_not_written_since_is_not_spoken_of(folder: Path, tmp_path: Path) -> None:
    config, table = over_table(folder)
    (stream,) = served(config, tmp_path / "state")
    assert find_files_newer_than_manifest([table], stream.manifest_path) == []


@pytest.mark.parametrize("key", ["labels", "weights"])
def test_arrays_of_labels_and_weights_written_since_are_spoken_of(folder: Path, tmp_path: Path, key: str) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 8, 8, 3), np.uint8))
    np.save(tmp_path / "y.npy", np.arange(4))
    named = {"labels": {"y": {"type": "int", "from": str(tmp_path / "y.npy")}}, "weights": str(tmp_path / "y.npy")}
    source = {"kind": "npy", "path": str(tmp_path / "x.npy")}
    config = load_config({"streams": {"train": stream_config(folder, source=source, image={}, **{key: named[key]})}})
    streams = served(config, tmp_path / "state")
    change_times(tmp_path / "y.npy", streams[0].manifest_path.stat().st_mtime_ns + LATER_NS)
    (said,) = asyncio.run(warned(config, streams, threading.Event()))
    assert "y.npy' was written after" in said
