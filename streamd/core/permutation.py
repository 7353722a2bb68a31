"""A keyed bijection on [0, n), computed for the wanted positions only.

An order over a billion samples needs no memory, and every position in it costs the same. It is the generalised
Feistel network of Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002), on Z_a x Z_b with
a * b >= n, walking cycles past n; its round function is the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014)
keyed by BLAKE2b.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

ORDER_VERSION: Final = 1  # part of every order_id: a changed order must never pass for the old one

Ids = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_ROUNDS: Final = 8


def mix64(words: Words) -> Words:
    """Returns the words scrambled by splitmix64's finaliser, a bijection on 64-bit words."""
    mixed = words ^ (words >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


@lru_cache(maxsize=64)
def derive_epoch_keys(seed: int, epoch: int, purpose: str = "") -> Words:
    """Returns the keys of an epoch, (rounds, 1) uint64, read-only. Each `purpose` has keys of its own."""
    facts = f"streamd plan {ORDER_VERSION} seed {seed} epoch {epoch}{purpose and f' {purpose}'}"
    keys = np.frombuffer(hashlib.blake2b(facts.encode()).digest(), dtype="<u8").astype(np.uint64)[:, None]
    keys.setflags(write=False)
    return keys


def permute_positions(positions: Ids, n: int, keys: Words) -> Ids:
    """Maps positions in [0, n) to [0, n), a bijection for any keys of shape (rounds, 1).

    With keys of shape (rounds, positions), each position uses its own column: a bijection among the positions with
    equal columns.
    """
    if n <= 1:
        return positions.copy()
    # The network permutes [0, high * low), and high * low exceeds n by less than high. A result outside [0, n) goes
    # through the network again: the cycle that it follows began inside, so it comes back inside.
    high = math.isqrt(n - 1) + 1
    low = -(-n // high)
    ids = _apply_feistel(positions.astype(np.uint64), high, low, keys)
    outside = np.flatnonzero(ids >= n)
    while outside.size:
        ids[outside] = _apply_feistel(ids[outside], high, low, keys if keys.shape[1] == 1 else keys[:, outside])
        outside = outside[ids[outside] >= n]
    return ids.astype(np.int64)


def _apply_feistel(positions: Words, high: int, low: int, keys: Words) -> Words:
    """Applies the network over Z_high x Z_low once."""
    a, b = np.uint64(high), np.uint64(low)
    left = positions // b
    right = positions - left * b
    for number in range(0, _ROUNDS, 2):
        left = _add_modulo(left, mix64(right ^ keys[number]), a)
        right = _add_modulo(right, mix64(left ^ keys[number + 1]), b)
    return left * b + right


def _add_modulo(small: Words, words: Words, n: np.uint64) -> Words:
    """Returns (small + words) mod n for `small` below n."""
    # NumPy divides by a scalar far faster than it takes a remainder. The reduced words are below n, as `small` is, so
    # one subtraction completes the sum; where it is not needed, the difference wraps around and is the larger number.
    multiples = words // n
    multiples *= n
    total = words - multiples
    total += small
    return np.minimum(total, total - n)
