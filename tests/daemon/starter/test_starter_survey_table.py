"""The columns of a table in a survey: images, labels, parts, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamd.daemon.starter.survey import DataSurvey, StarterChoices
from streamd.daemon.starter.survey_labels import find_parts, survey_table
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
            "": [*range(8)],
            "id": [*range(8)],
            "Unnamed: 0": [1, 2, 3, 4] * 2,
            "file": [*FILES],
            "angle": [number / 3 for number in range(8)],
            "kind": ["cat", "dog"] * 4,
            "split": ["train"] * 5 + ["val"] * 2 + ["test"],
        },
    )
    assert found.labels == {"angle": "float", "kind": "category"}
    assert found.left_out == {
        "split": "says which rows are train and validation",
        "without a name": "a data frame saves its index so",
        "id": "numbers the rows",
        "Unnamed: 0": "the index of a data frame, which numbers its rows",
    }
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
        ("split", ["train", "eval"], {"train": "train", "validation": "eval"}),
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


PEOPLE = ["a", "a", "b", "b", "c", "c", "d", "d"]


@pytest.mark.parametrize(
    ("column", "cells", "reason"),
    [
        ("fold", [0, 1] * 4, "says which part of the data a row belongs to; source: {where: {fold: VALUE}} takes"),
        (
            "split",
            ["train", "val", "holdout", "val"] * 2,
            "says which part of the data a row belongs to; source: {where",
        ),
        (
            "patient",
            PEOPLE,
            "says whom a row is of: split: {validation: 0.2, by: patient} keeps the rows of each in one",
        ),
        ("PatientID", [7, 7, 8, 8, 9, 9, 5, 5], "says whom a row is of: split: {validation: 0.2, by: PatientID} keeps"),
        ("subject_id", PEOPLE, "--label subject_id makes it a label"),
        ("remark", [f"remark {n}" for n in range(8)], "8 different texts in 8 rows"),
        ("set", ["a", "b"] * 4, ""),
        ("personality", ["a", "b"] * 4, ""),
        ("fold type", ["a", "b"] * 4, ""),
    ],
)
def test_a_column_that_says_whose_or_which_rows_they_are_is_no_label(
    column: str, cells: Sequence[object], reason: str, tmp_path: Path
) -> None:
    found = survey(tmp_path, {"file": FILES, column: cells, "kind": ["x", "y"] * 4})
    assert found.labels == ({"kind": "category"} if reason else {column: "category", "kind": "category"})
    assert reason in found.left_out.get(column, "")
    assert (column in found.left_out) == bool(reason)


def test_a_split_by_people_is_not_suggested_where_a_column_splits(tmp_path: Path) -> None:
    found = survey(
        tmp_path, {"file": FILES, "patient": PEOPLE, "split": ["train"] * 6 + ["val"] * 2, "angle": [0.5, 1] * 4}
    )
    assert found.left_out["patient"] == "says whom a row is of; --label patient makes it a label"


def test_codes_with_leading_zeros_are_texts(tmp_path: Path) -> None:
    found = survey(tmp_path, {"file": FILES, "code": ["007", "012"] * 4, "number": [f"0{n}" for n in range(8)]})
    assert found.labels == {"code": "category"}
    assert found.left_out == {"number": "8 different texts in 8 rows"}
    assert "column code has leading zeros, so its numbers are taken as texts" in found.notes


@pytest.mark.parametrize(
    "columns", ["xmin,ymin,xmax,ymax", "x_min,y_min,x_max,y_max", "bbox_x,bbox_y,bbox_w,bbox_h", "x1,y1,x2,y2"]
)
def test_a_table_with_one_row_a_box_is_refused(columns: str, tmp_path: Path) -> None:
    boxes = {name: [1, 2, 3, 4] * 4 for name in columns.split(",")}
    says = f"all.csv' has several rows for one picture, each with a box in {', '.join(boxes)}: 16 rows for 8 pictures; "
    with pytest.raises(ConfigError, match=says):
        survey(tmp_path, {"file": FILES * 2, **boxes})
    assert survey(tmp_path, {"file": FILES, **{name: cells[:8] for name, cells in boxes.items()}}).labels


def test_several_rows_of_one_picture_are_said_and_whether_their_labels_differ(tmp_path: Path) -> None:
    same = survey(tmp_path, {"file": FILES * 2, "kind": ["x", "y"] * 8, "angle": [0.5, 1] * 8})
    assert same.notes == ("8 rows name a picture that is already in the list: each row is a sample of its own",)
    other = survey(tmp_path, {"file": FILES * 2, "kind": ["x", "y"] * 4 + ["y", "x"] * 4, "angle": [0.5, 1] * 8})
    assert other.notes[0].startswith(
        "8 rows name a picture that an earlier row names, with different values of kind: each row is a sample"
    )


def test_labels_root_and_encoding_are_taken_as_given(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a", {"file": FILES, "patient": PEOPLE, "kind": ["x", "y"] * 4}, images="far/away")
    chosen = StarterChoices(tmp_path / "a" / "far" / "away", ("patient",), "cp1252")
    found = survey_table(path, chosen)
    assert (found.labels, found.left_out) == ({"patient": "category"}, {"kind": "is not named by --label"})
    source = {"path": str(path), "image": "file", "root": str(chosen.root), "encoding": "cp1252"}
    assert found.sources["train"] == {**source, "part": "train"}
    with pytest.raises(ConfigError, match=r"--label: .*all.csv' has no column 'Kind'; .*; did you mean 'kind'?"):
        survey_table(path, StarterChoices(labels=("Kind",)))
    with pytest.raises(ConfigError, match=r"--label: column 'file' of .* can be no label: names the pictures"):
        survey_table(path, StarterChoices(labels=("file",)))
