"""Checksums change with every byte, and not with the way in which rows are split into batches."""

from __future__ import annotations

import numpy as np
import pytest

from streamd.cli.pack.batches import PackChecksum, compute_blob_checksums, compute_row_checksums


def rows(count: int, nbytes: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return np.random.default_rng(nbytes).integers(0, 256, (count, nbytes), dtype=np.uint8)


@pytest.mark.parametrize("nbytes", [1, 8, 75, 3072])
def test_a_change_of_any_byte_of_a_row_changes_its_checksum_alone(nbytes: int) -> None:
    before = rows(3, nbytes)
    for place in range(nbytes):
        after = before.copy()
        after[1, place] ^= 1
        assert (compute_row_checksums(after) != compute_row_checksums(before)).tolist() == [False, True, False]


def test_swapped_words_and_bytes_change_the_checksum() -> None:
    row = np.arange(75, dtype=np.uint8)[None]
    assert compute_row_checksums(np.roll(row, 8)) != compute_row_checksums(row)
    assert compute_row_checksums(
        np.concatenate([row[:, :73], row[:, 74:], row[:, 73:74]], axis=1)
    ) != compute_row_checksums(row)


@pytest.mark.parametrize("nbytes", [0, 100, 16_384, 20_003])
def test_a_blob_of_any_length_has_a_checksum_that_sees_its_first_and_last_byte(nbytes: int) -> None:
    blob = bytes(rows(1, max(nbytes, 1))[0, :nbytes])
    (plain,) = compute_blob_checksums([blob])
    assert (plain,) == tuple(compute_blob_checksums([memoryview(blob)]))
    for place in {0, nbytes - 1} if nbytes else ():
        other = bytearray(blob)
        other[place] ^= 1
        assert compute_blob_checksums([bytes(other)])[0] != plain


def test_the_checksum_does_not_depend_on_how_rows_are_split_into_calls() -> None:
    sums = compute_row_checksums(rows(9, 24))
    assert PackChecksum().with_added_rows(sums) == PackChecksum().with_added_rows(sums[:4]).with_added_rows(
        sums[4:4]
    ).with_added_rows(sums[4:])


def test_reordered_or_missing_rows_change_the_checksum() -> None:
    sums = compute_row_checksums(rows(9, 24))
    assert PackChecksum().with_added_rows(sums[::-1]) != PackChecksum().with_added_rows(sums)
    assert PackChecksum().with_added_rows(sums[:-1]) != PackChecksum().with_added_rows(sums)
