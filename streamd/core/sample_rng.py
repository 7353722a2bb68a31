"""What is drawn by chance for a sample: a function of (seed, epoch, sample) alone, the same after every restart.

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

_STEP: Final = np.uint64(0x9E3779B97F4A7C15)  # splitmix64's: odd, so that counters never meet
_MANTISSA: Final = np.uint64(11)  # of 64 bits 53 remain, as many as a float64 holds


@lru_cache(maxsize=64)
def _derive_sample_keys(seed: int, epoch: int, purpose: str) -> Words:
    material = hashlib.blake2b(f"streamd chance 1 {purpose} seed {seed} epoch {epoch}".encode(), digest_size=16)
    return np.frombuffer(material.digest(), dtype="<u8").astype(np.uint64)


def _compute_random_words_by_sample(seed: int, epoch: int, ids: Ids, count: int, purpose: str) -> Words:
    """(len(ids), count) words, each sample's its own."""
    keys = _derive_sample_keys(seed, epoch, purpose)
    samples = mix64(ids.astype(np.uint64) ^ keys[0])[:, None]
    numbers = (np.arange(1, count + 1, dtype=np.uint64) * _STEP)[None, :]
    return mix64(mix64(samples + numbers) ^ keys[1])


def compute_uniforms(seed: int, epoch: int, ids: Ids, count: int, purpose: str) -> npt.NDArray[np.float64]:
    """`count` numbers in [0, 1) for each sample, (len(ids), count). Another `purpose` draws others."""
    words = _compute_random_words_by_sample(seed, epoch, ids, count, purpose) >> _MANTISSA
    return words.astype(np.float64) * np.float64(2.0**-53)


class _FixedSeedSequence(ISeedSequence):
    """The words that a PCG64 begins with; NumPy's own way to them takes longer than all else here. It spawns none."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        """The four words of 64 bits that are asked for, whatever is asked for."""
        del n_words, dtype
        return self._words


def build_generators(seed: int, epoch: int, ids: Ids, purpose: str) -> Iterator[np.random.Generator]:
    """A generator of its own for each sample, PCG64 seeded by 256 bits of it."""
    words = _compute_random_words_by_sample(seed, epoch, ids, 4, purpose)
    seeds: Iterator[Any] = map(_FixedSeedSequence, words)  # NumPy's stubs know its own seeds only
    return (np.random.Generator(np.random.PCG64(each)) for each in seeds)
