"""Streams over arrays of images, labels and weights are served as the arrays store them."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from support.daemon_process import write_images
from support.served_folder import serve

from streamd.dataset.hdf5 import chunk_grid
from streamd.errors import ConfigError


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "state"


def in_array(tmp_path: Path, shape: tuple[int, ...] = (9, 4, 5, 3)) -> Path:
    """A file of images, with their labels beside it."""
    np.save(tmp_path / "x.npy", np.zeros(shape, np.uint8))
    np.save(tmp_path / "y.npy", np.arange(shape[0]))
    return tmp_path / "x.npy"


@pytest.mark.parametrize(
    ("written", "chunk", "buffer"),
    [
        ({}, 5, 4),
        ({"kind": "chunk", "seed": 3}, 5, 4),
        ({"chunk": 10}, 10, 2),
        ({"buffer": 7}, 5, 7),
        ({"chunk": 3200, "buffer": 16}, 3200, 16),
        ({"kind": "full"}, 0, 0),
    ],
)
def test_shuffle_defaults_follow_the_compressed_chunks(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch, written: dict[str, object], chunk: int, buffer: int
) -> None:
    monkeypatch.setattr(chunk_grid, "CHUNKS_KEPT_BYTES", 4 * 5 * 60)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((90, 4, 5, 3), np.uint8), chunks=(5, 4, 5, 3), compression="gzip")
    source = {"kind": "hdf5", "path": str(tmp_path / "x.h5"), "images": "x"}
    stream = serve(tmp_path, state, source=source, labels={}, image={}, shuffle=written)
    assert (stream.spec.chunk, stream.spec.buffer) == (chunk, buffer)
    assert (stream.order.chunk, stream.spec.order_facts.buffer) == (chunk, buffer)


@pytest.mark.parametrize("size", [None, "stored", [4, 5]], ids=str)
def test_images_of_an_array_have_the_size_that_is_stored(tmp_path: Path, state: Path, size: object) -> None:
    source = {"kind": "npy", "path": str(in_array(tmp_path))}
    spec = serve(tmp_path, state, source=source, image={"size": size}).spec
    assert (spec.samples, spec.image_shape, spec.labels) == (9, (4, 5, 3), {})


@pytest.mark.parametrize(
    ("shape", "image", "told"),
    [
        ((9, 4, 5, 3), {"size": [5, 4]}, "image.size: the arrays hold images of 5x4, .* write size: stored"),
        (
            (9, 4, 5, 3),
            {"mode": "L"},
            "image.mode: L has 1 channel, but the images in the arrays have 3; write mode: RGB",
        ),
        ((9, 4, 5), {}, "image.mode: RGB has 3 channels, but the images in the arrays have 1; write mode: L"),
    ],
)
def test_an_image_shape_that_differs_from_the_array_is_refused(
    tmp_path: Path, state: Path, shape: tuple[int, ...], image: dict[str, object], told: str
) -> None:
    source = {"kind": "npy", "path": str(in_array(tmp_path, shape))}
    with pytest.raises(ConfigError, match=f"streams.train.{told}"):
        serve(tmp_path, state, source=source, image=image)


def test_weights_give_a_list_another_content_id(state: Path, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 5, "dog": 6}, size=(8, 8))
    np.save(tmp_path / "w.npy", np.arange(11))
    plain, weighted = serve(folder, state), serve(folder, state, weights=str(tmp_path / "w.npy"))
    assert plain.manifest_path != weighted.manifest_path
    assert plain.spec.content_id != weighted.spec.content_id
    assert (plain.spec.weighted, weighted.spec.weighted) == (False, True)
    assert weighted.manifest.gather_weights(np.array([10, 0])).tolist() == [10, 0]
