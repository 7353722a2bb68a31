"""`streamd pack`: what it prints, and how it ends."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.daemon_process import stream_config, write_images
from typer.testing import CliRunner, Result

from streamd.cli.main import app
from streamd.cli.pack import run
from streamd.cli.pack.command import parse_format, parse_shard_size
from streamd.cli.pack.run import LeftOutSample, PackOptions, PackResult
from streamd.config.schema import Config
from streamd.core import log
from streamd.errors import ConfigError


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write_images(tmp_path / "data", {"cat": 5, "dog": 3})
    (tmp_path / "data" / "cat" / "0001.jpg").write_bytes(b"no picture")
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps({"workers": 1, "streams": {"train": stream_config(tmp_path / "data")}}))
    return path


def pack(config: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["pack", "--config", str(config), *options])


def test_pack_writes_the_files_and_reports_them_as_json(tmp_path: Path, config: Path) -> None:
    done = pack(config, "train", str(tmp_path / "out"), "--format", "npy", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["samples"], told["format"], told["path"]) == (7, "npy", str(tmp_path / "out"))
    assert [bad["file"] for bad in told["bad"]] == ["cat/0001.jpg"]
    assert told["samples_per_s"] > 0
    assert np.load(tmp_path / "out" / "images-00000.npy").shape == (7, 32, 32, 3)
    assert "cat/0001.jpg: text: it begins with" in done.stderr


def stub_pack_stream(monkeypatch: pytest.MonkeyPatch, packed: PackResult) -> list[PackOptions]:
    """Has every run end as `packed`; what was wished."""
    requests = []

    def stand_in(_config: Config, requested: PackOptions, _progress: object) -> PackResult:
        requests.append(requested)
        return packed

    monkeypatch.setattr(run, "pack_stream", stand_in)
    return requests


def summary(bad: int) -> PackResult:
    left_out = tuple(LeftOutSample(number, f"{number}.jpg", "an empty file") for number in range(bad))
    serving: dict[str, object] = {"source": {"kind": "tar", "path": "/packs/*.tar"}, "labels": {}}
    return PackResult("/packs", "tar", 1200, left_out, 5 << 20, 2.0, 600.0, 0.5, serving)


def test_the_summary_shows_the_rate_ten_bad_samples_and_the_configuration(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = stub_pack_stream(monkeypatch, summary(bad=13))
    done = pack(config, "train", str(tmp_path / "o"), "--format", "tar", "--shuffle", "--shard", "1MiB", "--restart")
    lines = done.stdout.splitlines()
    assert lines[0] == "/packs: 1,200 samples, 5 MiB, in 2.0 s (600 samples/s), read back in 500 ms"
    assert lines[1:3] == ["13 samples left out:", "  0.jpg: an empty file"]
    assert lines[12] == "  and 3 more; --json names all"
    assert lines[13:] == [
        "Serve it with",
        "streams:",
        "  train:",
        "    source: {kind: tar, path: /packs/*.tar}",
        "    labels: {}",
    ]
    assert requests == [PackOptions("train", tmp_path / "o", "tar", shuffle=True, restart=True, shard_bytes=1 << 20)]


def test_ctrl_c_says_what_another_run_does(tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "pack_stream", stop)
    done = pack(config, "train", str(tmp_path / "out"), "--format", "npy")
    assert done.exit_code == 130
    assert (
        "stopped; nothing has been put in place yet. Run the same command again: it continues after the last file that "
        "is whole, or begins again if there is none" in done.stderr
    )


def test_a_worker_warning_is_printed_on_stderr(tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(*_: Any) -> PackResult:
        log.warning("worker.died", "a worker died\x1b[31m", pid=1)
        return summary(bad=0)

    monkeypatch.setattr(run, "pack_stream", warn)
    done = pack(config, "train", str(tmp_path / "out"), "--format", "npy")
    assert done.stderr == "a worker died\\x1b[31m\n"
    assert logging.getLogger("streamd").handlers == []


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    assert parse_format("lmdb") == "lmdb"
    with pytest.raises(ConfigError, match="--format 'zip': use npy, tar, hdf5, lmdb"):
        parse_format("zip")


def test_a_size_is_written_as_in_the_configuration() -> None:
    assert parse_shard_size(None) is None
    assert parse_shard_size("2GiB") == 2 << 30
    with pytest.raises(ConfigError, match="--shard: found '2G', which is not a size"):
        parse_shard_size("2G")
