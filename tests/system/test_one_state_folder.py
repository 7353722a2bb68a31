"""Two daemons with one state folder: neither replaces the other's manifest or bad-sample records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import DaemonProcess, Start, stream_config, write_images
from support.daemon_reload import refusal, reload
from support.short_stream import all_rows

import streamd


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", {"cat": 20, "dog": 20})


@pytest.fixture
def first(start_daemon: Start, folder: Path) -> DaemonProcess:
    return start_daemon({"streams": two_parts(folder)})


@pytest.fixture
def second(first: DaemonProcess, tmp_path: Path) -> Iterator[DaemonProcess]:
    """Another daemon of the same configuration and state folder, at an endpoint of its own; it is not started."""
    (tmp_path / "second").mkdir()
    config: dict[str, object] = {"streams": two_parts(tmp_path / "data")}
    daemon = DaemonProcess(tmp_path / "second", config, environment={"STATE_DIRECTORY": str(first.state)})
    yield daemon
    daemon.kill()


def two_parts(folder: Path) -> dict[str, dict[str, Any]]:
    """Two streams whose manifests are made together."""
    train = stream_config(folder, source={"kind": "folder", "path": str(folder), "part": "train"})
    validation = {"like": "train", "source": {"kind": "folder", "path": str(folder), "part": "validation"}}
    return {"train": train | {"split": {"validation": 0.2}}, "validation": validation}


def rescan(daemon: DaemonProcess, first: DaemonProcess) -> subprocess.CompletedProcess[str]:
    """`streamd serve --rescan` with the configuration of `daemon` and the state folder of `first`."""
    command = [sys.executable, "-m", "streamd.cli.main", "serve", "--config", str(daemon.config), "--rescan"]
    environment = os.environ | {"STATE_DIRECTORY": str(first.state)}
    return subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, timeout=40, check=False)


def lists(daemon: DaemonProcess) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in daemon.state.iterdir() if path.suffix in {".manifest", ".jsonl"}}


def bad_files(daemon: DaemonProcess) -> set[str]:
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=1) as stream:
        return {bad.file for batch in stream for bad in batch.bad}


@pytest.mark.long
def test_a_second_daemon_does_not_list_again_what_a_first_serves(
    first: DaemonProcess, second: DaemonProcess, folder: Path
) -> None:
    before = lists(first)
    write_images(folder, {"ant": 10})  # they would come first, and all numbers be others'
    refused = rescan(second, first)
    assert refused.returncode == 2
    assert f"streams.train, validation: another streamd (pid {first.pid}) is serving these samples" in refused.stderr
    assert "set STATE_DIRECTORY to another folder" in refused.stderr
    assert lists(first) == before
    spoilt = folder / "cat/0003.jpg", folder / "dog/0003.jpg"
    for path in spoilt:
        path.write_bytes(b"no image")
    names = {f"{path.parent.name}/{path.name}" for path in spoilt}
    bad = bad_files(first)
    assert bad <= names
    assert bad
    first.restart_after_kill()
    assert bad_files(first) == bad


@pytest.mark.long
def test_two_daemons_of_one_manifest_serve_the_same_samples_and_record_the_same_bad_ones(
    first: DaemonProcess, second: DaemonProcess, folder: Path
) -> None:
    second.start()
    with streamd.connect(first.endpoint) as here, streamd.connect(second.endpoint) as there:
        assert all_rows(here) == all_rows(there)
    for path in folder.glob("*/000[0-4].jpg"):
        path.write_bytes(b"no image")
    bad = bad_files(first)
    assert bad_files(second) == bad
    assert len(bad) > 4
    first.restart_after_kill()
    assert bad_files(first) == bad


@pytest.mark.long
def test_a_reload_makes_a_removed_manifest_unless_another_daemon_serves_the_same_samples(
    first: DaemonProcess, second: DaemonProcess
) -> None:
    (removed,) = first.state.glob("validation-*.manifest")
    second.start()
    removed.unlink()
    assert f"another streamd (pid {second.pid}) is serving these samples" in refusal(first)
    assert not removed.exists()
    second.terminate()
    reload(first)
    assert removed.exists()
    with streamd.connect(first.endpoint) as client:
        assert len(all_rows(client)) == client.streams()["train"].samples


@pytest.mark.long
def test_a_reload_that_removes_one_of_two_split_streams_keeps_the_manifest_from_a_second_daemon(
    first: DaemonProcess, second: DaemonProcess, folder: Path
) -> None:
    for path in folder.glob("*/000[0-4].jpg"):
        was = path.stat()
        path.write_bytes(bytes(was.st_size))
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))  # the list stays the same
    bad = bad_files(first)
    assert bad
    for each in (first, second):
        config = json.loads(each.config.read_text())
        del config["streams"]["validation"]
        each.config.write_text(json.dumps(config))
    assert "kept=train" in reload(first)
    before = lists(first)
    assert f"another streamd (pid {first.pid}) is serving these samples" in rescan(second, first).stderr
    assert lists(first) == before
    assert bad_files(first) == bad
