"""File names are taken as they are spelled; the rest of what is asked of them is tested with tables and lists."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from streamd.dataset.files.lookup import normalize_file_names, resolve_root
from streamd.dataset.labels.cells import SourceRows
from streamd.errors import ConfigError

ROWS = SourceRows(Path("/lists/all.txt"), lambda row: f"row {row}")


def test_names_are_relative_to_the_configured_root_or_else_to_their_lists_folder() -> None:
    assert resolve_root(Path("/data"), ROWS.path) == Path("/data")
    assert resolve_root(None, ROWS.path) == Path("/lists")


def test_spellings_of_one_file_become_one_name() -> None:
    names = pa.array(
        ["b/a.jpg", "./b/a.jpg", "b//a.jpg", "b/c/../a.jpg", "/data/b/a.jpg", "b\\a.jpg"], pa.large_string()
    )
    assert normalize_file_names(ROWS, names, Path("/data"), "source.root") == [b"b/a.jpg"] * 6


def test_a_name_that_leads_out_is_told_by_its_row() -> None:
    with pytest.raises(ConfigError, match=r"source\.root: row 1 names '/etc/passwd', which is no file in '/data'"):
        normalize_file_names(ROWS, pa.array(["a.jpg", "/etc/passwd"], pa.large_string()), Path("/data"), "source.root")
