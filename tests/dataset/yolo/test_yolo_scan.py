"""`kind: yolo`: pictures of folders and list files with the boxes beside them, below a root that holds both."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.boxed_pictures import boxes, write_picture, write_yolo
from support.source_configs import Label, Stream

from streamd.dataset.manifest.types import ScannedSamples
from streamd.dataset.scan import scan_source
from streamd.dataset.sources import LabelSource
from streamd.dataset.yolo import YoloPart, YoloSource
from streamd.errors import ConfigError

LINE = "1 0.5 0.5 0.5 0.25"
BOX = [0.25, 0.375, 0.75, 0.625, 1]


def scan(path: Path, labels: dict[str, LabelSource] | None = None, part: YoloPart = "train") -> ScannedSamples:
    return scan_source(Stream(YoloSource(path, part), labels), lambda _: None)


def refusal(path: Path, labels: dict[str, LabelSource] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        scan(path, labels)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_pictures_of_a_folder_have_their_boxes_in_byte_order(tmp_path: Path) -> None:
    found = scan(write_yolo(tmp_path, [LINE, None, f"{LINE}\n{LINE}"]))
    assert found.root == tmp_path
    assert list(found.files) == [b"images/train/0.png", b"images/train/1.png", b"images/train/2.png"]
    assert found.labels["boxes"].tolist() == [[BOX], [], [BOX, BOX]]
    spec = found.specs["boxes"]
    assert (spec.type, spec.rows, spec.unit, spec.classes, spec.counts) == (
        "boxes",
        100,
        "fraction",
        ("cat", "dog"),
        (0, 3),
    )
    assert found.sizes.all()
    assert found.mtimes_ns.all()


def test_a_list_file_keeps_its_order_and_may_stand_beside_a_folder(tmp_path: Path) -> None:
    path = write_yolo(tmp_path, [LINE, None], "train: [lists/a.txt, images/more]\nnames: [cat, dog]")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "a.txt").write_text(f"images/train/1.png\n\n{tmp_path}/images/train/0.png\n")
    write_picture(tmp_path / "images" / "more" / "deep" / "9.png")
    found = scan(path)
    assert list(found.files) == [b"images/train/1.png", b"images/train/0.png", b"images/more/deep/9.png"]
    assert found.labels["boxes"].tolist() == [[], [BOX], []]


def test_a_path_that_begins_with_a_dot_is_relative_to_its_list(tmp_path: Path) -> None:
    path = write_yolo(tmp_path / "set", [LINE], "path: ..\ntrain: set/a.txt\nnames: [cat, dog]")
    (tmp_path / "set" / "a.txt").write_text("./images/train/0.png\n")
    assert list(scan(path).files) == [b"set/images/train/0.png"]


def test_a_part_outside_of_the_path_brings_its_own_root_along(tmp_path: Path) -> None:
    write_yolo(tmp_path / "set", [LINE])
    path = tmp_path / "set" / "yaml" / "data.yaml"
    path.parent.mkdir()
    path.write_text("train: ../images/train\nnames: [cat, dog]")
    found = scan(path)
    assert (found.root, list(found.files)) == (tmp_path / "set", [b"images/train/0.png"])
    assert found.labels["boxes"].tolist() == [[BOX]]


def test_pictures_alone_need_no_labels(tmp_path: Path) -> None:
    assert scan(write_yolo(tmp_path, [None]), {}).labels == {}


def test_two_labels_may_have_the_same_boxes(tmp_path: Path) -> None:
    found = scan(write_yolo(tmp_path, [LINE]), {"all": boxes(2), "large": boxes(3, min_visible=0.5)})
    assert found.labels["all"].tolist() == found.labels["large"].tolist() == [[BOX]]
    assert [spec.min_visible for spec in found.specs.values()] == [0, 0.5]


def test_mistakes_name_the_part_or_the_picture(tmp_path: Path) -> None:
    path = write_yolo(tmp_path, [f"{LINE}\n{LINE}"])
    assert refusal(path, {"boxes": boxes(1)}).startswith(
        "streams.train.labels.boxes.max: 'images/train/0.png' has 2 boxes, the most of all samples, but max is 1;"
    )
    assert "a YOLO data set gives each picture boxes, not 'kind' of type category" in refusal(path, {"kind": Label()})
    path.write_text("train: images/tarin\nnames: [cat]")
    assert refusal(path).startswith("streams.train.source.path: 'data.yaml': there is no 'images/tarin'; the nearest")
    (tmp_path / "empty").mkdir()
    path.write_text("train: empty\nnames: [cat]")
    assert "source.path: no images in 'empty'; looked for" in refusal(path)
    path.write_text("train: a.txt\nnames: [cat]")
    (tmp_path / "a.txt").write_text("images/train/0.png\nimages/gone.png\n")
    assert "1 of 2 files named in a.txt is not in" in refusal(path)
    (tmp_path / "a.txt").write_text("../../etc/passwd\n")
    assert "which is not in" in refusal(path)
    (tmp_path / "a.txt").write_bytes(b"\xff.jpg")
    assert "'a.txt' is not UTF-8 text; save the list as UTF-8" in refusal(path)
