from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from streamd.config.load import add_error_locations, load_config
from streamd.config.schema import Config, list_unserved_settings
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


def test_relative_paths_are_seen_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "conf"
    folder.mkdir()
    write(folder, GOOD)
    monkeypatch.chdir(tmp_path)
    config = load_config(Path("conf/config.yaml"))
    assert config.base_folder == folder
    assert config.streams["train"].source.path == folder / "data"


def test_a_mapping_is_seen_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    streams = {"train": {"source": {"kind": "folder", "path": Path("data")}, "image": {"size": (8, 8)}}}
    config = load_config({"streams": streams})
    assert (config.base_folder, config.streams["train"].source.path) == (tmp_path, tmp_path / "data")


def test_json_and_yaml_give_the_same(tmp_path: Path) -> None:
    data = {"streams": {"train": {"source": {"kind": "folder", "path": "data"}, "image": {"size": [8, 8]}}}}
    as_json: Config = load_config(write(tmp_path, json.dumps(data, indent="\t"), "config.json"))
    assert as_json == load_config(write(tmp_path, GOOD))


def test_all_mistakes_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    text = GOOD + "    batch_size: 0\n    batchsize: 3\n  val: {like: trian}\nmemory: 3\nmemory: 1GiB\n"
    assert refusal(write(tmp_path, text)).splitlines() == [
        "FILE:5: streams.train.batch_size: found 0; use a whole number from 1 to 65536",
        "FILE:6: streams.train.batchsize: unknown key; did you mean 'batch_size'?",
        "FILE:7: streams.val.like: found 'trian', which is no stream of this file; did you mean 'train'?",
        "FILE:9: memory: is written twice, first at line 8; keep one",
        "FILE:9: memory: 3 bytes is too little; use 1MiB or more",
    ]


def test_a_mistake_that_like_copies_is_told_where_it_is_written(tmp_path: Path) -> None:
    text = GOOD + "    batch_size: 0\n  a: {like: train}\n  b: {like: a, batch_size: 70000}\n"
    assert refusal(write(tmp_path, text)).splitlines() == [
        "FILE:5: streams.train.batch_size: found 0; use a whole number from 1 to 65536",
        "FILE:7: streams.b.batch_size: found 70000; use a whole number from 1 to 65536",
    ]


def test_a_copied_value_that_fits_only_the_original_names_the_copy(tmp_path: Path) -> None:
    text = """\
streams:
  train: {source: {kind: npy, path: a.npy}, image: {size: stored}}
  val: {like: train, source: {kind: folder, path: d}}
"""
    told = refusal(write(tmp_path, text))
    assert told.startswith("FILE:2: streams.val.image.size: found 'stored', which is for arrays; a folder needs")


def test_many_mistakes_end_in_a_count(tmp_path: Path) -> None:
    told = refusal(write(tmp_path, GOOD + "".join(f"k{n}: 1\n" for n in range(15)))).splitlines()
    assert (len(told), told[-1]) == (11, "and 5 more")


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
def test_a_file_without_keys_is_told_what_to_write(tmp_path: Path, text: str, told: str) -> None:
    assert refusal(write(tmp_path, text)).startswith(told)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.yaml") == (
        "FILE: there is no such file; name your configuration (--config FILE), or have one written from your images: "
        "streamd init PATH"
    )


def test_a_folder_is_told_from_a_file(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "FILE: is a folder; name the file in it, such as FILE/config.yaml"


def test_a_file_below_a_file_cannot_be_read(tmp_path: Path) -> None:
    assert refusal(write(tmp_path, GOOD) / "x.yaml").endswith(": cannot be read: Not a directory")


def test_a_name_that_is_not_utf8_is_refused_before_a_worker_is_told_of_it(tmp_path: Path) -> None:
    source = {"kind": "folder", "path": tmp_path / os.fsdecode(b"a\xff")}
    streams = {"train": {"source": source, "image": {"size": [8, 8]}, "batch_size": 2}}
    with pytest.raises(ConfigError, match=r"train\.source\.path: found '.*a\\udcff', whose name is not UTF-8; rename"):
        load_config({"streams": streams})


def test_a_file_that_is_no_text_is_told_where(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"a: \xff\n")
    assert refusal(path) == "FILE: byte 3 is not in UTF-8; save it as UTF-8"


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "\ufeff" + GOOD)).streams["train"].name == "train"


def test_a_configuration_that_says_everything_loads(tmp_path: Path) -> None:
    text = """\
listen: [ipc:///run/streamd.sock, "tcp://0.0.0.0:5555"]
curve: {secret: keys/daemon.secret, clients: keys/clients}
memory: 1GiB
workers: auto
engine: {kind: ray, address: "head:6379"}
monitor: 127.0.0.1:9191
streams:
  train:
    source: {kind: folder, path: data, part: train}
    split: {validation: 0.2, seed: 0, by: null}
    labels: {label: category, angle: {from: [left, right], type: float}, kind: {type: category, classes: [cat, dog]}}
    image: {size: [128, 128], mode: RGB, resize: stretch, exact: false}
    batch_size: 32
    drop_remainder: pad
    shuffle: {kind: chunk, seed: 0, chunk: 3200, buffer: 16}
    normalize: {mean: [120, 115, 100], std: [58, 57, 57]}
    transform: "module:function"
    bad_samples: {policy: substitute, max_fraction: 0.01}
    pace: {lockstep: 10s}
    cache: {path: cache/train, max: 20GiB}
  validation: {like: train, source: {kind: folder, path: data, part: validation}, shuffle: none}
"""
    config = load_config(write(tmp_path, text))
    assert config.curve is not None
    assert config.curve.secret == tmp_path / "keys/daemon.secret"
    train, validation = config.streams.values()
    assert train.cache is not None
    assert (train.cache.path, train.cache.max_bytes) == (tmp_path / "cache/train", 20 << 30)
    assert train.pace.lockstep_s == pytest.approx(10)
    assert (validation.split, validation.shuffle.kind, validation.remainder) == (train.split, "none", "pad")


def test_errors_of_the_data_get_file_and_line_of_their_key(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    config = load_config(path)
    with pytest.raises(ConfigError) as caught, add_error_locations(config):
        raise ConfigError("streams.train.source.path: no images\nstreams.train.image.size: too small")
    assert str(caught.value).replace(str(path), "FILE") == (
        "FILE:3: streams.train.source.path: no images\nFILE:4: streams.train.image.size: too small"
    )


def test_errors_without_a_key_pass_as_they_are(tmp_path: Path) -> None:
    missing = MissingExtraError("pyarrow", "serve", "a table")
    with pytest.raises(MissingExtraError) as caught, add_error_locations(load_config(write(tmp_path, GOOD))):
        raise missing
    assert caught.value is missing


@pytest.mark.usefixtures("without_folder")
def test_a_file_that_is_named_by_its_whole_path_needs_no_working_directory(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, GOOD)).streams["train"].source.path == tmp_path / "data"


@pytest.mark.usefixtures("without_folder")
def test_a_mapping_is_refused_where_the_working_directory_was_removed() -> None:
    with pytest.raises(ConfigError, match=r"the working directory was removed: change to another one with os\.chdir"):
        load_config({"streams": {"train": {"source": {"kind": "folder", "path": "data"}, "image": {"size": [8, 8]}}}})
