"""Lists of samples with several images go to another host, whose images may lie in other folders."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.masked_photos import MASK, PHOTO, write_masked_photos
from support.pack_records import write_records
from support.pack_streams import rows_of
from support.tar_shards import pack
from test_streams_manifest_archive import Host, copy_data

from streamd.errors import ConfigError


def beside(folder: Path) -> dict[str, Any]:
    """Photos of a folder with masks below a root of their own."""
    mask = {**MASK, "from": "{stem}.png", "root": str(folder / "masks")}
    source = {"kind": "folder", "path": str(folder / "photos")}
    return {"source": source, "labels": {}, "images": {"photo": PHOTO, "mask": mask}}


def in_table(folder: Path) -> dict[str, Any]:
    """Two columns of a table, in one folder."""
    source = {"kind": "table", "path": str(folder / "table.csv")}
    images = {"photo": {**PHOTO, "from": "picture"}, "mask": {"like": "photo", "mode": "index"}}
    return {"source": source, "labels": {}, "images": images}


def in_shards(folder: Path) -> dict[str, Any]:
    """Two suffixes of shards."""
    if not (folder / "0.tar").exists():
        names = {"photo.png": folder / "photos" / "0.png", "mask.png": folder / "masks" / "0.png"}
        pack(folder / "0.tar", {f"0.{suffix}": path.read_bytes() for suffix, path in names.items()})
    images = {"photo": {**PHOTO, "from": "photo.png"}, "mask": {**MASK, "from": "mask.png"}}
    return {"source": {"kind": "tar", "path": str(folder / "0.tar")}, "labels": {}, "images": images}


def in_arrays(folder: Path) -> dict[str, Any]:
    """Arrays in .npy files of two folders."""
    (folder / "numbers").mkdir(exist_ok=True)
    if not (folder / "pixels.npy").exists():
        np.save(folder / "pixels.npy", np.arange(4 * 6 * 5 * 3, dtype=np.uint8).reshape(4, 6, 5, 3))
        np.save(folder / "numbers" / "masks.npy", np.arange(4 * 6 * 5, dtype=np.uint8).reshape(4, 6, 5))
    mask = {"from": str(folder / "numbers" / "masks.npy"), "mode": "index"}
    source = {"kind": "npy", "path": str(folder / "pixels.npy")}
    return {"source": source, "labels": {}, "images": {"photo": {}, "mask": mask}}


def make_hosts(place: Path, stream: Callable[[Path], dict[str, Any]]) -> tuple[Host, Host]:
    """Two hosts with the same data; the copies have other times."""
    write_masked_photos(place / "one" / "data")
    one = Host(place / "one", train=stream(place / "one" / "data"))
    copy_data(place / "one" / "data", place / "other" / "data")
    return one, Host(place / "other", train=stream(place / "other" / "data"))


@pytest.mark.parametrize("stream", [beside, in_table, in_shards, in_arrays])
def test_a_list_of_several_images_serves_the_copies_of_another_host(
    tmp_path: Path, stream: Callable[[Path], dict[str, Any]]
) -> None:
    one, other = make_hosts(tmp_path, stream)
    exported = one.list_samples()
    with zipfile.ZipFile(one.export()) as archive:
        contents = b"".join(archive.read(name) for name in archive.namelist())
    assert os.fsencode(one.place) not in contents
    other.import_from(one)
    imported = other.open()
    assert imported.spec.order_id == exported.spec.order_id
    for name, images in rows_of(exported).images.items():
        assert np.array_equal(rows_of(imported).images[name], images)
    listed = imported.manifest_path.read_bytes()
    assert other.list_samples().manifest_path.read_bytes() == listed


def test_a_missing_mask_is_refused_by_its_file_and_key(tmp_path: Path) -> None:
    one, other = make_hosts(tmp_path, beside)
    one.list_samples()
    (other.place / "data" / "masks" / "3.png").unlink()
    with pytest.raises(
        ConfigError, match=r"streams\.train\.images\.mask: 1 of 6 listed files is not in .*masks.*3\.png"
    ):
        other.import_from(one)


def test_a_list_of_other_images_is_refused(tmp_path: Path) -> None:
    one, _ = make_hosts(tmp_path, in_table)
    one.list_samples()
    changed = in_table(tmp_path / "other" / "data")
    changed["images"]["mask"]["from"] = "picture"
    with pytest.raises(ConfigError, match="was exported with other settings of source, images, labels"):
        Host(tmp_path / "other", train=changed).import_from(one)


def test_boxes_and_raw_numbers_travel_with_their_list(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    stream = write_records(tmp_path / "one" / "data")["streams"]["train"]
    one = Host(tmp_path / "one", train=stream)
    exported = one.list_samples()
    copy_data(tmp_path / "one" / "data", tmp_path / "other" / "data")
    there = {**stream, "source": {**stream["source"], "path": str(tmp_path / "other" / "data" / "table.tsv")}}
    other = Host(tmp_path / "other", train=there)
    other.import_from(one)
    rows, again = rows_of(exported), rows_of(other.open())
    assert all(np.array_equal(*pair) for pair in zip(rows.iterate_arrays(), again.iterate_arrays(), strict=True))
