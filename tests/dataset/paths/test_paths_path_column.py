"""A column of paths behaves like a list of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.dataset.manifest import columns
from streamd.dataset.manifest.columns import PathColumn


def column_of(names: list[bytes]) -> PathColumn:
    return PathColumn(memoryview(b"".join(names)), np.cumsum([0, *map(len, names)], dtype=np.int64))


@given(st.lists(st.binary(max_size=6), max_size=20), st.slices(20), st.dictionaries(st.integers(0, 19), st.binary()))
def test_a_path_column_behaves_like_a_list(names: list[bytes], some: slice, others: dict[int, bytes]) -> None:
    column = column_of(names)
    for row, name in others.items():
        if row < len(names):
            column[row] = names[row] = name
    assert column == names
    assert column[some] == names[some]
    assert [column[row] for row in range(-len(names), len(names))] == names * 2
    assert b"".join(column) == b"".join(names)


def test_names_of_several_blocks_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_BLOCK_NAMES", 3)
    names = [b"%d" % row for row in range(11)]
    assert list(column_of(names)) == names


@pytest.mark.parametrize("row", [3, -4])
def test_a_row_out_of_range_is_refused(row: int) -> None:
    with pytest.raises(IndexError):
        column_of([b"a", b"b", b"c"])[row]


def test_columns_with_other_names_or_another_length_are_not_equal() -> None:
    assert column_of([b"a", b"b"]) != [b"a", b"c"]
    assert column_of([b"a", b"b"]) != [b"a"]
    assert column_of([b"1"]) != 1
