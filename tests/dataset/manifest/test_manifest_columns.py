"""Names come back from their columns, whatever folders they lie in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.dataset.manifest.columns import FileNames, build_name_columns, narrow_integers

PARTS = st.lists(st.binary(min_size=0, max_size=5), min_size=1, max_size=4)


@given(st.lists(PARTS.map(b"/".join), max_size=40))
def test_any_names_come_back(files: list[bytes]) -> None:
    names = FileNames(build_name_columns(files))
    assert [names.file_name(row) for row in range(len(files))] == files


def test_each_folder_is_there_once_with_its_slash() -> None:
    columns = build_name_columns([b"b/x.jpg", b"a/x.jpg", b"b/y.jpg", b"top.jpg", b"b/c/x.jpg"])
    assert columns["folders"].tobytes() == b"b/a/b/c/"
    assert columns["folder"].tolist() == [0, 1, 0, 2, 3]
    assert columns["names"].tobytes() == b"x.jpgx.jpgy.jpgtop.jpgx.jpg"


def test_a_file_beyond_the_last_is_refused() -> None:
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
def test_whole_numbers_become_as_narrow_as_their_edges_allow(edges: tuple[int, int], kind: str) -> None:
    values = np.array([*edges, 0], dtype=np.int64)
    assert narrow_integers(values).dtype == kind
    assert narrow_integers(values).tolist() == values.tolist()


@pytest.mark.parametrize("values", [np.array([0.5, 1.0], np.float32), np.array([1, 2], np.uint8), np.array([b"ab"])])
def test_other_values_stay_what_they_are(values: np.ndarray) -> None:
    assert narrow_integers(values).dtype == values.dtype
