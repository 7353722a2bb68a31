"""Which samples a batch holds: (order, epoch, index) -> sample ids, as a pure function.

`full` is a keyed bijection on all positions (`permutation`), `chunk` mixes a few chunks at a time, `none` keeps the
stored order. All are computed for the wanted positions only, so any batch of any epoch is as near as the next.

In the order of `chunk`, chunks of consecutive samples are mixed; several make a buffer; and each buffer is mixed:

    stored     0 1 2 3 | 4 5 6 7 | 8 9 10 11 | 12 13      chunks of 4, the last one short
    in a row   8 9 10 11 | 12 13 || 0 1 2 3 | 4 5 6 7     the chunks in another order, two to a buffer
    planned    12 9 8 11 13 10 || 5 0 7 3 2 6 4 1         each buffer by a bijection of its own

A reader of that order touches `buffer` chunks at a time. A buffer of one is the classical "read 100 batches, shuffle,
cut".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from streamd.core.permutation import ORDER_VERSION, Ids, derive_epoch_keys, mix64, permute_positions
from streamd.core.spec import Segment, Shuffle, StreamSpec

__all__ = [
    "ORDER_VERSION",
    "PAD_ID",
    "Ids",
    "SampleOrder",
    "compute_batch_ids",
    "compute_batch_index_ranges",
    "compute_ids_of_batches",
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
def _compute_block_of_sample_ids(order: SampleOrder, epoch: int, block: int) -> Ids:
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
        # Nearly all are: a view, and no work.
        return _compute_block_of_sample_ids(order, epoch, block)[offset : offset + rows]
    ids = np.full(rows, PAD_ID, dtype=np.int64)
    stop = min(start + rows, order.samples) if index < order.batches else start
    row = start
    while row < stop:
        block, offset = divmod(row, _BLOCK_ROWS)
        piece = _compute_block_of_sample_ids(order, epoch, block)[offset : offset + stop - row]
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
    return _compute_sample_ids_with_padding(positions, positions < end, order, epoch)


def _compute_sample_ids_with_padding(
    positions: Ids, is_sample: npt.NDArray[np.bool_], order: SampleOrder, epoch: int
) -> Ids:
    if is_sample.all():
        return _compute_ids_at(order, epoch, positions)
    ids = np.full(positions.size, PAD_ID, dtype=np.int64)
    ids[is_sample] = _compute_ids_at(order, epoch, positions[is_sample])
    return ids


def compute_batch_index_ranges(segments: Sequence[Segment]) -> list[range]:
    """The batch indices that a history walked through, in its order: a range for each part."""
    firsts = [part.base + part.rank for part in segments]
    return [
        range(first, first + part.world * part.steps, part.world) for first, part in zip(firsts, segments, strict=True)
    ]


class _ChunkSequence(NamedTuple):
    """The chunks of one epoch, in a row: `whole` ones of `chunk` samples, and at place `short` one of `rest`, if any.

    `span` is what a buffer holds whose chunks are all there and whole.
    """

    samples: int
    chunk: int
    span: int
    whole: int
    rest: int
    short: int

    @property
    def samples_missing_in_short_chunk(self) -> int:
        """What the short chunk lacks."""
        return self.chunk - self.rest if self.rest else 0

    @property
    def number_of_short_buffer(self) -> int:
        """The buffer that the short chunk is in."""
        return self.short * self.chunk // self.span

    @property
    def number_of_last_buffer(self) -> int:
        return (self.samples + self.samples_missing_in_short_chunk - 1) // self.span

    def compute_buffer_start(self, buffer: int) -> int:
        """The position of a buffer's first sample."""
        return buffer * self.span - (self.samples_missing_in_short_chunk if buffer > self.number_of_short_buffer else 0)

    def count_buffer_samples(self, buffer: int) -> int:
        """The samples in a buffer."""
        return min(self.compute_buffer_start(buffer + 1), self.samples) - self.compute_buffer_start(buffer)


def shuffle_in_chunks(positions: Ids, samples: int, chunk: int, buffer: int, seed: int, epoch: int) -> Ids:
    """Maps positions in [0, samples) to sample ids in [0, samples); a bijection for all that decides it."""
    row = _build_chunk_sequence(samples, chunk, buffer, seed, epoch)
    behind = positions >= row.compute_buffer_start(row.number_of_short_buffer + 1)
    buffers = (positions + behind * row.samples_missing_in_short_chunk) // row.span
    begins = buffers * row.span - behind * row.samples_missing_in_short_chunk
    return _compute_sample_ids_at_places(
        begins + _shuffle_in_buffers(positions - begins, buffers, row, seed, epoch), row, seed, epoch
    )


@lru_cache(maxsize=64)
def _build_chunk_sequence(samples: int, chunk: int, buffer: int, seed: int, epoch: int) -> _ChunkSequence:
    whole, rest = divmod(samples, chunk)
    # The short chunk's place is drawn by itself: within a bijection of all chunks it would have to be searched for.
    short = int(derive_epoch_keys(seed, epoch, "short chunk")[0, 0]) % (whole + 1) if rest else whole
    span = chunk * min(buffer, whole + 1)  # a larger one is the same, and its positions need not fit into 64 bits
    return _ChunkSequence(samples, chunk, span, whole, rest, short)


def _shuffle_in_buffers(places: Ids, buffers: Ids, sequence: _ChunkSequence, seed: int, epoch: int) -> Ids:
    """Places within buffers, mixed: all buffers of a size in one go, and there are three sizes at most."""
    base = derive_epoch_keys(seed, epoch, "buffers")
    own = mix64(mix64(buffers.astype(np.uint64) ^ base[0]) ^ base[1])  # a number alone would relate buffers to others
    sizes = np.full(places.size, sequence.span, dtype=np.int64)
    for odd in {sequence.number_of_short_buffer, sequence.number_of_last_buffer}:
        sizes[buffers == odd] = sequence.count_buffer_samples(odd)
    if (sizes == sizes[:1]).all():
        return permute_positions(places, int(sizes[0]) if sizes.size else 0, base ^ own)
    mixed = np.empty_like(places)
    for size in np.unique(sizes).tolist():
        here = np.flatnonzero(sizes == size)
        mixed[here] = permute_positions(places[here], size, base ^ own[here])
    return mixed


def _compute_sample_ids_at_places(places: Ids, sequence: _ChunkSequence, seed: int, epoch: int) -> Ids:
    """The samples at `places` in the row of mixed chunks."""
    begin = sequence.short * sequence.chunk
    behind = places >= begin + sequence.rest
    whole = places - behind * sequence.rest
    numbers = np.minimum(whole // sequence.chunk, sequence.whole - 1)  # the short chunk may come behind them all
    ids: Ids = (
        _compute_shuffled_chunk_numbers(numbers, sequence.whole, seed, epoch) * sequence.chunk
        + whole
        - numbers * sequence.chunk
    )
    is_short = (places >= begin) & ~behind
    ids[is_short] = places[is_short] - begin + sequence.whole * sequence.chunk
    return ids


def _compute_shuffled_chunk_numbers(places: Ids, chunks: int, seed: int, epoch: int) -> Ids:
    """Which of the whole chunks come at `places`: worked out once for each of them where they lie close together."""
    keys = derive_epoch_keys(seed, epoch, "chunks")
    first, last = int(places.min(initial=0)), int(places.max(initial=0))
    if last - first >= places.size:
        return permute_positions(places, chunks, keys)
    return permute_positions(np.arange(first, last + 1, dtype=np.int64), chunks, keys)[places - first]
