"""Which samples a batch holds: (order, epoch, index) -> sample ids, as a pure function.

`full` is a keyed bijection on [0, n), computed for the wanted positions only, so that an order over a billion samples
needs no memory and any batch of any epoch is as near as the next. The bijection is the generalised Feistel network of
Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002), on Z_a x Z_b with a * b >= n, walking cycles
past n; its round function is the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014) keyed by BLAKE2b.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from streamd.spec import Segment, Shuffle, StreamSpec

PLAN_VERSION: Final = 1  # part of every order_id: a changed order must never pass for the old one
PAD_ID: Final = -1  # the sample id of a row that holds no sample

Ids = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_ROUNDS: Final = 8
_BLOCK_ROWS: Final = 4096  # rows planned at a time: NumPy's cost a call is shared by a hundred batches


class Order(msgspec.Struct, frozen=True, gc=False):
    """All that decides the order of a stream's epochs. Hashed in C, since it is looked up with every batch."""

    samples: int
    batch_size: int
    batches: int
    shuffle: Shuffle
    seed: int

    @staticmethod
    def of(spec: StreamSpec) -> Order:
        return Order(spec.samples, spec.batch_size, spec.batches, spec.shuffle, spec.seed)


def mix64(words: Words) -> Words:
    """A bijective scramble of 64-bit words (splitmix64's finaliser)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@lru_cache(maxsize=64)
def _round_keys(seed: int, epoch: int) -> Words:
    material = hashlib.blake2b(f"streamd plan {PLAN_VERSION} seed {seed} epoch {epoch}".encode()).digest()
    return np.frombuffer(material, dtype="<u8").astype(np.uint64)


def _encipher(positions: Words, high: int, low: int, keys: Words) -> Words:
    """One pass of the network over Z_high x Z_low."""
    a, b = np.uint64(high), np.uint64(low)
    left = positions // b
    right = positions - left * b
    for number in range(0, _ROUNDS, 2):
        left = _sum_mod(left, mix64(right ^ keys[number]), a)
        right = _sum_mod(right, mix64(left ^ keys[number + 1]), b)
    return left * b + right


def _sum_mod(small: Words, words: Words, n: np.uint64) -> Words:
    """(small + words) mod n for `small` below n. NumPy divides by a scalar far faster than it takes a remainder."""
    total = words - words // n * n
    total += small
    total -= (total >= n) * n
    return total


def permute(positions: Ids, n: int, seed: int, epoch: int) -> Ids:
    """Maps positions in [0, n) to sample ids in [0, n); a bijection for every (n, seed, epoch)."""
    if n <= 1:
        return positions.copy()
    high = math.isqrt(n - 1) + 1
    low = -(-n // high)
    keys = _round_keys(seed, epoch)
    ids = _encipher(positions.astype(np.uint64), high, low, keys)
    outside = np.flatnonzero(ids >= n)
    while outside.size:
        ids[outside] = _encipher(ids[outside], high, low, keys)
        outside = outside[ids[outside] >= n]
    return ids.astype(np.int64)


@lru_cache(maxsize=32)
def _block(order: Order, epoch: int, block: int) -> Ids:
    start = block * _BLOCK_ROWS
    ids = _order_rows(order, epoch, np.arange(start, min(start + _BLOCK_ROWS, order.samples), dtype=np.int64))
    ids.setflags(write=False)
    return ids


def _order_rows(order: Order, epoch: int, positions: Ids) -> Ids:
    return permute(positions, order.samples, order.seed, epoch) if order.shuffle == "full" else positions


def batch_ids(order: Order, epoch: int, index: int, rows: int) -> Ids:
    """The planned sample ids of a batch, (rows,) int64, perhaps read-only; PAD_ID where the data has ended."""
    start = index * order.batch_size
    block, offset = divmod(start, _BLOCK_ROWS)
    if offset + rows <= _BLOCK_ROWS and start + rows <= order.samples and index < order.batches:
        return _block(order, epoch, block)[offset : offset + rows]  # nearly all are: a view, and no work
    ids = np.full(rows, PAD_ID, dtype=np.int64)
    stop = min(start + rows, order.samples) if index < order.batches else start
    row = start
    while row < stop:
        block, offset = divmod(row, _BLOCK_ROWS)
        piece = _block(order, epoch, block)[offset : offset + stop - row]
        ids[row - start : row - start + piece.size] = piece
        row += piece.size
    return ids


def several_ids(order: Order, epoch: int, indices: Ids, rows: Ids) -> Ids:
    """The planned sample ids of batches `indices`, one behind the other, `rows` of each, (sum of rows,) int64.

    What is kept for `batch_ids` stays out of it: who plans a whole epoch would drive out what is being produced.
    """
    first = np.repeat(indices * order.batch_size - (np.cumsum(rows) - rows), rows)
    positions = first + np.arange(first.size, dtype=np.int64)
    end = min(order.samples, order.batches * order.batch_size)
    return _padded(positions, positions < end, order, epoch)


def _padded(positions: Ids, there: npt.NDArray[np.bool_], order: Order, epoch: int) -> Ids:
    if there.all():
        return _order_rows(order, epoch, positions)
    ids = np.full(positions.size, PAD_ID, dtype=np.int64)
    ids[there] = _order_rows(order, epoch, positions[there])
    return ids


def walked(segments: Sequence[Segment]) -> list[range]:
    """The batch indices that a history walked through, in its order: a range for each part."""
    firsts = [part.base + part.rank for part in segments]
    return [
        range(first, first + part.world * part.steps, part.world) for first, part in zip(firsts, segments, strict=True)
    ]
