"""A cache of samples with several images, masks, boxes and points: the same batches, without a file being read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filled_rows import Filled
from support.masked_photos import HEIGHT, WIDTH, save_palette_png, write_masked_photos
from support.record_readers import open_records
from support.smooth_pictures import smooth
from support.transform_programs import Write

from streamd.core.sampler import PAD_ID
from streamd.dataset.cache import DecodedCache
from streamd.worker.stream_reader import StreamReader

CROP: dict[str, Any] = {"size": [24, 32], "resize": "crop"}
IMAGES: dict[str, Any] = {
    "photo": {**CROP, "from": "picture"},
    "mask": {"like": "photo", "mode": "index"},
    "band": {"size": [5, 6], "mode": "raw", "channels": 2, "dtype": "float32"},
    "cut": {"size": [8, 8], "mode": "RGBA", "resize": "pad", "from": "picture"},
}
LABELS: dict[str, Any] = {
    "boxes": {"type": "boxes", "max": 2, "of": "mask"},
    "points": {"type": "points", "max": 1, "of": "photo"},
}
COUNT = 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Photos that are JPEGs of other sizes, which are decoded to fewer pixels, with masks, bands and boxes."""
    folder = write_masked_photos(tmp_path / "data")
    (folder / "bands").mkdir()
    rows = ["picture,mask,band,boxes,points"]
    for number in range(COUNT):
        smooth(200 + number, 301).save(folder / "photos" / f"{number}.jpg")
        np.save(folder / "bands" / f"{number}.npy", np.full((9, 9, 2), number / 3, np.float32))
        boxes = json.dumps([[5, 6, 70, 50 + number, number]])
        points = json.dumps([[150, 99 + number]])
        rows.append(f'photos/{number}.jpg,masks/{number}.png,bands/{number}.npy,"{boxes}","{points}"')
    (folder / "all.csv").write_text("\n".join([*rows, ""]))
    return folder


def stream_of(folder: Path, **keys: Any) -> dict[str, Any]:
    source = {"kind": "table", "path": str(folder / "all.csv")}
    return {"source": source, "labels": LABELS, "images": IMAGES, "batch_size": 3, "cache": {"path": "kept"}} | keys


def fill_batch(reader: StreamReader, ids: list[int], rows: list[int] | None = None) -> dict[str, Any]:
    """All tensors of a batch, with how many rows came from the cache."""
    batch = Filled(reader, ids, rows)
    assert batch.bad == []
    if reader.cache is not None:
        reader.cache.publish_rows()
    labels = {name: batch.labels(name) for name in reader.spec.labels}
    return {**batch.arrays, **labels, "gathered": batch.filling.count_of_gathered_rows}


def assert_equal(found: dict[str, Any], expected: dict[str, Any], rows: Any = slice(0, COUNT)) -> None:
    for name, values in expected.items():
        if name != "gathered":
            assert np.array_equal(found[name][rows], values[rows]), name


def test_samples_from_the_cache_are_those_that_were_decoded(folder: Path, tmp_path: Path) -> None:
    with open_records(stream_of(folder, cache=None), tmp_path) as reader:
        plain = fill_batch(reader, list(range(COUNT)))
    assert (plain["boxes"][:COUNT, 0, 4] == np.arange(COUNT)).all()
    with open_records(stream_of(folder), tmp_path) as reader:
        assert isinstance(reader.store, DecodedCache)
        first, second = (fill_batch(reader, list(range(COUNT))) for _ in range(2))
        assert (first["gathered"], second["gathered"]) == (0, COUNT)
        assert_equal(first, plain)
        assert_equal(second, plain)
    for file in folder.rglob("*.*"):
        if file.suffix != ".csv":
            file.write_bytes(b"gone")
    with open_records_again(folder, tmp_path) as reader:  # another process, and scattered rows
        third = fill_batch(reader, [4, PAD_ID, 1], [7, 0, 3])
    for name in ("photo", "mask", "band", "cut", "boxes", "points"):
        assert np.array_equal(third[name][[7, 3]], plain[name][[4, 1]])
    assert third["gathered"] == 2


def open_records_again(folder: Path, tmp_path: Path) -> Any:
    return open_records(stream_of(folder), tmp_path, is_listed=True, is_writable=False)


def test_a_sample_is_decoded_again_once_the_file_of_any_image_has_changed(folder: Path, tmp_path: Path) -> None:
    with open_records(stream_of(folder), tmp_path) as reader:
        before = fill_batch(reader, list(range(COUNT)))
    mask = folder / "masks" / "2.png"
    size = mask.stat().st_size
    save_palette_png(mask, np.full((HEIGHT, WIDTH), 9, np.uint8))
    mask.write_bytes(mask.read_bytes().ljust(size, b"\0")[: max(size, mask.stat().st_size)])
    with open_records(stream_of(folder), tmp_path) as reader:
        after = fill_batch(reader, list(range(COUNT)))
    rows = [0, 1, 3, 4, 5]
    assert_equal(after, before, rows)
    assert (after["mask"][2] == 9).all()


def test_a_record_that_the_disk_damaged_is_decoded_again(folder: Path, tmp_path: Path) -> None:
    with open_records(stream_of(folder), tmp_path) as reader:
        before = fill_batch(reader, list(range(COUNT)))
    (file,) = (tmp_path / "kept").glob("*.cache")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1  # a geometry of the last sample
    file.write_bytes(data)
    with open_records(stream_of(folder), tmp_path) as reader:
        after = fill_batch(reader, list(range(COUNT)))
        assert after["gathered"] == COUNT - 1
        assert reader.cache is not None
        assert reader.cache.remarks[0].startswith("rows of the cache were damaged")
    assert_equal(after, before)


def test_a_transform_sees_what_was_decoded_and_boxes_that_follow(folder: Path, tmp_path: Path, program: Write) -> None:
    place = program(
        "turning",
        """
        def turn(images, labels, rng):
            assert labels["boxes"].shape == (2, 5) and labels["points"].shape == (1, 2)
            labels["points"] = labels["points"] + 1
            return {name: image[::-1] for name, image in images.items()}, labels
        """,
    ).parent
    with open_records(stream_of(folder, cache=None), tmp_path) as reader:
        plain = fill_batch(reader, list(range(COUNT)))
    with open_records(stream_of(folder, transform="turning:turn"), place) as reader:
        for gathered in (0, COUNT):
            found = fill_batch(reader, list(range(COUNT)))
            assert found["gathered"] == gathered
            for name in IMAGES:
                assert np.array_equal(found[name][:COUNT], plain[name][:COUNT, ::-1])
            assert np.array_equal(found["boxes"][:COUNT], plain["boxes"][:COUNT])
            assert np.array_equal(found["points"][:COUNT], plain["points"][:COUNT] + 1)


@pytest.mark.parametrize(
    "image",
    [
        {"size": [6, 7], "mode": "index", "dtype": "uint16"},
        {"size": [6, 7], "mode": "RGBA"},
        {"size": [6, 7], "resize": "pad"},
    ],
    ids=["index", "RGBA", "boxes"],
)
def test_one_image_of_any_mode_is_kept_with_its_boxes(image: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    source = {"kind": "table", "path": str(folder / "all.csv"), "image": "mask"}
    labels = {"boxes": {"type": "boxes", "max": 1}} if image.get("resize") else {}
    stream = stream_of(folder, source=source, image=image, labels=labels)
    del stream["images"]
    with open_records({**stream, "cache": None}, tmp_path) as reader:
        plain = fill_batch(reader, [5, 3])
    with open_records(stream, tmp_path) as reader:
        for gathered in (0, 2):
            found = fill_batch(reader, [5, 3])
            assert found["gathered"] == gathered
            assert_equal(found, plain, slice(0, 2))
