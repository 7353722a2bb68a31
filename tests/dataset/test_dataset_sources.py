"""What sources declare: their files, and mistakes in their settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.source_configs import Filelist, Folder, Npy, Table, Tar

from streamd.dataset.sources import DataSource

ROOT, FILE = Path("/r"), Path("/f.csv")


@pytest.mark.parametrize(
    ("source", "data", "labels"),
    [
        (Folder(ROOT), [ROOT], []),
        (Table(FILE), [FILE], [FILE]),
        (Table(FILE, root=ROOT), [FILE, ROOT], [FILE]),
        (Filelist(FILE, ROOT), [FILE, ROOT], [FILE]),
        (Npy("/p/*.npy"), [Path("/p/*.npy")], []),
        (Npy("/p/*.npy", FILE), [Path("/p/*.npy"), FILE], [FILE]),
        (Tar("/s"), [Path("/s")], [Path("/s")]),
    ],
    ids=lambda each: each.kind if isinstance(each, DataSource) else "",
)
def test_a_source_names_its_data_paths_and_its_label_files(
    source: DataSource, data: list[Path], labels: list[Path]
) -> None:
    assert (list(source.data_paths), list(source.label_files)) == (data, labels)


def test_a_source_without_its_part_is_the_same_for_every_part() -> None:
    whole = Table(FILE, root=ROOT)
    assert Table(FILE, root=ROOT, part="train").copy_without_part() == whole == whole.copy_without_part()


def mistakes(source: DataSource) -> list[str]:
    """The keys whose settings are mistakes."""
    return [key for key, _ in source.find_setting_mistakes()]


@pytest.mark.parametrize(("key", "value"), [("where", {"split": "train"}), ("names", "file")])
def test_conditions_and_names_without_a_table_are_a_mistake(key: str, value: Any) -> None:
    assert mistakes(Npy("/a.npy", **{key: value})) == [key]
    assert mistakes(Npy("/a.npy", FILE, **{key: value})) == []


@pytest.mark.parametrize("encoding", ["cp1525", "base64"])
def test_an_encoding_that_python_has_no_text_codec_for_is_a_mistake(encoding: str) -> None:
    for source in (Table(FILE, encoding=encoding), Filelist(FILE, encoding=encoding)):
        assert mistakes(source) == ["encoding"]


@pytest.mark.parametrize("encoding", ["UTF8", "utf-16", "cp1252", "shift_jis", "", None])
def test_an_encoding_of_text_is_no_mistake(encoding: str | None) -> None:
    for source in (Table(FILE, encoding=encoding), Filelist(FILE, encoding=encoding)):
        assert mistakes(source) == []
