"""Two `streamd-train` processes at once on one daemon, on a folder of classes and on a table of numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.daemon_process import Start, stream_config, wait_until, write_images

import streamd

pytestmark = pytest.mark.train

TRAIN = [sys.executable, "-m", "streamd.cli.train.command"]


def table_of(folder: Path) -> Path:
    """A CSV beside the images, with a number for each."""
    rows = [f"{path.relative_to(folder)},{number / 50}" for number, path in enumerate(sorted(folder.rglob("*.jpg")))]
    path = folder / "all.csv"
    path.write_text("\n".join(["image,angle", *rows]) + "\n")
    return path


def test_two_trainers_at_once_learn_from_one_daemon_and_their_receipts_are_complete(
    start_daemon: Start, tmp_path: Path
) -> None:
    folder = write_images(tmp_path / "data", {"cat": 24, "dog": 24})
    table = {"source": {"kind": "table", "path": str(table_of(folder)), "image": "image"}, "labels": {"angle": "float"}}
    daemon = start_daemon(
        {
            "streams": {
                "classes": stream_config(folder),
                "held_out": {"like": "classes", "shuffle": "none"},
                "numbers": stream_config(folder, **table),
            }
        }
    )
    where = ["--endpoint", daemon.endpoint, "--epochs", "2", "--seed", "1"]
    commands = [
        [*TRAIN, "--stream", "classes", "--validation", "held_out", *where],
        [*TRAIN, "--stream", "numbers", *where],
    ]
    trainers = []
    for number, command in enumerate(commands):
        outputs = ["--save", str(tmp_path / f"{number}.keras"), "--receipts", str(tmp_path / f"{number}.json")]
        trainers.append(subprocess.Popen([*command, *outputs], stdout=subprocess.PIPE, text=True))
    said = [trainer.communicate()[0] for trainer in trainers]

    assert [trainer.returncode for trainer in trainers] == [0, 0], said
    for number, streams in enumerate((["classes", "classes", "held_out", "held_out"], ["numbers", "numbers"])):
        receipts = json.loads((tmp_path / f"{number}.json").read_text())
        assert [receipt["stream"] for receipt in receipts] == streams
        assert all(receipt["ok"] and receipt["complete"] and receipt["samples"] == 48 for receipt in receipts)
        assert (tmp_path / f"{number}.keras").stat().st_size > 0
        assert "missed 0, repeated 0" in said[number]
    with streamd.connect(daemon.endpoint) as client:
        wait_until(lambda: client.stats()["daemon"]["sessions"] == 0, "both have left")
