"""HDF5 files as PyTables scripts write them: one image appended at a time, with one-hot labels beside."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tables
from support.checked_epochs import verdicts
from support.daemon_process import Start

import streamd
from streamd.errors import StreamStoppedError

PIXELS = np.random.default_rng(5).integers(0, 256, (103, 16, 24, 3), dtype=np.uint8)
KINDS = np.random.default_rng(6).integers(0, 4, 103)
ANGLES = np.linspace(-1, 1, 103, dtype=np.float32)


def write(path: Path, images: Any = PIXELS, **settings: Any) -> Path:
    """`settings` are those of `create_earray`."""
    with tables.open_file(str(path), mode="w") as file:
        atom = tables.Atom.from_dtype(images.dtype)
        samples = file.create_earray(file.root, "training_samples", atom, (0, *images.shape[1:]), **settings)
        labels = file.create_earray(file.root, "training_labels", tables.Float64Atom(), (0, 4))
        angles = file.create_earray(file.root, "angles", tables.Float32Atom(), (0, 1))
        for image, kind, angle in zip(images, KINDS, ANGLES, strict=True):
            samples.append(image[np.newaxis])
            labels.append(np.eye(4)[kind][np.newaxis])
            angles.append(np.array([[angle]], np.float32))
    return path


def stream(path: Path, **source: Any) -> dict[str, Any]:
    """A stream of all that `write` has written, in batches of 8."""
    return {
        "source": {"kind": "hdf5", "path": str(path), "images": "/training_samples", **source},
        "labels": {
            "kind": {"type": "category", "from": "/training_labels"},
            "angle": {"type": "float", "from": "/angles"},
        },
        "batch_size": 8,
    }


def check(client: streamd.Client, name: str) -> list[tuple[int, str]]:
    """Takes an epoch, holds every row against what was written, and gives the samples that were bad, with reasons."""
    with client.subscribe(name, epochs=1) as batches:
        seen: list[int] = []
        bad: set[tuple[int, str]] = set()
        for batch in batches:
            ids = batch.sample_ids
            assert np.array_equal(batch.images, PIXELS[ids])
            assert np.array_equal(batch.labels["kind"], KINDS[ids])
            assert np.array_equal(batch.labels["angle"], ANGLES[ids])
            bad |= {(each.sample_id, each.reason) for each in batch.bad}
            seen += ids.tolist()
    assert batches.receipts[0].ok
    assert set(seen) == set(range(103)) - {sample for sample, _ in bad}
    return sorted(bad)


@pytest.mark.long
def test_a_trainer_gets_the_appended_images_in_every_layout(start_daemon: Start, tmp_path: Path) -> None:
    numbers = (PIXELS / 255).astype(np.float32)
    numbers[40, 3, 2, 1] = np.nan
    zlib = tables.Filters(complevel=5, complib="zlib")
    daemon = start_daemon(
        {
            "streams": {
                "plain": stream(write(tmp_path / "plain.h5")),
                "zlib": stream(write(tmp_path / "zlib.h5", filters=zlib, expectedrows=20_000)),
                "fractions": stream(write(tmp_path / "fractions.h5", numbers), range=[0, 1]),
                "first": stream(write(tmp_path / "first.h5", PIXELS.transpose(0, 3, 1, 2))),
            }
        }
    )
    with streamd.connect(daemon.endpoint) as client:
        assert client.streams()["plain"].labels["kind"].classes == (0, 1, 2, 3)
        for name in ("plain", "zlib", "first"):
            assert check(client, name) == []
        assert check(client, "fractions") == [(40, "a pixel is not a number (NaN)")]
        before = len(verdicts(daemon))
        with client.subscribe("plain") as batches:
            next(iter(batches))
            with tables.open_file(str(tmp_path / "plain.h5"), mode="a") as file:
                file.root.training_samples.append(PIXELS[:1])
            with pytest.raises(StreamStoppedError, match=r"plain\.h5\[\d+\] cannot be read: .*changed since"):
                deque(batches, maxlen=0)
    assert len(verdicts(daemon)) == before == 1
