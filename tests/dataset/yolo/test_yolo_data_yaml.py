"""The data.yaml of a YOLO data set: names as a list or a mapping, and parts as folders, list files or several."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.dataset.yolo import YoloPart
from streamd.dataset.yolo.data_yaml import YoloData, read_data_yaml
from streamd.errors import ConfigError


def read(folder: Path, text: str, part: YoloPart = "train") -> YoloData:
    folder.mkdir(exist_ok=True)
    (folder / "data.yaml").write_text(text, encoding="utf-8")
    return read_data_yaml(folder / "data.yaml", part, "source")


def refusal(folder: Path, text: str, part: YoloPart = "train") -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, text, part)
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        ("names: [cat, no, 7]", ("cat", "no", 7)),
        ("names: {1: dog, 0: cat}", ("cat", "dog")),
        ("names:\n  - cat\n  - dog\nnc: 2", ("cat", "dog")),
        ("nc: 3", (0, 1, 2)),
    ],
)
def test_classes_are_listed_numbered_or_counted(names: str, classes: tuple[object, ...], tmp_path: Path) -> None:
    assert read(tmp_path, f"train: images\n{names}\n").classes == classes


def test_parts_lie_below_the_path_which_is_relative_to_the_file(tmp_path: Path) -> None:
    text = "path: ../all\ntrain: [images/train, more.txt]\nval: /other/val\ntest: t\nnames: [cat]\n"
    folder = tmp_path / "yaml"
    assert read(folder, text).base == tmp_path / "all"
    assert read(folder, text).places == (tmp_path / "all/images/train", tmp_path / "all/more.txt")
    assert read(folder, text, "validation").places == (Path("/other/val"),)
    assert read(folder, text, "test").places == (tmp_path / "all/t",)


def test_without_a_path_parts_lie_beside_the_file(tmp_path: Path) -> None:
    assert read(tmp_path, "train: images\nnames: [cat]\n").base == tmp_path


def test_a_folder_beside_the_file_that_is_written_as_one_above_it_is_found(tmp_path: Path) -> None:
    (tmp_path / "set" / "train" / "images").mkdir(parents=True)
    assert read(tmp_path / "set", "train: ../train/images\nnames: [cat]\n").places == (tmp_path / "set/train/images",)
    (tmp_path / "train" / "images").mkdir(parents=True)
    assert read(tmp_path / "set", "train: ../train/images\nnames: [cat]\n").places == (tmp_path / "train/images",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("train: images\n", "source.path: 'data.yaml': names must list the classes, as in names: [cat, dog] or names:"),
        ("train: images\nnames: {1: cat}\n", "'data.yaml': the keys of names must be the numbers from 0 to 0, one for"),
        ("train: images\nnames: [[a]]\n", "'data.yaml': names must list the classes"),
        ("train: images\nnames: [a]\nnc: 2\n", "'data.yaml': nc is 2, but names lists 1 classes; make them agree"),
        (
            "val: images\nnames: [a]\n",
            "source.part: 'data.yaml' has no key train, which lists the pictures of part train",
        ),
        ("train: 3\nnames: [a]\n", "'data.yaml': train must be a folder, a list file, or a list of these; correct it"),
        ("train: []\nnames: [a]\n", "'data.yaml': train must be a folder, a list file, or a list of these; correct it"),
        ("path: 3\ntrain: a\nnames: [a]\n", "'data.yaml': path must be the folder of the data set; correct it"),
        ("train: [\n", "source.path: 'data.yaml' is not YAML: while parsing a flow node"),
        ("names: [a]\nnames: [b]\n", "source.path: 'data.yaml' is not YAML: while constructing a mapping"),
        ("just words", "source.path: 'data.yaml' has no keys; a data.yaml has names, train and val"),
        (" " * (1 << 20) + "\n", "source.path: 'data.yaml' has more than 1 MiB, so it is no data.yaml; name"),
    ],
)
def test_another_content_is_refused_with_what_to_write(text: str, says: str, tmp_path: Path) -> None:
    assert says in refusal(tmp_path, text)


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a folder; name the data\.yaml in it"):
        read_data_yaml(tmp_path, "train", "source")
    with pytest.raises(ConfigError, match=r"source\.path: there is no"):
        read_data_yaml(tmp_path / "data.yaml", "train", "source")
