"""Arrays of labels beside images of any source: one row for each image, in the order of the samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.source_configs import Filelist, Folder, Label, Table, put, scanned, unlabelled

from streamd.dataset.labels.columns import build_array_column
from streamd.dataset.sources import DataSource

NAMES = ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg")


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, DataSource]:
    """The same three images, each source in an order of its own."""
    put(tmp_path / "data", *NAMES)
    (tmp_path / "t.csv").write_text("file,kind,use\ndata/dog/1.jpg,dog,1\ndata/cat/1.jpg,cat,0\ndata/cat/2.jpg,cat,1\n")
    (tmp_path / "l.txt").write_text("data/cat/2.jpg\tcat\n\ndata/cat/1.jpg\tcat\ndata/dog/1.jpg\tdog\n")
    return {
        "folder": Folder(tmp_path / "data"),
        "table": Table(tmp_path / "t.csv"),
        "filelist": Filelist(tmp_path / "l.txt"),
    }


def saved(folder: Path, values: object, name: str = "y.npy") -> Path:
    np.save(folder / name, np.array(values))
    return folder / name


@pytest.mark.parametrize("kind", ["folder", "table", "filelist"])
def test_row_n_of_an_array_belongs_to_sample_n(sources: dict[str, DataSource], kind: str, tmp_path: Path) -> None:
    found = scanned(sources[kind], y=Label("int", saved(tmp_path, [5, 6, 7])))
    assert found.labels["y"].tolist() == [5, 6, 7]
    assert found.files == unlabelled(sources[kind]).files


@pytest.mark.parametrize("kind", ["folder", "table", "filelist"])
def test_labels_of_the_source_and_of_files_are_in_the_order_of_the_configuration(
    sources: dict[str, DataSource], kind: str, tmp_path: Path
) -> None:
    first, last = Label("float", saved(tmp_path, [0.5, 1, 2])), Label("category", saved(tmp_path, np.eye(3), "z.npy"))
    found = scanned(sources[kind], a=first, kind=Label(), z=last)
    assert list(found.labels) == list(found.specs) == ["a", "kind", "z"]
    assert found.specs["kind"].classes == ("cat", "dog")
    assert found.labels["z"].tolist() == [0, 1, 2]


def test_rows_of_an_array_belong_to_the_rows_of_the_whole_table(sources: dict[str, DataSource], tmp_path: Path) -> None:
    source = sources["table"]
    assert isinstance(source, Table)
    found = scanned(Table(source.path, where={"use": 1}), y=Label("int", saved(tmp_path, [5, 6, 7])))
    assert (found.labels["y"].tolist(), found.files) == ([5, 7], [b"data/dog/1.jpg", b"data/cat/2.jpg"])


def test_a_column_of_an_array_does_not_copy_it() -> None:
    values = np.zeros((8, 3), np.uint8)
    column = build_array_column(values, Path("y.npy"), "y.npy", "labels.y", 8)
    values[2, 1] = 7
    assert column.cells[2].as_py() == [0, 7, 0]
