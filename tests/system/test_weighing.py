"""Weights and one-hot columns, from a table to a trainer: through substitution and other batch sizes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.daemon_process import stream_config, write_images

import streamd
from streamd.frameworks.model_inputs import build_model_feed

COUNT = 21
WEIGHTS = [number % 4 * 0.5 for number in range(COUNT)]
BROKEN = 6


@pytest.fixture
def client(tmp_path: Path) -> Iterator[streamd.Client]:
    """Batches of 6, the last of 3; one image cannot be decoded."""
    folder = write_images(tmp_path / "data", {"cat": COUNT}, size=(8, 8))
    ones = [",".join("1" if kind == row % 3 else "0" for kind in range(3)) for row in range(COUNT)]
    lines = [f"cat/{row:04}.jpg,{ones[row]},{WEIGHTS[row]}" for row in range(COUNT)]
    (tmp_path / "all.csv").write_text("\n".join(["file,cat,dog,bird,w", *lines]))
    (folder / f"cat/{BROKEN:04}.jpg").write_bytes(b"\xff\xd8\xff")
    stream = stream_config(
        folder,
        source={"kind": "table", "path": str(tmp_path / "all.csv"), "image": "file", "root": str(folder)},
        labels={"kind": {"type": "category", "from": ["cat", "dog", "bird"]}},
        weights="w",
        batch_size=6,
        bad_samples={"max_fraction": 1},
    )
    with streamd.local({"streams": {"train": stream}, "workers": 1}) as client:
        yield client


@pytest.mark.long
def test_each_row_has_the_weight_of_its_sample(client: streamd.Client) -> None:
    spec = client.streams()["train"]
    assert spec.weighted
    assert (spec.labels["kind"].classes, spec.labels["kind"].counts) == (("cat", "dog", "bird"), (7, 7, 7))
    for asked in ({}, {"batch_size": 3}, {"batch_size": 12}, {"rank": 1, "world": 3, "uneven": "pad"}):
        with client.subscribe("train", epochs=2, **asked) as stream:
            batches = [batch.copy() for batch in stream]
        assert all(receipt.ok for receipt in stream.receipts)
        for batch in batches:
            there = batch.sample_ids >= 0
            assert BROKEN not in batch.sample_ids
            assert batch.weights.tolist() == [WEIGHTS[each] if each >= 0 else 0 for each in batch.sample_ids.tolist()]
            assert batch.labels["kind"][there].tolist() == (batch.sample_ids[there] % 3).tolist()
    weights = build_model_feed(spec, class_weight={"dog": 4.0}).build_arrays(batches[0])[2]
    np.testing.assert_array_equal(weights, batches[0].weights * np.where(batches[0].labels["kind"] == 1, 4, 1))
