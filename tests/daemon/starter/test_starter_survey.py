"""Which kind of data a path holds, and which streams its sub-folders make."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.daemon_process import write_images
from support.tar_shards import pack

from streamd.daemon.starter.survey import build_refusal, names_configuration, names_data, survey_data
from streamd.dataset.layouts import FolderTree, find_part_folders
from streamd.errors import ConfigError


def place(folder: Path, *names: str) -> Path:
    """Empty files of these names: a survey opens no image."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return folder


def test_a_sub_folder_is_a_class_and_validation_is_held_back(tmp_path: Path) -> None:
    found = survey_data(place(tmp_path / "pets", "cat/1.jpg", "dog/1.PNG", ".cache/x.jpg"))
    assert (found.kind, found.is_split, found.labels, found.notes) == ("folder", True, None, ())
    path = str(tmp_path / "pets")
    assert found.sources == {
        "train": {"path": path, "part": "train"},
        "validation": {"path": path, "part": "validation"},
    }


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    found = survey_data(place(tmp_path, "1.jpg", "2.jpg", "empty/notes.md"))
    assert (found.labels, [*found.sources]) == ({}, ["train", "validation"])


def test_parts_are_streams_of_their_own_and_a_flat_one_has_no_labels(tmp_path: Path) -> None:
    found = survey_data(place(tmp_path, "Train/cat/1.jpg", "Train/dog/1.jpg", "val/cat/2.jpg", "test/3.jpg", "x/4.jpg"))
    paths = {"train": "Train", "validation": "val", "test": "test"}
    assert found.sources == {name: {"path": str(tmp_path / folder)} for name, folder in paths.items()}
    assert (found.is_split, found.labels, found.own_labels) == (False, None, {"test": {}})
    assert found.notes == ("not served: the sub-folders x next to Train, val, test",)


def test_without_validation_a_part_of_train_is_held_back_beside_test(tmp_path: Path) -> None:
    found = survey_data(place(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "test/a/2.jpg"))
    assert {name: source.get("part") for name, source in found.sources.items()} == {
        "train": "train",
        "validation": "validation",
        "test": None,
    }


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (["bus", "car", "train"], {}),
        (["train"], {"train": "train"}),
        (["val"], {}),
        (["test", "train", "valid"], {"train": "train", "validation": "valid", "test": "test"}),
        (["train", "val", "validation"], {"train": "train", "validation": "validation"}),
    ],
)
def test_train_alone_beside_classes_is_a_class(names: list[str], parts: dict[str, str]) -> None:
    assert find_part_folders(names) == parts


def test_a_folder_of_tars_and_a_tar_are_shards(tmp_path: Path) -> None:
    pack(tmp_path / "shards" / "0.tar", {"1.jpg": b"", "1.cls": b"3"})
    for path in (tmp_path / "shards", tmp_path / "shards" / "0.tar"):
        found = survey_data(path)
        assert (found.kind, found.labels, found.sources["train"]) == ("tar", None, {"path": str(path), "part": "train"})


def test_a_table_beside_the_images_is_named_in_a_note(tmp_path: Path) -> None:
    found = survey_data(place(tmp_path, "images/1.jpg", "labels.csv"))
    assert found.notes == (
        f"there is also labels.csv: streamd init {tmp_path}/labels.csv takes labels from its columns",
        "one class only, images: labels: {} takes the images without labels",
    )


def test_a_folder_above_the_classes_is_named_in_a_note(tmp_path: Path) -> None:
    found = survey_data(place(tmp_path, "pets/cat/1.jpg", "pets/dog/1.jpg"))
    assert found.notes == (f"one class only, pets: name '{tmp_path}/pets' for the classes cat, dog",)


@pytest.mark.parametrize(
    ("names", "path", "says"),
    [
        (["a/1.jpg", "b.tar"], "", "holds both 1 tar, such as 'b.tar', and the images of 'a'; "),
        (["1.jpg", "b.tar", "c.tar"], "", "holds both 2 tars, such as 'b.tar', and 1 image; "),
        (["train/1.jpg", "val/2.tar"], "", "train' holds images, and '.*val' tars; "),
        (["x"], "x", "does not have a suffix that streamd knows"),
        (["x.h5"], "x.h5", r"is an HDF5 file; .*source: {kind: hdf5, path: FILE, images: /NAME} \(docs/data\.md\)"),
        (["x.npy"], "x.npy", "is a NumPy array; .*{kind: npy, path: FILE}"),
        (["a.npy"], "", "holds NumPy arrays; .*{kind: npy"),
        (["data.mdb", "lock.mdb"], "", "is an LMDB store; .*{kind: lmdb, path: FOLDER, images: X}"),
        (["data.mdb"], "data.mdb", "is an LMDB store; .*{kind: lmdb"),
        (["list.txt"], "list.txt", "is a text; .*{kind: filelist, path: FILE}"),
        (["x.tfrecord"], "x.tfrecord", "is a TFRecord; .*kind: tfrecord is not in this version"),
        (["x.jsonl"], "x.jsonl", "is a table that is not read in this version; .*save it as .parquet or .csv"),
        (["x.xlsx"], "x.xlsx", "is a spreadsheet; .*export it as .csv"),
        (["x.tar.gz"], "x.tar.gz", "is compressed; .*unpack it"),
        (["a/1.jpg"], "a/1.jpg", "is a single image; .*give the path of its folder, '.*/a'"),
        (["config.yaml"], "config.yaml", "is neither data nor a configuration; .*a configuration has streams:, YOLO's"),
        (["config.yaml"], "", "holds no images, only 'config.yaml'; .*give the path of a configuration with --config"),
        (["all.csv"], "", "holds no images, only 'all.csv'; .*name '.*all.csv'"),
        (["shards/1.tar"], "", "holds tars in 'shards'; .*name '.*shards'"),
        ([".hidden"], "", "is empty; .*looked for .jpg"),
        (["a/notes.md"], "", "holds no images; "),
        (["a"], "b", "there is no '.*/b'; the nearest folder that exists is"),
    ],
)
def test_unknown_data_is_refused_by_its_kind(tmp_path: Path, names: list[str], path: str, says: str) -> None:
    place(tmp_path, *names)
    with pytest.raises(ConfigError, match=f"PATH: .*{says}"):
        survey_data(tmp_path / path)


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\\xff' is not a name in UTF-8; rename it"):
        survey_data(tmp_path / "a\udcff")


def test_images_are_found_at_any_depth_and_links_that_lead_back_end(tmp_path: Path) -> None:
    write_images(tmp_path / "a" / "b", {"c": 1})
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "up").symlink_to(tmp_path / "d")
    assert FolderTree(tmp_path).has_images("a")
    assert not FolderTree(tmp_path).has_images("d")


def test_suffixes_tell_data_from_configurations(tmp_path: Path) -> None:
    assert names_data(tmp_path)
    assert names_data(Path("x.CSV"))
    assert names_data(Path("x.hdf5"))
    assert not names_data(Path("config.yaml"))
    assert not names_data(Path("streams.conf"))
    assert names_configuration(Path("x.yml"))
    assert not names_configuration(Path("x.csv"))


def test_a_refusal_says_what_lies_there_what_is_served_and_what_to_do() -> None:
    assert str(build_refusal("'x' is a boat", "name a folder")) == (
        "PATH: 'x' is a boat; streamd makes a configuration only from a folder of images, with masks or without, a "
        "table (.csv, .tsv, .parquet), a tar file, a folder of tar files, a COCO file, or YOLO's data.yaml: name a "
        "folder"
    )
