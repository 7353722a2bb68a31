"""Encodings: by byte order mark, by name, or UTF-8; other encodings are refused with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.dataset.labels.text_encoding import UTF8, build_encoding_error, choose_text_encoding
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
