"""What is drawn by chance for a sample: a function of (seed, epoch, sample) alone, the same after every restart.

The words are splitmix64's finaliser (Steele, Lea, Flood, OOPSLA 2014) over a counter, keyed by BLAKE2b of seed and
epoch.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.plan import Ids, Words, mix64

_STEP: Final = np.uint64(0x9E3779B97F4A7C15)  # splitmix64's: odd, so that counters never meet
_MANTISSA: Final = np.uint64(11)  # of 64 bits 53 remain, as many as a float64 holds


@lru_cache(maxsize=64)
def _keys(seed: int, epoch: int, purpose: str) -> Words:
    material = hashlib.blake2b(f"streamd chance 1 {purpose} seed {seed} epoch {epoch}".encode(), digest_size=16)
    return np.frombuffer(material.digest(), dtype="<u8").astype(np.uint64)


def _words(seed: int, epoch: int, ids: Ids, count: int, purpose: str) -> Words:
    """(len(ids), count) words, each sample's its own."""
    keys = _keys(seed, epoch, purpose)
    samples = mix64(ids.astype(np.uint64) ^ keys[0])[:, None]
    numbers = (np.arange(1, count + 1, dtype=np.uint64) * _STEP)[None, :]
    return mix64(mix64(samples + numbers) ^ keys[1])


def uniforms(seed: int, epoch: int, ids: Ids, count: int, purpose: str) -> npt.NDArray[np.float64]:
    """`count` numbers in [0, 1) for each sample, (len(ids), count). Another `purpose` draws others."""
    words = _words(seed, epoch, ids, count, purpose) >> _MANTISSA
    return words.astype(np.float64) * np.float64(2.0**-53)


def generator(seed: int, epoch: int, sample_id: int, purpose: str) -> np.random.Generator:
    """A generator of a sample's own, PCG64 seeded by 128 bits of it."""
    words = _words(seed, epoch, np.array([sample_id], np.int64), 2, purpose)[0]
    return np.random.Generator(np.random.PCG64(int(words[0]) << 64 | int(words[1])))
