"""What users get wrong, through the real commands: an exit status, a line that says what to do, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from daemons import DaemonProcess, stream_config, write_images

import streamd
from streamd.errors import RefusedError, StreamStoppedError

Start = Callable[..., DaemonProcess]
LIMIT_S = 30.0


class Ended(NamedTuple):
    status: int
    lines: list[str]  # on stderr, without the log's
    out: str

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def streamd_command(*arguments: str, environment: dict[str, str] | None = None) -> Ended:
    """Runs the command as its users do; a traceback fails the test, whatever else it expects."""
    command = [sys.executable, "-m", "streamd.cli.main", *arguments]
    together = os.environ | (environment or {})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=together, timeout=LIMIT_S)
    assert "Traceback" not in done.stderr, done.stderr
    lines = done.stderr.splitlines()
    return Ended(done.returncode, [line for line in lines if not line[:2].isdigit()], done.stdout)


def serve(tmp_path: Path, config: dict[str, Any] | str, **environment: str) -> Ended:
    """`streamd serve`, which is expected to end by itself."""
    path = tmp_path / "config.yaml"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    environment = {"STATE_DIRECTORY": str(tmp_path), **environment}
    return streamd_command("serve", "--config", str(path), environment=environment)


def usual(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """A configuration that would be served, with changes to its only stream."""
    folder = tmp_path / "data"
    if not folder.exists():
        write_images(folder, {"cat": 2})
    return {"listen": [f"ipc://{tmp_path}/s"], "workers": 1, "streams": {"train": {**stream_config(folder), **changes}}}


def refused(ended: Ended, *says: str) -> None:
    """One line, status 2, with all of `says` in it."""
    assert ended.status == 2, ended
    assert len(ended.lines) == 1, ended
    assert ended.lines[0].startswith("streamd: ")
    for each in says:
        assert each in ended.text


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    source = {"kind": "folder", "path": "dta"}
    refused(serve(tmp_path, usual(tmp_path, source=source)), "streams.train.source", str(tmp_path / "dta"))


def test_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    source = {"kind": "folder", "path": "empty"}
    refused(serve(tmp_path, usual(tmp_path, source=source)), "streams.train.source", "empty", "no image")


def table(tmp_path: Path, text: str, **changes: Any) -> dict[str, Any]:
    (tmp_path / "all.csv").write_text(text)
    source = {"kind": "table", "path": "all.csv", "image": "path", "root": "data"}
    return usual(tmp_path, source=source, **changes)


def test_a_label_that_is_no_number(tmp_path: Path) -> None:
    text = "path,angle\ncat/0000.jpg,0.5\ncat/0001.jpg,left\n"
    config = table(tmp_path, text, labels={"angle": "float"})
    refused(serve(tmp_path, config), "all.csv", "angle", "left")


def test_a_missing_column_is_answered_with_the_near_one(tmp_path: Path) -> None:
    config = table(tmp_path, "path,angle\ncat/0000.jpg,0.5\n", labels={"angel": "float"})
    refused(serve(tmp_path, config), "angel", "did you mean 'angle'?")


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    config = table(tmp_path, "path\n")
    (tmp_path / "all.csv").unlink()
    refused(serve(tmp_path, config), str(tmp_path / "all.csv"))


def test_a_setting_that_is_not_served_yet(tmp_path: Path) -> None:
    config = usual(tmp_path, cache={"path": "cache", "max": "1GiB"})
    refused(serve(tmp_path, config), "streams.train.cache: a cache is not served by this version; leave cache out")


def test_an_unknown_key_is_answered_with_the_near_one(tmp_path: Path) -> None:
    refused(serve(tmp_path, usual(tmp_path, batchsize=4)), "config.yaml", "batchsize", "batch_size")


def test_two_mistakes_have_a_line_each(tmp_path: Path) -> None:
    ended = serve(tmp_path, usual(tmp_path, batchsize=4, shufle="none"))
    assert (ended.status, len(ended.lines)) == (2, 2)
    assert "did you mean 'batch_size'?" in ended.lines[0]
    assert "did you mean 'shuffle'?" in ended.lines[1]


def test_text_that_is_no_yaml(tmp_path: Path) -> None:
    refused(serve(tmp_path, "streams:\n  train: [1, 2\n"), "config.yaml:")


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    ended = streamd_command("serve", "--config", str(tmp_path / "confg.yaml"))
    refused(ended, f"{tmp_path}/confg.yaml: there is no such file; name your configuration, or write one there")


@pytest.mark.parametrize(
    ("listen", "says"),
    [
        ("ipc:///" + "x" * 120, "at most 104 bytes"),
        ("tcp://127.0.0.1:5555", "tcp://127.0.0.1:5555"),
    ],
)
def test_an_endpoint_that_cannot_be(tmp_path: Path, listen: str, says: str) -> None:
    refused(serve(tmp_path, {**usual(tmp_path), "listen": [listen]}), says)


def test_a_state_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = serve(tmp_path, usual(tmp_path), STATE_DIRECTORY=str(tmp_path / "file" / "state"))
    refused(ended, "set STATE_DIRECTORY to a folder of yours")


def test_a_batch_that_is_larger_than_the_memory(start_daemon: Start, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 8})
    stream = stream_config(folder, image={"size": [512, 512]}, batch_size=64)
    daemon = start_daemon({"memory": "16MiB", "streams": {"train": stream}})
    assert b"stream.too_large" in daemon.log.read_bytes()
    arithmetic = r"one batch takes 48.0 MiB; .* memory is 16.0 MiB: set memory to at least \d+MiB, or make batch_size"
    with streamd.connect(daemon.endpoint) as client, pytest.raises(RefusedError, match=arithmetic):
        client.subscribe("train")
    ended = streamd_command("probe", "train", "--endpoint", daemon.endpoint)
    assert ended.status == 2
    assert "set memory to at least" in ended.text
    assert len(ended.lines) <= 3


def test_a_stream_that_is_not_served(start_daemon: Start, tmp_path: Path) -> None:
    daemon = start_daemon({"streams": {"train": stream_config(write_images(tmp_path / "data", {"cat": 8}))}})
    ended = streamd_command("probe", "trian", "--endpoint", daemon.endpoint)
    refused(ended, "no stream 'trian'; did you mean 'train'?; served: train")


def test_an_endpoint_where_no_daemon_is(tmp_path: Path) -> None:
    missing = {"XDG_RUNTIME_DIR": str(tmp_path), "RUNTIME_DIRECTORY": str(tmp_path), "STREAMD_ENDPOINT": ""}
    ended = streamd_command("probe", "train", environment=missing)
    assert (ended.status, len(ended.lines)) == (1, 1)
    assert f"{tmp_path}/streamd.sock" in ended.text
    assert "start `streamd serve --config config.yaml`, or name its endpoint" in ended.text
    refused(streamd_command("probe", "train", "--endpoint", "tcp://host:1"), "must begin with ipc://")


def test_a_command_line_that_cannot_be() -> None:
    for arguments in (("serve",), ("probe",), ("probe", "train", "--trainers", "0"), ("srve",)):
        ended = streamd_command(*arguments)
        assert ended.status == 2
        assert len(ended.lines) <= 4


def spoil(folder: Path, count: int) -> None:
    for number in range(count):
        (folder / "cat" / f"{number:04}.jpg").write_bytes(b"\xff\xd8\xff this is no picture" * 9)


def test_an_unreadable_image_is_substituted_and_counted(start_daemon: Start, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 16, "dog": 16})
    spoil(folder, 1)
    daemon = start_daemon({"streams": {"train": stream_config(folder)}})
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=2) as stream:
        bad = [row for batch in stream for row in batch.bad]
    assert [(row.sample_id, row.file, row.action) for row in bad] == [(0, "cat/0000.jpg", "substituted")] * 2
    assert all(row.reason for row in bad)
    assert [(each.bad, each.ok, each.samples) for each in stream.receipts] == [(1, True, 32)] * 2
    log = daemon.log.read_text()
    assert log.count("sample.bad") == 1
    assert "file=cat/0000.jpg" in log


def test_images_that_are_all_unreadable_stop_the_stream_with_a_message(start_daemon: Start, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 16})
    good = write_images(tmp_path / "good", {"cat": 16})
    spoil(folder, 16)
    daemon = start_daemon({"streams": {"train": stream_config(folder), "good": stream_config(good)}})
    says = r"of 16 samples are bad, more than bad_samples.max_fraction 0.01 allows; the last: cat/00\d\d.jpg: "
    with streamd.connect(daemon.endpoint) as client:
        for _ in range(20):  # the message and the end of the connection are in a race, which the message must win
            with pytest.raises(StreamStoppedError, match=says), client.subscribe("train") as stream:
                next(iter(stream))
        assert daemon.log.read_text().count("session.began") == 20
        with client.subscribe("good", epochs=1) as stream:
            assert len([batch.index for batch in stream]) == 2
    ended = streamd_command("probe", "train", "--endpoint", daemon.endpoint)
    assert ended.status == 1
    assert "of 16 samples are bad" in ended.text
    assert len(ended.lines) <= 3


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
