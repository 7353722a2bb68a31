from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from streamd.config import schema
from streamd.config.load import load_config
from streamd.config.rules import list_unserved_settings
from streamd.config.schema import Config, StreamConfig
from streamd.config.schema_sections import MeanStd
from streamd.core.cluster_settings import ClusterSettings
from streamd.core.host import MemoryLimit, count_processors
from streamd.dataset.files import FolderSource
from streamd.dataset.sources import LabelSource, SplitRule
from streamd.errors import ConfigError

FILES = {"source": {"kind": "folder", "path": "d"}, "image": {"size": [8, 9]}}
NPY = {"kind": "npy", "path": "i.npy"}
RANDOM_CROP = {"size": [8, 8], "resize": "random_crop"}


def config(stream: dict[str, Any] | None = None, **top: Any) -> Config:
    return load_config({**top, "streams": {"s": {**FILES, **(stream or {})}}})


def stream(**keys: Any) -> StreamConfig:
    return config(keys).streams["s"]


def refusal(stream: dict[str, Any] | None = None, **top: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        config(stream, **top)
    return str(caught.value)


def test_the_defaults_are_those_of_the_contract() -> None:
    whole, one = config(), stream()
    assert (whole.listen, whole.curve, whole.monitor) == (None, None, None)
    assert (whole.memory, whole.workers, whole.engine.kind) == (1 << 30, "auto", "local")
    assert (one.name, one.labels, one.batch_size, one.remainder, one.normalize) == ("s", None, 32, "keep", "none")
    assert (one.image.size, one.image.channel_count, one.image.resize, one.image.exact) == ((8, 9), 3, "stretch", False)
    assert (one.shuffle.kind, one.shuffle.seed) == ("full", 0)
    assert (one.bad_policy, one.bad_samples.max_fraction) == ("substitute", 0.01)
    assert (one.split, one.transform, one.pace.lockstep_s, one.cache) == (None, None, None, None)


STORES = {
    "hdf5": {"kind": "hdf5", "path": "s.h5", "images": "/x"},
    "lmdb": {"kind": "lmdb", "path": "d.lmdb", "images": "X"},
    "tar": {"kind": "tar", "path": "*.tar"},
}


@pytest.mark.parametrize("kind", STORES)
def test_a_store_is_shuffled_in_chunks_unless_another_kind_is_written(kind: str) -> None:
    image = FILES["image"] if kind == "tar" else {}
    store = {"source": STORES[kind], "image": image}
    one = stream(**store).shuffle
    assert (one.kind, one.seed, one.chunk, one.buffer) == ("chunk", 0, 3200, 16)
    assert stream(**store, shuffle={"seed": 3, "chunk": 32}).shuffle.model_dump() == {
        "kind": "chunk", "seed": 3, "chunk": 32, "buffer": 16,
    }  # fmt: skip
    assert stream(**store, shuffle="full").shuffle.kind == "full"
    assert stream(**store, shuffle={"kind": "none"}).shuffle.kind == "none"
    assert "shuffle: found 3" in refusal({**store, "shuffle": 3})


def test_a_default_shuffle_is_not_copied_to_a_stream_of_another_kind() -> None:
    store = {"source": STORES["hdf5"]}
    streams = load_config(
        {
            "streams": {
                "store": store,
                "images": {"like": "store", **FILES},
                "written": {"like": "named", **FILES},
                "named": {**store, "shuffle": "chunk"},
            }
        }
    ).streams
    assert [streams[name].shuffle.kind for name in ("store", "images", "written")] == ["chunk", "full", "chunk"]


def test_a_stream_builds_its_listing_request() -> None:
    labels = {"a": {"type": "category", "from": "b", "classes": ["x", 1]}, "c": {"type": "int", "from": "/c.npy"}}
    asked = stream(labels=labels, split={"seed": 7}, weights="/w.npy").listing_request
    assert isinstance(asked.source, FolderSource)
    assert (asked.name, asked.source.kind, asked.split) == ("s", "folder", SplitRule(0.2, 7))
    assert asked.labels == {
        "a": LabelSource("category", "b", None, ("x", 1)),
        "c": LabelSource("int", "/c.npy", Path("/c.npy")),
    }
    assert asked.weights == LabelSource("weight", "/w.npy", Path("/w.npy"))
    assert (stream().listing_request.labels, stream().listing_request.weights) == (None, None)


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(ValidationError):
        stream().batch_size = 3


def test_auto_workers_are_the_cores_this_process_may_use() -> None:
    assert config().worker_count == count_processors() <= len(os.sched_getaffinity(0))
    assert config(workers=3).worker_count == 3


def test_memory_beyond_what_the_host_has_is_warned_of_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "measure_memory", lambda: MemoryLimit(2 << 30, "this machine"))
    assert config(memory=2 << 30).memory_warning is None
    assert "memory: 3 GiB is more than this machine has, 2 GiB" in str(config(memory=3 << 30).memory_warning)


@pytest.mark.parametrize(
    ("keys", "policy"),
    [
        ({}, "substitute"),
        ({"shuffle": "none"}, "mask"),
        ({"shuffle": "none", "bad_samples": {"policy": "fail"}}, "fail"),
    ],
)
def test_bad_samples_in_an_unshuffled_stream_are_masked_by_default(keys: dict[str, Any], policy: str) -> None:
    assert stream(**keys).bad_policy == policy


@pytest.mark.parametrize(("written", "remainder"), [(True, "drop"), (False, "keep"), ("pad", "pad")])
def test_the_remainder_is_kept_dropped_or_padded(written: object, remainder: str) -> None:
    assert stream(drop_remainder=written).remainder == remainder


def test_short_forms_mean_their_long_ones() -> None:
    assert stream(shuffle="none") == stream(shuffle={"kind": "none"})
    assert stream(labels={"a": "int"}) == stream(labels={"a": {"type": "int"}})
    assert stream(pace="free") == stream()
    assert stream(labels=None) == stream() != stream(labels={})
    assert stream(weights="w") == stream(weights={"from": "w"}) != stream(weights=None) == stream()
    assert config(engine="ray") == config(engine={"kind": "ray"})
    assert config(listen="ipc:///a") == config(listen=["ipc:///a"])


def test_every_source_kind_is_understood(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for source in (
        {"kind": "table", "path": "t.csv", "image": "f", "root": "r", "where": {"split": "train", "fold": 1}},
        {"kind": "filelist", "path": "l.txt", "root": "r"},
        {"kind": "hdf5", "path": "s.h5", "images": "/x"},
        {"kind": "lmdb", "path": "d.lmdb", "images": "X"},
    ):
        assert stream(source=source).source.path == tmp_path / str(source["path"])
    assert stream(source={"kind": "tar", "path": "a//*.tar"}).source.path == f"{tmp_path}/a//*.tar"
    arrays = {"kind": "npy", "path": "i/*.npy", "table": "t.parquet", "where": {"split": "train"}}
    assert stream(source=arrays).source.path == f"{tmp_path}/i/*.npy"


def test_a_label_file_is_absolute_and_a_column_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    labels = stream(
        labels={n: {"type": "float", "from": n} for n in ("a.npy", "column", "/array")}
    ).listing_request.labels
    assert labels is not None
    assert [label.source for label in labels.values()] == [f"{tmp_path}/a.npy", "column", "/array"]
    assert [label.file for label in labels.values()] == [tmp_path / "a.npy", None, None]
    weights = [stream(weights=name).listing_request.weights for name in ("a.npy", "column", "/array")]
    assert [each and (each.file, each.source) for each in weights] == [
        (tmp_path / "a.npy", f"{tmp_path}/a.npy"),
        (None, "column"),
        (None, "/array"),
    ]


def test_mean_and_std_are_taken_in_levels_of_0_to_255() -> None:
    normalize = stream(normalize={"mean": [0, 0, 0], "std": [255, 255.0, 255]}).normalize
    assert isinstance(normalize, MeanStd)
    assert normalize.as_lists() == {"mean": [0.0, 0.0, 0.0], "std": [255.0, 255.0, 255.0]}


def test_a_random_crop_has_the_bounds_of_imagenet_training_unless_it_says_others() -> None:
    assert (stream(image=RANDOM_CROP).image.scale, stream(image=RANDOM_CROP).image.ratio) == ((0.08, 1), (3 / 4, 4 / 3))
    image = stream(image={**RANDOM_CROP, "scale": [0.5, 1], "ratio": [1, 2]}).image
    assert (image.scale, image.ratio) == ((0.5, 1.0), (1.0, 2.0))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"image": {}}, "image.size: is missing; a folder can hold images of any size: add size: [height, width]"),
        (
            {"normalize": {"mean": [0.485] * 3, "std": [58] * 3}},
            "write [123.675, 123.675, 123.675]; if the images really are that",
        ),
        ({"normalize": {"mean": [120] * 3, "std": [0.2] * 3}}, "write [51, 51, 51]"),
        (
            {"normalize": {"mean": [256] * 3, "std": [-1] * 3}},
            "normalize.mean: found [256.0, 256.0, 256.0]; use a list of",
        ),
        (
            {"normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}},
            "write normalize: imagenet, or [123.675, 116.28, 103.53]",
        ),
        (
            {"normalize": {"mean": [120] * 3, "std": [0.229, 0.224, 0.225]}},
            "write normalize: imagenet, or [58.395, 57.12, 57.375]",
        ),
        ({"normalize": {"mean": [0.5] * 3, "std": [0.5] * 3}}, "write normalize: minus_one_one, or [127.5"),
        ({"normalize": {"mean": [120] * 3, "std": [0, 50, 50]}}, "pixels cannot be divided by a std of 0"),
        ({"normalize": {"mean": [120] * 3, "std": [50]}}, "normalize.std: has 1 number, but mode RGB has 3"),
        ({"normalize": {"mean": [120] * 3}}, "normalize.std: is missing"),
        (
            {"normalize": "imagenet", "image": {"size": [8, 8], "mode": "L"}},
            "imagenet has 3 channels, but mode L has 1",
        ),
        ({"shuffle": {"kind": "none", "chunk": 5}}, "shuffle.chunk: belongs to kind chunk, but kind is none"),
        (
            {"image": {"size": [8, 8], "scale": [0.1, 1], "resize": "crop"}},
            "image.scale: belongs to resize: random_crop, but resize is crop; remove it, or change resize",
        ),
        ({"image": {"size": [8, 8], "ratio": [1, 1]}}, "image.ratio: belongs to resize: random_crop, but resize is st"),
        (
            {"image": RANDOM_CROP, "cache": {"path": "c"}},
            "cache: would keep one random crop of each sample forever; remove it, or use resize: crop",
        ),
        (
            {"image": RANDOM_CROP, "source": NPY},
            "image.resize: random_crop is for files, but images of kind npy are served as they are; remove it",
        ),
        ({"labels": {"a": {"type": "float", "classes": [1]}}}, "a label of type float has no classes"),
        (
            {"source": {**NPY, "where": {"split": "train"}}},
            "source.where: asks for columns, but the source has no table; add table: FILE, or remove where:",
        ),
        (
            {"source": NPY, "cache": {"path": "c"}},
            "cache: keeps decoded images, but arrays need no decoding; remove it",
        ),
        ({"source": {"kind": "tar", "path": "*.tar"}, "image": {"size": "stored"}}, "a tar needs [height, width]"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(keys: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(keys)


@pytest.mark.parametrize("split", [{}, {"split": None}])
@pytest.mark.parametrize("part", ["train", "validation"])
def test_a_part_without_a_split_takes_the_default_one(part: str, split: dict[str, Any]) -> None:
    taken = stream(source={"kind": "folder", "path": "d", "part": part}, **split).split
    assert taken is not None
    assert (taken.validation, taken.seed, taken.by) == (0.2, 0, None)


@pytest.mark.parametrize("part", [{}, {"part": "all"}])
def test_a_source_taken_whole_has_no_split(part: dict[str, str]) -> None:
    assert stream(source={"kind": "folder", "path": "d", **part}).split is None


def test_arrays_need_no_size() -> None:
    assert stream(source=NPY, image={}).image.size is None
    assert stream(source=NPY, image={"size": "stored"}).image.size == "stored"


def test_tcp_needs_curve() -> None:
    told = refusal(listen=["ipc:///a", "tcp://0.0.0.0:5555"])
    assert told == (
        "configuration: listen: tcp://0.0.0.0:5555 is open to the network and needs keys: run  streamd keygen "
        "keys/daemon  and write  curve: {secret: keys/daemon/daemon.key_secret, clients: keys/clients}  or use "
        "ipc:///path/to/socket"
    )
    keys = {"secret": "/k/daemon", "clients": "/k/clients"}
    assert config(listen="tcp://0.0.0.0:5555", curve=keys).curve is not None


def test_the_endpoints_of_this_host_and_of_others_are_told_apart() -> None:
    served = config(listen=["tcp://0.0.0.0:5555", "ipc:///run/s", "tcp://[::1]:0"], curve={"clients": "/k"})
    assert served.local_endpoint == "ipc:///run/s"
    assert served.remote_endpoints == ("tcp://0.0.0.0:5555", "tcp://[::1]:0")
    assert config().local_endpoint is None


@pytest.mark.parametrize(
    ("key", "value"),
    [("address", "auto"), ("nodes", 2), ("num_cpus", 1), ("resources", {"a": 1}), ("placement", "PACK")],
)
def test_a_key_of_a_cluster_requires_ray(key: str, value: object) -> None:
    assert f"engine.{key}: belongs to kind ray" in refusal(engine={"kind": "local", key: value})


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"address": "ray://head:10001"}, "the address of Ray's client server"),
        ({"address": "head"}, "use auto, local, or host:port"),
        ({"nodes": 0}, "use auto or a whole number from 1"),
        ({"placement": "STRICT_SPREAD"}, "engine.placement"),
        ({"num_cpus": 0}, "engine.num_cpus"),
    ],
)
def test_what_is_no_cluster_is_refused_with_a_sentence(engine: dict[str, object], words: str) -> None:
    assert words in refusal(engine={"kind": "ray", **engine})


def test_keys_of_a_cluster_that_are_left_out_have_defaults() -> None:
    assert config(engine="ray").engine.cluster_settings == ClusterSettings()
    full = {"address": "[::1]:6379", "nodes": 2, "num_cpus": 2, "resources": {"decode": 1}, "placement": "PACK"}
    settings = config(engine={"kind": "ray", **full, "runtime_env": {"env_vars": {"A": "b"}}}).engine.cluster_settings
    assert settings == ClusterSettings("[::1]:6379", 2, 2.0, {"decode": 1.0}, "PACK", {"env_vars": {"A": "b"}})
    assert config(engine={"kind": "ray", "nodes": "auto"}).engine.cluster_settings.nodes is None


def test_an_engine_address_requires_ray() -> None:
    assert "engine.address: belongs to kind ray" in refusal(engine={"kind": "local", "address": "auto"})


# --- what this version does not serve

TABLE = {"kind": "table", "path": "t.csv", "image": "file"}


def findings(stream: dict[str, Any], **top: Any) -> list[str]:
    return list_unserved_settings(config(stream, **top))


@pytest.mark.parametrize(
    "stream",
    [
        {},
        {"source": TABLE, "labels": {"a": "float", "b": {"type": "int", "from": "c"}, "d": "string", "e": "tags"}},
        {"source": {**TABLE, "where": {"split": "train"}}},
        {"source": {"kind": "filelist", "path": "l.txt"}, "labels": {"a": {"type": "float", "from": ["x", "y"]}}},
        {"shuffle": "chunk"},
        {"source": {"kind": "folder", "path": "d", "part": "train"}, "split": {"validation": 0.2}},
        {"source": {"kind": "lmdb", "path": "d.lmdb", "images": "X"}, "labels": {"y": "int"}},
        {"source": {"kind": "tar", "path": "*.tar"}, "labels": {"a": {"type": "float", "from": "json:angle"}}},
        {"source": NPY, "labels": {"a": "int", "b": {"type": "float", "from": "b.npy"}}},
        {"labels": {"a": {"type": "float", "from": "a.npy"}}, "weights": "w.npy"},
        {"source": TABLE, "weights": {"from": "w"}},
        {"transform": "module:function"},
    ],
    ids=str,
)
def test_folders_tables_lists_and_arrays_are_served(stream: dict[str, Any]) -> None:
    assert findings(stream, listen="ipc://s.sock", workers=2, memory="2MiB", engine="local") == []


@pytest.mark.parametrize(
    ("stream", "place"),
    [
        ({"source": NPY, "labels": {"a": {"type": "float", "from": "/array"}}}, "labels.a.from"),
        ({"labels": {"a": {"type": "float", "from": ["x", "/array"]}}}, "labels.a.from"),
        ({"labels": {"a": {"type": "float", "from": "/array"}}}, "labels.a.from"),
        ({"labels": {"a": {"type": "float", "from": ["a.npy", "b.npy"]}}}, "labels.a.from"),
        ({"source": TABLE, "weights": "/array"}, "weights.from"),
        ({"pace": {"lockstep": "10s"}}, "pace"),
    ],
)
def test_an_unserved_setting_of_a_stream_is_reported(stream: dict[str, Any], place: str) -> None:
    (finding,) = findings(stream)
    assert finding.startswith(f"streams.s.{place}")
    assert " not served by this version; " in finding


def test_unserved_settings_of_the_whole_file_come_first() -> None:
    top = {
        "listen": ["ipc:///run/s", "ipc:///run/t"],
    }
    places = [finding.split(":")[0] for finding in findings({"pace": {"lockstep": "1s"}}, **top)]
    assert places == ["listen", "streams.s.pace"]


def test_a_second_endpoint_is_reported_as_unserved() -> None:
    assert findings({}, listen=["ipc:///run/a", "ipc:///run/b"]) == [
        "listen: more than one ipc:// endpoint is not served by this version; name one"
    ]


def test_a_configuration_folder_that_is_not_utf8_is_reported(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"a\xff")
    odd.mkdir()
    (odd / "config.yaml").write_text("streams: {s: {source: {kind: folder, path: d}, image: {size: [8, 8]}}}")
    (told,) = list_unserved_settings(load_config(odd / "config.yaml"))
    assert re.search(
        r"^streams: .*a\\udcff', whose name is not UTF-8, is not served by this version; keep it elsewhere", told
    )
