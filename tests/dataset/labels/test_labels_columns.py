"""Only the wanted columns are read, and each row knows its line; `where` compares what cells mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.dataset.labels.cells import Column, SourceRows
from streamd.dataset.labels.columns import find_separators, read_columns, read_table_header, select_rows
from streamd.dataset.labels.encode import FaultCollector, raise_collected_faults
from streamd.dataset.sources import Scalar
from streamd.errors import ConfigError


def csv(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "all.csv"
    path.write_bytes(text.encode())
    return path


def test_only_the_wanted_columns_are_read(tmp_path: Path) -> None:
    table = read_table_header(csv(tmp_path, "a,b,c\n1,2,3\n4,5,6\n"), "x")
    assert table.column_names == ("a", "b", "c")
    read = read_columns(table, [2, 0, 2], FaultCollector())
    assert {position: cells.to_pylist() for position, cells in read.items()} == {0: ["1", "4"], 2: ["3", "6"]}


def test_cells_are_read_as_text(tmp_path: Path) -> None:
    table = read_table_header(csv(tmp_path, 'a\n007\nNA\n"x,y"\n'), "x")
    assert read_columns(table, [0], FaultCollector())[0].to_pylist() == ["007", "NA", "x,y"]


def test_a_header_may_have_line_breaks_and_space_around_names(tmp_path: Path) -> None:
    table = read_table_header(csv(tmp_path, '"long\nname", b \n1,2\n'), "x")
    assert table.column_names == ("long\nname", "b")
    assert read_columns(table, [1], FaultCollector())[1].to_pylist() == ["2"]
    assert table.format_location(0) == "all.csv, line 3"


@given(breaks=st.lists(st.sampled_from(["x", '"x\ny"', '"\n\n"', "x\n", "x\n\n"]), min_size=1, max_size=20))
def test_rows_are_located_by_the_lines_of_the_file(tmp_path_factory: pytest.TempPathFactory, breaks: list[str]) -> None:
    path = csv(
        tmp_path_factory.mktemp("lines"), "a,b\n" + "\n".join(f"{row},{text}" for row, text in enumerate(breaks))
    )
    table = read_table_header(path, "x")
    lines = path.read_text().split("\n")
    for row, cell in enumerate(read_columns(table, [0], FaultCollector())[0].to_pylist()):
        number = int(table.format_location(row).rpartition(" ")[2])
        assert lines[number - 1].startswith(f"{cell},")


def test_rows_of_parquet_are_counted_from_one(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "all.pq")
    assert read_table_header(tmp_path / "all.pq", "x").format_location(1) == "all.pq, row 2"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('a,b\n1,"x\n2,y\n', 2),
        ('a,b\n"1\n\n",x\n\n3,"y\n4,z', 6),
        ('a,b\n1,"x""\n2,y\n', 2),
        ('a,b\n1,x\n2,"y\n3,"z\n4,u\n', 3),
        ('a,b\n1,"x\n' + "2,y\n" * 600_000, 2),
    ],
    ids=range(5),
)
def test_an_unclosed_quote_is_reported_by_its_line(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(ConfigError, match=rf"x: all\.csv, line {line} opens a quote that is not closed where"):
        read_columns(read_table_header(csv(tmp_path, text), "x"), [0], FaultCollector())


@pytest.mark.parametrize("more", ["", "\n\n", '\n"two\nlines",z'])
def test_quotes_within_a_cell_are_read_as_text(tmp_path: Path, more: str) -> None:
    table = read_table_header(csv(tmp_path, f'a,b\n5" pipe,x\n"6"" pipe",y\n"7"up , "z"{more}'), "x")
    assert read_columns(table, [0], FaultCollector())[0].to_pylist()[:3] == ['5" pipe', '6" pipe', "7up "]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("a,b\n1,2,3\n4,5,6\n", "line 2 has 3 cells .*: '1,2,3' .also line 3 with 3.; give every column a name"),
        ("a,b\n1,2\n4,5,6\n", "line 3 has 3 cells .*; put quotes around cells that hold the separator"),
        ("a,b\n1,2\n4\n", "line 3 has 1 cell .*; add the cells that are missing"),
    ],
)
def test_rows_of_another_width_are_refused_with_the_remedy(tmp_path: Path, text: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy), raise_collected_faults() as faults:
        read_columns(read_table_header(csv(tmp_path, text), "x"), [0], faults)


def test_rows_after_a_very_long_cell_are_located(tmp_path: Path) -> None:
    assert (
        read_table_header(csv(tmp_path, f"a,b\n{'x' * 200_000},1\n2,3\n"), "x").format_location(1) == "all.csv, line 3"
    )


@pytest.mark.parametrize(
    ("head", "usual", "separators"),
    [
        ("path,angle\na.jpg,0.5\n", ",", ","),
        ("path;angle\na.jpg;0,5\nb.jpg;1\n", ",", ";"),
        ("path\tangle\na.jpg\t0,5\n", ",", "\t"),
        ("path|angle\na b.jpg|1\n", ",", "|"),
        ("path,angle\na.jpg,0.5\n", "\t", ","),
        ("path;x,y\na.jpg;1\nb.jpg;2\n", ",", ";"),  # the comma belongs to a name
        ('"path;x",y\na.jpg,1\n', ",", ","),  # quotes hide a mark
        ('path;"a\nb"\n\nx.jpg;1\n', ",", ";"),
        ("path\na,b.jpg\n", ",", ","),  # one column
        ("path,tags\na.jpg,x;y\nb.jpg,x\n", ",", ","),
        ("path;tags;angle\na.jpg;x\nb.jpg;x;1\n", ",", ";"),  # a row that lacks a cell
        ("path,a;b\nx,1;2\n", ",", ","),  # both fit: what the suffix says
        ("", ",", ","),
        ("path;a|b\nx;1|2\n", ",", ";|"),  # both fit, and the suffix says neither
    ],
)
def test_the_separator_is_the_one_that_header_and_rows_agree_on(head: str, usual: str, separators: str) -> None:
    assert find_separators(head, usual) == list(separators)


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
