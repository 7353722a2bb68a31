"""Several images a sample in a daemon: from arrays, through a transform by name, and from a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from support.array_records import KINDS, build_array_stream
from support.daemon_process import DaemonProcess
from support.masked_photos import table_config, write_masked_photos

import streamd

ALL: Final[dict[str, Any]] = {
    "photo": {"size": [24, 32], "resize": "random_crop"},
    "mask": {"like": "photo", "mode": "index"},
    "band": {"size": "stored", "mode": "raw", "channels": 4, "dtype": "uint16"},
}
TURN: Final = """\
def turn(images, labels, rng):
    if rng.random() < 0.5:
        images = {name: image[:, ::-1] for name, image in images.items()}
    return images, labels
"""

pytestmark = pytest.mark.long


def read_epochs(daemon: DaemonProcess, stream: str, epochs: int = 1) -> dict[tuple[int, int], dict[str, Any]]:
    """All images of a stream, by epoch and sample."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    with streamd.connect(daemon.endpoint) as client, client.subscribe(stream, epochs=epochs) as batches:
        for batch in batches:
            assert batch.bad == ()
            arrays = {name: np.array(each) for name, each in batch.arrays.items()}
            for row, sample_id in enumerate(batch.sample_ids.tolist()):
                found[batch.epoch, sample_id] = {name: each[row] for name, each in arrays.items()}
        assert [receipt.ok for receipt in batches.receipts] == [True] * epochs
    return found


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, image in expected.items():
        assert np.array_equal(found[name], image), name


def test_trainers_get_the_same_samples_from_npy_hdf5_and_lmdb(tmp_path: Path) -> None:
    streams = {kind.replace(" ", "-"): build_array_stream(tmp_path / kind, kind, ALL, shuffle="full") for kind in KINDS}
    with DaemonProcess(tmp_path, {"workers": 2, "streams": streams}) as daemon:
        found = {name: read_epochs(daemon, name, epochs=2) for name in streams}
        assert not np.array_equal(found["npy"][0, 3]["photo"], found["npy"][1, 3]["photo"])
        for samples in found.values():
            assert samples.keys() == found["npy"].keys()
            for key, images in samples.items():
                assert_same(images, found["npy"][key])


def test_a_cache_and_a_transform_of_several_images_give_what_decoding_gives(tmp_path: Path) -> None:
    folder = write_masked_photos(tmp_path / "data")
    (tmp_path / "turning.py").write_text(TURN)
    images = {
        "photo": {"from": "picture", "size": [24, 32], "resize": "crop"},
        "mask": {"like": "photo", "mode": "index"},
    }
    plain = table_config(folder, images=images)
    cached = plain | {"cache": {"path": str(tmp_path / "kept")}}
    streams = {
        "plain": plain,
        "turned": plain | {"transform": "turning:turn"},
        "kept": cached | {"transform": "turning:turn"},
    }
    with DaemonProcess(tmp_path, {"workers": 2, "streams": streams}) as daemon:
        whole, turned = read_epochs(daemon, "plain"), read_epochs(daemon, "turned", epochs=2)
        kept = read_epochs(daemon, "kept", epochs=2)
    assert 0 < sum(not np.array_equal(turned[key]["photo"], images["photo"]) for key, images in whole.items()) < 6
    for key, images in turned.items():
        assert_same(kept[key], images)
    for file in folder.rglob("*.png"):
        file.unlink()
    with DaemonProcess(tmp_path, {"workers": 2, "streams": streams}) as daemon:  # nothing is decoded any more
        again = read_epochs(daemon, "kept")
    for key, images in again.items():
        assert_same(images, turned[key])
