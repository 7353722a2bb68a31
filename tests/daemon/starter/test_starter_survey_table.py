"""The columns of a table in a survey: images, labels, parts, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamd.daemon.starter.data_survey import DataSurvey
from streamd.daemon.starter.survey_table import find_parts, survey_table
from streamd.errors import ConfigError

FILES = [f"{number:03}.jpg" for number in range(8)]


def touch_images(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder / name).touch()
    return folder


def write_table(folder: Path, columns: Mapping[str, Sequence[object]], *, images: str = ".") -> Path:
    """A CSV, and its images as empty files."""
    touch_images(folder / images)
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    path = folder / "all.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def survey(folder: Path, columns: Mapping[str, Sequence[object]], *, images: str = ".") -> DataSurvey:
    return survey_table(write_table(folder, columns, images=images))


def test_images_labels_and_parts_are_found_and_the_rest_is_left_out_with_its_reason(tmp_path: Path) -> None:
    found = survey(
        tmp_path,
        {
            "id": [*range(8)],
            "file": [*FILES],
            "angle": [number / 3 for number in range(8)],
            "kind": ["cat", "dog"] * 4,
            "split": ["train"] * 5 + ["val"] * 2 + ["test"],
        },
    )
    assert found.labels == {"angle": "float", "kind": "category"}
    assert found.left_out == {"id": "numbers the rows", "split": "says which rows are train and validation"}
    source = {"path": str(tmp_path / "all.csv"), "image": "file"}
    values = {"train": "train", "validation": "val", "test": "test"}
    assert found.sources == {name: {**source, "where": {"split": value}} for name, value in values.items()}
    assert not found.is_split


def test_the_root_is_where_the_files_are(tmp_path: Path) -> None:
    found = survey(tmp_path, {"file": [*FILES], "angle": [0.5, 1] * 4}, images="pictures")
    assert found.sources["train"]["root"] == str(tmp_path / "pictures")
    assert found.sources["train"]["part"] == "train"
    assert found.is_split


def test_names_with_their_folder_begin_at_the_parent(tmp_path: Path) -> None:
    touch_images(tmp_path / "pictures")
    columns: Mapping[str, Sequence[object]] = {"file": [f"pictures/{name}" for name in FILES], "angle": [0.5, 1] * 4}
    found = survey_table(write_table(tmp_path / "tables", columns))
    assert found.sources["train"]["root"] == str(tmp_path)


def test_absolute_names_have_the_folder_that_holds_them_all_as_root(tmp_path: Path) -> None:
    images = touch_images(tmp_path / "far" / "away")
    found = survey(tmp_path / "here", {"file": [f"{images}/{name}" for name in FILES], "y": [0.5, 1] * 4})
    assert found.sources["train"]["root"] == str(images)


def test_of_two_columns_that_name_images_the_first_is_taken(tmp_path: Path) -> None:
    found = survey(tmp_path, {"left": [*FILES], "right": FILES[::-1], "angle": [0.5, 1] * 4})
    assert found.sources["train"]["image"] == "left"
    assert found.left_out == {"right": "names images, as left does"}


def test_a_note_names_files_that_were_not_found(tmp_path: Path) -> None:
    found = survey(tmp_path, {"file": [f"no/{name}" for name in FILES], "angle": [0.5, 1] * 4})
    assert "none of 8 files that column file names is in" in found.notes[0]
    assert "give their folder with --root" in found.notes[0]


def test_names_without_suffixes_are_refused_with_the_suffix_that_is_missing(tmp_path: Path) -> None:
    columns: Mapping[str, Sequence[object]] = {"id": [name[:-4] for name in FILES], "breed": ["a", "b"] * 4}
    with pytest.raises(
        ConfigError, match=(r"names images; its columns are: id, breed; .*with .jpg added, column 'id' names")
    ):
        survey(tmp_path, columns)


def test_a_table_without_names_of_images_is_refused_with_its_columns(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no column of '.*all.csv' names images; its columns are: a, b"):
        survey(tmp_path, {"a": [*range(8)], "b": ["x"] * 8})


def test_lists_of_parquet_are_vectors_and_tags(tmp_path: Path) -> None:
    touch_images(tmp_path)
    lists = {
        "vector": [[0.5, 1.5]] * 8,
        "tags": [["a"], ["a", "b"]] * 4,
        "ragged": [[1.0], [1.0, 2.0]] * 4,
        "mask": [True, False] * 4,
        "when": pa.array([*range(8)], pa.timestamp("s")),
    }
    pq.write_table(pa.table({"file": FILES, **lists}), tmp_path / "all.parquet")
    found = survey_table(tmp_path / "all.parquet")
    assert found.labels == {"vector": "float", "tags": "tags", "mask": "category"}
    assert set(found.left_out) == {"ragged", "when"}


@pytest.mark.parametrize(
    ("name", "cells", "values"),
    [
        ("Split", ["Train", "Valid"], {"train": "Train", "validation": "Valid"}),
        ("is_valid", ["False", "True"], {"train": False, "validation": True}),
        ("is_valid", ["0", "1"], {"train": False, "validation": True}),
        ("set", ["train", "test"], {"train": "train", "test": "test"}),
        ("split", ["train", "train"], None),
        ("split", ["train", "extra"], None),
        ("split", ["val", "validation", "train"], None),
        ("is_valid", ["maybe", "True"], None),
        ("kind", ["train", "val"], None),
    ],
)
def test_a_column_of_parts_names_nothing_but_parts(
    name: str, cells: list[str], values: dict[str, object] | None
) -> None:
    found = find_parts({name: pa.array(cells, pa.large_string())})
    assert (found and found.values) == values


def test_a_first_line_that_names_a_picture_is_refused_as_header(tmp_path: Path) -> None:
    path = write_table(tmp_path, {"file": FILES, "angle": [0.5] * len(FILES)})
    path.write_text(path.read_text().split("\n", 1)[1])
    with pytest.raises(ConfigError, match=r"the first line of '.*all.csv' names the picture '000.jpg', so the table"):
        survey_table(path)


def test_decimal_commas_are_numbers_where_semicolons_separate_the_cells(tmp_path: Path) -> None:
    path = write_table(tmp_path, {"file": FILES, "angle": [number / 8 for number in range(8)]})
    path.write_text(path.read_text().replace(",0.", ";0,").replace(",", ";", 1))
    assert survey_table(path).labels == {"angle": "float"}
