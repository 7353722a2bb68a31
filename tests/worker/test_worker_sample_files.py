"""Samples of several images: each is read and decoded into its own tensor, and a fault names its image."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filled_rows import Filled
from support.masked_photos import PHOTO, build_mask, folder_config, table_config, write_masked_photos
from support.tar_shards import pack

from streamd.config.load import load_config
from streamd.core.sampler import PAD_ID
from streamd.daemon.streams.catalog import open_streams, write_sample_manifests
from streamd.decode.pixel_id import compute_sample_pixel_id
from streamd.errors import ConfigError
from streamd.worker.stream_reader import StreamReader


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_masked_photos(tmp_path / "data")


@contextmanager
def reading(stream: dict[str, Any], state: Path) -> Iterator[StreamReader]:
    config = load_config({"streams": {"train": stream}})
    write_sample_manifests(config, state, lambda *_: None)
    (served,) = open_streams(config, state)
    reader = StreamReader.open(served.spec, served.manifest_path)
    yield reader
    reader.close()
    served.manifest.close()


def arrays(batch: Filled) -> dict[str, Any]:
    return {name: each.build_array_in_memory(batch.memory) for name, each in batch.layout.arrays.items()}


@pytest.mark.parametrize("build", [folder_config, table_config])
def test_each_image_of_a_sample_lies_in_its_own_tensor(folder: Path, tmp_path: Path, build: Any) -> None:
    stream = build(folder)
    photo = {key: value for key, value in stream["images"]["photo"].items() if key != "resize"}
    images = {"photo": {**photo, "size": [60, 80]}, "mask": stream["images"]["mask"]}
    with reading({**stream, "images": images}, tmp_path / "state") as reader:
        batch = Filled(reader, [4, 0, PAD_ID], [1, 0, 2])
        assert batch.bad == []
        found = arrays(batch)
        assert np.array_equal(found["mask"][1], build_mask(4))
        assert np.array_equal(found["mask"][0], build_mask(0))
        assert found["photo"].shape[1:] == (60, 80, 3)
        assert not found["photo"][2].any()
        assert (found["mask"][2] == 255).all()
        assert reader.pixel_id == compute_sample_pixel_id(reader.spec.images)


def test_both_sources_draw_the_same_crops(folder: Path, tmp_path: Path) -> None:
    found = []
    for number, build in enumerate((folder_config, table_config)):
        with reading(build(folder), tmp_path / str(number)) as reader:
            found.append(arrays(Filled(reader, [3, 5], epoch=2)))
    for name in ("photo", "mask"):
        assert np.array_equal(found[0][name], found[1][name])


def test_one_bad_picture_makes_the_sample_bad_and_says_which(folder: Path, tmp_path: Path) -> None:
    with reading(folder_config(folder), tmp_path / "state") as reader:
        (folder / "masks" / "1.png").write_bytes(b"stale")
        (folder / "masks" / "2.png").unlink()
        path = folder / "photos" / "3.png"
        before, size = path.stat(), path.stat().st_size
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(size - 8))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        batch = Filled(reader, [0, 1, 2, 3])
        reasons = {row.sample_id: row.reason for row in batch.bad}
        assert reasons.keys() == {1, 2, 3}
        assert reasons[1].startswith("mask masks/1.png: stale: ")
        assert reasons[2] == "mask masks/2.png: No such file or directory"
        assert reasons[3].startswith("photo: a damaged PNG")
        assert all(row.lasting for row in batch.bad)


def test_masks_below_another_root_are_found_again_after_a_failure(folder: Path, tmp_path: Path) -> None:
    stream = folder_config(folder)
    stream["source"]["path"] = str(folder / "photos")
    stream["images"] = {
        **stream["images"],
        "mask": {**stream["images"]["mask"], "from": "{stem}.png", "root": str(folder / "masks")},
    }
    with reading(stream, tmp_path / "state") as reader:
        (folder / "masks").rename(folder / "away")
        (folder / "masks").mkdir()
        for number in (0, 2):
            (folder / "away" / f"{number}.png").rename(folder / "masks" / f"{number}.png")
        assert [row.sample_id for row in Filled(reader, [0, 1, 2]).bad] == [1]


def test_suffixes_of_a_tar_are_the_images_of_a_sample(folder: Path, tmp_path: Path) -> None:
    files = {}
    for number in range(6):
        for suffix, name in (("png", "photos"), ("mask.png", "masks")):
            files[f"{number}.{suffix}"] = (folder / name / f"{number}.png").read_bytes()
        files[f"{number}.cls"] = str(number % 2).encode()
    pack(tmp_path / "tars" / "0.tar", files)
    photo, mask = {**PHOTO, "from": "png"}, {"like": "photo", "mode": "index", "from": "mask.png"}
    source = {"kind": "tar", "path": str(tmp_path / "tars")}
    stream = {"source": source, "images": {"photo": photo, "mask": mask}, "labels": {"label": "category"}}
    with reading(stream, tmp_path / "tar") as tars, reading(folder_config(folder), tmp_path / "folder") as loose:
        packed, apart = Filled(tars, [3, 5], epoch=2), Filled(loose, [3, 5], epoch=2)
        for name in ("photo", "mask"):
            assert np.array_equal(arrays(packed)[name], arrays(apart)[name])
        assert packed.labels()[:2].tolist() == [1, 1]


def test_a_sample_of_a_tar_that_lacks_an_image_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    photo = (folder / "photos" / "0.png").read_bytes()
    pack(tmp_path / "tars" / "0.tar", {"a.png": photo, "a.mask.png": photo, "b.png": photo})
    images = {"photo": {**PHOTO, "from": "png"}, "mask": {"like": "photo", "mode": "index", "from": "mask.png"}}
    stream = {"source": {"kind": "tar", "path": str(tmp_path / "tars")}, "images": images, "labels": {}}
    with (
        pytest.raises(ConfigError, match=r"has no \.mask\.png of 1 sample with \.png: 'b'; pack every sample with all"),
        reading(stream, tmp_path / "state"),
    ):
        pass
