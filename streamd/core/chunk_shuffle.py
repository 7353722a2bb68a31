"""The order of `shuffle: chunk`: chunks of consecutive samples, mixed; several make a buffer; and each buffer, mixed.

    stored     0 1 2 3 | 4 5 6 7 | 8 9 10 11 | 12 13      chunks of 4, the last one short
    in a row   8 9 10 11 | 12 13 || 0 1 2 3 | 4 5 6 7     the chunks in another order, two to a buffer
    planned    12 9 8 11 13 10 || 5 0 7 3 2 6 4 1         each buffer by a bijection of its own

Whoever reads so touches `buffer` chunks at a time. A buffer of one is the classical "read 100 batches, shuffle, cut".
All of it is computed for the wanted positions only.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from streamd.core.permutation import Ids, epoch_keys, mix64, permute


class _Row(NamedTuple):
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
    def gap(self) -> int:
        """What the short chunk lacks."""
        return self.chunk - self.rest if self.rest else 0

    @property
    def short_buffer(self) -> int:
        """The buffer that the short chunk is in."""
        return self.short * self.chunk // self.span

    @property
    def last_buffer(self) -> int:
        return (self.samples + self.gap - 1) // self.span

    def begin(self, buffer: int) -> int:
        """The position of a buffer's first sample."""
        return buffer * self.span - (self.gap if buffer > self.short_buffer else 0)

    def size(self, buffer: int) -> int:
        """The samples in a buffer."""
        return min(self.begin(buffer + 1), self.samples) - self.begin(buffer)


def chunk_ids(positions: Ids, samples: int, chunk: int, buffer: int, seed: int, epoch: int) -> Ids:
    """Maps positions in [0, samples) to sample ids in [0, samples); a bijection for all that decides it."""
    row = _row(samples, chunk, buffer, seed, epoch)
    behind = positions >= row.begin(row.short_buffer + 1)
    buffers = (positions + behind * row.gap) // row.span
    begins = buffers * row.span - behind * row.gap
    return _stored(begins + _mixed(positions - begins, buffers, row, seed, epoch), row, seed, epoch)


@lru_cache(maxsize=64)
def _row(samples: int, chunk: int, buffer: int, seed: int, epoch: int) -> _Row:
    whole, rest = divmod(samples, chunk)
    # The short chunk's place is drawn by itself: within a bijection of all chunks it would have to be searched for.
    short = int(epoch_keys(seed, epoch, "short chunk")[0, 0]) % (whole + 1) if rest else whole
    span = chunk * min(buffer, whole + 1)  # a larger one is the same, and its positions need not fit into 64 bits
    return _Row(samples, chunk, span, whole, rest, short)


def _mixed(places: Ids, buffers: Ids, row: _Row, seed: int, epoch: int) -> Ids:
    """Places within buffers, mixed: all buffers of a size in one go, and there are three sizes at most."""
    base = epoch_keys(seed, epoch, "buffers")
    own = mix64(mix64(buffers.astype(np.uint64) ^ base[0]) ^ base[1])  # a number alone would relate buffers to others
    sizes = np.full(places.size, row.span, dtype=np.int64)
    for odd in {row.short_buffer, row.last_buffer}:
        sizes[buffers == odd] = row.size(odd)
    if (sizes == sizes[:1]).all():
        return permute(places, int(sizes[0]) if sizes.size else 0, base ^ own)
    mixed = np.empty_like(places)
    for size in np.unique(sizes).tolist():
        here = np.flatnonzero(sizes == size)
        mixed[here] = permute(places[here], size, base ^ own[here])
    return mixed


def _stored(places: Ids, row: _Row, seed: int, epoch: int) -> Ids:
    """The samples at `places` in the row of mixed chunks."""
    begin = row.short * row.chunk
    behind = places >= begin + row.rest
    whole = places - behind * row.rest
    numbers = np.minimum(whole // row.chunk, row.whole - 1)  # the short chunk may come behind them all
    ids: Ids = _chunk_numbers(numbers, row.whole, seed, epoch) * row.chunk + whole - numbers * row.chunk
    is_short = (places >= begin) & ~behind
    ids[is_short] = places[is_short] - begin + row.whole * row.chunk
    return ids


def _chunk_numbers(places: Ids, chunks: int, seed: int, epoch: int) -> Ids:
    """Which of the whole chunks come at `places`: worked out once for each of them where they lie close together."""
    keys = epoch_keys(seed, epoch, "chunks")
    first, last = int(places.min(initial=0)), int(places.max(initial=0))
    if last - first >= places.size:
        return permute(places, chunks, keys)
    return permute(np.arange(first, last + 1, dtype=np.int64), chunks, keys)[places - first]
