"""Boxes and points in the rows of a batch: where the worker's own geometry puts them, -1 where there is no sample."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filled_rows import Filled, opened
from support.boxed_pictures import HEIGHT, WIDTH, write_coco, write_picture
from support.transform_programs import Write

from streamd.core.sampler import PAD_ID
from streamd.core.spec import ImageSpec
from streamd.dataset.transform_source import find_transform_source
from streamd.decode.geometry import compute_random_crop_draws, draw_geometry
from streamd.ipc.worker_messages import CachePlace, OpenStream
from streamd.worker.stream_reader import open_reader

BOX = [20, 10, 40, 30]
EMPTY = [-1.0] * 5


def table(folder: Path, *cells: list[list[Any]]) -> dict[str, Any]:
    """The source of a table of pictures with these boxes."""
    with (folder / "all.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "boxes"])
        for number, cell in enumerate(cells):
            write_picture(folder / f"{number}.png")
            writer.writerow([f"{number}.png", json.dumps(cell)])
    return {"kind": "table", "path": str(folder / "all.csv"), "image": "file"}


def boxes(**keys: Any) -> dict[str, Any]:
    return {"boxes": {"type": "boxes", "max": 3, **keys}}


def test_rows_hold_the_boxes_of_their_samples_and_padding_holds_none(tmp_path: Path) -> None:
    source = table(tmp_path, [[*BOX, 1], [0, 0, 80, 60, 2]], [], [[*BOX, 4]])
    image = {"size": [30, 40]}
    with opened(tmp_path, tmp_path / "state", source=source, image=image, labels=boxes()) as reader:
        batch = Filled(reader, [2, PAD_ID, 0, 1], [5, 0, 2, 7])
    found = batch.labels("boxes")
    half = [10, 5, 20, 15]
    assert found[5].tolist() == [[*half, 4], EMPTY, EMPTY]
    assert found[2].tolist() == [[*half, 1], [0, 0, 40, 30, 2], EMPTY]
    assert found[[0, 7]].tolist() == [[EMPTY] * 3] * 2


def test_a_sample_that_cannot_be_decoded_has_no_boxes(tmp_path: Path) -> None:
    source = table(tmp_path, [BOX], [BOX])
    (tmp_path / "1.png").write_bytes(b"no picture")
    with opened(tmp_path, tmp_path / "state", source=source, image={"size": [30, 40]}, labels=boxes()) as reader:
        batch = Filled(reader, [0, 1])
    assert [bad.sample_id for bad in batch.bad] == [1]
    assert batch.labels("boxes")[1].tolist() == [EMPTY] * 3
    assert batch.labels("boxes")[0, 0].tolist() == [10, 5, 20, 15, 0]


def test_boxes_follow_the_crop_that_was_drawn_for_seed_epoch_and_sample(tmp_path: Path) -> None:
    source = table(tmp_path, *[[BOX]] * 8)
    image = {"size": [20, 24], "resize": "random_crop"}
    shuffle = {"kind": "full", "seed": 5}
    spec = ImageSpec(20, 24, 3, "random_crop")
    with opened(
        tmp_path, tmp_path / "state", source=source, image=image, labels=boxes(min_visible=0.3), shuffle=shuffle
    ) as reader:
        for epoch in (0, 7):
            found = Filled(reader, list(range(8)), epoch=epoch).labels("boxes")
            draws = compute_random_crop_draws(spec, 5, epoch, np.arange(8))
            for row, draw in zip(found, draws, strict=True):
                corners = draw_geometry(spec, (HEIGHT, WIDTH), draw).map_points(np.array(BOX).reshape(2, 2))
                clipped = np.clip(corners, 0, (24, 20))
                share = np.prod(clipped[1] - clipped[0]) / np.prod(corners[1] - corners[0])
                wanted = [*clipped.reshape(-1).tolist(), 0] if share >= 0.3 else EMPTY
                assert row[0].tolist() == pytest.approx(wanted, abs=1e-4)


def test_a_turned_picture_has_the_boxes_of_the_upright_one(tmp_path: Path) -> None:
    source = table(tmp_path, [[0, 0, 30, 80]])
    write_picture(tmp_path / "0.png")
    from PIL import Image  # noqa: PLC0415 - only this test writes EXIF data

    exif = Image.Exif()
    exif[0x0112] = 6  # stored sideways: upright it is 60 wide and 80 high
    Image.open(tmp_path / "0.png").save(tmp_path / "0.jpg", exif=exif)
    (tmp_path / "all.csv").write_text((tmp_path / "all.csv").read_text().replace("0.png", "0.jpg"))
    with opened(tmp_path, tmp_path / "state", source=source, image={"size": [40, 30]}, labels=boxes()) as reader:
        assert Filled(reader, [0]).labels("boxes")[0, 0].tolist() == [0, 0, 15, 40, 0]


def test_boxes_come_onto_a_picture_of_another_size_and_others_are_bad_also_from_a_cache(tmp_path: Path) -> None:
    objects = [
        {"image_id": 10 + number, "category_id": 3, "bbox": [20, 10, 20, 20], "keypoints": [20, 10, 2]}
        for number in range(3)
    ]
    path = write_coco(tmp_path, objects)
    listed = json.loads(path.read_text())
    for image, (width, height) in zip(listed["images"], [(160, 120), (60, 60), (None, 0)], strict=True):
        image["width"], image["height"] = width, height
    path.write_text(json.dumps(listed))
    labels = {**boxes(), "points": {"type": "points", "max": 2}}
    keys = {"source": {"kind": "coco", "path": str(path), "root": str(tmp_path / "images")}, "labels": labels}
    (tmp_path / "cache").mkdir()
    place = CachePlace(str(tmp_path / "cache"), None, writable=True)
    with opened(tmp_path, tmp_path / "state", image={"size": [30, 40]}, **keys) as plain:
        for turn in ("decoded", "cached"):
            reader, _ = open_reader(OpenStream(1, str(plain.manifest.path), plain.spec, cache=place))
            batch = Filled(reader, [0, 1, 2])
            assert batch.labels("boxes")[[0, 2], 0].tolist() == [[5, 2.5, 10, 7.5, 0], [10, 5, 20, 15, 0]], turn
            assert batch.labels("points")[[0, 2], 0].tolist() == [[5, 2.5], [10, 5]]
            assert batch.filling.label_fits == {("boxes", "scaled"), ("points", "scaled")}
            (bad,) = batch.bad
            assert (bad.sample_id, bad.lasting) == (1, True)
            assert bad.reason.startswith(
                "boxes: its labels were drawn on 60x60 pixels, width x height, but the picture"
            )
            if turn == "decoded":
                assert reader.cache is not None
                reader.cache.publish_rows()
            else:
                assert batch.filling.count_of_gathered_rows == 2
            reader.close()


@pytest.mark.parametrize("unit", ["pixel", "fraction"])
def test_rows_of_arrays_have_their_boxes_as_they_are(unit: str, tmp_path: Path) -> None:
    np.save(tmp_path / "i.npy", np.zeros((3, 20, 40, 3), np.uint8))
    stored = np.full((3, 2, 5), -1, np.float32)
    stored[0, 0] = [10, 5, 20, 15, 1] if unit == "pixel" else [0.25, 0.25, 0.5, 0.75, 1]
    np.save(tmp_path / "b.npy", stored)
    source = {"kind": "npy", "path": str(tmp_path / "i.npy")}
    labels = boxes(**{"from": str(tmp_path / "b.npy"), "unit": unit})
    with opened(tmp_path, tmp_path / "state", source=source, image={}, labels=labels) as reader:
        found = Filled(reader, [1, 0]).labels("boxes")
    assert found[1].tolist() == [[10, 5, 20, 15, 1], EMPTY, EMPTY]
    assert found[0].tolist() == [EMPTY] * 3


def test_a_transform_sees_all_rows_of_boxes_and_returns_them(tmp_path: Path, program: Write) -> None:
    path = write_coco(
        tmp_path, [{"image_id": 10, "category_id": 3, "bbox": [20, 10, 20, 20], "keypoints": [20, 10, 2]}]
    )
    module = program(
        "augment",
        """
        def augment(image, labels, rng):
            boxes, points = labels["boxes"], labels["points"]
            assert boxes.shape == (3, 5) and points.shape == (2, 2) and boxes.dtype == points.dtype == "float32"
            there = boxes[:, 4] >= 0
            boxes[there, 0], boxes[there, 2] = 40 - boxes[there, 2], 40 - boxes[there, 0]
            return image[:, ::-1], {"boxes": boxes, "points": points}
        """,
    )
    place = find_transform_source("augment:augment", module.parent)
    labels = {**boxes(), "points": {"type": "points", "max": 2}}
    source = {"kind": "coco", "path": str(path), "root": str(tmp_path / "images")}
    with opened(tmp_path, tmp_path / "state", source=source, image={"size": [30, 40]}, labels=labels) as plain:
        command = OpenStream(1, str(plain.manifest.path), plain.spec, transform=place)
        reader, remarks = open_reader(command)
        assert remarks == ""
        batch = Filled(reader, [0, 1])
        reader.close()
    assert batch.labels("boxes")[0].tolist() == [[20, 5, 30, 15, 0], EMPTY, EMPTY]
    assert batch.labels("points")[:2].tolist() == [[[10, 5], [-1, -1]], [[-1, -1]] * 2]
