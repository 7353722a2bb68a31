"""Checksums: every change is seen, and how the rows are cut into batches is not."""

from __future__ import annotations

import numpy as np
import pytest

from streamd.cli.pack.checksums import Tally, blob_sums, row_sums


def rows(count: int, nbytes: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return np.random.default_rng(nbytes).integers(0, 256, (count, nbytes), dtype=np.uint8)


@pytest.mark.parametrize("nbytes", [1, 8, 75, 3072])
def test_a_change_of_any_byte_of_a_row_changes_its_checksum_alone(nbytes: int) -> None:
    before = rows(3, nbytes)
    for place in range(nbytes):
        after = before.copy()
        after[1, place] ^= 1
        assert (row_sums(after) != row_sums(before)).tolist() == [False, True, False]


def test_words_and_bytes_that_trade_places_are_seen() -> None:
    row = np.arange(75, dtype=np.uint8)[None]
    assert row_sums(np.roll(row, 8)) != row_sums(row)
    assert row_sums(np.concatenate([row[:, :73], row[:, 74:], row[:, 73:74]], axis=1)) != row_sums(row)


@pytest.mark.parametrize("nbytes", [0, 100, 16_384, 20_003])
def test_a_blob_of_any_length_has_a_checksum_that_sees_its_first_and_last_byte(nbytes: int) -> None:
    blob = bytes(rows(1, max(nbytes, 1))[0, :nbytes])
    (plain,) = blob_sums([blob])
    assert (plain,) == tuple(blob_sums([memoryview(blob)]))
    for place in {0, nbytes - 1} if nbytes else ():
        other = bytearray(blob)
        other[place] ^= 1
        assert blob_sums([bytes(other)])[0] != plain


def test_a_tally_is_the_same_however_the_rows_are_cut() -> None:
    sums = row_sums(rows(9, 24))
    assert Tally().plus(sums) == Tally().plus(sums[:4]).plus(sums[4:4]).plus(sums[4:])


def test_a_tally_sees_rows_that_trade_places_or_are_missing() -> None:
    sums = row_sums(rows(9, 24))
    assert Tally().plus(sums[::-1]) != Tally().plus(sums)
    assert Tally().plus(sums[:-1]) != Tally().plus(sums)
