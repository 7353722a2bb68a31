"""The text of a made configuration agrees with what is served."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML
from support.daemon_process import write_images

from streamd.cli import init
from streamd.cli.init import format_entry, format_starter_config
from streamd.config.load import load_config, parse_yaml
from streamd.daemon.starter.starter_config import LoggedProgress, StarterConfig, make_starter_config
from streamd.daemon.starter.survey import DataKind

NO_PROGRESS = LoggedProgress(lambda: 0.0)


def make(path: Path) -> StarterConfig:
    return make_starter_config(path, None, NO_PROGRESS)


def test_the_text_has_the_keys_of_the_configuration_and_no_others(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat": 12, "dog": 9})
    rows = [f"cat/{number:04}.jpg,{number / 7},r{number},a: b" for number in range(11)]
    (tmp_path / "all.csv").write_text("\n".join(["file,the: angle,remark,#", *rows, "cat/0011.jpg,1,r,c"]) + "\n")
    for path in (tmp_path, tmp_path / "all.csv"):
        starter = make(path)
        text = format_starter_config(starter, "streamd init", str)
        assert parse_yaml(text, "config.yaml").data == starter.build_settings()
        assert max(map(len, text.splitlines())) <= 200


def test_comments_explain_the_keys_and_name_omitted_columns(tmp_path: Path) -> None:
    write_images(tmp_path, {f"c{number}": 2 for number in range(7)})
    rows = [f"c0/{number:04}.jpg,{number / 7},remark {number}" for number in range(2)]
    (tmp_path / "all.csv").write_text("\n".join(["file,angle,remark", *rows, "c1/0000.jpg,1.5,word"]) + "\n")
    text = format_starter_config(make(tmp_path), "streamd init", str)
    assert "classes: c0, c1, c2, c3, c4, ... 7 classes" in text
    assert "# labels: {}  # uncomment to serve the images without their labels" in text
    assert "the size of all 14 pictures" in text
    text = format_starter_config(make(tmp_path / "all.csv"), "streamd init", str)
    assert "      angle: float  # mean " in text
    assert "\n      # remark: left out, 3 different texts in 3 rows\n" in text


def test_paths_are_written_by_the_given_function_and_the_file_is_valid(tmp_path: Path) -> None:
    write_images(tmp_path / "pets", {"cat": 12, "dog": 9})
    path = tmp_path / "config.yaml"
    text = format_starter_config(make(tmp_path / "pets"), "streamd init pets", lambda each: each.name)
    path.write_text(text)
    assert "path: pets, part: train" in text
    assert load_config(path).streams["train"].source.path == tmp_path / "pets"


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("source", {"kind": "folder", "path": "a b, c"}, "source: {kind: folder, path: 'a b, c'}"),
        ("split", None, "split: null"),
        ("labels", {}, "labels: {}"),
        ("a: b", "float", "'a: b': float"),
        ("image", {"size": [1, 2]}, "image: {size: [1, 2]}"),
    ],
)
def test_an_entry_is_one_line(key: str, value: object, line: str) -> None:
    assert format_entry(key, value) == line
    assert parse_yaml(line, "x").data == {key: value}


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("folder", {"kind": "folder", "path": "/data"}),
        ("table", {"kind": "table", "path": "/data.csv", "image": "file"}),
        ("tar", {"kind": "tar", "path": "/data.tar"}),
    ],
)
def test_the_comment_about_masks_is_a_configuration_that_loads(kind: DataKind, source: dict[str, object]) -> None:
    keys = YAML(typ="safe").load(init.format_mask_example(kind))
    stream = load_config({"streams": {"train": {"source": source, **keys}}}).streams["train"]
    assert (list(stream.all_images), stream.all_images["mask"].mode) == (["photo", "mask"], "index")
