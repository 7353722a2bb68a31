"""`where` compares what cells mean, whatever type the table gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamd.dataset.labels.cells import Column, SourceRows
from streamd.dataset.labels.columns import select_rows
from streamd.dataset.sources import Scalar
from streamd.errors import ConfigError

ROWS = SourceRows(Path("all.csv"), lambda row: f"all.csv, line {row + 2}")


def column(cells: Any, name: str = "x") -> Column:
    return Column(pa.chunked_array([pa.array(cells)]), f"column {name!r}", ROWS, f"source.where.{name}")


@pytest.mark.parametrize(
    ("value", "cells", "rows"),
    [
        ("train", ["train", "test", " train ", "Train"], [0, 2]),
        ("3", ["3", "3.0", "03"], [0]),
        ("3", pa.array([3, 4]), [0]),
        ("", ["", None, "x"], [0, 1]),
        (3, ["3", "3.0", "+3", "03", "3x", "", "30e-1", "-3"], [0, 1, 2, 3, 6]),
        (3, pa.array([3, 4, None]), [0]),
        (3, pa.array([3.0, 3.5]), [0]),
        (0.1, pa.array([0.1, 0.2], pa.float32()), [0]),
        ("0.5", pa.array([0.5, None, float("nan")]), [0]),
        ("", pa.array([0.5, None, float("nan")]), [1, 2]),
        (0.5, ["0.5", ".5", "5e-1", "0.50001"], [0, 1, 2]),
        (2**60 + 1, pa.array([2**60, 2**60 + 1]), [1]),
        (-1, ["-1", "1", "- 1"], [0]),
        (True, ["true", "TRUE", "True", "1", "yes", "no", "2", ""], [0, 1, 2, 3, 4]),
        (False, ["true", "false", "0", "No", "-0"], [1, 2, 3]),
        (True, pa.array([True, False, None]), [0]),
        (False, pa.array([1, 0]), [1]),
        ("b", pa.array(["a", "b"]).dictionary_encode(), [1]),
        ("1970-01-01", pa.array([0, 1], pa.date32()), [0]),
    ],
)
def test_rows_whose_cells_equal_the_value_are_selected(value: Scalar, cells: Any, rows: list[int]) -> None:
    assert select_rows({"x": value}, {"x": column(cells)}).tolist() == rows


@pytest.mark.parametrize("value", [2**53, 2**53 + 1, 2**62, 10**400])
def test_whole_numbers_beyond_the_precision_of_floats_are_distinguished(value: int) -> None:
    cells = [str(value), str(value + 1), str(value - 1)]
    assert select_rows({"x": value}, {"x": column(cells)}).tolist() == [0]


def test_all_conditions_must_be_met() -> None:
    columns = {"split": column(["a", "a", "b"], "split"), "fold": column(["1", "2", "1"], "fold")}
    assert select_rows({"split": "a", "fold": 1}, columns).tolist() == [0]
    with pytest.raises(
        ConfigError, match=r"source\.where: no row .* \(it has 1 with split 'b', 1 with fold 2\); leave one"
    ):
        select_rows({"split": "b", "fold": 2}, columns)


def test_a_value_that_no_row_has_is_refused_with_the_values_of_the_column() -> None:
    says = (
        r"source\.where\.x: no row of all\.csv has 'trian' in column 'x'; its values, and rows of each: "
        r"'train' 2, 'test' 1; did you mean 'train'\?"
    )
    with pytest.raises(ConfigError, match=says):
        select_rows({"x": "trian"}, {"x": column(["train", "test", "train"])})
    with pytest.raises(ConfigError, match=r"'0' 1, '1' 1, '10' 1, .* and 30 other values"):
        select_rows({"x": 77}, {"x": column([str(number) for number in range(50)])})


def test_a_condition_on_a_column_of_lists_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"source\.where\.x: column 'x' of all\.csv holds list"):
        select_rows({"x": 1}, {"x": column([[1], [2]])})
