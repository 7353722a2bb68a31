"""Images in .npy arrays, from the files to trainers; a changed file stops the stream."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checked_epochs import number, verdicts
from support.daemon_process import Start
from support.running_trainers import Trainer, trainers

import streamd
from streamd.errors import StreamStoppedError

PIXELS = np.random.default_rng(5).integers(0, 256, (203, 6, 5, 3), dtype=np.uint8)
ANGLES = np.linspace(-1, 1, 203, dtype=np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The images in two files, their classes in a table, their angles in an array."""
    folder = tmp_path / "data"
    folder.mkdir()
    np.save(folder / "x0.npy", PIXELS[:90])
    np.save(folder / "x1.npy", PIXELS[90:])
    np.save(folder / "angles.npy", ANGLES)
    (folder / "t.csv").write_text("\n".join(["kind", *(f"k{row % 3}" for row in range(203))]))
    return folder


def arrays(folder: Path, **changes: Any) -> dict[str, Any]:
    """A stream over the arrays of a folder, in batches of 8; `changes` of its source are below `source`."""
    source = {"kind": "npy", "path": str(folder), "table": str(folder / "t.csv"), **changes.pop("source", {})}
    labels = {"kind": "category", "angle": {"type": "float", "from": str(folder / "angles.npy")}}
    return {"source": source, "labels": labels, "image": {"size": "stored"}, "batch_size": 8, **changes}


def read(client: streamd.Client, stream: str = "train") -> list[int]:
    """The samples of an epoch, each checked against its row."""
    with client.subscribe(stream, epochs=1) as batches:
        ids: list[int] = []
        for batch in batches:
            rows = [
                at(name) for name in client.names(stream, [each for each in batch.sample_ids.tolist() if each >= 0])
            ]
            assert np.array_equal(batch.images[: len(rows)], PIXELS[rows])
            assert not batch.images[len(rows) :].any()
            assert np.array_equal(batch.labels["angle"][: len(rows)], ANGLES[rows])
            assert batch.labels["kind"][: len(rows)].tolist() == [row % 3 for row in rows]
            assert batch.weights.tolist() == [1.0] * len(rows) + [0.0] * (len(batch.weights) - len(rows))
            ids += rows
    assert batches.receipts[0].ok
    return ids


def at(name: str) -> int:
    """The row of PIXELS that a sample's name tells."""
    file, _, row = name.removesuffix("]").partition("[")
    return int(row) + {"x0.npy": 0, "x1.npy": 90}[file]


def test_two_trainers_get_every_row_once_and_share_each_batch(start_daemon: Start, folder: Path) -> None:
    daemon = start_daemon({"streams": {"train": arrays(folder)}})
    several = [Trainer(daemon.endpoint, epochs=2, start={"together": 2}) for _ in range(2)]
    with trainers(*several):
        receipts = [each.finish() for each in several]
    assert [[(each.samples, each.missed, each.repeated, each.ok) for each in both] for both in receipts] == [
        [(203, 0, 0, True)] * 2
    ] * 2
    assert several[0].rows == several[1].rows
    assert sorted(several[0].rows[:203]) == list(range(203))
    assert number(daemon, "stream.train", "produced") == 2 * 26
    with streamd.connect(daemon.endpoint) as client:
        assert sorted(read(client)) == list(range(203))
        assert client.streams()["train"].image_shape == (6, 5, 3)


@pytest.mark.long
@pytest.mark.parametrize("cut_off", [False, True], ids=["touched", "cut off"])
def test_a_changed_file_stops_the_stream_and_marks_no_sample_bad(
    start_daemon: Start, folder: Path, *, cut_off: bool
) -> None:
    daemon = start_daemon({"streams": {"train": arrays(folder)}})
    told = r"x[01]\.npy\[\d+\] cannot be read: .*changed since it was listed"
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train") as stream:
        next(iter(stream))
        if cut_off:
            os.truncate(folder / "x1.npy", 4096)
        else:
            np.save(folder / "x1.npy", PIXELS[90:])
        with pytest.raises(StreamStoppedError, match=told):
            deque(stream, maxlen=0)
    assert verdicts(daemon) == []
