from __future__ import annotations

from typing import Any

import pytest

from streamd.config import load
from streamd.errors import ConfigError

STREAM = {"source": {"kind": "folder", "path": "d"}, "image": {"size": [8, 8]}}

KINDS = "folder, table, filelist, hdf5, lmdb, npy or tar"
NORMALIZE = "none, unit, minus_one_one or imagenet"


def refusal(keys: dict[Any, Any], **top: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load({**top, "streams": {"s": {**STREAM, **keys}}})
    return str(caught.value).removeprefix("configuration: ").removeprefix("streams.s.")


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"source": {"kind": "foldr"}}, f"source: kind: found 'foldr'; use {KINDS}; did you mean 'folder'?"),
        ({"source": {"path": "d"}}, f"source: kind is missing; use {KINDS}"),
        ({"source": "d"}, "source: found 'd'; keys are needed, as in {key: value}"),
        ({"source": {"kind": "folder"}}, "source.path: is missing; say where the data is, relative to the file"),
        ({"source": {"kind": "folder", "path": "d", "pat": 1}}, "source.pat: unknown key; did you mean 'path'?"),
        ({"image": {"size": [8, 8], "mode": "RBG"}}, "image.mode: found 'RBG'; use RGB or L; did you mean 'RGB'?"),
        ({"image": {"size": [8, 8], "exact": "yes"}}, "image.exact: found 'yes'; use true or false"),
        ({"image": {"size": [8, 8], "zoom": 2}}, "image.zoom: unknown key; use size, mode, resize or exact"),
        ({"shuffle": 3}, "shuffle: found 3; keys are needed, as in {key: value}"),
        ({"shuffle": "ful"}, "shuffle.kind: found 'ful'; use full, none or chunk; did you mean 'full'?"),
        ({"labels": {"a": {"from": "b"}}}, "labels.a.type: is missing; use category, int, float, string or tags"),
        ({"labels": {"a": {"type": "int", "form": "b"}}}, "labels.a.form: unknown key; did you mean 'from'?"),
        ({"labels": {1: "int"}}, "labels[1]: found 1; a text is needed, put it in quotes"),
        ({"normalize": "imagnet"}, f"normalize: found 'imagnet'; use {NORMALIZE}; did you mean 'imagenet'?"),
        ({"normalize": {"mean": [9] * 3, "std": [9] * 3, "var": 1}}, "normalize.var: unknown key; use mean or std"),
        ({"normalize": {"mean": [9] * 3, "std": [9] * 3, "kind": 1}}, "normalize.kind: unknown key; use mean or std"),
        ({"batchsize": 3}, "batchsize: unknown key; did you mean 'batch_size'?"),
        ({3: 3}, "[3]: found 3; a key is text, put it in quotes"),
        ({"memory": "1GiB"}, "memory: is a key of the whole file: write it at the top level"),
        ({"size": [8, 8]}, "size: is a key of image: write it as image: {size: ...}"),
        ({"seed": 3}, "seed: is a key of shuffle: write it as shuffle: {seed: ...}"),
        ({"max_fraction": 1}, "max_fraction: is a key of bad_samples: write it as bad_samples: {max_fraction: ...}"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_a_sentence_with_what_is_allowed(keys: dict[Any, Any], sentence: str) -> None:
    assert refusal(keys).removeprefix("streams.s") == sentence


@pytest.mark.parametrize(
    ("top", "sentence"),
    [
        ({"batch_size": 3}, "batch_size: is a key of a stream: write it below streams.NAME"),
        ({"memry": 3}, "memry: unknown key; did you mean 'memory'?"),
        ({"val": {"like": "s"}}, "val: unknown key; it looks like a stream: write it below streams"),
        ({"engine": {"kind": "ray", "adress": "x"}}, "engine.adress: unknown key; did you mean 'address'?"),
        ({"curve": {"secret": "s"}}, "curve.clients: is missing"),
        (
            {"listen": ["udp://x"]},
            "listen[0]: found 'udp://x'; an endpoint is ipc:///path/to/socket or tcp://address:port",
        ),
    ],
)
def test_a_mistake_at_the_top_is_told_alike(top: dict[str, Any], sentence: str) -> None:
    assert refusal({}, **top) == sentence


LIBRARY_WORDS = ("input", "pydantic", "http", "union", "dict", "tuple")
NO_KEY_TAKES_THESE = (3, 2.5, True, [1], {"odd": 1}, {1: 2})


@pytest.mark.parametrize("odd", NO_KEY_TAKES_THESE)
@pytest.mark.parametrize(
    "key", ["source", "split", "labels", "image", "shuffle", "normalize", "pace", "cache", "transform"]
)
def test_no_mistake_is_told_in_the_librarys_words(key: str, odd: object) -> None:
    told = refusal({key: odd}).lower()
    assert not [word for word in LIBRARY_WORDS if word in told]
