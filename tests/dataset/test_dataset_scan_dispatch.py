"""A source is scanned by its kind; a missing library is named with its extra."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from support.lmdb_files import write_lmdb
from support.source_configs import Filelist, Folder, Hdf5, Lmdb, Npy, Stream, Table, Tar, put
from support.stores_on_disk import write_hdf5
from support.tar_shards import pack

from streamd.dataset.scan import scan_source
from streamd.dataset.sources import DataSource, Part
from streamd.errors import ConfigError, MissingExtraError


def sources(folder: Path) -> list[DataSource]:
    """Three samples of every kind."""
    pixels = np.zeros((3, 4, 5, 3), np.uint8)
    put(folder / "data", "a.jpg", "b.jpg", "c.jpg")
    (folder / "all.csv").write_text("file\ndata/a.jpg\ndata/b.jpg\ndata/a.jpg\n")
    (folder / "list.txt").write_text("data/a.jpg\n" * 3)
    np.save(folder / "x.npy", pixels)
    write_hdf5(folder / "x.h5", pixels)
    write_lmdb(folder / "x.lmdb", [{"X": image} for image in pixels])
    pack(folder / "0.tar", {"a.jpg": b"", "b.jpg": b""})
    pack(folder / "1.tar", {"a.jpg": b""})
    return [
        *(Folder(folder / "data"), Table(folder / "all.csv"), Filelist(folder / "list.txt"), Npy(f"{folder}/x.npy")),
        *(Hdf5(folder / "x.h5"), Lmdb(folder / "x.lmdb"), Tar(f"{folder}/*.tar")),
    ]


def test_progress_of_every_kind_ends_at_the_number_of_samples(tmp_path: Path) -> None:
    for source in sources(tmp_path):
        seen: list[int] = []
        scan_source(Stream(source), seen.append)
        assert seen[-1] == 3, source.kind


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
    monkeypatch.delitem(sys.modules, "streamd.dataset.lmdb.scan", raising=False)
    monkeypatch.delattr("streamd.dataset.lmdb.scan", raising=False)
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'streamd-loader\[lmdb\]'"):
        scan_source(Stream(Lmdb(tmp_path)), lambda _: None)


def test_folders_do_without_pyarrow() -> None:
    code = "import sys, streamd.dataset.scan; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0
