"""Cells become text, levels or numbers without losing a digit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streamd.dataset.labels.cells import (
    Column,
    SourceRows,
    convert_to_nonempty_texts,
    convert_to_numbers,
    convert_to_text_pieces,
    convert_to_texts,
    encode_distinct_texts,
    flatten_lists,
)
from streamd.errors import ConfigError

ROWS = SourceRows(Path("all.parquet"), lambda row: f"all.parquet, row {row + 1}")


def column(values: list[Any], dtype: Any = None) -> Column:
    cells = pa.chunked_array([pa.array(values[:1], dtype), pa.array(values[1:], dtype)])
    return Column(cells, "column 'x'", ROWS, "key")


def test_text_of_any_chunks_is_one_array_without_space_around_it() -> None:
    assert convert_to_nonempty_texts(column([" a", "b "])).to_pylist() == ["a", "b"]


@pytest.mark.parametrize(
    "dtype", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_text_of_any_type_comes_in_pieces(dtype: Any) -> None:
    for values, trimmed in ((["a", "bc"], ["a", "bc"]), ([" a", None], ["a", ""])):
        pieces = convert_to_text_pieces(column(values, dtype))
        assert [text for piece in pieces for text in piece.to_pylist()] == trimmed
        assert {piece.type for piece in pieces} == {pa.large_string()}


def test_levels_are_distinct_and_codes_point_at_them() -> None:
    levels, codes = encode_distinct_texts(convert_to_nonempty_texts(column(["b", "a", "b"])))
    assert [levels[code] for code in codes] == ["b", "a", "b"]
    assert len(levels) == 2
    assert codes.dtype == np.int64


def test_large_whole_numbers_keep_every_digit() -> None:
    big = 2**60 + 1
    for cells in (column([big, 1]), column([str(big), "1"])):
        assert convert_to_numbers(cells, "int").tolist() == [big, 1]
    assert convert_to_numbers(column([str(big), "1.0", "-2."]), "int").tolist() == [big, 1, -2]


@pytest.mark.parametrize("dtype", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_floats_are_texts_as_a_table_of_text_would_hold_them(dtype: Any) -> None:
    cells = column(np.array([0.5, 2, 40000], dtype.to_pandas_dtype()).tolist(), dtype)
    assert convert_to_nonempty_texts(cells).to_pylist() == ["0.5", "2", "40000"]


def test_nan_is_an_empty_text() -> None:
    assert convert_to_texts(column([1.5, float("nan"), None], pa.float64())).to_pylist() == ["1.5", "", ""]
    with pytest.raises(ConfigError, match="row 2: column 'x' holds NaN, which is not a number"):
        convert_to_nonempty_texts(column([1.5, float("nan")]))


def test_numbers_beyond_int64_are_refused() -> None:
    with pytest.raises(ConfigError, match="which is not a number"):
        convert_to_numbers(column([2**63, 1], pa.uint64()), "int")


def test_a_long_value_that_is_not_a_number_is_shortened() -> None:
    with pytest.raises(ConfigError, match=r"row 2: column 'x' holds 'y{80}', which is not a number"):
        convert_to_numbers(column(["1", "y" * 200]), "float")


@pytest.mark.parametrize("gap", [None, "", "  "])
def test_an_empty_cell_is_refused_where_a_text_is_needed(gap: str | None) -> None:
    with pytest.raises(ConfigError, match="row 2: column 'x' has no value"):
        convert_to_nonempty_texts(column(["a", gap], pa.string()))


@pytest.mark.parametrize("dtype", [pa.list_(pa.int32()), pa.large_list(pa.int32())], ids=str)
def test_elements_of_lists_know_their_rows(dtype: Any) -> None:
    elements, owners = flatten_lists(column([[1, 2], [], None, [3]], dtype))
    assert elements.cells.to_pylist() == [1, 2, 3]
    assert owners.tolist() == [0, 0, 3]
    assert elements.rows.format_location(2) == "all.parquet, row 4"
