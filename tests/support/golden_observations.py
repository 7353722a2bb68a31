"""What streamd shows to others, written to files that a change of its insides must leave as they are.

    PYTHONPATH=tests .venv/bin/python tests/support/golden_observations.py

writes them anew, for a change that is wanted; the difference then belongs into CHANGELOG.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from PIL import Image
from typer.testing import CliRunner

import streamd
from streamd.cli.main import app
from streamd.ipc import messages
from support.daemon_process import DaemonProcess

GOLDEN: Final = Path(__file__).resolve().parents[1] / "golden"
STREAMD: Final = Path(sys.executable).with_name("streamd")
CLASSES: Final = ("birch", "oak")
PACKS: Final = ("npy", "hdf5", "lmdb", "tar")
SCALARS: Final[Mapping[type, object]] = {
    msgspec.inspect.IntType: 7,
    msgspec.inspect.FloatType: 0.5,
    msgspec.inspect.StrType: "text",
    msgspec.inspect.BytesType: b"bytes",
    msgspec.inspect.BoolType: True,
}
DURATION: Final = re.compile(r"\b[\d.,]+ (ms|s|µs)\b")


def write_pictures(place: Path) -> None:
    """Twelve PNGs of three sizes and two classes, and what lists them, in every way in which a source may."""
    chance = np.random.default_rng(7)
    rows = []
    for number in range(12):
        kind, height = CLASSES[number % 2], (24, 32, 40)[number % 3]
        path = place / "photos" / kind / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(chance.integers(0, 256, (height, 32, 3), np.uint8)).save(path)
        rows.append((f"{kind}/{number:02}.png", kind, number / 4, 32, height))
    lines = [f"{name},{kind},{angle}" for name, kind, angle, *_ in rows]
    (place / "photos" / "table.csv").write_text("\n".join(["image,label,angle", *lines]) + "\n")
    (place / "photos" / "list.txt").write_text("".join(f"{name} {angle}\n" for name, _, angle, *_ in rows))
    boxes = [(1 + number % 3, 4, 8, 12) for number in range(len(rows))]
    coco = {
        "images": [
            {"id": number, "file_name": name, "width": width, "height": height}
            for number, (name, _, _, width, height) in enumerate(rows)
        ],
        "annotations": [
            {"id": number, "image_id": number, "category_id": 1 + number % 2, "bbox": box, "area": 96, "iscrowd": 0}
            for number, box in enumerate(boxes)
        ],
        "categories": [{"id": 1 + number, "name": name} for number, name in enumerate(CLASSES)],
    }
    (place / "photos" / "coco.json").write_text(json.dumps(coco))


def build_streams(place: Path) -> dict[str, dict[str, object]]:
    """A stream of each format, and of what changes pixels: crops, masks of numbers, several images, views."""
    photos = place / "photos"
    common: dict[str, object] = {"batch_size": 5, "image": {"size": [16, 16]}}
    table = {"kind": "table", "path": str(photos / "table.csv"), "image": "image"}
    return {
        "folder": {"source": {"kind": "folder", "path": str(photos)}, **common},
        "table": {"source": table, "labels": {"label": "category", "angle": "float"}, **common},
        "filelist": {
            "source": {"kind": "filelist", "path": str(photos / "list.txt"), "root": str(photos)},
            "labels": {"angle": "float"},
            **common,
        },
        "coco": {"source": {"kind": "coco", "path": str(photos / "coco.json"), "root": str(photos)}, **common},
        "cropped": {
            "source": {"kind": "folder", "path": str(photos)},
            "batch_size": 5,
            "image": {"size": [16, 16], "resize": "random_crop"},
        },
        "in_order": {
            "source": {"kind": "folder", "path": str(photos)},
            "batch_size": 5,
            "image": {"size": [16, 16], "resize": "pad", "mode": "L"},
            "shuffle": "none",
        },
    }


def write_data(place: Path) -> dict[str, dict[str, object]]:
    """Makes the pictures and packs them in every format; returns the streams over all of them."""
    write_pictures(place)
    streams = build_streams(place)
    config = place / "pack.json"
    config.write_text(json.dumps({"memory": "64MiB", "workers": 1, "streams": {"table": streams["table"]}}))
    for name in PACKS:
        command: list[str | Path] = [STREAMD, "pack", "table", place / name, "--format", name, "--config", config]
        packed = subprocess.run([*command, "--json"], check=True, capture_output=True, cwd=place)
        streams[name] = json.loads(packed.stdout)["serving"]
    return streams


# --- the wire


def build_value(kind: msgspec.inspect.Type) -> Any:
    """A value of a type, always the same: the first one of a union, with every field of a struct given."""
    match kind:
        case (
            msgspec.inspect.StructType(cls=cls, fields=fields)
            | msgspec.inspect.DataclassType(cls=cls, fields=fields)
            | msgspec.inspect.NamedTupleType(cls=cls, fields=fields)
        ):
            value: object = cls(**{field.name: build_value(field.type) for field in fields})
        case msgspec.inspect.UnionType(types=types):
            value = build_value(next(each for each in types if not isinstance(each, msgspec.inspect.NoneType)))
        case msgspec.inspect.TupleType(item_types=types):
            value = tuple(map(build_value, types))
        case msgspec.inspect.VarTupleType(item_type=each):
            value = (build_value(each),)
        case msgspec.inspect.ListType(item_type=each):
            value = [build_value(each)]
        case msgspec.inspect.DictType(key_type=key, value_type=each):
            value = {build_value(key): build_value(each)}
        case msgspec.inspect.LiteralType(values=values):
            value = values[0]
        case _:
            value = SCALARS[type(kind)]
    return value


def observe_wire() -> str:
    """The bytes of every message between client and daemon."""
    kinds: list[type[msgspec.Struct]] = [
        each
        for each in vars(messages).values()
        if isinstance(each, type) and issubclass(each, msgspec.Struct) and each.__struct_config__.tag is not None
    ]
    kinds.sort(key=lambda kind: int(kind.__struct_config__.tag or 0))
    encode = msgspec.msgpack.Encoder().encode
    return "".join(f"{kind.__name__} {encode(build_value(msgspec.inspect.type_info(kind))).hex()}\n" for kind in kinds)


# --- a daemon


def observe_streams(client: streamd.Client, names: Mapping[str, object]) -> str:
    """What an epoch of each stream is: its receipt, and the digest of the bytes of all its batches."""
    seen = {}
    for name in names:
        with client.subscribe(name, epochs=1) as stream:
            digest = hashlib.sha256()
            for batch in stream:
                for key, array in sorted({**batch.arrays, **batch.labels, "weights": batch.weights}.items()):
                    digest.update(f"{key} {array.dtype} {array.shape}".encode())
                    digest.update(np.ascontiguousarray(array).data)
            receipt = json.loads(stream.receipts[0].to_json())
            seen[name] = {"receipt": receipt, "bytes": digest.hexdigest()}
    return json.dumps(seen, indent=1, sort_keys=True) + "\n"


def describe_shape(value: Any) -> Any:
    """The keys and types of a JSON value; names of streams and phases stay, numbers do not."""
    if isinstance(value, dict):
        return {key: describe_shape(each) for key, each in sorted(value.items())}
    if isinstance(value, list):
        return [describe_shape(value[0])] if value else []
    return type(value).__name__


def run_command(*words: object, place: Path) -> str:
    """What a command prints, with its exit status."""
    done = subprocess.run([STREAMD, *map(str, words)], capture_output=True, text=True, check=False, cwd=place)
    return f"exit {done.returncode}\n{done.stdout}{done.stderr}"


def names_one_stream(line: str) -> bool:
    """Whether a line of /metrics concerns the stream `folder`, or none: all streams have the same series."""
    return 'stream="' not in line or 'stream="folder"' in line


def observe_metrics(client: streamd.Client) -> str:
    """The families of metrics with their help and type, and one stream's series with their labels, without values."""
    url = client.dashboard().partition("/#")[0] + "/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - the daemon's own address
        lines = answer.read().decode().splitlines()
    series = {line if line.startswith("#") else line.rpartition(" ")[0] for line in lines if names_one_stream(line)}
    return "\n".join(sorted(series)) + "\n"


def observe_check(place: Path) -> str:
    """The report of `check` on pictures among which some are cut off, empty, texts, twins, or huge."""
    faulty = place / "faulty"
    for number in range(12):
        source = place / "photos" / CLASSES[number % 2] / f"{number:02}.png"
        path = faulty / CLASSES[number % 2] / source.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source.read_bytes())
    (faulty / "oak" / "cut.png").write_bytes((faulty / "oak" / "01.png").read_bytes()[:300])
    (faulty / "oak" / "empty.png").write_bytes(b"")
    (faulty / "oak" / "text.jpg").write_text("no picture")
    (faulty / "oak" / "twin.png").write_bytes((faulty / "oak" / "01.png").read_bytes())
    (faulty / "oak" / "Thumbs.db").write_bytes(b"thumbs")
    (faulty / "birch" / "notes.txt").write_text("not listed")
    stream = {"source": {"kind": "folder", "path": str(faulty)}, "image": {"size": [16, 16]}, "batch_size": 4}
    (place / "faulty.json").write_text(json.dumps({"memory": "64MiB", "workers": 1, "streams": {"train": stream}}))
    said = run_command("check", "--config", place / "faulty.json", place=place)
    return DURATION.sub("SOME TIME", said.replace(str(place), "PLACE"))


def observe_all() -> dict[str, str]:
    """The text of every golden file, by its name."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        streams = write_data(place)
        observed = {"wire.txt": observe_wire(), "check.txt": observe_check(place)}
        config: dict[str, object] = {"streams": streams, "monitor": "127.0.0.1:0"}
        with DaemonProcess(place, config, apart=True) as daemon, streamd.connect(daemon.endpoint) as client:
            observed["streams.json"] = observe_streams(client, streams)
            # In this process: figures are those of the last 10 s, and a command takes seconds to start on a busy host.
            told = CliRunner().invoke(app, ["status", "--json", "--endpoint", daemon.endpoint]).stdout
            observed["status.json"] = json.dumps(describe_shape(json.loads(told)), indent=1) + "\n"
            observed["metrics.txt"] = observe_metrics(client)
    return observed


if __name__ == "__main__":
    for name, text in observe_all().items():
        (GOLDEN / name).write_text(text, encoding="utf-8")
