"""Cells that hold lists of boxes or points: JSON text, lists of Parquet, and arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.boxed_pictures import column

from streamd.dataset.labels.boxes import BOX_FORM, POINT_FORM, read_cell_lists
from streamd.dataset.labels.columns import build_array_column
from streamd.errors import ConfigError


@pytest.mark.parametrize(
    "cells",
    [
        pa.array(["[[1, 2, 3, 4, 5], [6, 7.5, 8, 9]]", "", "[]", None, "[[0, 0, 1, 1, 2]]"]),
        pa.array([[[1, 2, 3, 4, 5], [6, 7.5, 8, 9]], [], None, [], [[0, 0, 1, 1, 2]]]),
        pa.chunked_array(
            [pa.array([[[1, 2, 3, 4, 5], [6, 7.5, 8, 9]], []]), pa.array([[], None, [[0.0, 0, 1, 1, 2]]])]
        ),
        pa.array([[["1", "2", "3", "4", "5"], ["6", "7.5", "8", "9"]], [], [], None, [["0", "0", "1", "1", "2"]]]),
    ],
    ids=["JSON", "lists", "chunks", "lists of texts"],
)
def test_boxes_are_read_alike_from_text_and_from_lists(cells: Any) -> None:
    found = read_cell_lists(column(cells), BOX_FORM)
    assert found.counts.tolist() == [2, 0, 0, 0, 1]
    assert found.numbers.tolist() == [[1, 2, 3, 4], [6, 7.5, 8, 9], [0, 0, 1, 1]]
    names = found.names or [None] * 3
    assert [name or f"{extra:g}" for name, extra in zip(names, found.extras, strict=True)] == ["5", "0", "2"]
    assert found.owners.tolist() == [0, 0, 4]


def test_a_column_without_any_box_is_read() -> None:
    for cells in (pa.array([[], []]), pa.array([None, None]), pa.array(["", "[]"])):
        assert read_cell_lists(column(cells), BOX_FORM).counts.tolist() == [0, 0]


def test_rows_of_minus_one_in_an_array_are_no_boxes() -> None:
    array = np.full((3, 2, 5), -1.0)
    array[0, 0] = 1, 2, 3, 4, 1
    array[2] = [[5, 6, 7, 8, 0], [1, 1, 2, 2, 1]]
    found = read_cell_lists(build_array_column(array, Path("b.npy"), "b.npy", "labels.b", 3), BOX_FORM)
    assert found.counts.tolist() == [1, 0, 2]
    assert found.extras.tolist() == [1, 0, 1]


def test_a_point_is_visible_unless_its_third_element_is_0() -> None:
    found = read_cell_lists(column(pa.array(["[[1, 2], [3, 4, 0], [5, 6, 2], [7, 8, false]]"])), POINT_FORM)
    assert found.numbers.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert (found.extras != 0).tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        (pa.array(["[]", "[1, 2, 3, 4]"]), "'[1, 2, 3, 4]'"),
        (pa.array(["[]", "{}"]), "'{}'"),
        (pa.array(["[]", "1 2 3 4"]), "'1 2 3 4'"),
        (pa.array(["[]", "[[1, 2, 3]]"]), "[1.0, 2.0, 3.0]"),
        (pa.array(["[]", "[[1, 2, 3, 4, 5, 6]]"]), "[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]"),
        (pa.array(["[]", '[["a", 2, 3, 4]]']), "['a', 2.0, 3.0, 4.0]"),
        (pa.array([[], [[1, 2, 3]]]), "[1, 2, 3]"),
        (pa.array([[], [1, 2, 3, 4]]), "1"),
        (pa.array([[], [{"x": 1}]]), "{'x': 1}"),
    ],
)
def test_another_form_is_refused_with_its_line_and_the_right_form(cells: Any, shown: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_cell_lists(column(cells), BOX_FORM)
    assert str(caught.value) == (
        f"labels.b: all.csv, line 3: column 'b' holds {shown}, but a cell needs a list of boxes, each a list itself: "
        "[[x0, y0, x1, y1, class], ...]; correct it"
    )


def test_a_column_of_numbers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"column 'b' holds double, but a cell needs a list of points"):
        read_cell_lists(column(pa.array([1.5])), POINT_FORM)
