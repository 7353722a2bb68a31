"""A source is found by its kind, and what it needs is named when it is missing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.source_configs import Filelist, Folder, Lmdb, Stream, Table, put

from streamd.dataset.scan import scan_source
from streamd.dataset.sources import DataSource, Part
from streamd.errors import ConfigError, MissingExtraError


def test_each_kind_finds_its_source(tmp_path: Path) -> None:
    put(tmp_path, "flat/a.jpg")
    (tmp_path / "all.csv").write_text("file\nflat/a.jpg\n")
    assert scan_source(Stream(Folder(tmp_path / "flat")), lambda _: None).files == [b"a.jpg"]
    assert scan_source(Stream(Table(tmp_path / "all.csv")), lambda _: None).files == [b"flat/a.jpg"]
    (tmp_path / "list.txt").write_text("flat/a.jpg\n")
    assert scan_source(Stream(Filelist(tmp_path / "list.txt")), lambda _: None).files == [b"flat/a.jpg"]


@dataclass(frozen=True)
class TapeSource(DataSource):
    kind: str = field(default="tape", init=False)
    path: Path
    part: Part | None = None


def test_an_unknown_kind_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kind tape is not served by this version; use one of folder, table"):
        scan_source(Stream(TapeSource(tmp_path)), lambda _: None)


@pytest.mark.parametrize("source", [Table(Path("all.csv")), Filelist(Path("list.txt"))], ids=lambda source: source.kind)
def test_a_table_or_a_list_without_pyarrow_names_the_extra(
    source: Table | Filelist, monkeypatch: pytest.MonkeyPatch
) -> None:
    needing = ("pyarrow", "streamd.dataset.files.table", "streamd.dataset.files.filelist")
    for name in [name for name in sys.modules if name.startswith(needing)]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("columns", "cells"):
        monkeypatch.delitem(sys.modules, f"streamd.dataset.labels.{name}", raising=False)
        monkeypatch.delattr(f"streamd.dataset.labels.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'streamd-loader\[serve\]'"):
        scan_source(Stream(source), lambda _: None)


def test_an_lmdb_file_without_its_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scan",):
        monkeypatch.delitem(sys.modules, f"streamd.dataset.lmdb.{name}", raising=False)
        monkeypatch.delattr(f"streamd.dataset.lmdb.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'streamd-loader\[lmdb\]'"):
        scan_source(Stream(Lmdb(tmp_path)), lambda _: None)


def test_folders_do_without_pyarrow() -> None:
    code = "import sys, streamd.dataset.scan; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0
