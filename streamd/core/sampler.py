"""Which samples a batch holds: (order, epoch, index) -> sample ids, as a pure function.

`full` is a keyed bijection on all positions (`permutation`), `chunk` mixes a few chunks at a time (`chunk_shuffle`),
`none` keeps the stored order. All are computed for the wanted positions only, so any batch of any epoch is as near as
the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from streamd.core.chunk_shuffle import shuffle_in_chunks
from streamd.core.permutation import ORDER_VERSION, Ids, derive_epoch_keys, permute_positions
from streamd.core.spec import Segment, Shuffle, StreamSpec

__all__ = [
    "ORDER_VERSION",
    "PAD_ID",
    "Ids",
    "SampleOrder",
    "compute_batch_ids",
    "compute_ids_of_batches",
    "compute_index_ranges",
]

PAD_ID: Final = -1  # the sample id of a row that holds no sample

_BLOCK_ROWS: Final = 4096  # rows planned at a time: NumPy's cost a call is shared by a hundred batches


class SampleOrder(msgspec.Struct, frozen=True, gc=False):
    """All that decides the order of a stream's epochs. Hashed in C, since it is looked up with every batch.

    `chunk` in samples and `buffer` in chunks are 0 unless `shuffle` is chunk.
    """

    samples: int
    batch_size: int
    batches: int
    shuffle: Shuffle
    seed: int
    chunk: int = 0
    buffer: int = 0

    @staticmethod
    def from_spec(spec: StreamSpec) -> SampleOrder:
        mixing = spec.shuffle, spec.seed, spec.chunk, spec.buffer
        return SampleOrder(spec.samples, spec.batch_size, spec.batches, *mixing)


@lru_cache(maxsize=32)
def _compute_block(order: SampleOrder, epoch: int, block: int) -> Ids:
    start = block * _BLOCK_ROWS
    ids = _compute_ids_at(order, epoch, np.arange(start, min(start + _BLOCK_ROWS, order.samples), dtype=np.int64))
    ids.setflags(write=False)
    return ids


def _compute_ids_at(order: SampleOrder, epoch: int, positions: Ids) -> Ids:
    if order.shuffle == "full":
        return permute_positions(positions, order.samples, derive_epoch_keys(order.seed, epoch))
    if order.shuffle == "chunk":
        return shuffle_in_chunks(positions, order.samples, order.chunk, order.buffer, order.seed, epoch)
    return positions


def compute_batch_ids(order: SampleOrder, epoch: int, index: int, rows: int) -> Ids:
    """The planned sample ids of a batch, (rows,) int64, perhaps read-only; PAD_ID where the data has ended."""
    start = index * order.batch_size
    block, offset = divmod(start, _BLOCK_ROWS)
    if offset + rows <= _BLOCK_ROWS and start + rows <= order.samples and index < order.batches:
        return _compute_block(order, epoch, block)[offset : offset + rows]  # nearly all are: a view, and no work
    ids = np.full(rows, PAD_ID, dtype=np.int64)
    stop = min(start + rows, order.samples) if index < order.batches else start
    row = start
    while row < stop:
        block, offset = divmod(row, _BLOCK_ROWS)
        piece = _compute_block(order, epoch, block)[offset : offset + stop - row]
        ids[row - start : row - start + piece.size] = piece
        row += piece.size
    return ids


def compute_ids_of_batches(order: SampleOrder, epoch: int, indices: Ids, rows: Ids) -> Ids:
    """The planned sample ids of batches `indices`, one behind the other, `rows` of each, (sum of rows,) int64.

    What is kept for `compute_batch_ids` stays out of it: who plans a whole epoch would drive out what is being
    produced.
    """
    first = np.repeat(indices * order.batch_size - (np.cumsum(rows) - rows), rows)
    positions = first + np.arange(first.size, dtype=np.int64)
    end = min(order.samples, order.batches * order.batch_size)
    return _compute_padded_ids(positions, positions < end, order, epoch)


def _compute_padded_ids(positions: Ids, is_sample: npt.NDArray[np.bool_], order: SampleOrder, epoch: int) -> Ids:
    if is_sample.all():
        return _compute_ids_at(order, epoch, positions)
    ids = np.full(positions.size, PAD_ID, dtype=np.int64)
    ids[is_sample] = _compute_ids_at(order, epoch, positions[is_sample])
    return ids


def compute_index_ranges(segments: Sequence[Segment]) -> list[range]:
    """The batch indices that a history walked through, in its order: a range for each part."""
    firsts = [part.base + part.rank for part in segments]
    return [
        range(first, first + part.world * part.steps, part.world) for first, part in zip(firsts, segments, strict=True)
    ]
