"""What users get wrong, through the real processes: an exit status, a line that says what to do, never a traceback.

What is said to each mistake is in `tests/mistakes`, without a process for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.daemon_process import DaemonProcess, stream_config, write_images
from typer.testing import CliRunner

import streamd
from streamd.cli.main import app
from streamd.errors import RefusedError, StreamStoppedError

LIMIT_S = 30.0


class Ended(NamedTuple):
    status: int
    lines: list[str]  # on stderr, without the log's


def streamd_command(*arguments: str, environment: dict[str, str] | None = None) -> Ended:
    """Runs the command as its users do; a traceback fails the test, whatever else it expects."""
    command = [sys.executable, "-m", "streamd.cli.main", *arguments]
    together = os.environ | (environment or {})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=together, timeout=LIMIT_S)
    assert "Traceback" not in done.stderr, done.stderr
    lines = done.stderr.splitlines()
    return Ended(done.returncode, [line for line in lines if not line[:2].isdigit()])


def serve(tmp_path: Path, config: dict[str, Any]) -> Ended:
    """`streamd serve`, which is expected to end by itself."""
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config))
    return streamd_command("serve", "--config", str(path), environment={"STATE_DIRECTORY": str(tmp_path)})


def usual(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """A configuration that would be served, with changes to its only stream."""
    folder = write_images(tmp_path / "data", {"cat": 2})
    return {"listen": [f"ipc://{tmp_path}/s"], "workers": 1, "streams": {"train": {**stream_config(folder), **changes}}}


@pytest.mark.long
def test_a_label_that_is_no_number_is_told_by_the_listing_through_the_daemon(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text("path,angle\ncat/0000.jpg,0.5\ncat/0001.jpg,left\n")
    source = {"kind": "table", "path": "all.csv", "image": "path", "root": "data"}
    ended = serve(tmp_path, usual(tmp_path, source=source, labels={"angle": "float"}))
    assert (ended.status, len(ended.lines)) == (2, 1)
    assert ended.lines[0].startswith("streamd: ")
    assert "all.csv, line 3: column 'angle' holds 'left'" in ended.lines[0]


@pytest.mark.long
def test_two_mistakes_have_a_line_each(tmp_path: Path) -> None:
    ended = serve(tmp_path, usual(tmp_path, batchsize=4, shufle="none"))
    assert (ended.status, len(ended.lines)) == (2, 2)
    assert "did you mean 'batch_size'?" in ended.lines[0]
    assert "did you mean 'shuffle'?" in ended.lines[1]


def test_an_endpoint_where_no_daemon_is(tmp_path: Path) -> None:
    missing = {"XDG_RUNTIME_DIR": str(tmp_path), "RUNTIME_DIRECTORY": str(tmp_path), "STREAMD_ENDPOINT": ""}
    ended = streamd_command("probe", "train", environment=missing)
    assert (ended.status, len(ended.lines)) == (1, 1)
    assert f"{tmp_path}/streamd.sock" in ended.lines[0]
    assert "start `streamd serve --config config.yaml`, or name its endpoint" in ended.lines[0]


@pytest.mark.parametrize(
    "arguments", [["serve", "PATH", "--config", "x.yaml"], ["probe"], ["probe", "train", "--trainers", "0"], ["srve"]]
)
def test_a_command_line_that_cannot_be(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) <= 4


# --- what is served although, or refused when it is asked for


def spoiled(folder: Path, classes: dict[str, int], spoilt: int) -> Path:
    """A folder whose first cats are no pictures."""
    write_images(folder, classes)
    for number in range(spoilt):
        (folder / "cat" / f"{number:04}.jpg").write_bytes(b"\xff\xd8\xff this is no picture" * 9)
    return folder


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    place = tmp_path_factory.mktemp("d")
    good = write_images(place / "good", {"cat": 16})
    streams = {
        "good": stream_config(good),
        "large": stream_config(good, image={"size": [512, 512]}, batch_size=64),
        "one": stream_config(spoiled(place / "one", {"cat": 16, "dog": 16}, 1)),
        "all": stream_config(spoiled(place / "all", {"cat": 16}, 16)),
    }
    process = DaemonProcess(place, {"memory": "16MiB", "streams": streams}).start()
    yield process
    process.kill()


def said(daemon: DaemonProcess, event: str, stream: str) -> list[str]:
    lines = daemon.log.read_text().splitlines()
    return [line for line in lines if f" {event}: " in line and f"stream={stream} " in f"{line} "]


def test_a_batch_that_is_larger_than_the_memory(daemon: DaemonProcess) -> None:
    assert len(said(daemon, "stream.too_large", "large")) == 1
    arithmetic = r"one batch takes 48.0 MiB; .* memory is 16.0 MiB: set memory to at least \d+MiB, or make batch_size"
    with streamd.connect(daemon.endpoint) as client, pytest.raises(RefusedError, match=arithmetic):
        client.subscribe("large")


def test_an_unreadable_image_is_substituted_and_counted(daemon: DaemonProcess) -> None:
    with streamd.connect(daemon.endpoint) as client, client.subscribe("one", epochs=2) as stream:
        bad = [row for batch in stream for row in batch.bad]
    assert [(row.sample_id, row.file, row.action) for row in bad] == [(0, "cat/0000.jpg", "substituted")] * 2
    assert all(row.reason for row in bad)
    assert [(each.bad, each.ok, each.samples) for each in stream.receipts] == [(1, True, 32)] * 2
    (line,) = said(daemon, "sample.bad", "one")
    assert "file=cat/0000.jpg" in line


def test_images_that_are_all_unreadable_stop_the_stream_with_a_message(daemon: DaemonProcess) -> None:
    says = r"of 16 samples are bad, more than bad_samples.max_fraction 0.01 allows; the last: cat/00\d\d.jpg: "
    with streamd.connect(daemon.endpoint) as client:
        for _ in range(20):  # the message and the end of the connection are in a race, which the message must win
            with pytest.raises(StreamStoppedError, match=says), client.subscribe("all") as stream:
                next(iter(stream))
        assert len(said(daemon, "session.began", "all")) == 20
        with client.subscribe("good", epochs=1) as stream:
            assert len([batch.index for batch in stream]) == 2


@pytest.mark.long
def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(usual(tmp_path)))
    command = f"ulimit -f 0; exec {sys.executable} -m streamd.cli.main serve --config {path}"
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, check=False, timeout=LIMIT_S,
        env=os.environ | {"STATE_DIRECTORY": str(tmp_path / "state")},
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "File too large; make room or give streamd another state directory" in done.stderr.splitlines()[-1]
