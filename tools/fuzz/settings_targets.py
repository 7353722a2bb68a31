"""What a daemon reads of its own: config.yaml, and the manifests in its state folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from fuzz.structures import edit_json, edit_manifest, repair_manifest
from fuzz.target import FuzzTarget, RunCase
from streamd.config.load import load_config
from streamd.config.locations import add_locations
from streamd.core.spec import LabelSpec
from streamd.dataset.manifest.manifest import Manifest, write_manifest
from streamd.dataset.manifest.types import ArrayFiles, ImageArrays, ScannedSamples, ShardFiles, StorageFormat
from streamd.errors import ConfigError, StreamdError

_ASKED_IDS: Final = 40  # of a manifest's samples, from both ends

_STREAMS: Final = {
    "train": {
        "source": {"kind": "folder", "path": "data", "part": "train"},
        "split": {"validation": 0.2, "seed": 0},
        "image": {"size": [128, 128], "mode": "RGB", "resize": "random_crop"},
        "labels": {"label": "category", "angle": {"from": ["a", "b"], "type": "float"}},
        "batch_size": 32,
        "drop_remainder": "pad",
        "shuffle": {"kind": "chunk", "seed": 0, "chunk": 3200, "buffer": 16},
        "normalize": {"mean": [1, 2, 3], "std": [4, 5, 6]},
        "transform": "module:function",
        "bad_samples": {"policy": "substitute", "max_fraction": 0.01},
    },
    "validation": {"like": "train", "source": {"kind": "folder", "path": "data"}, "shuffle": "none"},
    "masked": {
        "source": {"kind": "hdf5", "path": "x.h5"},
        "images": {"photo": {"size": [9, 9]}, "mask": {"from": "m.npy", "root": "d", "like": "photo", "mode": "index"}},
    },
    "rows": {"source": {"kind": "npy", "path": "x.npy", "table": "l.csv", "where": {"split": "a"}, "range": [0, 1]}},
    "table": {
        "source": {"kind": "table", "path": "a.csv", "image": "file", "root": "d"},
        "cache": {"path": "c", "max": "20GiB"},
    }
    | {"image": {"size": [9, 9]}},
}
_CONFIG: Final = {
    "listen": ["ipc:///run/s.sock"],
    "memory": "1GiB",
    "workers": 2,
    "monitor": "127.0.0.1:9191",
    "streams": _STREAMS,
}
_YAML: Final = """
# every form of YAML that people write
listen: ipc:///tmp/s.sock
memory: 512MiB
streams:
  train: &train
    source: {kind: tar, path: "shards/*.tar"}
    image:
      size: [64, 64]
      mode: L
    labels:
      label: category
      caption: {from: txt, type: string}
    batch_size: 0x10
  other:
    <<: *train
    shuffle: none
  2026: {like: train, weights: weight, pace: free}
"""


def _make_configs() -> list[bytes]:
    whole = [msgspec.json.encode(_CONFIG), _YAML.encode()]
    single = [msgspec.json.encode({"streams": {name: stream}}) for name, stream in _STREAMS.items()]
    return [*whole, *single]


@contextmanager
def _open_config() -> Iterator[RunCase]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder) / "config.yaml"

        def run_config(data: bytes) -> str:
            path.write_bytes(data)
            config = load_config(path)
            add_locations("\n".join(f"streams.{name}.source: unfit" for name in config.streams), config.key_locations)
            return " ".join(sorted({stream.source.kind for stream in config.streams.values()}))

        yield run_config


def _scan_files(**changes: object) -> ScannedSamples:
    count = 9
    specs = {
        "label": LabelSpec("label", "category", classes=("cat", "dog"), counts=(4, 5)),
        "angle": LabelSpec("angle", "float", width=2, mean=0.5, std=1.0),
        "tags": LabelSpec("tags", "tags", width=3, classes=("a", "b", "c"), counts=(1, 2, 3)),
        "text": LabelSpec("text", "string", text_bytes=4),
    }
    scanned = {
        "root": Path("/data"),
        "files": [b"cat/%d.jpg" % number for number in range(count)],
        "sizes": np.arange(count, dtype=np.int64) + 100,
        "mtimes_ns": np.full(count, 1_700_000_000_000_000_000, np.int64),
        "labels": {
            "label": np.arange(count, dtype=np.int64) % 2,
            "angle": np.ones((count, 2), np.float32),
            "tags": np.full((count, 1), 0xA0, np.uint8),
            "text": np.full(count, b"abcd"),
        },
        "specs": specs,
        "weights": np.ones(count, np.float32),
    }
    return ScannedSamples(**{**scanned, **changes})  # type: ignore[arg-type]  # fields by their names


def _make_manifests() -> list[bytes]:
    rows = {
        "files": [b"x.npy", b"y.npy"],
        "sizes": np.array([1000, 1000]),
        "mtimes_ns": np.array([5, 6]),
        "arrays": ArrayFiles((4, 4, 3), (0, 5, 9), (128, 128), StorageFormat("npy", dtype="<f4", range=(0.0, 1.0))),
        "extra": {"offsets": np.arange(9, dtype=np.int64)},
    }
    shards = {
        "mtimes_ns": np.empty(0, np.int64),
        "shards": ShardFiles((b"a.tar",), (5000,), (7,)),
        "extra": {"shard": np.zeros(9, np.int64), "offset": np.arange(9, dtype=np.int64) * 512},
        "display_names": [b"%d.jpg" % number for number in range(9)],
    }
    manifests = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder) / "manifest"
        masks = ImageArrays(
            ArrayFiles((4, 4, 1), (0, 9), (128,), StorageFormat("lmdb", dtype="<i8")),
            [b"masks.mdb"],
            np.array([2000]),
            np.array([8]),
            Path("/elsewhere"),
            {"offsets": np.arange(9, dtype=np.int64)},
        )
        more = {**rows, "image_arrays": {"mask": masks}}
        for changes in ({}, rows, shards, {**rows, "rows": np.arange(9, dtype=np.int64)[::-1]}, more):
            write_manifest(path, _scan_files(**changes), config_id="c")
            manifests.append(path.read_bytes())
    return manifests


def read_manifest_columns(path: Path) -> str:
    """Opens a manifest and reads columns as daemon and worker do.

    Numbers in one column that stand for places in another, as those of names do, are not followed: only the header has
    a checksum.
    """
    manifest = Manifest.open(path)
    try:
        count = min(manifest.samples, _ASKED_IDS)
        ids = np.array([*range(count), *range(manifest.samples - count, manifest.samples)], np.int64)
        manifest.gather_weights(ids)
        for name in manifest.labels:
            manifest.gather_label(name, ids)
        manifest.lookup_rows(ids)
        for image in manifest.image_arrays.values():
            image.array_file_names()
            image.lookup_rows(ids)
        if manifest.arrays is None:
            manifest.lookup_sample_bytes(ids)
        if manifest.shards is None:
            manifest.lookup_mtimes_ns(ids[:0] if manifest.arrays is not None else ids)
            return f"{manifest.list_id[:0]} files"
        manifest.find_extra_column("shard")[ids]
        return "shards"
    finally:
        manifest.close()


@contextmanager
def _open_manifest() -> Iterator[RunCase]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder) / "manifest"

        def run_manifest(data: bytes) -> str:
            path.write_bytes(data)
            return read_manifest_columns(path)

        yield run_manifest


TARGETS: Final = {
    each.name: each
    for each in (
        FuzzTarget("config", "config.yaml, as YAML and JSON", _make_configs, _open_config, (StreamdError,), edit_json),
        FuzzTarget(
            "manifest",
            "the list of samples in the state folder",
            _make_manifests,
            _open_manifest,
            (ConfigError,),
            edit_manifest,
            repair_manifest,
        ),
    )
}
