"""A keyed bijection on [0, n), computed for the wanted positions only.

An order over a billion samples needs no memory, and every position in it costs the same. It is the generalised
Feistel network of Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002), on Z_a x Z_b with
a * b >= n, walking cycles past n; its round function is the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014)
keyed by BLAKE2b.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

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


# --- Random draws for a sample: a function of (seed, epoch, sample) alone, the same after every restart.
#
# The words are splitmix64's finaliser (Steele, Lea, Flood, OOPSLA 2014) over a counter, keyed by BLAKE2b of seed and
# epoch.


_STEP: Final = np.uint64(0x9E3779B97F4A7C15)  # splitmix64's increment: odd, so all its multiples are distinct
_MANTISSA: Final = np.uint64(11)  # the shift that leaves 53 of 64 bits, as many as a float64 holds


@lru_cache(maxsize=64)
def _derive_sample_keys(seed: int, epoch: int, purpose: str) -> Words:
    material = hashlib.blake2b(f"streamd chance 1 {purpose} seed {seed} epoch {epoch}".encode(), digest_size=16)
    return np.frombuffer(material.digest(), dtype="<u8").astype(np.uint64)


def _compute_random_words_by_sample(seed: int, epoch: int, ids: Ids, count: int, purpose: str) -> Words:
    """Returns (len(ids), count) uint64 words; each row depends on its own sample alone."""
    keys = _derive_sample_keys(seed, epoch, purpose)
    samples = mix64(ids.astype(np.uint64) ^ keys[0])[:, None]
    numbers = (np.arange(1, count + 1, dtype=np.uint64) * _STEP)[None, :]
    return mix64(mix64(samples + numbers) ^ keys[1])


def compute_uniforms(seed: int, epoch: int, ids: Ids, count: int, purpose: str) -> npt.NDArray[np.float64]:
    """Returns `count` numbers in [0, 1) for each sample, (len(ids), count) float64. Each `purpose` has its own."""
    words = _compute_random_words_by_sample(seed, epoch, ids, count, purpose) >> _MANTISSA
    return words.astype(np.float64) * np.float64(2.0**-53)


class _FixedSeedSequence(ISeedSequence):
    """The words that seed a PCG64. NumPy's own SeedSequence takes longer than everything else here. It cannot spawn."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        """Returns the four 64-bit words that PCG64 needs, whatever the arguments."""
        del n_words, dtype
        return self._words


def build_generators(seed: int, epoch: int, ids: Ids, purpose: str) -> Iterator[np.random.Generator]:
    """Returns a generator for each sample: a PCG64 that is seeded by 256 bits derived from the sample."""
    words = _compute_random_words_by_sample(seed, epoch, ids, 4, purpose)
    seeds: Iterator[Any] = map(_FixedSeedSequence, words)  # NumPy's stubs know its own seeds only
    return (np.random.Generator(np.random.PCG64(each)) for each in seeds)
