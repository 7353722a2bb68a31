"""Names that belong to nothing, in every kind of source: what is missing or left over is named, with what is alike."""

from __future__ import annotations

import json
import logging
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from support.boxed_pictures import boxes, write_coco, write_yolo
from support.source_configs import Filelist, Folder, Label, Stream, Table, Tar, put
from support.tar_shards import pack

from streamd.dataset.coco import CocoSource
from streamd.dataset.paths.confined import ConfinedRoot, find_near_names
from streamd.dataset.scan import scan_source
from streamd.dataset.sources import DataSource, ImageSource
from streamd.dataset.yolo import YoloSource
from streamd.errors import ConfigError

COMPOSED, DECOMPOSED = (unicodedata.normalize(form, "caf\u00e9.png") for form in ("NFC", "NFD"))
NAMES = [  # as the disk has it, as the data name it, and in what they differ
    ("IMG_1.JPG", "IMG_1.jpg", "upper and lower case"),
    ("Images/a.png", "images/a.png", "upper and lower case"),
    ("a  b.png", "a b.png", "blanks"),
    (DECOMPOSED, COMPOSED, "how their letters are encoded"),
    (COMPOSED.upper(), DECOMPOSED, "case, blanks or how their letters are encoded"),
    ("deep/a.jpeg", "deep/a.png", "the suffix"),
]


def write_table(folder: Path, name: str) -> DataSource:
    (folder / "all.csv").write_text(f"file\nok.png\n{name}\n")
    return Table(folder / "all.csv")


def write_list(folder: Path, name: str) -> DataSource:
    (folder / "all.txt").write_text(f'ok.png\n"{name}"\n')
    return Filelist(folder / "all.txt")


def write_coco_file(folder: Path, name: str) -> DataSource:
    images = [{"id": 1, "file_name": "ok.png"}, {"id": 2, "file_name": name}]
    (folder / "i.json").write_text(json.dumps({"images": images, "annotations": [], "categories": []}))
    return CocoSource(folder / "i.json", folder)


def write_yolo_list(folder: Path, name: str) -> DataSource:
    (folder / "train.txt").write_text(f"ok.png\n{name}\n")
    (folder / "data.yaml").write_text("train: train.txt\nnames: [cat]\n")
    return YoloSource(folder / "data.yaml", "train")


@pytest.mark.parametrize("write", [write_table, write_list, write_coco_file, write_yolo_list])
@pytest.mark.parametrize(("there", "named", "difference"), NAMES)
def test_a_missing_file_is_named_with_the_one_that_is_spelled_otherwise(
    write: Callable[[Path, str], DataSource], there: str, named: str, difference: str, tmp_path: Path
) -> None:
    put(tmp_path, "ok.png", there)
    with pytest.raises(ConfigError) as caught:
        scan_source(Stream(write(tmp_path, named), {}), lambda _: None)
    assert (
        f"there is {there!r}, which differs from {named!r} only in {difference}; write names as their files have them, "
        "or add the missing file, or remove its row"
    ) in str(caught.value)


@pytest.mark.parametrize(("there", "named", "difference"), NAMES)
def test_a_missing_mask_is_named_with_the_one_that_is_spelled_otherwise(
    there: str, named: str, difference: str, tmp_path: Path
) -> None:
    put(tmp_path / "masks", there, "ok.png")
    put(tmp_path / "photos", named, "ok.png")
    images = {"photo": ImageSource(None), "mask": ImageSource("{dir}/{name}", tmp_path / "masks", is_pattern=True)}
    with pytest.raises(ConfigError, match=f"only in {difference}; add the missing file"):
        scan_source(Stream(Folder(tmp_path / "photos"), {}, images=images), lambda _: None)


def test_the_photo_itself_is_no_spelling_of_its_mask(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg", "b.jpg", "a.png")
    images = {"photo": ImageSource(None), "mask": ImageSource("{stem}.png", is_pattern=True)}
    with pytest.raises(ConfigError, match=r"1 of 2 files that the pattern names .*: 'b.png'; add the missing file"):
        scan_source(Stream(Folder(tmp_path), {}, images=images), lambda _: None)


def test_shards_name_the_file_of_a_sample_that_is_spelled_otherwise(tmp_path: Path) -> None:
    pack(tmp_path / "s.tar", {"a.jpg": b"x", "A.cls": b"1"})
    with pytest.raises(ConfigError, match=r"without an image.*; there is 'a', which differs from 'A' only in upper"):
        scan_source(Stream(Tar(str(tmp_path)), {"label": Label("category", "cls")}), lambda _: None)
    pack(tmp_path / "s.tar", {"a.jpg": b"x", "A.png": b"1"})
    images = {name: ImageSource(name) for name in ("jpg", "png")}
    with pytest.raises(
        ConfigError, match=r"of 1 sample with .*; there is '[aA]', which differs from '[aA]' only in upper"
    ):
        scan_source(Stream(Tar(str(tmp_path)), {}, images=images), lambda _: None)


def test_what_is_like_nothing_gets_no_advice(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "folder/b.png", "7")
    root = ConfinedRoot(bytes(tmp_path), "key")
    for name in (b"a.png", b"c.png", b"nowhere/b.png", b"7.png", b"a.csv/b.png"):
        assert root.suggest_near_name([name]) == ""
    assert root.find_near_name(b"folder/b.png") == b"folder/b.png"
    # A spelling of the whole name comes before another suffix.
    assert find_near_names([b"a.jpg"], [b"a.png", b"A.JPG"]) == {b"a.jpg": b"A.JPG"}


def test_label_files_without_a_picture_and_pictures_without_one_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_yolo(tmp_path, ["0 .5 .5 .2 .2", None, None])
    line = "0 .5 .5 .2 .2"
    for name in ("1.TXT", "9.txt", "classes.txt", ".hidden.txt", "notes.md"):
        (tmp_path / "labels/train" / name).write_text(line)
    with caplog.at_level(logging.INFO):
        scan_source(Stream(YoloSource(path, "train")), lambda _: None)
    key = "streams.train.source.path"
    assert caplog.messages == [
        (
            f"{key}: 2 label files belong to no picture: 'labels/train/1.TXT', 'labels/train/9.txt'; for "
            "'images/train/1.png', there is 'labels/train/1.TXT', which differs from 'labels/train/1.txt' only in "
            "upper and lower case"
        ),
        f"{key}: 2 of 3 pictures have no label file: 'images/train/1.png', 'images/train/2.png'",
    ]


def test_label_files_of_pictures_that_another_list_names_are_not_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_yolo(tmp_path, ["0 .5 .5 .2 .2"] * 3)
    (tmp_path / "train.txt").write_text("images/train/0.png\nimages/train/2.png\n")
    (tmp_path / "data.yaml").write_text("train: train.txt\nnames: [cat]\n")
    with caplog.at_level(logging.INFO):
        scan_source(Stream(YoloSource(tmp_path / "data.yaml", "train")), lambda _: None)
    assert caplog.messages == []


def test_pictures_of_a_coco_file_without_objects_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_coco(tmp_path, [{"image_id": 11, "category_id": 3, "bbox": [1, 2, 3, 4]}])
    with caplog.at_level(logging.INFO):
        scan_source(Stream(CocoSource(path, tmp_path / "images")), lambda _: None)
    (said,) = caplog.messages
    assert said.endswith("instances.json': 2 of 3 pictures have no object: '0.png', '2.png'")


def test_masks_without_a_picture_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path / "photos", "a.jpg", "deep/b.jpg")
    put(tmp_path / "masks", "a.png", "z.png", "deep/b.png", "deep/y.png", "deep/readme.txt", "other/x.png", ".h.png")
    (tmp_path / "masks" / "a.png").rename(tmp_path / "masks" / "other" / "a.png")
    (tmp_path / "masks" / "a.png").symlink_to(tmp_path / "masks" / "other" / "a.png")
    root = tmp_path / "masks"
    images = {"photo": ImageSource(None), "mask": ImageSource("{dir}/{stem}.png", root, is_pattern=True)}
    with caplog.at_level(logging.INFO):
        scan_source(Stream(Folder(tmp_path / "photos"), {}, images=images), lambda _: None)
    what = f"2 files in '{root}' belong to no picture of this stream: 'deep/y.png', 'z.png'"
    assert caplog.messages == [f"streams.train.images: {what}"]


@pytest.mark.parametrize("kind", ["coco", "yolo"])
def test_classes_of_one_name_are_named_with_their_numbers(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source: DataSource
    if kind == "coco":
        categories = [{"id": 4, "name": "cat"}, {"id": 9, "name": "dog"}, {"id": 2, "name": "cat"}]
        path = write_coco(tmp_path, [], categories=categories)
        source, numbers = CocoSource(path, tmp_path / "images"), "categories 2 and 4"
    else:
        path = write_yolo(tmp_path, ["0 .5 .5 .2 .2"], "train: images/train\nnames: [cat, dog, cat]\n")
        source, numbers = YoloSource(path, "train"), "names 0 and 2"
    scan_source(Stream(source), lambda _: None)
    (said,) = caplog.messages
    assert said.endswith(
        f"{path}': {numbers} have the same name 'cat', and are learned as 2 classes; give each a name of its own, or "
        "use one of them for all"
    )


@pytest.mark.parametrize(
    ("unit", "columns", "told"),
    [("pixel", "Width,height", 1), ("fraction", "width,height", 0), ("pixel", "width,x", 0)],
)
def test_sizes_in_a_table_are_said_to_be_unread(
    unit: str, columns: str, told: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "a.png")
    (tmp_path / "all.csv").write_text(f'file,boxes,{columns}\na.png,"[[0,0,1,1]]",640,480\n')
    with caplog.at_level(logging.INFO):
        scan_source(Stream(Table(tmp_path / "all.csv"), {"boxes": boxes(2, unit=unit)}), lambda _: None)
    said = [each for each in caplog.messages if "are not read" in each]
    assert len(said) == told
    assert all("columns 'Width' and 'height' are not read: 'boxes' of type boxes is in pixels" in each for each in said)
