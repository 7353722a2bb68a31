"""An LMDB in the layout of ml-pyxis: from its file to trainers, until it is written to."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np
import pytest
from support.checked_epochs import verdicts
from support.daemon_process import Start
from support.lmdb_files import put, write_lmdb

import streamd
from streamd.errors import StreamStoppedError

PIXELS = np.random.default_rng(5).integers(0, 256, (203, 6, 5, 3), dtype=np.uint8)


@pytest.mark.long
def test_each_sample_comes_once_with_its_labels_and_a_write_stops_the_stream(
    start_daemon: Start, tmp_path: Path
) -> None:
    samples = [{"X": image, "y": [number], "kind": "ab"[number % 2]} for number, image in enumerate(PIXELS)]
    path = write_lmdb(tmp_path / "data.lmdb", samples)
    labels = {"y": "int", "group": {"type": "category", "from": "kind"}}
    source = {"kind": "lmdb", "path": str(path), "images": "X"}
    daemon = start_daemon({"streams": {"train": {"source": source, "labels": labels, "batch_size": 8}}})
    seen: list[int] = []
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train") as stream:
        epochs = stream.epochs()
        for batch in next(epochs):
            ids = batch.sample_ids
            assert np.array_equal(batch.images, PIXELS[ids])
            assert np.array_equal(batch.labels["y"], ids)
            assert np.array_equal(batch.labels["group"], ids % 2)
            seen += ids.tolist()
        assert sorted(seen) == list(range(203))
        assert client.names("train", [17]) == ["data.mdb[17]"]
        put(path, {b"nb_samples": b"204"}, b"meta_db")
        with pytest.raises(StreamStoppedError, match=r"data\.mdb\[\d+\] cannot be read: .*changed since it was listed"):
            deque(stream, maxlen=0)
        assert stream.receipts[0].ok
    assert verdicts(daemon) == []
