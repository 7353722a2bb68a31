from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from streamd.config.load import add_error_locations, load_config, parse_yaml
from streamd.config.locations import ConfigProblem
from streamd.config.rules import list_unserved_settings
from streamd.config.schema import Config
from streamd.errors import ConfigError, MissingExtraError

REPOSITORY = Path(__file__).parents[2]
GOOD = "streams:\n  train:\n    source: {kind: folder, path: data}\n    image: {size: [8, 8]}\n"


def write(folder: Path, text: str, name: str = "config.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return str(caught.value).replace(str(path), "FILE")


def test_the_example_loads_and_all_of_it_is_served() -> None:
    config = load_config(REPOSITORY / "config.yaml")
    assert list_unserved_settings(config) == []
    train, validation = config.streams["train"], config.streams["validation"]
    assert train.source.path == REPOSITORY / "data/train"
    assert validation.source.path == REPOSITORY / "data/validation"
    assert (train.bad_policy, validation.bad_policy) == ("substitute", "mask")
    assert validation.image == train.image


def test_the_example_shows_the_defaults() -> None:
    example = load_config(REPOSITORY / "config.yaml")
    shown = example.streams["train"]
    plain = load_config(
        {"streams": {"train": {"source": {"kind": "folder", "path": shown.source.path}, "image": {"size": [128, 128]}}}}
    )
    assert shown.model_copy(update={"labels": None}) == plain.streams["train"]
    assert example.model_dump(exclude={"streams"}) == plain.model_dump(exclude={"streams"})


def test_relative_paths_start_at_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "conf"
    folder.mkdir()
    write(folder, GOOD)
    monkeypatch.chdir(tmp_path)
    config = load_config(Path("conf/config.yaml"))
    assert config.base_folder == folder
    assert config.streams["train"].source.path == folder / "data"


def test_paths_in_a_mapping_start_at_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    streams = {"train": {"source": {"kind": "folder", "path": Path("data")}, "image": {"size": (8, 8)}}}
    config = load_config({"streams": streams})
    assert (config.base_folder, config.streams["train"].source.path) == (tmp_path, tmp_path / "data")


def test_json_and_yaml_give_the_same(tmp_path: Path) -> None:
    data = {"streams": {"train": {"source": {"kind": "folder", "path": "data"}, "image": {"size": [8, 8]}}}}
    as_json: Config = load_config(write(tmp_path, json.dumps(data, indent="\t"), "config.json"))
    assert as_json == load_config(write(tmp_path, GOOD))


def test_all_mistakes_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    text = GOOD + "    batch_size: 0\n    batchsize: 3\n  val: {like: trian}\nmemory: 3\nmemory: 1GiB\n"
    assert refusal(write(tmp_path, text)).splitlines() == [
        "FILE:5: streams.train.batch_size: found 0; use a whole number from 1 to 65536",
        "FILE:6: streams.train.batchsize: unknown key; did you mean 'batch_size'?",
        "FILE:7: streams.val.like: found 'trian', which is not a stream in this file; did you mean 'train'?",
        "FILE:9: memory: is written twice, first on line 8; keep one",
        "FILE:9: memory: 3 bytes is too little; use 1MiB or more",
    ]


def test_a_copied_value_that_fits_only_its_original_stream_names_the_copy(tmp_path: Path) -> None:
    text = """\
streams:
  train: {source: {kind: npy, path: a.npy}, image: {size: stored}}
  val: {like: train, source: {kind: folder, path: d}}
"""
    told = refusal(write(tmp_path, text))
    assert told.startswith("FILE:2: streams.val.image.size: found 'stored', which is for arrays; a folder needs")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "FILE:1: is empty; write at least streams: "),
        ("# only a comment\n", "FILE:1: is empty; write at least streams: "),
        ("- a\n", "FILE:1: holds ['a'] where keys are needed; "),
        ("memory: 1GiB\n", "FILE:1: streams: is missing; add at least one: "),
        ("a: [\n", "FILE:2:1: not valid YAML: "),
    ],
)
def test_a_file_without_keys_is_refused_with_what_to_write(tmp_path: Path, text: str, told: str) -> None:
    assert refusal(write(tmp_path, text)).startswith(told)


def test_data_given_for_a_configuration_are_refused_with_the_command_that_writes_one(tmp_path: Path) -> None:
    told = refusal(write(tmp_path, "file,kind\na.jpg,cat\n"))
    assert told.startswith("FILE:1: holds 'file,kind a.jpg,cat' where keys are needed; ")
    assert told.endswith(", or, if this file is your data, let  streamd init PATH  write a configuration")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.yaml") == (
        "FILE: there is no such file; give the path of your configuration (--config FILE), or let streamd write one "
        "for your images: streamd init PATH"
    )


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == (
        "FILE: is a folder; give the path of the configuration in it, such as FILE/config.yaml, or write one for a "
        "folder of images:  streamd init FILE"
    )


def test_a_file_below_a_file_cannot_be_read(tmp_path: Path) -> None:
    assert refusal(write(tmp_path, GOOD) / "x.yaml").endswith(": cannot be read: Not a directory")


def test_a_data_path_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    source = {"kind": "folder", "path": tmp_path / os.fsdecode(b"a\xff")}
    streams = {"train": {"source": source, "image": {"size": [8, 8]}, "batch_size": 2}}
    with pytest.raises(ConfigError, match=r"train\.source\.path: found '.*a\\udcff', whose name is not UTF-8; rename"):
        load_config({"streams": streams})


def test_a_file_that_is_not_utf8_is_refused_with_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"a: \xff\n")
    assert refusal(path) == "FILE: byte 3 is not in UTF-8; save it as UTF-8"


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "\ufeff" + GOOD)).streams["train"].name == "train"


def test_data_errors_get_the_file_and_line_of_their_key(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    config = load_config(path)
    with pytest.raises(ConfigError) as caught, add_error_locations(config):
        raise ConfigError("streams.train.source.path: no images\nstreams.train.image.size: too small")
    assert str(caught.value).replace(str(path), "FILE") == (
        "FILE:3: streams.train.source.path: no images\nFILE:4: streams.train.image.size: too small"
    )


def test_errors_without_a_key_pass_unchanged(tmp_path: Path) -> None:
    missing = MissingExtraError("pyarrow", "serve", "a table")
    with pytest.raises(MissingExtraError) as caught, add_error_locations(load_config(write(tmp_path, GOOD))):
        raise missing
    assert caught.value is missing


@pytest.mark.usefixtures("without_folder")
def test_a_file_with_an_absolute_path_needs_no_working_directory(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, GOOD)).streams["train"].source.path == tmp_path / "data"


@pytest.mark.usefixtures("without_folder")
def test_a_mapping_is_refused_where_the_working_directory_was_removed() -> None:
    with pytest.raises(ConfigError, match=r"the working directory was removed: change to another one with os\.chdir"):
        load_config({"streams": {"train": {"source": {"kind": "folder", "path": "data"}, "image": {"size": [8, 8]}}}})


# --- text to data


def test_every_key_and_list_item_has_its_line() -> None:
    document = parse_yaml("a: 1\nb:\n  c:\n    - x\n    - {d: 2}\n", "f")
    assert document.data == {"a": 1, "b": {"c": ["x", {"d": 2}]}}
    assert document.lines == {
        (): 1,
        ("a",): 1,
        ("b",): 2,
        ("b", "c"): 3,
        ("b", "c", 0): 4,
        ("b", "c", 1): 5,
        ("b", "c", 1, "d"): 5,
    }


@pytest.mark.parametrize(
    ("text", "data"),
    [
        pytest.param(
            '{\n\t"a": [1, 2.5, true, null],\n\t"b": "\\u00e9"\n}',
            {"a": [1, 2.5, True, None], "b": "é"},
            id="JSON is YAML, even with tabs",
        ),
        pytest.param(
            "a: yes\nb: none\nc: 2020-99-99\n",
            {"a": "yes", "b": "none", "c": "2020-99-99"},
            id="words such as yes, and dates, stay text",
        ),
        pytest.param(
            "2026: 1\nno: {1_0: 2, ~: 3, true: 4}\n",
            {"2026": 1, "no": {"1_0": 2, "~": 3, "true": 4}},
            id="keys are text as they are written",
        ),
        pytest.param("# nothing\n", None, id="an empty text has no data"),
        pytest.param(
            "a: &x {b: 1, c: 2}\nd:\n  <<: *x\n  c: 3\n",
            {"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}},
            id="anchors and merges are followed",
        ),
    ],
)
def test_a_text_becomes_plain_data(text: str, data: object) -> None:
    assert parse_yaml(text, "f").data == data


def test_every_key_written_twice_is_a_problem_with_both_lines() -> None:
    document = parse_yaml("a: 1\nb: {c: 1, c: 2}\na: 3\n", "f")
    assert set(document.problems) == {
        ConfigProblem(("a",), "is written twice, first on line 1; keep one"),
        ConfigProblem(("b", "c"), "is written twice, first on line 2; keep one"),
    }
    assert document.lines["a",] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: 1\nb: [1\nc: 2\n",
            (
                "f:3:2: not valid YAML: a comma is missing before this point, or the bracket opened on line 2 is not "
                "closed; add the comma, or close the bracket"
            ),
        ),
        ("a:\n\tb: 2\n", r"f:2:1: not valid YAML: there is a tab here; indent with spaces"),
        ("a: b: c\n", r"f:1:5: not valid YAML: there is a second colon on this line"),
        ("a:\n  b: 1\n c: 2\n", r"f:3:2: not valid YAML: this line is not indented like the lines above and below it"),
        ("a: 1\nb: 'x\n\n", r"f:4:1: not valid YAML: the quote opened on line 2 is not closed"),
        ('a: "C:\\data"\n', r"f:1:8: not valid YAML: there is a backslash inside double quotes"),
        ("a: @b\n", r"f:1:4: not valid YAML: a value that begins with this character needs quotes"),
        ("a: %b\n", r"f:1:4: not valid YAML: a value that begins with this character needs quotes"),
        ("a: 1\nb\n", r"f:3:1: not valid YAML: the key on line 2 must be followed by a colon and a space"),
        ("a: 1\nb: \x01\n", r"f:2: not valid YAML: character 0x1 is not allowed"),
        ("a: !!python/object:os.system x\n", r"f:1:4: not valid YAML: a word that begins with ! is a tag"),
        ("a: *b\n", r"f:1:4: not valid YAML: a value that begins with \* needs quotes"),
        ("a: 1\n---\nb: 1\n", r"f:2:1: not valid YAML: a configuration is one document"),
        (
            "a: 1\n? ]\n",
            r"f:2:3: not valid YAML: expected the node content, but found '\]', while parsing a block node",
        ),
        (
            "a: {<<: 3}\n",
            r"f:1:9: not valid YAML: expected a mapping or list of mappings for merging, but found scalar",
        ),
        ("a: !!int x\n", r"f: not valid YAML: a tag does not fit its value: .*'x'"),
        ("a: !!bool maybe\n", r"f: not valid YAML: a tag does not fit its value: 'maybe'"),
        ("a: " + "9" * 5000, r"f: not valid YAML: a tag does not fit its value: Exceeds the limit"),
        ("a: &x 1\nb: &x 2\n", r"f: found duplicate anchor 'x' .*; give each anchor a name of its own"),
        ("{" * 1000, r"f: nested too deeply"),
    ],
)
def test_invalid_yaml_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_yaml(text, "f")
    assert "\n" not in str(caught.value)


def test_nested_aliases_are_visited_once() -> None:
    doubled = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
    assert len(parse_yaml(doubled, "f").lines) < 300
