"""Tables that name the same files over and over are made and listed as the benchmark says."""

from __future__ import annotations

from pathlib import Path

import growth
import pytest
import run
from support.daemon_process import write_images


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", {"cat": 2, "dog": 1}, size=(8, 8))


def test_a_table_goes_round_the_files_until_it_has_so_many_rows(tmp_path: Path, data: Path) -> None:
    files = [file.relative_to(data).as_posix() for file in sorted(data.glob("*/*"))]
    table = growth.write_table(tmp_path / "table", data, 7)
    head, *rows = (table.home / "all.csv").read_text().splitlines()
    assert head == "path,label"
    assert rows == [f"{file},{file[:3]}" for file in (*files, *files, files[0])]


@pytest.mark.long
def test_a_listing_counts_its_manifest_and_a_start_takes_that_one(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = growth.write_table(tmp_path / "table", data, 400)
    listing = growth.list_samples(table)
    (manifest,) = table.home.glob("*.manifest")
    assert listing.manifest_bytes == manifest.stat().st_size
    assert listing.peak_bytes > listing.manifest_bytes
    listed = manifest.stat().st_mtime_ns
    with run.Daemon(table.home, table.settings) as daemon:
        ready_s, first_batch_s = growth.take_first_batch(daemon)
    assert 0 < ready_s < first_batch_s
    assert manifest.stat().st_mtime_ns == listed
    monkeypatch.setattr(growth, "WINDOW_S", 3.0)
    assert growth.measure_company(table, 2).each > 0


@pytest.mark.long
def test_a_listing_that_fails_says_why(tmp_path: Path, data: Path) -> None:
    table = growth.write_table(tmp_path / "table", data, 3)
    (table.home / "all.csv").write_text("path,label\ncat/none.jpg,cat\n")
    with pytest.raises(SystemExit, match="listing 3 samples failed"):
        growth.list_samples(table)
