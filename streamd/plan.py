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
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.spec import Segment, Shuffle, StreamSpec

PLAN_VERSION: Final = 1  # part of every order_id: a changed order must never pass for the old one
PAD_ID: Final = -1  # the sample id of a row that holds no sample

Ids = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_ROUNDS: Final = 8
_BLOCK_ROWS: Final = 4096  # rows planned at a time: NumPy's cost a call is shared by a hundred batches


@dataclass(frozen=True, slots=True)
class Order:
    """All that decides the order of a stream's epochs."""

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
    left, right = positions // b, positions % b
    for number in range(0, _ROUNDS, 2):
        left = (left + mix64(right ^ keys[number]) % a) % a
        right = (right + mix64(left ^ keys[number + 1]) % b) % b
    return left * b + right


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
    """The planned sample ids of a batch, (rows,) int64; PAD_ID where the data has ended."""
    ids = np.full(rows, PAD_ID, dtype=np.int64)
    start = index * order.batch_size
    stop = min(start + rows, order.samples) if index < order.batches else start
    row = start
    while row < stop:
        block, offset = divmod(row, _BLOCK_ROWS)
        piece = _block(order, epoch, block)[offset : offset + stop - row]
        ids[row - start : row - start + piece.size] = piece
        row += piece.size
    return ids


def segment_indices(segments: Sequence[Segment]) -> Ids:
    """The batch indices that a history walked through, in its order."""
    walks = [part.base + part.rank + part.world * np.arange(part.steps, dtype=np.int64) for part in segments]
    return np.concatenate([np.empty(0, dtype=np.int64), *walks])
