"""Classes stored as 0 and 1 in lists, arrays, columns and texts; rows that are not one-hot are refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.source_configs import Filelist, Label, Table, bits, put, scanned

from streamd.core.spec import LabelSpec
from streamd.dataset.labels import convert
from streamd.dataset.labels.cells import Column, SourceRows
from streamd.dataset.labels.columns import build_array_column
from streamd.dataset.labels.convert import convert_labels
from streamd.dataset.manifest.types import ListedValues
from streamd.dataset.scan import share_classes
from streamd.errors import ConfigError

ONE_HOT = [[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
MULTI_HOT = [[0, 1, 1], [0, 0, 0], [1, 0, 0], [1, 1, 1]]


def column(cells: Any, what: str = "column 'y'") -> Column:
    return Column(
        cells, what, SourceRows(Path("t.csv"), lambda row: f"t.csv, line {row + 2}"), "streams.train.labels.y"
    )


def label(columns: Sequence[Column], **wanted: Any) -> tuple[ListedValues, LabelSpec]:
    values, specs, _ = convert_labels({"y": Label(**wanted)}, {"y": columns})
    return values["y"], specs["y"]


def stores(rows: list[list[int]]) -> dict[str, list[Column]]:
    """The same numbers as each kind of source has them."""
    array = np.array(rows)
    as_array = {
        f"array of {dtype}": [build_array_column(array.astype(dtype), Path("y.npy"), "y.npy", "labels.y", len(rows))]
        for dtype in ("u1", "?", ">i4", "f4", "f8")
    }
    lists = {
        "lists": [column(pa.chunked_array([pa.array(rows[:1]), pa.array(rows[1:])]))],
        "lists of fractions": [column(pa.array(array.astype(float).tolist()))],
        "words": [column(pa.array([" ".join(map(str, row)) for row in rows]))],
        "texts of lists": [column(pa.array([f"{[float(each) for each in row]}" for row in rows]))],
    }
    return as_array | lists


KINDS = sorted(stores(ONE_HOT))


@pytest.mark.parametrize("kind", KINDS)
def test_one_hot_rows_become_the_numbers_of_their_classes(kind: str) -> None:
    values, spec = label(stores(ONE_HOT)[kind], type="category")
    assert (values.tolist(), values.dtype.name, spec.width) == ([2, 0, 1, 2], "int64", 0)
    assert (spec.classes, spec.counts) == ((0, 1, 2), (1, 1, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_several_ones_become_tags(kind: str) -> None:
    values, spec = label(stores(MULTI_HOT)[kind], type="tags")
    assert bits(values, spec.width) == MULTI_HOT
    assert (spec.classes, spec.counts, spec.width) == ((0, 1, 2), (2, 2, 2), 3)


@pytest.mark.parametrize(("kind", "rows"), [("category", ONE_HOT), ("tags", MULTI_HOT)])
def test_several_columns_give_their_names_to_the_classes_in_their_order(kind: str, rows: list[list[int]]) -> None:
    names = ("dog", "cat", "bird")
    columns = [column(pa.array(np.array(rows)[:, place]), f"column {name!r}") for place, name in enumerate(names)]
    values, specs, fixed = convert_labels({"y": Label(kind, names)}, {"y": columns})
    assert (specs["y"].classes, fixed) == (names, frozenset({"y"}))
    assert (values["y"].tolist() if kind == "category" else bits(values["y"], 3)) == (
        [2, 0, 1, 2] if kind == "category" else rows
    )


def test_columns_of_classes_are_shared_with_a_stream_that_names_them(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    (tmp_path / "t.csv").write_text("file,dog,cat\na.jpg,0,1\na.jpg,1,0\n")
    (tmp_path / "v.csv").write_text("file,y\na.jpg,cat\na.jpg,cat\n")
    hot = scanned(Table(tmp_path / "t.csv"), y=Label("category", ("dog", "cat")))
    shared = share_classes({"train": hot, "validation": scanned(Table(tmp_path / "v.csv"), y=Label())})
    assert [each.specs["y"].classes for each in shared.values()] == [("dog", "cat")] * 2
    assert [each.labels["y"].tolist() for each in shared.values()] == [[1, 0], [1, 1]]
    assert [each.specs["y"].counts for each in shared.values()] == [(1, 1), (0, 2)]


@pytest.mark.parametrize("between", [" ", ",", "\t"])
def test_numbers_after_the_paths_of_a_list_are_one_class(tmp_path: Path, between: str) -> None:
    put(tmp_path, "a.jpg")
    lines = (f"a.jpg\t{between.join(map(str, row))}\n" for row in ONE_HOT)
    (tmp_path / "l.txt").write_text("".join(lines))
    assert scanned(Filelist(tmp_path / "l.txt")).labels["label"].tolist() == [2, 0, 1, 2]


def test_configured_classes_are_in_the_order_of_the_numbers() -> None:
    values, spec = label(stores(ONE_HOT)["lists"], type="category", classes=("c", "a", "b"))
    assert (values.tolist(), spec.classes) == ([2, 0, 1, 2], ("c", "a", "b"))
    with pytest.raises(ConfigError, match=r"labels\.y: classes has 2 classes, but column 'y' holds 3 numbers per row"):
        label(stores(ONE_HOT)["lists"], type="category", classes=("a", "b"))


@pytest.mark.parametrize(
    ("row", "kind", "told"),
    [
        (
            [0, 0, 0],
            "category",
            "t.csv, line 3 holds [0, 0, 0], which contains 0 ones; a category needs exactly one 1 in each row",
        ),
        (
            [1, 0, 1],
            "category",
            "t.csv, line 3 holds [1, 0, 1], which contains 2 ones; a category needs exactly one 1 in each row",
        ),
        (
            [0.25, 0, 0.75],
            "category",
            "t.csv, line 3 holds [0.25, 0, 0.75]; several numbers per row give a class only if",
        ),
        ([0, 0, 2], "category", "t.csv, line 3 holds [0, 0, 2]; several numbers"),
        ([0, 1], "category", "t.csv, line 3: column 'y' holds 2 numbers, but the first row holds 3"),
        (None, "category", "t.csv, line 3: column 'y' holds 0 numbers, but the first row holds 3"),
        ([0, None, 1], "category", "t.csv, line 3: column 'y' has no value"),
        (
            [1, 0, 1],
            "string",
            "labels.y.from: several numbers per row make a vector of type float or int, a category or",
        ),
    ],
)
def test_a_row_that_is_not_one_hot_is_refused_with_its_values(row: list[float] | None, kind: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        label([column(pa.array([[0.0, 0, 1], row, [1, 0, 0]]))], type=kind)
    assert told in str(caught.value)


def test_soft_labels_are_refused_as_tags() -> None:
    soft = build_array_column(np.array([[0.1, 0.9], [1, 0]], "f4"), Path("y.npy"), "y.npy", "labels.y", 2)
    with pytest.raises(ConfigError, match=r"y\.npy\[0\] holds \[0\.1, 0\.9\]; .* use type: float for a vector or for"):
        label([soft], type="tags")


def test_a_bad_row_in_a_later_block_is_named_by_its_number_and_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "_BLOCK_NUMBERS", 30)
    rows = np.eye(10, dtype=np.uint8)[np.arange(20) % 10]
    assert label([build_array_column(rows, Path("y"), "y", "y", 20)], type="category")[0].tolist() == [*range(10)] * 2
    rows[17, 3] = 1
    with pytest.raises(ConfigError, match=r"y\[17\] holds \[0, 0, 0, 1, 0, 0, 0, 1, \.\.\.\], which contains 2 ones"):
        label([build_array_column(rows, Path("y"), "y", "y", 20)], type="category")


@pytest.mark.parametrize(
    ("cells", "kind", "classes"),
    [
        (["0 1", "1 1", "1 0"], "category", ("0 1", "1 0", "1 1")),
        (["0 1", "cat", "1 0"], "category", ("0 1", "1 0", "cat")),
        (["1", "0", "1"], "category", (0, 1)),
        (["0 1", "1", "1 0"], "tags", (0, 1)),
        ([[1], [0], [1]], "tags", (0, 1)),
        ([[1, 0], [3, 5]], "tags", (0, 1, 3, 5)),
        ([["a", "b"], ["b", "c"]], "tags", ("a", "b", "c")),
    ],
)
def test_texts_that_only_resemble_one_hot_rows_are_class_names(
    cells: Any, kind: str, classes: tuple[object, ...]
) -> None:
    assert label([column(pa.array(cells))], type=kind)[1].classes == classes
