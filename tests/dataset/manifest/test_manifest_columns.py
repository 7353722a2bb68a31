"""Columns of a manifest: names in their folders, narrow numbers, and texts in blocks."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.dataset.manifest.columns import FileNames, TextColumn, build_name_columns, narrow_integers

PARTS = st.lists(st.binary(min_size=0, max_size=5), min_size=1, max_size=4)


@given(st.lists(PARTS.map(b"/".join), max_size=40))
def test_any_names_are_read_back(files: list[bytes]) -> None:
    names = FileNames(build_name_columns(files))
    assert [names.file_name(row) for row in range(len(files))] == files


def test_each_folder_is_stored_once_with_its_slash() -> None:
    columns = build_name_columns([b"b/x.jpg", b"a/x.jpg", b"b/y.jpg", b"top.jpg", b"b/c/x.jpg"])
    assert columns["folders"].tobytes() == b"b/a/b/c/"
    assert columns["folder"].tolist() == [0, 1, 0, 2, 3]
    assert columns["names"].tobytes() == b"x.jpgx.jpgy.jpgtop.jpgx.jpg"


def test_a_row_beyond_the_last_is_refused() -> None:
    with pytest.raises(IndexError):
        FileNames(build_name_columns([b"a/x.jpg"])).file_name(1)


@pytest.mark.parametrize(
    ("edges", "kind"),
    [
        ((0, 255), "u1"),
        ((0, 256), "u2"),
        ((-1, 127), "i1"),
        ((-1, 128), "i2"),
        ((0, 2**32 - 1), "u4"),
        ((0, 2**32), "i8"),
        ((-1, 2**32 - 1), "i8"),
        ((-(2**63), 2**63 - 1), "i8"),
    ],
)
def test_whole_numbers_are_narrowed_as_far_as_their_bounds_allow(edges: tuple[int, int], kind: str) -> None:
    values = np.array([*edges, 0], dtype=np.int64)
    assert narrow_integers(values).dtype == kind
    assert narrow_integers(values).tolist() == values.tolist()


@pytest.mark.parametrize("values", [np.array([0.5, 1.0], np.float32), np.array([1, 2], np.uint8), np.array([b"ab"])])
def test_other_values_are_not_narrowed(values: np.ndarray) -> None:
    assert narrow_integers(values).dtype == values.dtype


TEXTS: Final = ["", "a", "käse", "\U0001f600", "abc", "", "z"]


def column(*pieces: list[str]) -> TextColumn:
    return TextColumn([pa.array(each, pa.large_string()) for each in pieces], 5)


@pytest.fixture(params=[1, 2, 3, 100])
def rows_a_block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("streamd.dataset.manifest.columns._BLOCK_BYTES", 5 * request.param)
    return int(request.param)


@pytest.mark.parametrize("cut", [0, 1, 4, 7])
def test_the_blocks_of_a_text_column_make_up_its_array(cut: int, rows_a_block: int) -> None:
    texts = column(TEXTS[:cut], [], TEXTS[cut:])
    whole = np.array([text.encode() for text in TEXTS], "S5")
    blocks = list(texts.iterate_blocks())
    assert all(0 < len(block) <= rows_a_block for block in blocks)
    assert b"".join(block.tobytes() for block in blocks) == whole.tobytes()
    assert (texts.shape, texts.dtype, texts.nbytes) == (whole.shape, whole.dtype, whole.nbytes)
    assert np.array_equal(np.asarray(texts), whole)
    assert texts.tolist() == whole.tolist()


@pytest.mark.usefixtures("rows_a_block")
def test_rows_selected_twice_equal_those_of_the_array() -> None:
    texts, whole = column(TEXTS[:3], TEXTS[3:5], TEXTS[5:]), np.array([text.encode() for text in TEXTS], "S5")
    for rows in ([0, 2, 3, 6], [4], [], [1, 2, 3, 4, 5]):
        picked = np.array(rows, np.int64)
        assert texts[picked].tolist() == whole[picked].tolist()
        assert texts[picked].shape == (len(rows),)
    odd = np.array([1, 3, 5], np.int64)
    assert texts[odd][np.array([0, 2], np.int64)].tolist() == [b"a", b""]
    assert column().tolist() == []
