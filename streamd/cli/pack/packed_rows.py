"""The rows of a pack: the images of some samples, with their boxes and points as they are delivered. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.permutation import Ids, Words, mix64
from streamd.core.spec import StreamSpec
from streamd.dataset.arrays.store import Mask, Pixels

BoxRows = npt.NDArray[np.float32]  # (n, max, 5) or (n, max, 2)
_BOX_NUMBER_BYTES: Final = np.dtype(np.float32).itemsize


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """The samples `ids`: `images` has the rows of each image, and `boxes` those of each label of boxes or points.

    Both are in the order of the stream. The memory may be that of a slot.
    """

    ids: Ids
    images: Mapping[str, Pixels]
    boxes: Mapping[str, BoxRows] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.iterate_arrays())

    def iterate_arrays(self) -> Iterator[npt.NDArray[Any]]:
        """Yields all images, then all boxes and points."""
        yield from self.images.values()
        yield from self.boxes.values()

    def select_rows(self, kept: Mask) -> PackedRows:
        """Returns a copy of the rows where `kept` is true."""
        return PackedRows(
            self.ids[kept],
            {name: images[kept] for name, images in self.images.items()},
            {name: boxes[kept] for name, boxes in self.boxes.items()},
        )

    def compute_checksums(self) -> Words:
        """Returns a checksum of each row, over all of its arrays, (n,) uint64."""
        return combine_checksums([compute_row_checksums(view_row_bytes(array)) for array in self.iterate_arrays()])


def view_row_bytes(rows: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Returns the bytes of each row, (n, bytes); a view where the rows are contiguous."""
    return np.ascontiguousarray(rows).reshape(len(rows), prod(rows.shape[1:])).view(np.uint8)


def compute_box_bytes(spec: StreamSpec) -> dict[str, int]:
    """Returns how many bytes the boxes or points of one sample take as they are delivered, by label."""
    return {
        name: label.rows * label.width * _BOX_NUMBER_BYTES for name, label in spec.labels.items() if label.is_ragged
    }


# --- Checksums that compare what was written with what is read back: one for each row, and one over all rows. Pure.
#
# They detect failures of a disk or of memory, and not deliberate changes.


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
