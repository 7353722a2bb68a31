"""The JSON schema is that of the models, accepts what they accept, and refuses what an editor can check."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from streamd.config.load import load_config, parse_yaml
from streamd.config.schema import build_json_schema, format_json_schema
from streamd.errors import ConfigError

REPOSITORY = Path(__file__).parents[2]
VALIDATOR = Draft7Validator(build_json_schema())
STREAM = {"source": {"kind": "folder", "path": "d"}, "image": {"size": [8, 8]}}

EVERYTHING = """\
listen: [ipc:///run/streamd.sock, "tcp://0.0.0.0:5555"]
curve: {secret: keys/daemon.secret, clients: keys/clients}
memory: 1.5 GiB
workers: auto
engine: {kind: ray, address: "head:6379"}
monitor: 127.0.0.1:9191
streams:
  train:
    source: {kind: folder, path: data, part: train}
    split: {validation: 0.2, seed: 0, by: null}
    labels: {label: category, angle: {from: [left, right], type: float}, kind: {type: category, classes: [cat, 3]}}
    image: {size: [128, 128], mode: RGB, resize: stretch, exact: false}
    batch_size: 32
    drop_remainder: pad
    shuffle: {kind: chunk, seed: 0, chunk: 3200, buffer: 16}
    normalize: {mean: [120, 115, 100], std: [58, 57, 57]}
    transform: "module:function"
    bad_samples: {policy: substitute, max_fraction: 0.01}
    pace: {lockstep: 10s}
    cache: {path: cache/train, max: 20GiB}
  validation: {like: train, source: {kind: folder, path: data, part: validation}, shuffle: none, pace: free}
  table: {source: {kind: table, path: a.csv, image: p, root: d, where: {fold: 3}}, image: {size: [1, 2]}, labels: null}
  list: {source: {kind: filelist, path: l.txt, root: d}, image: {size: [1, 2]}, normalize: unit}
  crops: {like: list, image: {size: [1, 2], resize: random_crop, scale: [0.08, 1.0], ratio: [0.75, 1.3333]}}
  hdf5: {source: {kind: hdf5, path: s.hdf5, images: /x}, image: {size: stored}}
  lmdb: {source: {kind: lmdb, path: d.lmdb, images: X}}
  npy: {source: {kind: npy, path: i.npy, table: l.parquet}}
  tar: {source: {kind: tar, path: "shards/*.tar"}, image: {size: [1, 2], mode: L}, drop_remainder: true}
"""
SHORT = """\
{listen: 'ipc://s', curve: null, monitor: null, memory: 1e9, workers: 4, engine: local, streams: {s: {like: t}, t: %s}}
"""


def objections(data: object) -> list[str]:
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in VALIDATOR.iter_errors(data)]


def with_stream(**keys: object) -> dict[str, Any]:
    return {"streams": {"s": {**STREAM, **keys}}}


def page_blocks() -> Iterator[str]:
    """The configurations that the pages of the first day show."""
    for page in ("first-steps.md", "data.md"):
        blocks = re.findall(r"```yaml\n(.*?)```", (REPOSITORY / "docs" / page).read_text(), re.DOTALL)
        assert blocks, page
        yield from blocks


def test_the_schema_is_printed_as_a_file() -> None:
    assert json.loads(format_json_schema()) == build_json_schema()
    assert format_json_schema().endswith("\n}\n")


def test_the_schema_is_valid() -> None:
    Draft7Validator.check_schema(build_json_schema())


def test_the_example_names_the_schema_by_the_path_at_which_an_install_writes_it() -> None:
    first = (REPOSITORY / "config.yaml").read_text().splitlines()[0]
    found = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", first)
    assert found
    assert (REPOSITORY / found[1]).is_file(), "it is written by  pip install -e ."


@pytest.mark.parametrize(
    "text",
    [(REPOSITORY / "config.yaml").read_text(), EVERYTHING, SHORT % json.dumps(STREAM), *page_blocks()],
    ids=lambda text: text[:20],
)
def test_models_and_schema_accept_valid_configurations(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    load_config(tmp_path / "config.yaml")
    assert objections(parse_yaml(text, "f").data) == []


def test_a_configuration_with_every_key_is_read_with_paths_and_units(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(EVERYTHING)
    config = load_config(tmp_path / "config.yaml")
    assert config.curve is not None
    assert config.curve.secret == tmp_path / "keys/daemon.secret"
    train, validation = config.streams["train"], config.streams["validation"]
    assert train.cache is not None
    assert (train.cache.path, train.cache.max_bytes) == (tmp_path / "cache/train", 20 << 30)
    assert (train.pace.lockstep_s, validation.pace.lockstep_s) == (10, None)
    assert (validation.split, validation.shuffle.kind, validation.remainder) == (train.split, "none", "pad")


def test_the_pages_have_examples() -> None:
    assert len(list(page_blocks())) >= 5


WRONG: list[dict[str, Any]] = [
    {},
    {"streams": {}},
    {"streams": {"my stream": STREAM}},
    {**with_stream(), "batch_size": 3},
    {**with_stream(), "memroy": 3},
    {**with_stream(), "memory": "1G"},
    {**with_stream(), "memory": "lots"},
    {**with_stream(), "workers": 0},
    {**with_stream(), "workers": "4"},
    {**with_stream(), "workers": True},
    {**with_stream(), "engine": "locl"},
    {**with_stream(), "monitor": 9191},
    {**with_stream(), "listen": "/run/s"},
    {**with_stream(), "listen": "ipc:///run/"},
    {**with_stream(), "listen": "tcp://host"},
    {**with_stream(), "curve": {"secret": "a"}},
    {"streams": {"s": {"image": {"size": [8, 8]}}}},
    {"streams": {"s": {"source": STREAM["source"]}}},
    {"streams": {"s": {"source": STREAM["source"], "image": {}}}},
    {"streams": {"s": None}},
    with_stream(like=3),
    with_stream(name="s"),
    with_stream(source={"kind": "foldr", "path": "d"}),
    with_stream(source={"path": "d"}),
    with_stream(source={"kind": "folder"}),
    with_stream(source={"kind": "folder", "path": ""}),
    with_stream(source={"kind": "folder", "path": "d", "root": "x"}),
    with_stream(source={"kind": "folder", "path": "d", "part": "test"}),
    with_stream(source={"kind": "table", "path": "d"}),
    with_stream(source={"kind": "table", "path": "d", "image": "p", "where": {"a": [1]}}),
    with_stream(image={"size": 128}),
    with_stream(image={"size": "128x128"}),
    with_stream(image={"size": [128, 128, 3]}),
    with_stream(image={"size": [0, 128]}),
    with_stream(image={"size": [8, 8], "mode": "RBG"}),
    with_stream(image={"size": [8, 8], "resize": "strech"}),
    with_stream(image={"size": [8, 8], "exact": "yes"}),
    with_stream(image={"size": [8, 8], "resize": "random_crop", "scale": [0, 1]}),
    with_stream(image={"size": [8, 8], "resize": "random_crop", "ratio": 1}),
    with_stream(batch_size="32"),
    with_stream(batch_size=0),
    with_stream(batch_size=1.5),
    with_stream(drop_remainder="drop"),
    with_stream(shuffle="ful"),
    with_stream(shuffle=False),
    with_stream(shuffle={"seed": -1}),
    with_stream(normalize="imagnet"),
    with_stream(normalize={"mean": [1, 2, 3]}),
    with_stream(normalize={"mean": ["300", 2, 3], "std": [1, 1, 1]}),
    with_stream(labels="category"),
    with_stream(labels={"": "category"}),
    with_stream(labels={"a": "categry"}),
    with_stream(labels={"a": {"from": "b"}}),
    with_stream(labels={"a": {"type": "category", "classes": []}}),
    with_stream(labels={"a": {"type": "category", "classes": ["a", "a"]}}),
    with_stream(split={"validation": 20}),
    with_stream(split=0.2),
    with_stream(bad_samples="mask"),
    with_stream(bad_samples={"max_fraction": 0}),
    with_stream(pace="fast"),
    with_stream(pace={}),
    with_stream(pace={"lockstep": "10 sec"}),
    with_stream(cache={"max": "1GiB"}),
    with_stream(transform="module"),
]


@pytest.mark.parametrize("data", WRONG, ids=json.dumps)
def test_models_and_schema_refuse_invalid_configurations(data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        load_config(data)
    assert objections(data)


def test_every_key_is_explained() -> None:
    def silent(schema: dict[str, Any], where: str) -> Iterator[str]:
        for key, value in schema.get("properties", {}).items():
            if "description" not in value and "const" not in value:
                yield f"{where}.{key}"

    schema = build_json_schema()
    found = [*silent(schema, "config")]
    for name, definition in schema["definitions"].items():
        found += silent(definition, name)
    assert found == []


def test_the_schema_does_not_mention_our_classes() -> None:
    text = json.dumps(build_json_schema())
    assert '"title": "Config"' not in text
    assert "None" not in text
    assert "bad_policy" not in text


def test_each_call_builds_a_new_schema() -> None:
    before = copy.deepcopy(build_json_schema())
    build_json_schema()["properties"].clear()
    assert build_json_schema() == before
