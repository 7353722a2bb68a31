"""A label of texts is the same in blocks as at once."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pytest

from streamd.dataset.manifest.columns import TextColumn

TEXTS: Final = ["", "a", "käse", "\U0001f600", "abc", "", "z"]


def column(*pieces: list[str]) -> TextColumn:
    return TextColumn([pa.array(each, pa.large_string()) for each in pieces], 5)


@pytest.fixture(params=[1, 2, 3, 100])
def rows_a_block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("streamd.dataset.manifest.columns._BLOCK_BYTES", 5 * request.param)
    return int(request.param)


@pytest.mark.parametrize("cut", [0, 1, 4, 7])
def test_blocks_together_are_the_array_of_all_texts(cut: int, rows_a_block: int) -> None:
    texts = column(TEXTS[:cut], [], TEXTS[cut:])
    whole = np.array([text.encode() for text in TEXTS], "S5")
    blocks = list(texts.iterate_blocks())
    assert all(0 < len(block) <= rows_a_block for block in blocks)
    assert b"".join(block.tobytes() for block in blocks) == whole.tobytes()
    assert (texts.shape, texts.dtype, texts.nbytes) == (whole.shape, whole.dtype, whole.nbytes)
    assert np.array_equal(np.asarray(texts), whole)
    assert texts.tolist() == whole.tolist()


def test_some_rows_and_some_of_these_are_those_of_the_array(rows_a_block: int) -> None:
    del rows_a_block
    texts, whole = column(TEXTS[:3], TEXTS[3:5], TEXTS[5:]), np.array([text.encode() for text in TEXTS], "S5")
    for rows in ([0, 2, 3, 6], [4], [], [1, 2, 3, 4, 5]):
        picked = np.array(rows, np.int64)
        assert texts[picked].tolist() == whole[picked].tolist()
        assert texts[picked].shape == (len(rows),)
    odd = np.array([1, 3, 5], np.int64)
    assert texts[odd][np.array([0, 2], np.int64)].tolist() == [b"a", b""]
    assert column().tolist() == []
