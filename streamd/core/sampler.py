"""The samples of a batch: (order, epoch, index) -> sample ids, as a pure function.

`full` is a keyed bijection on all positions (`permutation`), `chunk` mixes a few chunks at a time, `none` keeps the
stored order. All are computed for the wanted positions only, so every batch of every epoch costs the same.

In the order `chunk`, chunks of consecutive samples are shuffled, several of them form a buffer, and the samples of each
buffer are shuffled:

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

from streamd.core.permutation import ORDER_VERSION, Ids, derive_epoch_keys, mix64, permute_positions
from streamd.core.spec import OrderFacts, OrderId, Segment, Shuffle, StreamSpec, compute_identity

__all__ = [
    "ORDER_VERSION",
    "PAD_ID",
    "Ids",
    "SampleOrder",
    "compute_batch_ids",
    "compute_batch_index_ranges",
    "compute_ids_of_batches",
    "compute_order_id",
    "plan_batches",
]

PAD_ID: Final = -1  # the sample id of a row that holds no sample

_BLOCK_ROWS: Final = 4096  # rows planned at a time: about a hundred batches share NumPy's cost for each call


def compute_order_id(facts: OrderFacts) -> OrderId:
    """Returns the identity of the order that these facts decide."""
    chunks = (facts.chunk, facts.buffer) if facts.shuffle == "chunk" else ()
    parts = (facts.content_id, facts.batch_size, facts.remainder, facts.shuffle, facts.seed, *chunks, ORDER_VERSION)
    return OrderId(compute_identity("streamd order 1", msgspec.json.encode(parts)))


class SampleOrder(msgspec.Struct, frozen=True, gc=False):
    """All that decides the order of a stream's epochs. It is hashed in C, since every batch looks it up.

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


@lru_cache(maxsize=128)
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
    """Returns the planned sample ids of a batch, (rows,) int64, PAD_ID beyond the data. The array may be read-only."""
    start = index * order.batch_size
    block, offset = divmod(start, _BLOCK_ROWS)
    if offset + rows <= _BLOCK_ROWS and start + rows <= order.samples and index < order.batches:
        # Nearly all batches lie within one block: they are views of it.
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
    """Returns the planned sample ids of batches `indices`, concatenated, `rows` of each, (sum of rows,) int64.

    It does not use the cache of `compute_batch_ids`: a caller that plans a whole epoch would evict the blocks of the
    batches that are in production.
    """
    first = np.repeat(indices * order.batch_size - (np.cumsum(rows) - rows), rows)
    positions = first + np.arange(first.size, dtype=np.int64)
    end = min(order.samples, order.batches * order.batch_size)
    is_sample = positions < end
    if is_sample.all():
        return _compute_ids_at(order, epoch, positions)
    ids = np.full(positions.size, PAD_ID, dtype=np.int64)
    ids[is_sample] = _compute_ids_at(order, epoch, positions[is_sample])
    return ids


def plan_batches(order: SampleOrder, epoch: int, indices: range, *, is_last_short: bool) -> tuple[Ids, Ids]:
    """Returns the planned ids of several batches, concatenated, and the number of rows of each.

    `is_last_short`: the last batch ends with the data (drop_remainder: false), and is not padded.
    """
    numbers = np.array(indices, dtype=np.int64)
    rows = np.full(numbers.size, order.batch_size, dtype=np.int64)
    if is_last_short:
        rows[numbers == order.batches - 1] = order.samples - (order.batches - 1) * order.batch_size
    return compute_ids_of_batches(order, epoch, numbers, rows), rows


def compute_batch_index_ranges(segments: Sequence[Segment]) -> list[range]:
    """Returns the batch indices of a history, in its order: one range for each segment."""
    firsts = [part.base + part.rank for part in segments]
    return [
        range(first, first + part.world * part.steps, part.world) for first, part in zip(firsts, segments, strict=True)
    ]


class _ChunkSequence(NamedTuple):
    """The shuffled chunks of one epoch, in a row: `whole` chunks of `chunk` samples, and one of `rest` samples, if any.

    The short chunk is at place `short` of the row. `span` is the number of samples in a full buffer of whole chunks.
    """

    samples: int
    chunk: int
    span: int
    whole: int
    rest: int
    short: int

    @property
    def samples_missing_in_short_chunk(self) -> int:
        """The number of samples by which the short chunk is shorter than the others, 0 without one."""
        return self.chunk - self.rest if self.rest else 0

    @property
    def number_of_short_buffer(self) -> int:
        """The number of the buffer that contains the short chunk."""
        return self.short * self.chunk // self.span

    @property
    def number_of_last_buffer(self) -> int:
        return (self.samples + self.samples_missing_in_short_chunk - 1) // self.span

    def compute_buffer_start(self, buffer: int) -> int:
        """Returns the position of a buffer's first sample."""
        return buffer * self.span - (self.samples_missing_in_short_chunk if buffer > self.number_of_short_buffer else 0)

    def count_buffer_samples(self, buffer: int) -> int:
        """Returns the number of samples in a buffer."""
        return min(self.compute_buffer_start(buffer + 1), self.samples) - self.compute_buffer_start(buffer)


def shuffle_in_chunks(positions: Ids, samples: int, chunk: int, buffer: int, seed: int, epoch: int) -> Ids:
    """Maps positions in [0, samples) to sample ids in [0, samples), a bijection for each order and epoch."""
    # All buffers would begin at multiples of `span` if the short chunk were whole. Positions after its buffer are
    # shifted by the samples that it lacks, and are shifted back afterwards.
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
    # The short chunk's place is drawn separately: within a bijection of all chunks it would have to be searched for.
    short = int(derive_epoch_keys(seed, epoch, "short chunk")[0, 0]) % (whole + 1) if rest else whole
    span = chunk * min(buffer, whole + 1)  # a larger one is the same, and its positions need not fit into 64 bits
    return _ChunkSequence(samples, chunk, span, whole, rest, short)


def _shuffle_in_buffers(places: Ids, buffers: Ids, sequence: _ChunkSequence, seed: int, epoch: int) -> Ids:
    """Shuffles places within their buffers. All buffers of one size are done at once; there are at most three sizes."""
    base = derive_epoch_keys(seed, epoch, "buffers")
    # The buffer's number alone would give buffers related keys, so it is scrambled first.
    own = mix64(mix64(buffers.astype(np.uint64) ^ base[0]) ^ base[1])
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
    """Returns the samples at `places` in the row of shuffled chunks."""
    # The short chunk is the last one of the stored order. Without it all chunks of the row begin at multiples of
    # `chunk`, and their numbers are shuffled among themselves.
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
    """Returns the whole chunks at `places`."""
    keys = derive_epoch_keys(seed, epoch, "chunks")
    # Many samples share a chunk. If the places lie close together, each chunk is computed once instead of once for each
    # sample.
    first, last = int(places.min(initial=0)), int(places.max(initial=0))
    if last - first >= places.size:
        return permute_positions(places, chunks, keys)
    return permute_positions(np.arange(first, last + 1, dtype=np.int64), chunks, keys)[places - first]
