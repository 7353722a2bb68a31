"""Labels from shards: from files next to images, from JSON, from folders; and the errors where there are none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.source_configs import Label
from support.tar_shards import pack
from test_tar_samples import shard_of

from streamd.dataset.labels.cells import SourceRows
from streamd.dataset.sources import BoxRule, LabelSource
from streamd.dataset.tar.samples import read_shard
from streamd.dataset.tar.scan import (
    FieldValue,
    TarLabelSource,
    build_label_columns,
    find_default_labels,
    find_label_sources,
    read_label_values,
)
from streamd.errors import ConfigError

META = {"angle": -0.25, "tags": ["a", "b"], "ok": True, "n": 7, "none": None, "box": [[1, 2]], "at": {"x": 1}}
FOUR = {
    "1.jpg": b"", "1.cls": b"3\n", "1.txt": "grün".encode(), "1.json": json.dumps(META).encode(),
    "2.jpg": b"", "2.cls": b"0", "2.txt": b"", "2.json": json.dumps({**META, "angle": 0.1, "tags": []}).encode(),
}  # fmt: skip


def found(tmp_path: Path, files: Mapping[str, bytes], **labels: Label) -> dict[str, list[list[FieldValue]]]:
    """The values of each label, by where they are taken from."""
    path = pack(tmp_path / "a.tar", files)
    with path.open("rb") as file:
        shard = read_shard(b"a.tar", file.fileno(), path.stat().st_size, "path", lambda _: None)
        asks = find_label_sources("train", labels or find_default_labels(shard), shard)
        values = read_label_values(shard, asks, "train")
    return {name: [values[ask] for ask in several] for name, several in asks.items()}


def refusal(tmp_path: Path, files: Mapping[str, bytes], **labels: Label) -> str:
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, files, **labels)
    return str(caught.value)


def test_a_label_is_the_text_of_the_files_with_its_name_as_suffix(tmp_path: Path) -> None:
    assert found(tmp_path, FOUR, txt=Label("string"), label=Label(), cls=Label("int")) == {
        "txt": [["grün", ""]], "label": [["3\n", "0"]], "cls": [["3\n", "0"]],
    }  # fmt: skip


def test_from_names_a_suffix_or_a_field_of_json_and_several_make_a_vector(tmp_path: Path) -> None:
    labels = {
        "a": Label("float", "json:angle"),
        "b": Label("float", (".JSON:n", "json:angle")),
        "c": Label(source="cls"),
    }
    assert found(tmp_path, FOUR, **labels) == {
        "a": [["-0.25", "0.1"]], "b": [["7", "7"], ["-0.25", "0.1"]], "c": [["3\n", "0"]],
    }  # fmt: skip


def test_values_of_json_are_spelled_as_in_a_table(tmp_path: Path) -> None:
    labels = {key: Label("tags", f"json:{key}") for key in ("tags", "ok", "none")}
    assert found(tmp_path, FOUR, **labels) == {
        "tags": [[["a", "b"], []]], "ok": [["true", "true"]], "none": [["", ""]],
    }  # fmt: skip


def test_the_default_label_is_cls_then_the_folder_and_a_flat_shard_has_none(tmp_path: Path) -> None:
    folders = {"cat/1.jpg": b"", "dog/2.jpg": b""}
    assert found(tmp_path, {**folders, "cat/1.cls": b"5", "dog/2.cls": b"6"}) == {"label": [["5", "6"]]}
    assert found(tmp_path, folders) == {"label": [["cat", "dog"]]}
    assert found(tmp_path, folders, animal=Label()) == {"animal": [["cat", "dog"]]}
    assert found(tmp_path, {"1.jpg": b""}) == {}
    assert found(tmp_path, {"a/b/1.jpg": b""}) == {}
    assert found(tmp_path, {"1.jpg": b"", "b/1.jpg": b""}) == {}


@pytest.mark.parametrize("source", ["", ".", "json:", "txt:angle", ":angle", ("cls", "txt:x")])
def test_a_source_that_names_no_files_is_refused(tmp_path: Path, source: str | tuple[str, ...]) -> None:
    message = refusal(tmp_path, FOUR, a=Label("float", source))
    assert message.startswith("streams.train.labels.a.from: ")
    assert (
        "is not the suffix of label files in a shard; write a suffix or a field, such as cls, txt or json:angle"
        in message
    )


def test_a_missing_label_is_refused_with_the_suffixes_of_the_shard(tmp_path: Path) -> None:
    assert refusal(tmp_path, FOUR, angle=Label("float")) == (
        "streams.train.labels.angle: 'a.tar' has no .angle files next to its images, and no folder for each class; it "
        "has 2 .cls, 2 .txt, 2 .json, 2 .jpg: write from: txt for the text of .txt files, from: json:angle for a field "
        "of .json files, or labels: {} to serve no labels"
    )


def test_an_image_without_its_label_is_named(tmp_path: Path) -> None:
    files = {name: data for name, data in FOUR.items() if name != "2.cls"} | {"3.jpg": b""}
    assert refusal(tmp_path, files, label=Label()) == (
        "streams.train.labels.label: 'a.tar/2.jpg' has no .cls file next to it (and 1 more like it); the shard has "
        "3 .jpg, 2 .txt, 2 .json, 1 .cls: correct from:, or pack the shard again"
    )
    assert "'a.tar/1.jpg' has no .class file next to it" in refusal(tmp_path, {"1.jpg": b""}, a=Label(source="class"))


@pytest.mark.parametrize("suffix", ["json", "meta.json"])
def test_a_suffix_that_is_a_field_of_the_json_is_suggested_as_that_field(tmp_path: Path, suffix: str) -> None:
    files = {"1.jpg": b"", f"1.{suffix}": b'{"Score": 0.5}'}
    assert refusal(tmp_path, files, a=Label("float", "Score")) == (
        f"streams.train.labels.a: 'a.tar/1.jpg' has no .score file next to it; the shard has 1 .{suffix}, 1 .jpg: "
        f"write from: {suffix}:Score for that field of its .{suffix}"
    )


@pytest.mark.parametrize("record", [b'{"angle": 0.5}', b'["score"]', b"\xff", b"no JSON"])
def test_json_without_the_field_is_not_suggested(tmp_path: Path, record: bytes) -> None:
    says = refusal(tmp_path, {"1.jpg": b"", "1.json": record}, a=Label("float", "score"))
    assert says.endswith("the shard has 1 .json, 1 .jpg: correct from:, or pack the shard again")


def test_an_image_outside_the_folders_of_classes_is_named(tmp_path: Path) -> None:
    shard = shard_of(pack(tmp_path / "a.tar", {"cat/1.jpg": b"", "2.jpg": b""}))
    with pytest.raises(ConfigError, match=r"'a.tar/2.jpg' is not directly in a folder named after its class, as"):
        read_label_values(shard, {"label": [TarLabelSource(b"")]}, "train")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"{", "'a.tar/1.jpg': 'n' in its .json is not a JSON object: "),
        (b"[1]", "'a.tar/1.jpg': 'n' in its .json is not a JSON object: "),
        (b'{"n": ' + b"[" * 5000, "'a.tar/1.jpg': 'n' in its .json is not a JSON object: "),
        (b'{"nn": 1}', "'a.tar/1.jpg': there is no 'n' in its .json; it has nn; did you mean 'nn'?"),
        (b"{}", "there is no 'n' in its .json; it has nothing"),
        (b'{"n": {"x": 1}}', "'n' in its .json is an object or a list of lists"),
        (b'{"n": [[1]]}', "'n' in its .json is an object or a list of lists"),
        (b"\xff", "'a.tar/1.json' is not UTF-8 text; save it as UTF-8"),
        (b" " * 1048577, "'a.tar/1.json' has 1,048,577 bytes, but a label has at most 1,048,576"),
    ],
    ids=["cut", "list", "deep", "near", "empty", "object", "lists", "bytes", "long"],
)
def test_json_that_gives_no_value_is_reported_by_sample(tmp_path: Path, data: bytes, told: str) -> None:
    message = refusal(tmp_path, {"1.jpg": b"", "1.json": data}, a=Label("int", "json:n"))
    assert message.startswith("streams.train.labels.a: ")
    assert told in message


def test_columns_hold_lists_where_any_value_is_one(tmp_path: Path) -> None:
    text, tags = TarLabelSource(b"txt"), TarLabelSource(b"json", "tags")
    columns = build_label_columns(
        "train", {"a": [text], "b": [tags]}, {text: ["x", ""], tags: ["x", ["y", "z"]]}, SourceRows(tmp_path, str)
    )
    assert columns["a"][0].cells.to_pylist() == ["x", ""]
    assert columns["b"][0].cells.to_pylist() == [["x"], ["y", "z"]]
    assert (columns["a"][0].display_name, columns["b"][0].display_name) == ("its .txt", "'tags' in its .json")
    assert columns["a"][0].key == "streams.train.labels.a"


def test_boxes_are_json_text_beside_an_image_or_a_nested_field_of_its_json(tmp_path: Path) -> None:
    files = {"1.jpg": b"", "1.boxes": b"[[0, 0, 1, 1]]", "1.json": json.dumps(META).encode()}
    label = LabelSource("boxes", source="json:box", boxes=BoxRule(9))
    path = pack(tmp_path / "a.tar", files)
    with path.open("rb") as file:
        shard = read_shard(b"a.tar", file.fileno(), path.stat().st_size, "path", lambda _: None)
        beside = LabelSource("boxes", boxes=BoxRule(9))
        asks = find_label_sources("train", {"box": label, "boxes": beside}, shard)
        values = read_label_values(shard, asks, "train")
    assert [values[ask] for (ask,) in asks.values()] == [["[[1,2]]"], ["[[0, 0, 1, 1]]"]]
