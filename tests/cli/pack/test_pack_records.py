"""Packs of several images, class numbers, raw numbers, boxes and points are served as what was packed."""

from __future__ import annotations

import json
import tarfile
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from support.boxed_pictures import write_coco
from support.pack_records import COUNT, IMAGES, write_records
from support.pack_streams import decoding_here, labels_of, rows_of, stream_of

from streamd.cli.pack import run
from streamd.cli.pack.batches import PackedRows
from streamd.cli.pack.run import PACK_FORMATS, PackFormat, PackOptions, PackResult
from streamd.cli.terminal import ProgressDisplay
from streamd.config.load import load_config
from streamd.core.spec import StreamSpec
from streamd.errors import ConfigError


@pytest.fixture(autouse=True)
def decodes_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches of two, saved after each."""
    monkeypatch.setattr(run, "open_batch_decoder", decoding_here)
    monkeypatch.setattr(run, "compute_pack_batch_rows", lambda *_: 2)


def pack(config: dict[str, Any], destination: Path, name: PackFormat, **options: Any) -> PackResult:
    return run.pack_stream(load_config(config), PackOptions("train", destination, name, **options), ProgressDisplay())


def read_all(config: dict[str, Any], folder: Path) -> tuple[PackedRows, dict[str, list[Any]], list[str], StreamSpec]:
    """Images, boxes and points, other labels, names, and the specification of a stream."""
    with stream_of(config, folder) as stream:
        names = [stream.format_file_name(sample_id) for sample_id in range(stream.spec.samples)]
        return rows_of(stream), labels_of(stream), names, stream.spec


def assert_served_alike(config: dict[str, Any], packed: PackResult, folder: Path) -> None:
    """The pack is served with the samples of the stream that was packed."""
    rows, labels, names, spec = read_all(config, folder / "of stream")
    again, labels_again, names_again, spec_again = read_all({"streams": {"train": packed.serving}}, folder / "of pack")
    assert names_again == names
    assert labels_again == labels
    for name, images in {**rows.images, **rows.boxes}.items():
        served = again.images[name] if name in again.images else again.boxes[name]
        assert (served.dtype, served.shape) == (images.dtype, images.shape)
        assert np.array_equal(served, images), name
    for name, image in spec.images.items():
        mine = spec_again.images[name]
        assert (mine.mode, mine.fill, mine.normalize, mine.range) == (
            image.mode, image.fill, image.normalize, image.range,
        )  # fmt: skip
    assert spec_again.labels["boxes"].classes == spec.labels["boxes"].classes


@pytest.mark.parametrize("name", PACK_FORMATS)
def test_a_pack_of_records_serves_the_same_records(tmp_path: Path, name: PackFormat) -> None:
    config = write_records(tmp_path / "data")
    packed = pack(config, tmp_path / "packed", name)
    assert packed.samples == COUNT
    assert list(packed.serving["images"]) == list(IMAGES)  # type: ignore[call-overload]  # a mapping of images
    assert_served_alike(config, packed, tmp_path)


@pytest.mark.parametrize("name", PACK_FORMATS)
def test_boxes_that_were_drawn_on_other_sizes_are_packed_where_they_are_served(
    tmp_path: Path, name: PackFormat
) -> None:
    objects = [
        {"image_id": 10 + number, "category_id": 3, "bbox": [20, 10, 20, 30], "keypoints": [20, 10, 2, 9, 9, 0]}
        for number in range(3)
    ]
    path = write_coco(tmp_path / "data", objects)
    exif = Image.Exif()
    exif[0x112] = 6  # the first picture is upright 60 wide and 80 high, and its boxes were drawn on it as it is stored
    Image.open(tmp_path / "data/images/0.png").save(tmp_path / "data/images/0.png", exif=exif)
    listed = json.loads(path.read_text())
    for image, (width, height) in zip(listed["images"], [(80, 60), (160, 120), (None, None)], strict=True):
        image["width"], image["height"] = width, height
    path.write_text(json.dumps(listed))
    labels = {"boxes": {"type": "boxes", "max": 2}, "points": {"type": "points", "max": 2}}
    source = {"kind": "coco", "path": str(path), "root": str(tmp_path / "data" / "images")}
    stream = {"source": source, "labels": labels, "image": {"size": [40, 40], "resize": "pad"}}
    config = {"workers": 1, "streams": {"train": stream}}
    assert_served_alike(config, pack(config, tmp_path / "packed", name), tmp_path)
    boxes = read_all(config, tmp_path / "list")[0].boxes["boxes"][:, 0].tolist()
    assert boxes == [[15, 10, 30, 20, 0], [5, 7.5, 10, 15, 0], [10, 10, 20, 25, 0]]


@pytest.mark.parametrize(("first", "second"), [pair for pair in product(PACK_FORMATS, repeat=2) if pair[0] != pair[1]])
def test_a_pack_can_be_packed_again_in_any_other_format(tmp_path: Path, first: PackFormat, second: PackFormat) -> None:
    config = write_records(tmp_path / "data")
    middle = {"streams": {"train": pack(config, tmp_path / "first", first).serving}}
    assert_served_alike(config, pack(middle, tmp_path / "second", second), tmp_path)


@pytest.mark.parametrize("name", PACK_FORMATS)
def test_records_that_cannot_be_decoded_are_left_out_of_every_array(tmp_path: Path, name: PackFormat) -> None:
    config = write_records(tmp_path / "data")
    whole = read_all(config, tmp_path / "list")[0].select_rows(np.array([0, 2, 3, 4]))
    (tmp_path / "data" / "mask1.png").write_bytes(b"no picture")
    packed = pack(config, tmp_path / "packed", name)
    assert [(bad.sample_id, bad.reason[:5]) for bad in packed.bad] == [(1, "mask:")]
    again = read_all({"streams": {"train": packed.serving}}, tmp_path / "again")[0]
    assert all(np.array_equal(*pair) for pair in zip(whole.iterate_arrays(), again.iterate_arrays(), strict=True))


def test_other_libraries_read_the_records(tmp_path: Path) -> None:
    config = write_records(tmp_path / "data")
    rows, labels, names, _ = read_all(config, tmp_path / "list")
    pack(config, tmp_path / "npy", "npy")
    assert np.array_equal(np.load(tmp_path / "npy" / "depth-00000.npy"), rows.images["depth"])
    boxes = pq.read_table(tmp_path / "npy" / "labels.parquet")["boxes"].to_pylist()
    assert boxes == [[box for box in several if box[4] >= 0] for several in rows.boxes["boxes"].tolist()]
    pack(config, tmp_path / "pack.h5", "hdf5")
    with h5py.File(tmp_path / "pack.h5") as file:
        assert all(np.array_equal(file[f"images/{name}"], images) for name, images in rows.images.items())
        assert np.array_equal(file["labels/boxes"], rows.boxes["boxes"])
    pack(config, tmp_path / "tar", "tar")
    with tarfile.open(tmp_path / "tar" / "000000.tar") as shard:
        members = [member.name for member in shard if member.name.startswith("000000000.")]
        record = json.load(shard.extractfile("000000000.json"))  # type: ignore[arg-type]  # a file
        mask = shard.extractfile("000000000.mask.png").read()  # type: ignore[union-attr]  # a file
    suffixes = ["photo.png", "mask.png", "parts.png", "seen.png", "band", "depth.npy", "cls", "json"]
    assert members == [f"000000000.{suffix}" for suffix in suffixes]
    assert mask == (tmp_path / "data" / "mask0.png").read_bytes()
    assert record["boxes"] == [[8, 2, 20, 10, 1], [0, 0, 30, 20, 0]]
    assert (record["name"], record["angle"]) == (names[0], labels["angle"][0])


def test_random_crops_of_records_are_packed_as_files_only(tmp_path: Path) -> None:
    images = {**IMAGES, "photo": {**IMAGES["photo"], "resize": "random_crop"}}
    config = write_records(tmp_path / "data", images=images)
    with pytest.raises(ConfigError, match=r"streams\.train\.images\.photo\.resize: .* use --format tar"):
        pack(config, tmp_path / "packed", "npy")
    served = pack(config, tmp_path / "packed", "tar").serving["images"]
    assert served["photo"]["resize"] == "random_crop"  # type: ignore[index]  # a mapping of images
    assert served["mask"]["like"] == "photo"  # type: ignore[index]  # a mapping of images
