"""Encodings: by byte order mark, by name, or UTF-8; other encodings are refused with the remedy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.source_configs import Filelist, Label, Table, Tar, put, scanned
from support.tar_shards import pack

from streamd.dataset.coco import CocoSource
from streamd.dataset.labels.text_encoding import (
    UTF8,
    build_encoding_error,
    choose_text_encoding,
    decode_json,
    decode_text,
    split_lines,
)
from streamd.dataset.sources import DataSource
from streamd.dataset.yolo import YoloSource
from streamd.errors import ConfigError

KEY = "streams.train.source.path"
TEXT = "path,label\na.jpg,Mädchen\n"


@pytest.mark.parametrize(
    ("written", "named", "chosen"),
    [
        ("utf-8", None, UTF8),
        ("utf-8-sig", None, UTF8),
        ("utf-8", "UTF8", UTF8),
        ("utf-16", None, "utf-16"),
        ("utf-32", "cp1252", "utf-32"),
        ("cp1252", "cp1252", "cp1252"),
        ("utf-16-be", "utf-16-be", "utf-16-be"),
    ],
)
def test_a_mark_counts_before_a_name_and_a_name_before_utf_8(
    tmp_path: Path, written: str, named: str | None, chosen: str
) -> None:
    path = tmp_path / "all.csv"
    path.write_bytes(TEXT.encode(written))
    encoding = choose_text_encoding(path, named, KEY)
    assert encoding == chosen
    assert path.read_text(encoding=encoding) == TEXT
    assert build_encoding_error(path, encoding, KEY) is None


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_recognized_and_asked_for(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "all.csv"
    path.write_bytes(TEXT.encode(encoding))
    with pytest.raises(ConfigError, match=rf"looks like {encoding}: add encoding: {encoding} under source, or"):
        choose_text_encoding(path, None, KEY)


def said_of(path: Path, data: bytes, encoding: str = UTF8, key: str = KEY) -> str:
    path.write_bytes(data)
    return str(build_encoding_error(path, encoding, key)).replace(str(path), path.name)


def test_another_encoding_is_reported_with_line_byte_and_what_it_would_read(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    before = b"a.jpg,x\n" * 300_000  # more than is read at a time
    assert said_of(path, before + "b.jpg,Mädchen\nc.jpg,x\n".encode("latin-1")) == (
        f"{KEY}: 'all.csv', line 300001, is not valid UTF-8: byte 0xe4; it looks like Latin-1 or Windows-1252, in "
        "which the line reads 'b.jpg,Mädchen': add encoding: cp1252 under source, or save the file as UTF-8: "
        "iconv -f CP1252 -t UTF-8 all.csv > utf8-all.csv"
    )


def test_an_unknown_encoding_asks_for_its_name(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    assert said_of(path, b"a\n\x81\x81\n") == (
        f"{KEY}: 'all.csv', line 2, is not valid UTF-8: byte 0x81; save the file as UTF-8, or add encoding: NAME "
        "under source, where NAME is the encoding that the file was saved in"
    )
    said = said_of(path, "Mädchen".encode(), "ascii")
    assert "line 1, is not valid ascii: byte 0x" in said
    assert said.endswith("give the encoding that the file was saved in, or save the file as UTF-8")


def test_the_error_for_a_table_beside_arrays_suggests_no_encoding_key(tmp_path: Path) -> None:
    said = said_of(tmp_path / "all.csv", b"\xe4\n", key="streams.train.source.table")
    assert "encoding:" not in said
    assert "reads 'ä': save the file as UTF-8: iconv" in said


ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-32"]
JSON = msgspec.json.Decoder()
FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_text_that_is_read_whole_may_have_a_mark(encoding: str) -> None:
    assert decode_text(TEXT.encode(encoding)) == TEXT
    assert decode_json(json.dumps({"a": "ä"}, ensure_ascii=False).encode(encoding), JSON) == {"a": "ä"}


def test_lines_end_as_any_system_ends_them() -> None:
    assert split_lines("a\r\nb\rc\nd") == ["a", "b", "c", "d"]


def without_odd_numbers(value: Any) -> Any:
    """The value with None in place of numbers that JSON does not have."""
    match value:
        case dict():
            return {key: without_odd_numbers(each) for key, each in value.items()}
        case list():
            return [without_odd_numbers(each) for each in value]
        case float() if not math.isfinite(value):
            return None
    return value


TEXTS = st.text(st.characters(codec="utf-8")) | st.sampled_from(
    ["NaN", '"NaN', "\\", "-Infinity]", "\\ud800", "\ud83d\ude00"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | TEXTS.filter(str.isprintable),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS.filter(str.isprintable), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.long
@given(VALUES, st.booleans())
def test_what_python_writes_as_json_is_read_with_null_for_nan_and_infinity(value: object, ascii_only: bool) -> None:
    written = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert decode_json(written, JSON) == without_odd_numbers(value)


@pytest.mark.parametrize(
    "unread",
    ["NaN", "[-Infinity, {}]", "1e999", "9" * 5000, '"\\ud800"', '"\xe9"', "[" * 500 + "]" * 500],
    ids=lambda each: each[:9],
)
def test_a_field_that_nobody_reads_may_hold_anything(unread: str) -> None:
    data = f'{{"y": 3, "unread": {unread}}}'.encode("latin-1")
    assert bytes(decode_json(data, FIELDS)["y"]) == b"3"


@pytest.mark.parametrize(
    "data", [b"{", b'"', b'"\\', b"nan", b"[1,]", b"{} {}", b"[" * 100_000, b"NaN" * 3, b"\xff\xfe\x00"]
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError, RecursionError)):
        decode_json(data, JSON)


def test_half_of_a_pair_of_surrogates_becomes_a_nul_and_whole_pairs_and_backslashes_stay() -> None:
    assert decode_json(rb'["\udce9.jpg", "\ud83d\ude00", "\\ud800"]', JSON) == ["\0.jpg", "\U0001f600", "\\ud800"]


def coco_file(encoding: str) -> bytes:
    contents = {
        "images": [{"id": 1, "file_name": "a.png"}],
        "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 4, 4], "area": float("nan")}],
        "categories": [{"id": 1, "name": "käse"}],
    }
    return json.dumps(contents, ensure_ascii=False).encode(encoding)


def found_classes(source: DataSource, labels: Mapping[str, Label]) -> tuple[int | str, ...]:
    (spec,) = scanned(source, **labels).specs.values()
    return spec.classes


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CR LF", "CR"])
def test_every_source_reads_text_of_any_system(tmp_path: Path, encoding: str, end: str) -> None:
    put(tmp_path, "a.png", "images/a.png", "labels/a.txt")

    def write(name: str, *lines: str) -> Path:
        (tmp_path / name).write_bytes(end.join([*lines, ""]).encode(encoding))
        return tmp_path / name

    label = {"y": Label()}
    assert found_classes(Table(write("t.csv", "file,y", "a.png,käse", "a.png,\ufeffkäse")), label) == ("käse",)
    assert found_classes(Filelist(write("list.txt", "a.png käse", "\ufeffa.png käse")), label) == ("käse",)
    shard = pack(tmp_path / "s.tar", {"1.png": b"", "1.y": f"käse{end}".encode(encoding)})
    assert found_classes(Tar(str(shard)), label) == ("käse",)
    record = json.dumps({"y": "käse", "other": float("nan")}, ensure_ascii=False) + end
    shard = pack(tmp_path / "s.tar", {"1.png": b"", "1.json": record.encode(encoding)})
    assert found_classes(Tar(str(shard)), {"y": Label("category", "json:y")}) == ("käse",)
    (tmp_path / "coco.json").write_bytes(coco_file(encoding))
    assert found_classes(CocoSource(tmp_path / "coco.json", tmp_path), {}) == ("käse",)
    write("labels/a.txt", "0 .5 .5 .1 .1", "1 .5 .5 .1 .1")
    write("train.txt", "images/a.png", "./images/a.png")
    (tmp_path / "data.yaml").write_text("train: train.txt\nnames: [a, b]")
    boxes = scanned(YoloSource(tmp_path / "data.yaml", "train")).specs["boxes"]
    assert boxes.counts == (2, 2)
