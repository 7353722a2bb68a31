"""Boxes from the file to the training program: through a daemon, its workers and the client, in all three ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from support.boxed_pictures import write_coco, write_picture, write_yolo

import streamd

pytestmark = pytest.mark.long

EMPTY: Final = [-1.0] * 5


def local(stream: dict[str, Any]) -> streamd.Client:
    """A private daemon that serves the stream `train`."""
    plain = {"batch_size": 3, "shuffle": "none", "image": {"size": [30, 40]}}
    return streamd.local({"workers": 1, "memory": "32MiB", "streams": {"train": {**plain, **stream}}})


def coco(folder: Path) -> dict[str, Any]:
    """Five pictures of 80x60, the second with two boxes, the last one with one box and three points."""
    dog = {"image_id": 11, "category_id": 18, "bbox": [20, 10, 40, 30]}
    car = {"image_id": 14, "category_id": 3, "bbox": [0, 0, 80, 60], "keypoints": [8, 6, 2, 40, 30, 0, 80, 60, 1]}
    path = write_coco(folder, [dog, {**dog, "category_id": 3}, car], pictures=5)
    return {"source": {"kind": "coco", "path": str(path), "root": str(folder / "images")}}


def test_a_coco_file_reaches_the_trainer_with_names_places_and_padding(tmp_path: Path) -> None:
    labels = {"boxes": {"type": "boxes", "max": 2}, "points": {"type": "points", "max": 3}}
    stream = {**coco(tmp_path), "labels": labels, "drop_remainder": "pad"}
    with local(stream) as client, client.subscribe("train", epochs=1) as batches:
        assert batches.spec.labels["boxes"].classes == ("car", "dog")
        first, second = (batch.copy() for batch in batches)
        assert [receipt.ok for receipt in batches.receipts] == [True]
    box = [10, 5, 30, 20]
    assert first.labels["boxes"].tolist() == [[EMPTY] * 2, [[*box, 1], [*box, 0]], [EMPTY] * 2]
    assert second.labels["boxes"].tolist() == [[EMPTY] * 2, [[0, 0, 40, 30, 0], EMPTY], [EMPTY] * 2]
    assert second.labels["points"].tolist() == [[[-1, -1]] * 3, [[4, 3], [-1, -1], [-1, -1]], [[-1, -1]] * 3]
    assert second.weights.tolist() == [1, 1, 0]
    assert first.labels["boxes"].dtype == np.float32


def test_rows_that_a_trainer_pads_itself_have_no_boxes_either(tmp_path: Path) -> None:
    stream = {**coco(tmp_path), "drop_remainder": "pad"}
    with local(stream) as client, client.subscribe("train", epochs=1, batch_size=6) as batches:
        (batch,) = (each.copy() for each in batches)
    assert batch.labels["boxes"].shape == (6, 100, 5)
    assert batch.labels["boxes"][5].tolist() == [EMPTY] * 100


def test_a_bad_picture_is_masked_without_boxes_or_takes_those_of_its_substitute(tmp_path: Path) -> None:
    path = write_yolo(tmp_path, ["0 0.5 0.5 0.5 0.5", "1 0.5 0.5 1 1", None])
    (tmp_path / "images" / "train" / "1.png").write_bytes(b"no picture")
    source = {"kind": "yolo", "path": str(path), "part": "train"}
    found = {}
    for policy in ("mask", "substitute"):
        bad = {"policy": policy, "max_fraction": 1}
        with local({"source": source, "bad_samples": bad}) as client, client.subscribe("train", epochs=1) as batches:
            (batch,) = (each.copy() for each in batches)
        assert [row.sample_id for row in batch.bad] == [1]
        found[policy] = batch.labels["boxes"][:, 0].tolist()
    assert found == {
        "mask": [[10, 7.5, 30, 22.5, 0], EMPTY, EMPTY],
        "substitute": [[10, 7.5, 30, 22.5, 0], EMPTY, EMPTY],
    }


def test_boxes_follow_the_image_that_they_name(tmp_path: Path) -> None:
    path = write_yolo(tmp_path, ["0 0.5 0.5 0.5 0.5"])
    write_picture(tmp_path / "masks" / "0.png", 120, 160)
    images = {"photo": {"size": [30, 40]}, "large": {"from": "masks/{stem}.png", "size": [60, 80]}}
    labels = {
        "boxes": {"type": "boxes", "max": 1},
        "here": {"type": "boxes", "max": 1, "of": "photo"},
        "there": {"type": "boxes", "max": 1, "of": "large"},
    }
    stream = {"source": {"kind": "yolo", "path": str(path), "part": "train"}, "images": images, "labels": labels}
    config = {"streams": {"train": {"batch_size": 1, **stream}}, "memory": "32MiB", "workers": 1}
    with streamd.local(config) as client, client.subscribe("train", epochs=1) as batches:
        (batch,) = (each.copy() for each in batches)
    assert batch.labels["boxes"].tolist() == batch.labels["here"].tolist() == [[[10, 7.5, 30, 22.5, 0]]]
    assert batch.labels["there"].tolist() == [[[20, 15, 60, 45, 0]]]


@pytest.mark.train
def test_keras_takes_boxes_as_targets(tmp_path: Path) -> None:
    import keras  # noqa: PLC0415 - it takes seconds, and only the tests of training have it

    from streamd.frameworks.keras import fit_data  # noqa: PLC0415 - as above

    labels = {"boxes": {"type": "boxes", "max": 2}}
    # Without shuffle, bad samples would be masked: batches have weights then, for a loss of one number a sample.
    with (
        local({**coco(tmp_path), "labels": labels, "shuffle": "full"}) as client,
        client.subscribe("train", epochs=2) as batches,
    ):
        model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10), keras.layers.Reshape((2, 5))])
        model.compile("sgd", "mae")
        history = model.fit(fit_data(batches), epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2
