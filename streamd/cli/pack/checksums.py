"""Checksums that compare what was written with what is read back: one for each row, and one over all rows. Pure.

They detect failures of a disk or of memory, and not deliberate changes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.core.permutation import Words, mix64

_WORD_BYTES: Final = 8
_MIN_SUMMED_WORDS: Final = 2048  # of a blob: below, NumPy's call costs more than the CRC


def compute_row_checksums(rows: npt.NDArray[np.uint8]) -> Words:
    """Returns a checksum of each row of a C-contiguous array (n, ...): a weighted sum of its words, (n,) uint64.

    The weights are odd, so a change of any single word is detected, and all different, so swapped words are too. The
    sum costs a third of a CRC, which would cost an eighth of decoding a small JPEG.
    """
    flat = rows.reshape(len(rows), prod(rows.shape[1:]))
    whole = flat.shape[1] // _WORD_BYTES * _WORD_BYTES
    weights = _compute_word_weights(whole // _WORD_BYTES + _WORD_BYTES)
    words = np.ascontiguousarray(flat[:, :whole]).view("<u8")
    rest = flat[:, whole:].astype(np.uint64)
    sums: Words = np.einsum("ij,j->i", words, weights[: words.shape[1]])
    sums += np.einsum("ij,j->i", rest, weights[words.shape[1] :][: rest.shape[1]])
    return sums


@lru_cache(maxsize=8)
def _compute_word_weights(count: int) -> Words:
    return mix64(np.arange(1, count + 1, dtype=np.uint64)) | np.uint64(1)


def combine_checksums(parts: Sequence[Words]) -> Words:
    """Returns a checksum of each row from those of its parts; that of the only part is the row's own."""
    combined = parts[0]
    for number, part in enumerate(parts[1:], 1):
        combined = combined + mix64(part + np.uint64(number))  # mixed: the parts of two rows must not be exchangeable
    return combined


def compute_blob_checksums(blobs: Iterable[bytes | memoryview]) -> Words:
    """Returns a checksum of each blob, of any length, (n,) uint64."""
    return np.fromiter(map(_compute_blob_checksum, blobs), np.uint64)


def _compute_blob_checksum(blob: bytes | memoryview) -> int:
    """Returns the CRC of a small blob; for a large one the weighted sum, with the CRC of an incomplete last word."""
    count = len(blob) // _WORD_BYTES
    if count < _MIN_SUMMED_WORDS:
        return zlib.crc32(blob)
    words = np.frombuffer(blob, "<u8", count)
    return int(np.einsum("i,i->", words, _compute_word_weights(count))) ^ zlib.crc32(blob[count * _WORD_BYTES :])


@dataclass(frozen=True, slots=True)
class PackChecksum:
    """The number of rows, and one number that depends on every row and on their order."""

    rows: int = 0
    digest: int = 0

    def with_added_rows(self, checksums: Words) -> PackChecksum:
        """Returns the checksum with more rows, given by their own checksums."""
        places = np.arange(self.rows, self.rows + checksums.size, dtype=np.uint64)
        mixed = mix64(checksums ^ mix64(places))
        return PackChecksum(self.rows + checksums.size, (self.digest + int(mixed.sum())) % (1 << 64))
