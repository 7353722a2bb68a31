from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamd.config import errors
from streamd.config.errors import KEY_EXAMPLES, MISSING_KEY_HINTS, UNSERVED_KEYS
from streamd.config.load import load_config
from streamd.config.schema import Config, StreamConfig
from streamd.config.schema_sections import SECTION_MODELS
from streamd.errors import ConfigError


@pytest.mark.parametrize(
    ("value", "choices", "hint"),
    [
        ("gray", ["RGB", "L"], "; did you mean 'L'?"),
        ("rgb", ["RGB", "L"], "; did you mean 'RGB'?"),
        (False, ["full", "none"], "; did you mean 'none'?"),
        (None, ["full", "none"], "; did you mean 'none'?"),
        ("double", ["int", "float"], "; did you mean 'float'?"),
        ("double", ["full", "none"], ""),
        (3, ["int", "float"], ""),
        ([1], ["int", "float"], ""),
    ],
)
def test_a_word_of_other_tools_suggests_ours(value: object, choices: list[str], hint: str) -> None:
    assert errors.suggest_choice(value, choices) == hint


@pytest.mark.parametrize(
    ("suggest", "value", "hint"),
    [
        (errors.suggest_whole_number, 1e3, "; did you mean 1000?"),
        (errors.suggest_whole_number, "32", "; did you mean 32, without quotes?"),
        *((errors.suggest_whole_number, value, "") for value in (1.5, "x", None)),
        (errors.suggest_fraction, 20, "; did you mean 0.2?"),
        (errors.suggest_fraction, "5%", "; did you mean 0.05?"),
        (errors.suggest_fraction, "0.1", "; did you mean 0.1?"),
        *((errors.suggest_fraction, value, "") for value in (-1, 500, 1.5, float("nan"), True, [0.8, 0.2], "some")),
        (errors.suggest_boolean, "yes", "; did you mean true?"),
        (errors.suggest_boolean, "Off", "; did you mean false?"),
        (errors.suggest_boolean, 1, ""),
    ],
)
def test_a_value_in_another_form_suggests_ours(suggest: Callable[[object], str], value: object, hint: str) -> None:
    assert suggest(value) == hint


def test_key_examples_belong_to_existing_keys() -> None:
    keys = {*Config.model_fields, *StreamConfig.model_fields, *SECTION_MODELS, "where"}
    assert set(KEY_EXAMPLES) <= keys
    assert {"streams", "source"} <= set(MISSING_KEY_HINTS)


def test_foreign_keys_do_not_include_known_keys() -> None:
    assert not set(errors.FOREIGN_KEYS) & {*Config.model_fields, *StreamConfig.model_fields}


STREAM = {"source": {"kind": "folder", "path": "d"}, "image": {"size": [8, 8]}}

TYPES = "category, int, float, string, tags, boxes or points"
ENDPOINT = "an endpoint is ipc:///path/to/socket"
KINDS = "folder, table, filelist, hdf5, lmdb, npy, tar, coco or yolo"
NORMALIZE = "none, unit, minus_one_one, imagenet or {mean: [r, g, b], std: [r, g, b]}"


def refusal(keys: dict[Any, Any], **top: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config({**top, "streams": {"s": {**STREAM, **keys}}})
    return str(caught.value).removeprefix("configuration: ").removeprefix("streams.s.")


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"source": {"kind": "foldr"}}, f"source: kind: found 'foldr'; use {KINDS}; did you mean 'folder'?"),
        ({"source": {"kind": {"tar": 1}}}, f"source: kind: found \"{{'tar': 1}}\"; use {KINDS}"),
        ({"source": {"path": "d"}}, f"source: kind is missing; use {KINDS}"),
        ({"source": "d"}, "source: found 'd'; keys are needed, as in source: {kind: folder, path: data/train}"),
        ({"source": {"kind": "folder"}}, "source.path: is missing; say where the data is, relative to the file"),
        ({"source": {"kind": "folder", "path": "d", "pat": 1}}, "source.pat: unknown key; did you mean 'path'?"),
        ({"image": {"size": [8, 8], "mode": "RBG"}},
 "image.mode: found 'RBG'; use RGB, L, RGBA, index or raw; did you mean 'RGB'?"),
        ({"image": {"size": [8, 8], "exact": "yes"}},
 "image.exact: found 'yes'; use true or false; did you mean true?"),
        (
            {"image": {"size": [8, 8], "blur": 2}},
            (
                "image.blur: unknown key; use from, root, like, size, mode, channels, dtype, range, resize, fill, "
                "exact, scale, ratio, views, frames or normalize"
            ),
        ),
        ({"shuffle": 3}, "shuffle: found 3; use full, none, chunk or {kind: full, seed: 0}"),
        ({"shuffle": "ful"}, "shuffle.kind: found 'ful'; use full, none or chunk; did you mean 'full'?"),
        ({"labels": {"a": {"from": "b"}}}, f"labels.a.type: is missing; use {TYPES}"),
        ({"labels": {"a": {"type": "int", "frm": "b"}}}, "labels.a.frm: unknown key; did you mean 'from'?"),
        ({"labels": {1: "int"}}, "labels[1]: found 1; use text that is not empty; put it in quotes"),
        ({"normalize": "imagnet"}, f"normalize: found 'imagnet'; use {NORMALIZE}; did you mean 'imagenet'?"),
        ({"normalize": {"mean": [9] * 3, "std": [9] * 3, "var": 1}}, "normalize.var: unknown key; use mean or std"),
        ({"normalize": {"mean": [9] * 3, "std": [9] * 3, "kind": 1}}, "normalize.kind: unknown key; use mean or std"),
        ({3: 3}, "[3]: found 3; a key must be text; put it in quotes"),
        ({"draw": "each"}, f"draw: is not in this version; {UNSERVED_KEYS['draw']}"),
        ({"source": {"kind": "folder", "path": "d", "take": 5}},
 f"source.take: is not in this version; {UNSERVED_KEYS['take']}"),
        ({"split": {"folds": 5}}, f"split.folds: is not in this version; {UNSERVED_KEYS['folds']}"),
        ({"images": {"a": {"size": [8, 8], "frames": {"by": "a", "order": "b", "offsets": [0], "edg": "drop"}}}},
 "images.a.frames.edg: unknown key; did you mean 'edge'?"),
        ({"source": {"kind": "folder", "path": "d", "images": "x"}},
 "source.images: belongs to kind hdf5 or lmdb, but kind is folder; remove it, or change the kind"),
        ({"source": {"kind": "table", "path": "d.csv", "image": "f", "where": {"a": {"above": 3}}}},
 ("source.where.a: found a mapping; conditions other than equality are not in this version; use text, a number, "
            "true or false")),
        ({"memory": "1GiB"}, "memory: is a key of the whole file: write it at the top level"),
        ({"size": [8, 8]}, "size: is a key of image: write it as image: {size: ...}"),
        ({"seed": 3}, "seed: is a key of shuffle: write it as shuffle: {seed: ...}"),
        ({"path": "d"}, "path: is a key of source: write it as source: {path: ...}"),
        ({"lockstep": "10s"}, "lockstep: is a key of pace: write it as pace: {lockstep: ...}"),
        ({"classes": ["a"]}, "classes: is a key of a label: write it as labels: {NAME: {classes: ...}}"),
        ({"epochs": 3}, "epochs: unknown key; set it in the trainer: streamd-train --epochs N, or subscribe(epochs=N)"),
        ({"Batch_Size": 3}, "Batch_Size: unknown key; did you mean 'batch_size'?"),
        ({"split:3": 3}, "split:3: unknown key; put a space after the colon"),
        ({"split": 0.2}, "split: found 0.2; keys are needed, as in split: {validation: 0.2}"),
        ({"split": {"validaton": 0.2}}, "split.validaton: unknown key; did you mean 'validation'?"),
        ({"shuffle": False},
 "shuffle: found false; use full, none, chunk or {kind: full, seed: 0}; did you mean 'none'?"),
        ({"labels": {"a": "regression"}}, f"labels.a.type: found 'regression'; use {TYPES}; did you mean 'float'?"),
        (
            {"labels": {"a": None}},
            "labels.a: found nothing (null); indent the keys of a under it, or write a: category",
        ),
        ({"image": {"size": [8, 8], "mode": "grey"}},
 "image.mode: found 'grey'; use RGB, L, RGBA, index or raw; did you mean 'L'?"),
        (
            {"source": {"kind": "folder", "path": "d", "root": "x"}},
            "source.root: belongs to kind table, filelist or coco, but kind is folder; remove it, or change the kind",
        ),
        (
            {"source": {"kind": "table", "path": "d", "images": "x"}},
            "source.images: unknown key; did you mean 'image'?",
        ),
        (
            {"source": {"kind": "folder", "path": "d", "image": {"size": [8, 8]}}},
            "source.image: is a key of a stream: write it under streams.NAME",
        ),
        ({"max_fraction": 1}, "max_fraction: is a key of bad_samples: write it as bad_samples: {max_fraction: ...}"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_in_a_sentence_with_what_is_allowed(keys: dict[Any, Any], sentence: str) -> None:
    assert refusal(keys).removeprefix("streams.s") == sentence


@pytest.mark.parametrize(
    ("top", "sentence"),
    [
        ({"batch_size": 3}, "batch_size: is a key of a stream: write it under streams.NAME"),
        ({"memry": 3}, "memry: unknown key; did you mean 'memory'?"),
        ({"val": {"like": "s"}}, "val: unknown key; it looks like a stream: write it under streams"),
        ({"engine": {"kind": "ray", "adress": "x"}}, "engine.adress: unknown key; did you mean 'address'?"),
        ({"fetch": None}, f"fetch: is not in this version; {UNSERVED_KEYS['fetch']}"),
        (
            {"curve": {"secret": "s"}},
            "curve.clients: is missing; give the path of the folder of the clients' public keys",
        ),
        (
            {"listen": ["udp://x"]},
            f"listen[0]: found 'udp://x'; {ENDPOINT}; did you mean 'ipc:///x'?",
        ),
    ],
)
def test_a_mistake_at_the_top_is_reported_in_the_same_way(top: dict[str, Any], sentence: str) -> None:
    assert refusal({}, **top) == sentence


def test_a_key_that_is_missing_because_it_is_misspelled_is_reported_once() -> None:
    assert refusal({"source": {"kind": "folder", "pth": "d"}}) == "source.pth: unknown key; did you mean 'path'?"
    assert refusal({"source": {"kind": "table", "path": "d"}}).endswith("holds the file names")


@pytest.mark.parametrize("top", [{"stream": {}}, {"train": STREAM}, {"batch_size": 3}])
def test_a_misplaced_stream_is_not_also_reported_as_missing(top: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(top)
    assert len(str(caught.value).splitlines()) == 1


LIBRARY_WORDS = ("input", "pydantic", "http", "union", "dict", "tuple")
NO_KEY_TAKES_THESE = (3, 2.5, True, [1], {"odd": 1}, {1: 2})


@pytest.mark.parametrize("odd", NO_KEY_TAKES_THESE)
@pytest.mark.parametrize(
    "key", ["source", "split", "labels", "image", "shuffle", "normalize", "pace", "cache", "transform"]
)
def test_no_message_uses_the_words_of_the_library(key: str, odd: object) -> None:
    told = refusal({key: odd}).lower()
    assert not [word for word in LIBRARY_WORDS if word in told]
