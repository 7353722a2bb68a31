"""The label type of a column of texts."""

from __future__ import annotations

import pyarrow as pa
import pytest

from streamd.daemon.starter.survey_labels import guess_label_type


@pytest.mark.parametrize(
    ("name", "cells", "type_", "left_out"),
    [
        ("angle", ["0.5", "-1", "+2e-3", ".25"], "float", ""),
        ("age", ["31", "4", "15", "31"], "int", ""),
        ("label", ["3", "1", "1", "0"], "category", ""),
        ("class_id", ["3", "1", "2", "0"], "category", ""),
        ("weather", ["sun", "rain", "sun", "rain"], "category", ""),
        ("only two", ["sun", "rain", "sun"], "category", ""),
        ("remark", ["a", "b", "c", "d"], None, "4 different texts in 4 rows"),
        ("place", ["x", "x", "x"], None, "'x' in every row"),
        ("note", ["", "", ""], None, "empty"),
        ("angle", ["0.5", "", "1", ""], None, "2 rows of 4 have no value"),
        ("angle", ["0.5", "1.5", "2.5", "NA", "3.5"], None, "no number in 1 row, such as 'NA'"),
        ("kind", ["0", "1", "0", "1", "nan"], None, "no number in 1 row, such as 'nan'"),
        ("seen", ["['cat', 'dog']", "[]", ""], "tags", ""),
        ("__index_level_0__", ["3", "3", "1"], None, "the index of a data frame, which numbers its rows"),
        ("Unnamed: 0", ["3", "3", "1"], None, "the index of a data frame, which numbers its rows"),
        ("image_id", ["12", "3", "44"], None, "numbers the rows"),
        ("frame", ["7", "8", "9"], None, "numbers the rows"),
        ("count", ["7", "9", "8"], "int", ""),
    ],
)
def test_cells_decide_the_label_type_and_column_names_only_that_of_whole_numbers(
    name: str, cells: list[str], type_: str | None, left_out: str
) -> None:
    guess = guess_label_type(name, pa.array(cells, pa.large_string()))
    assert (guess.type, guess.left_out) == (type_, left_out)


def test_more_texts_than_classes_are_left_out() -> None:
    texts = pa.array([f"t{number % 1001}" for number in range(4004)], pa.large_string())
    assert guess_label_type("label", texts).type is None
