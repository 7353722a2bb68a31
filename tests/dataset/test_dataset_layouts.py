"""How data sets lie: what a first configuration makes of each, and what is said of a folder that is taken for classes.

One row a layout: its files, what `init` makes of it or says, and what listing it as `kind: folder` warns of.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from PIL import Image
from support.source_configs import Folder, Stream, scanned, unlabelled

from streamd.daemon.starter.starter_config import LoggedProgress, build_unwritten_config, make_starter_config
from streamd.daemon.starter.survey import StarterChoices, names_data, survey_data
from streamd.dataset.layouts import holds_streams
from streamd.dataset.scan import scan_source
from streamd.dataset.sources import ImageSource
from streamd.errors import ConfigError

NO_PROGRESS: Final = LoggedProgress(lambda: 0.0)
BOX: Final = "0 .5 .5 .2 .2\n"
YAML: Final = "path: .\ntrain: images/train\nval: images/val\nnames: [a, b]\n"
VOC: Final = "<annotation><object><name>cat</name></object></annotation>"
OTHER: Final = "kind folder takes each sub-folder as a class; "


def coco(*files: str) -> str:
    images = [{"id": number, "file_name": name, "width": 4, "height": 4} for number, name in enumerate(files)]
    boxes = [{"id": number, "image_id": number, "category_id": 1, "bbox": [0, 0, 2, 2]} for number in range(len(files))]
    return json.dumps({"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "cat"}]})


def names(pattern: str, *values: object, end: str = ".jpg") -> dict[str, str]:
    return {pattern.format(value) + end: "" for value in values or range(4)}


def folders(*places: str, end: str = ".jpg") -> dict[str, str]:
    return {name: "" for place in places for name in names(f"{place}/{{}}", end=end)}


@dataclass(frozen=True)
class Row:
    """A tree of `files` with their texts; pictures are drawn. `becomes` is the source of each stream that init writes,
    with its mask; or init refuses with `says`. `warns`: what is said where the folder is listed as classes."""

    name: str
    files: Mapping[str, str]
    becomes: Mapping[str, Mapping[str, object]] | None = None
    says: str = ""
    warns: str = ""
    notes: str = ""


def masked(path: str, mask: str, **more: object) -> dict[str, object]:
    return {"kind": "folder", "path": path, "mask": mask, **more}


def split(source: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    return {name: {**source, "part": name} for name in ("train", "validation")}


CLASSES: Final = split({"kind": "folder", "path": ""})
ROWS: Final = (
    # Classes, and names that only look like something else.
    Row("classes", folders("cat", "dog"), CLASSES),
    Row("classes that a mask is worn in", folders("with_mask", "without_mask"), CLASSES),
    Row("a class called train", folders("bus", "car", "train"), CLASSES),
    Row("classes with words of parts", folders("train station", "test tube", "valve", "cat"), CLASSES),
    Row("classes of equal stems", folders("left", "right", "label"), CLASSES),
    Row("captions beside pictures", {**folders("cat", "dog"), "cat/0.txt": "a cat on a mat", "a.txt": ""}, CLASSES),
    Row("a JSON file of something else", {**folders("cat", "dog"), "info.json": '{"images": 3}'}, CLASSES),
    Row("a YAML file of something else", {**folders("cat", "dog"), "hub.yaml": "names: [a]\n"}, CLASSES),
    # Parts.
    Row(
        "parts outside classes",
        folders("train/cat", "train/dog", "val/cat", "val/dog", "test/cat"),
        {
            name: {"kind": "folder", "path": path}
            for name, path in {"train": "train", "validation": "val", "test": "test"}.items()
        },
        warns="the folder holds train, val, test, which looks like parts of one data set, and not its classes, but "
        f"{OTHER}"
        "give each its own stream",
    ),
    Row(
        "parts by long names",
        folders("Training/cat", "Training/dog", "Testing/cat"),
        {**split({"kind": "folder", "path": "Training"}), "test": {"kind": "folder", "path": "Testing"}},
        warns="the folder holds Training, Testing",
    ),
    Row(
        "parts inside classes",
        folders(*(f"{kind}/{part}" for kind in ("cat", "dog") for part in ("train", "val", "test"))),
        says="looks like parts inside classes: each of cat, dog holds test, train, val, so that training would take "
        "all of them; put the parts outside: move cat/train to train/cat",
        warns=f"which looks like parts inside classes, but {OTHER}put the parts outside",
    ),
    Row(
        "parts with a year",
        folders("train2017", "val2017"),
        says="looks like parts of one data set, and not its classes",
        warns="the folder holds train2017, val2017",
    ),
    Row(
        "parts with a word",
        folders("seg_train/a", "seg_test/a", "seg_pred"),
        says="the folder holds seg_test, seg_train;",
        warns="the folder holds seg_test, seg_train",
    ),
    Row(
        "two domains",
        folders("trainA", "trainB", "testA", "testB"),
        says="looks like unpaired pictures of two domains",
        warns="unpaired pictures",
    ),
    Row(
        "a folder above parts",
        folders("pets/train/cat", "pets/val/cat"),
        says="the only folder, pets: the folder holds train, val; give the path ",
        warns="the only folder, pets",
    ),
    # A table.
    Row(
        "a table of labels",
        {**names("{}"), "metadata.csv": "file_name,kind\n0.jpg,a\n1.jpg,b\n2.jpg,a\n3.jpg,b\n"},
        split({"kind": "table", "path": "metadata.csv", "image": "file_name"}),
        notes="this looks like pictures with a table: metadata.csv lies beside the pictures",
        warns="looks like pictures with a table",
    ),
    Row("a table beside classes", {**folders("cat", "dog"), "metadata.csv": "file_name,kind\n"}, CLASSES),
    Row(
        "a table of JSON lines",
        {**names("{}"), "metadata.jsonl": "{}\n"},
        says="looks like pictures with a table: metadata.jsonl lies beside the pictures; .jsonl is not read in this",
        warns="looks like pictures with a table",
    ),
    # Masks.
    Row(
        "masks",
        {**folders("images"), **folders("masks", end=".png")},
        split(masked("images", "masks/{stem}.png")),
        warns="the files of images have masks at masks/{stem}.png, which looks like pictures and their masks, but "
        f"{OTHER}"
        "write source: {kind: folder, path: ",
    ),
    Row(
        "masks in other words",
        {**folders("JPEGImages"), **folders("SegmentationClass", end=".png")},
        split(masked("JPEGImages", "SegmentationClass/{stem}.png")),
        warns="looks like pictures and their masks",
    ),
    Row(
        "masks with an ending",
        {**folders("imgs"), **names("gt/{}_mask", end=".gif")},
        split(masked("imgs", "gt/{stem}_mask.gif")),
        warns="looks like pictures and their masks",
    ),
    Row(
        "masks one folder deeper",
        {**folders("images"), **folders("annotations/trimaps", end=".png"), "annotations/trimaps/._0.png": "x"},
        split(masked("images", "annotations/trimaps/{stem}.png")),
        warns="looks like pictures and their masks",
    ),
    Row(
        "masks in parts",
        {**folders("train/images", "val/images"), **folders("train/masks", "val/masks", end=".png")},
        {
            "train": masked("train/images", "train/masks/{stem}.png"),
            "validation": masked("val/images", "val/masks/{stem}.png"),
        },
        warns="looks like pictures and their masks",
    ),
    Row(
        "parts of masks",
        {**folders("images/train", "images/val"), **folders("masks/train", "masks/val", end=".png")},
        {
            "train": masked("images/train", "masks/train/{stem}.png"),
            "validation": masked("images/val", "masks/val/{stem}.png"),
        },
        warns="looks like pictures and their masks",
    ),
    Row(
        "masks beside a part",
        {**folders("train", "test"), **names("train_masks/{}_mask", end=".gif")},
        split(masked("train", "train_masks/{stem}_mask.gif")),
        notes="not served: test, which has no masks",
        warns="looks like pictures and their masks",
    ),
    Row(
        "masks beside parts",
        {**folders("train", "val"), **folders("trainannot", "valannot", end=".png")},
        {"train": masked("train", "trainannot/{stem}.png"), "validation": masked("val", "valannot/{stem}.png")},
        warns="looks like pictures and their masks",
    ),
    Row(
        "masks in sub-folders",
        {**folders("images/a", "images/b"), **folders("masks/a", "masks/b", end=".png")},
        split(masked("images", "masks/{dir}/{stem}.png")),
        notes="not taken as classes",
        warns="looks like pictures and",
    ),
    Row(
        "masks beside pictures",
        {**names("{}"), **names("{}_mask", end=".png")},
        split(masked("", "{stem}_mask.png")),
        warns="have masks at {stem}_mask.png",
    ),
    Row(
        "masks beside pictures of classes",
        {**folders("benign", "normal"), **names("benign/{}_mask", end=".png"), **names("normal/{}_mask", end=".png")},
        split(masked("", "{dir}/{stem}_mask.png")),
        warns="have masks at",
    ),
    Row(
        "a mask too many",
        {**folders("images"), **folders("masks", end=".png"), "masks/99.png": ""},
        split(masked("images", "masks/{stem}.png")),
        notes="1 mask belongs to no picture",
        warns="masks at",
    ),
    Row(
        "masks of other stems",
        {**folders("images"), **names("masks/m{}", end=".png")},
        says="looks like pictures and their masks: images and masks are both there, but their files have different "
        "stems",
        warns="different stems",
    ),
    Row(
        "two kinds of masks",
        {**folders("images"), **folders("masks", "labels", end=".png")},
        says="masks could be images with labels/{stem}.png, images with masks/{stem}.png",
        warns="masks could be",
    ),
    # Boxes.
    Row(
        "YOLO",
        {
            **folders("images/train", "images/val"),
            "data.yaml": YAML,
            **{f"labels/{part}/{n}.txt": BOX for part in ("train", "val") for n in range(4)},
        },
        {part: {"kind": "yolo", "path": "data.yaml", "part": part} for part in ("train", "validation")},
        warns=f"data.yaml has train and names, which looks like a YOLO data set, but {OTHER}write source: {{kind: yolo",
    ),
    Row(
        "YOLO without its file",
        {**folders("images"), **{f"labels/{n}.txt": BOX for n in range(4)}},
        says="looks like a YOLO data set without its data.yaml: 'labels/0.txt' has boxes of one picture; write a "
        "data.yaml",
        warns="a YOLO data set without its data.yaml",
    ),
    Row(
        "YOLO's boxes beside pictures",
        {**names("{}"), "0.txt": BOX},
        says="a YOLO data set without its data.yaml",
        warns="a YOLO data set without its data.yaml",
    ),
    Row(
        "two of YOLO's files",
        {**folders("images/train", "images/val"), "a.yaml": YAML, "b.yaml": YAML},
        says="a.yaml, b.yaml have train and names; give the path of one",
        warns="give the path of one of them",
    ),
    Row(
        "COCO",
        {
            **folders("train2017", "val2017"),
            "annotations/instances_train2017.json": coco(*(f"{n}.jpg" for n in range(4))),
            "annotations/instances_val2017.json": coco("0.jpg"),
            "annotations/captions_val2017.json": '{"images": []}',
            "annotations/person_keypoints_train2017.json": coco("0.jpg"),
        },
        {
            "train": {"kind": "coco", "path": "annotations/instances_train2017.json", "root": "train2017"},
            "validation": {"kind": "coco", "path": "annotations/instances_val2017.json", "root": "val2017"},
        },
        notes="not served: annotations/person_keypoints_train2017.json",
        warns="looks like a COCO data set",
    ),
    Row(
        "COCO of one file",
        {**folders("images"), "boxes.json": coco(*(f"{n}.jpg" for n in range(4)))},
        split({"kind": "coco", "path": "boxes.json", "root": "images"}),
        warns="looks like a COCO data set",
    ),
    Row(
        "COCO in parts",
        {
            **folders("train", "valid"),
            "train/_annotations.coco.json": coco("0.jpg", "1.jpg"),
            "valid/_annotations.coco.json": coco("0.jpg"),
        },
        {
            "train": {"kind": "coco", "path": "train/_annotations.coco.json", "root": "train"},
            "validation": {"kind": "coco", "path": "valid/_annotations.coco.json", "root": "valid"},
        },
        warns="looks like a COCO data set",
    ),
    Row(
        "COCO's name without its content",
        {**folders("train2017"), "annotations/instances_train2017.json": "{}"},
        says="instances_train2017.json has the name of a COCO file, but not its images",
        warns="name of a COCO file",
    ),
    Row(
        "COCO of no part",
        {**folders("images"), "a.json": coco("0.jpg"), "b.json": coco("1.jpg")},
        says="a.json, b.json have images and categories; give the path of one",
        warns="a file is one list",
    ),
    Row(
        "COCO without its pictures",
        {**folders("images"), "a.json": coco("x.jpg")},
        says="none of the pictures that a.json names, such as 'x.jpg', is near it; give their folder with --root",
        warns="give their folder with --root",
    ),
    Row(
        "VOC",
        {**folders("JPEGImages"), "Annotations/0.xml": VOC, "ImageSets/Main/train.txt": "0\n"},
        says="looks like Pascal VOC: Annotations and JPEGImages lie side by side; kind: voc is not in this version",
        warns="looks like Pascal VOC",
    ),
    Row(
        "VOC with masks",
        {**folders("JPEGImages"), **folders("SegmentationClass", end=".png"), "Annotations/0.xml": VOC},
        says="could be Pascal VOC or pictures and their masks: ",
        warns="looks like Pascal VOC",
    ),
    Row(
        "VOC in its archive",
        {**folders("VOC2012/JPEGImages"), "VOC2012/Annotations/0.xml": VOC},
        says="looks like Pascal VOC: the only folder, VOC2012: ",
        warns="looks like Pascal VOC",
    ),
    Row(
        "VOC's boxes beside pictures",
        {**names("{}"), "0.xml": VOC},
        says="looks like Pascal VOC: '0.xml' describes one",
        warns="looks like Pascal VOC",
    ),
    Row(
        "VOC's boxes in a folder",
        {**folders("images"), "annotations/0.xml": VOC},
        says="looks like Pascal VOC",
        warns="looks like Pascal VOC",
    ),
    Row(
        "LabelMe",
        {**names("{}"), "0.json": '{"version": "5", "shapes": []}'},
        says="looks like LabelMe: '0.json' has the",
        warns="looks like LabelMe",
    ),
    Row(
        "YOLO and COCO",
        {**folders("images/train", "images/val"), "data.yaml": YAML, "a.json": coco("images/train/0.jpg")},
        says="could be a YOLO data set or a COCO data set: data.yaml has train and names; a.json has",
        warns="COCO",
    ),
)


def make_tree(folder: Path, files: Mapping[str, str]) -> Path:
    for number, (name, text) in enumerate(files.items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in {".jpg", ".png", ".gif"} and not text:
            mode = "L" if path.suffix == ".gif" else "RGB"
            Image.new(mode, (4, 4), number % 200 if mode == "L" else (number % 200, 9, 9)).save(path)
        else:
            path.write_text(text)
    return folder


def describe(folder: Path, settings: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, object]]:
    """The sources of streams with paths relative to the folder, and with the pattern of their masks."""
    found = {}
    for name, keys in settings.items():
        images = keys.get("images", settings["train"].get("images", {}))
        assert isinstance(images, dict)
        assert isinstance(keys["source"], dict)
        mask = {"mask": images["mask"]["from"]} if "mask" in images else {}
        assert not mask or images["mask"] == {
            "from": mask["mask"],
            "root": str(folder),
            "like": "photo",
            "mode": "index",
        }
        found[name] = {
            key: str(value)[len(str(folder)) + 1 :] if key in {"path", "root"} else value
            for key, value in keys["source"].items()
        } | mask
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_layout_is_served_or_named_and_never_taken_for_classes(
    row: Row, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = make_tree(tmp_path / "data", row.files)
    if row.becomes is None:
        with pytest.raises(ConfigError) as refused:
            make_starter_config(data, (4, 4), NO_PROGRESS)
        assert row.says in str(refused.value)
    else:
        made = make_starter_config(data, (4, 4), NO_PROGRESS)
        streams = made.build_settings()["streams"]
        assert isinstance(streams, dict)
        assert describe(data, streams) == row.becomes
        assert row.notes in "\n".join(made.iterate_remarks())
    caplog.clear()
    with caplog.at_level(logging.WARNING, "streamd.sources"):
        try:
            scanned(Folder(data))
        except ConfigError:  # pictures beside folders are refused as classes in any case
            scan_source(Stream(Folder(data), {}), lambda _: None)
    warned = [each for each in caplog.messages if "looks like" in each]
    assert bool(warned) == bool(row.warns), warned
    assert any(row.warns in each for each in warned) or not row.warns


def test_without_labels_only_more_than_folders_of_pictures_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_tree(tmp_path / "parts", folders("train/cat", "val/cat"))
    make_tree(tmp_path / "masks", {**folders("images"), **folders("masks", end=".png")})
    for name in ("parts", "masks"):
        unlabelled(Folder(tmp_path / name))
    (warned,) = [each for each in caplog.messages if "looks like" in each]
    assert warned == (
        "streams.train.source.path: the files of images have masks at masks/{stem}.png, which looks like pictures and "
        "their masks, but kind folder takes each picture as a sample; write source: {kind: folder, path: "
        f"'{tmp_path}/masks/images'}} and in place of image  images: {{photo: {{size: [H, W]}}, mask: {{from: "
        f"\"masks/{{stem}}.png\", root: '{tmp_path}/masks', like: photo, mode: index}}}}"
    )


def test_a_configuration_that_names_the_masks_is_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_tree(tmp_path, {**folders("images"), **folders("masks", end=".png")})
    images = {"photo": ImageSource(None), "mask": ImageSource("masks/{stem}.png", tmp_path, is_pattern=True)}
    scan_source(Stream(Folder(tmp_path / "images"), {}, images=images), lambda _: None)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("file", "text", "becomes"),
    [
        ("data.yaml", YAML, "yolo"),
        ("boxes.json", coco("images/train/0.jpg"), "coco"),
        ("config.yaml", "streams:\n  train: {}\n", "is a configuration; .*: serve or check it"),
        ("config.json", '{"memory": "1GiB", "streams": {}}', "is a configuration; .*: serve or check it"),
        ("other.yaml", "a: 1\n", "is neither data nor a configuration; .*: a configuration has streams:, YOLO's"),
        ("other.json", "[1", "is neither data nor a configuration; .*and a COCO file has images, annotations and"),
    ],
)
def test_a_yaml_or_json_file_is_what_its_keys_say(file: str, text: str, becomes: str, tmp_path: Path) -> None:
    make_tree(tmp_path, {**folders("images/train", "images/val"), file: text})
    is_configuration = "streams" in text
    assert names_data(tmp_path / file) == (becomes in {"yolo", "coco"})
    assert holds_streams(tmp_path / file) == is_configuration
    if becomes in {"yolo", "coco"}:
        assert survey_data(tmp_path / file).kind == becomes
    else:
        with pytest.raises(ConfigError, match=becomes):
            survey_data(tmp_path / file)


def test_a_picture_with_more_boxes_than_usual_gets_room_for_them(tmp_path: Path) -> None:
    boxes = {f"labels/{part}/{n}.txt": BOX for part in ("train", "val") for n in range(4)}
    make_tree(tmp_path, {**folders("images/train", "images/val"), "data.yaml": YAML, **boxes})
    room = make_starter_config(tmp_path, (4, 4), NO_PROGRESS).survey.labels
    assert room == {"boxes": {"type": "boxes", "max": 100}}
    (tmp_path / "labels" / "val" / "3.txt").write_text(BOX * 123)
    for size in (None, (4, 4)):
        streams = build_unwritten_config(tmp_path, size, NO_PROGRESS)["streams"]
        assert isinstance(streams, dict)
        assert streams["train"]["labels"] == {"boxes": {"type": "boxes", "max": 123}}


def test_the_root_of_a_coco_file_can_be_given_and_no_other_layout_takes_one(tmp_path: Path) -> None:
    make_tree(tmp_path / "far", names("{}"))
    make_tree(tmp_path / "here", {"a.json": coco("0.jpg")})
    found = survey_data(tmp_path / "here" / "a.json", StarterChoices(root=tmp_path / "far"))
    assert found.sources["train"]["root"] == str(tmp_path / "far")
    with pytest.raises(ConfigError, match=r"--root: says how a table is read, but .* is a folder; leave it out"):
        survey_data(tmp_path / "far", StarterChoices(root=tmp_path))
    with pytest.raises(
        ConfigError, match=r"--label: says how a table is read, but .*a.json' is no table; leave it out"
    ):
        survey_data(tmp_path / "here" / "a.json", StarterChoices(labels=("a",)))
