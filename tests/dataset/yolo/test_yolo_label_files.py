"""The text files of a YOLO data set: where they lie, and what a line may hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamd.dataset.labels.boxes import Objects
from streamd.dataset.yolo import scan
from streamd.dataset.yolo.scan import LabelReader, find_label_name
from streamd.errors import ConfigError


def read(root: Path, *pictures: bytes, has_points: bool = False) -> Objects[np.int64]:
    return LabelReader(root, "source.path", 2, has_points=has_points).read_boxes(pictures, lambda _: None)


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.mark.parametrize(
    ("picture", "label"),
    [
        (b"images/train/a.b.jpg", b"labels/train/a.b.txt"),
        (b"train/images/a.jpg", b"train/labels/a.txt"),
        (b"images/images/a.jpg", b"images/labels/a.txt"),
        (b"myimages/a.jpg", b"myimages/a.txt"),
        (b"a.jpg", b"a.txt"),
    ],
)
def test_the_last_folder_images_is_replaced_by_labels(picture: bytes, label: bytes) -> None:
    assert find_label_name(picture) == label


def test_a_picture_without_a_file_or_with_an_empty_one_has_no_boxes(tmp_path: Path) -> None:
    write(tmp_path, "labels/0.txt", "1 0.5 0.5 0.2 0.4\r\n\n0 0.1 0.2 0.3 0.4\n")
    write(tmp_path, "labels/1.txt", "")
    found = read(tmp_path, b"images/0.jpg", b"images/1.jpg", b"images/2.jpg")
    assert found.counts.tolist() == [2, 0, 0]
    assert found.numbers.tolist() == [[0.5, 0.5, 0.2, 0.4], [0.1, 0.2, 0.3, 0.4]]
    assert found.values.tolist() == [1, 0]


def test_labels_beside_the_pictures_are_read_where_there_is_no_folder_of_labels(tmp_path: Path) -> None:
    write(tmp_path, "images/0.txt", "1 0.5 0.5 0.2 0.4")
    assert read(tmp_path, b"images/0.jpg").counts.tolist() == [1]


def test_an_outline_gives_the_box_around_it(tmp_path: Path) -> None:
    write(tmp_path, "labels/0.txt", "0 0.125 0.5 0.375 0.25 0.25 0.75")
    assert read(tmp_path, b"images/0.jpg").numbers.tolist() == [[0.25, 0.5, 0.25, 0.5]]


def test_key_points_behind_a_box_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, "labels/0.txt", "0 0.5 0.5 0.25 0.5 0.1 0.1 2 0.2 0.2 1")
    assert read(tmp_path, b"images/0.jpg", has_points=True).numbers.tolist() == [[0.5, 0.5, 0.25, 0.5]]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("0 0.1 0.1 x 1", "holds '0 0.1 0.1 x 1', which are not all numbers; correct it"),
        ("0 0.1 0.1 nan 1", "holds '0 0.1 0.1 nan 1', which are not all finite numbers; correct it"),
        ("0 0.1 0.1 0.1", "holds '0 0.1 0.1 0.1', but a box is: class, centre x and y, width, height; correct it"),
        ("0 0.1 0.1 0.1 1 0.9", "holds '0 0.1 0.1 0.1 1 0.9', but a box is: class, centre x and y, width, height"),
        ("2 0.1 0.1 0.1 1", "but class 2 is not one of the 2 names of the data.yaml, counted from 0; correct it"),
        ("-1 0.1 0.1 0.1 1", "but class -1 is not one of the 2 names of the data.yaml, counted from 0; correct it"),
        ("0.5 0.1 0.1 0.1 1", "but class 0.5 is not one of the 2 names of the data.yaml, counted from 0; correct it"),
        ("inf 0.1 0.1 0.1 1", "but class inf is not one of the 2 names of the data.yaml, counted from 0; correct it"),
    ],
)
def test_a_bad_line_is_refused_with_its_file_and_number(line: str, says: str, tmp_path: Path) -> None:
    write(tmp_path, "labels/0.txt", f"0 0.5 0.5 0.2 0.4\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, b"images/0.jpg")
    assert str(caught.value).startswith(f"source.path: '{tmp_path}/labels/0.txt', line 2, holds '{line}', ")
    assert says in str(caught.value)


def test_a_file_too_large_and_one_outside_of_the_root_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    write(tmp_path, "out/0.txt", "0 0.5 0.5 0.2 0.4")
    (root / "images").mkdir(parents=True)
    (root / "labels").symlink_to(tmp_path / "out")
    with pytest.raises(ConfigError, match="outside"):
        read(root, b"images/0.jpg")
    monkeypatch.setattr(scan, "MAX_LABEL_FILE_BYTES", 3)
    with pytest.raises(ConfigError, match="so it holds no labels of one picture"):
        read(tmp_path, b"out/0.jpg")


def test_a_data_set_without_a_single_label_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, b"images/0.jpg", b"images/1.jpg")
    assert str(caught.value) == (
        f"source.path: none of 2 pictures has a file of labels, such as '{tmp_path}/labels/0.txt'; put the labels "
        "there, or write labels: {} to serve the pictures alone"
    )
