"""Random draws for a sample: a function of (seed, epoch, sample) alone, the same after every restart.

The words are splitmix64's finaliser (Steele, Lea, Flood, OOPSLA 2014) over a counter, keyed by BLAKE2b of seed and
epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

from streamd.core.permutation import Ids, Words, mix64

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
