"""A name that leads to no regular file, or to a damaged one, is an error at once, whoever opens it.

The open of a FIFO waits for its other end, and a device never ends: either would stop a daemon, a gate or a command.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.rank_receipts import make_receipt

from streamd.cli.options import complete_stream_names
from streamd.cli.pack.run import read_journal
from streamd.cli.verify import read_receipts
from streamd.config.load import load_config
from streamd.daemon.streams.catalog import scan_stream_sources
from streamd.daemon.streams.manifest_archive import import_lists
from streamd.daemon.streams.quarantine import Quarantine
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.transform_source import find_transform_source
from streamd.decode.inference import load_image, read_spec
from streamd.errors import StreamdError
from streamd.frameworks import checkpoint
from streamd.frameworks.receipt_file import ReceiptFile
from streamd.ipc.key_files import read_client_key, read_key_pair

LIMIT_S = 20


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """Ends a test that waits for the other end of a FIFO."""
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)


def scan(**source: object) -> Callable[[Path], object]:
    """Lists the samples of a source of which the file is a part: PATH stands for it, FOLDER for its folder."""

    def open_source(path: Path) -> object:
        places = {"PATH": str(path), "FOLDER": str(path.parent), "ARRAY": str(path.with_name("images.npy"))}
        if "ARRAY" in source.values():
            np.save(places["ARRAY"], np.zeros((2, 8, 8, 3), np.uint8))
        filled = {key: places.get(str(value), value) for key, value in source.items()}
        stream: dict[str, Any] = {"source": filled, "batch_size": 1}
        if filled["kind"] not in {"npy", "hdf5", "lmdb"}:
            stream["image"] = {"size": [8, 8]}
        config = load_config({"streams": {"s": stream}})
        return list(scan_stream_sources(config.streams.values(), lambda *_: None).values())

    return open_source


def import_into(path: Path) -> object:
    config = load_config({"streams": {"s": {"source": {"kind": "folder", "path": "/d"}, "image": {"size": [8, 8]}}}})
    return import_lists(config, path.parent / "state", path, lambda *_: None)


def import_transform(path: Path) -> object:
    return find_transform_source(f"{path.stem}:f", path.parent)


def append_receipt(path: Path) -> None:
    ReceiptFile(path).append_new_receipts([make_receipt(0, 1)])


# Whoever opens a file that somebody named: its name, and the function that opens it.
OPENERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "configuration": ("config.yaml", load_config),
    "secret key": ("k.key_secret", lambda path: read_key_pair(path, "curve.secret")),
    "client's key": ("k.key", lambda path: read_client_key(path, "curve.clients")),
    "receipts": ("receipts-0.jsonl", read_receipts),
    "file beside a model": ("m.streamd.json", read_spec),
    "picture of load_image": ("x.png", lambda path: load_image(path, path)),
    "manifest": ("s.manifest", Manifest.open),
    "verdicts": ("s.bad.jsonl", lambda path: Quarantine(path, str).load_bad_samples()),
    "lists to import": ("lists.zip", import_into),
    "journal of a pack": ("journal", read_journal),
    "receipts to append to": ("receipts-1.jsonl", append_receipt),
    "state of a training": ("state.json", lambda path: checkpoint._read_state(path.parent)),
    "module of a transform": ("t.py", import_transform),
    "table": ("t.csv", scan(kind="table", path="PATH", image="file", root="FOLDER")),
    "table of tabs": ("t.tsv", scan(kind="table", path="PATH", image="file", root="FOLDER")),
    "Parquet table": ("t.parquet", scan(kind="table", path="PATH", image="file", root="FOLDER")),
    "list": ("l.txt", scan(kind="filelist", path="PATH", root="FOLDER")),
    "array": ("a.npy", scan(kind="npy", path="PATH")),
    "table beside an array": ("b.csv", scan(kind="npy", path="ARRAY", table="PATH")),
    "HDF5": ("a.h5", scan(kind="hdf5", path="PATH", images="images")),
    "LMDB": ("a.mdb", scan(kind="lmdb", path="PATH", images="X")),
    "tar": ("a.tar", scan(kind="tar", path="PATH")),
    "COCO": ("instances.json", scan(kind="coco", path="PATH", root="FOLDER")),
    "data.yaml": ("data.yaml", scan(kind="yolo", path="PATH", part="train")),
}
ODD: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "dangling link": lambda path: path.symlink_to("nowhere"),
}
# These may make the file, or do without it.
MAY_BE_MISSING = {"verdicts", "journal of a pack", "receipts to append to"}


@pytest.mark.parametrize("kind", ODD)
def test_whoever_opens_it_names_a_file_that_is_none(tmp_path: Path, kind: str) -> None:
    for who, (name, open_file) in OPENERS.items():
        path = tmp_path / who / name
        path.parent.mkdir()
        ODD[kind](path)
        if kind == "dangling link" and who in MAY_BE_MISSING:
            open_file(path)
            continue
        with pytest.raises((StreamdError, OSError)) as caught:
            open_file(path)
        assert path.stem in str(caught.value), who
        if kind == "fifo" and who not in {"module of a transform", "tar"}:  # which look for files alone
            assert "FIFO" in str(caught.value), who


DAMAGES = {"empty": b"", "no text": b"\xff\xfe\0\x81" * 900, "a number too large": b'{"epoch": 1e999, "receipts": 9}\n'}
# Whose damage is dropped, or found by whoever uses it: a torn line, a module that is imported, a table of no label.
NO_ERROR = {
    *(("receipts to append to", damage) for damage in DAMAGES),
    *(("module of a transform", damage) for damage in DAMAGES),
    ("verdicts", "empty"),
    ("verdicts", "no text"),
    ("table beside an array", "no text"),
    ("table beside an array", "a number too large"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_an_error_in_words(tmp_path: Path, damage: str) -> None:
    for who, (name, open_file) in OPENERS.items():
        path = tmp_path / who / name
        path.parent.mkdir()
        path.write_bytes(DAMAGES[damage])
        if (who, damage) in NO_ERROR:
            open_file(path)
            continue
        with pytest.raises((StreamdError, OSError, checkpoint._DamagedError)) as caught:
            open_file(path)
        assert str(caught.value), who


def test_completing_a_word_opens_no_fifo(tmp_path: Path) -> None:
    class Context:
        params = {"config": str(tmp_path / "config.yaml")}  # noqa: RUF012 - a stand-in

    os.mkfifo(tmp_path / "config.yaml")
    assert list(complete_stream_names(Context(), "")) == []  # type: ignore[arg-type]  # stands for typer's
