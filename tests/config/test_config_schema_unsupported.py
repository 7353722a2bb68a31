from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from streamd.config.load import load_config
from streamd.config.schema import list_unserved_settings

PLAIN = {"source": {"kind": "folder", "path": "d"}, "image": {"size": [8, 8]}}
NPY = {"kind": "npy", "path": "a.npy"}
TABLE = {"kind": "table", "path": "t.csv", "image": "file"}


def findings(stream: dict[str, Any], **top: Any) -> list[str]:
    return list_unserved_settings(load_config({**top, "streams": {"s": {**PLAIN, **stream}}}))


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
        {"source": {"kind": "npy", "path": "a.npy"}, "labels": {"a": "int", "b": {"type": "float", "from": "b.npy"}}},
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
def test_a_stream_that_asks_for_more_is_told_what_is_served(stream: dict[str, Any], place: str) -> None:
    (finding,) = findings(stream)
    assert finding.startswith(f"streams.s.{place}")
    assert " not served by this version; " in finding


def test_what_the_whole_file_asks_for_comes_first_and_in_order() -> None:
    top = {
        "listen": ["ipc://s", "tcp://127.0.0.1:5555"],
        "curve": {"secret": "k", "clients": "keys"},
        "engine": {"kind": "ray", "address": "auto"},
    }
    places = [finding.split(":")[0] for finding in findings({"pace": {"lockstep": "1s"}}, **top)]
    assert places == ["listen", "curve", "engine", "streams.s.pace"]


def test_a_second_endpoint_is_refused_rather_than_left_silent() -> None:
    assert findings({}, listen=["ipc:///run/a", "ipc:///run/b"]) == [
        "listen: more than one endpoint is not served by this version; name one"
    ]


def test_a_folder_whose_name_is_not_utf8_is_told_before_a_worker_is(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"a\xff")
    odd.mkdir()
    (odd / "config.yaml").write_text("streams: {s: {source: {kind: folder, path: d}, image: {size: [8, 8]}}}")
    (told,) = list_unserved_settings(load_config(odd / "config.yaml"))
    assert re.search(r"^streams: .*a\\udcff', no name in UTF-8, is not served by this version; keep it elsewhere", told)
