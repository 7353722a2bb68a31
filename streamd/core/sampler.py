"""The samples of a batch: (order, epoch, index) -> sample ids, and the rule that replaces bad ones. Pure.

`full` is a keyed bijection on all positions, `chunk` mixes a few chunks at a time, `none` keeps the
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

import hashlib
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

from streamd.core.spec import BadPolicy, OrderFacts, OrderId, Segment, Shuffle, StreamSpec, compute_identity
from streamd.limits import SMALL_SET_BAD_FRACTION, SMALL_SET_MOST_BAD, TOLERATED_BAD

# --- A keyed bijection on [0, n), computed for the wanted positions only.
#
# An order over a billion samples needs no memory, and every position in it costs the same. It is the generalised
# Feistel network of Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002), on Z_a x Z_b with
# a * b >= n, walking cycles past n; its round function is the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014)
# keyed by BLAKE2b.

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


# --- The samples of a batch.

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


def shuffle_in_chunks(positions: Ids, samples: int, chunk: int, buffer: int, seed: int, epoch: int) -> Ids:
    """Maps positions in [0, samples) to sample ids in [0, samples), a bijection for each order and epoch."""
    # The chunks in a row: `whole` ones, and a short one of `rest` samples, if any, whose place is drawn separately:
    # within a bijection of all chunks it would have to be searched for.
    whole, rest = divmod(samples, chunk)
    short = int(derive_epoch_keys(seed, epoch, "short chunk")[0, 0]) % (whole + 1) if rest else whole
    span = chunk * min(buffer, whole + 1)  # a larger buffer is the same, and its positions need not fit into 64 bits
    # The buffers of the positions. All would begin at multiples of `span` if the short chunk were whole. Positions
    # after its buffer are shifted by the samples that it lacks, and are shifted back afterwards.
    lacking = chunk - rest if rest else 0
    short_buffer, last_buffer = short * chunk // span, (samples + lacking - 1) // span
    behind = positions >= (short_buffer + 1) * span - lacking
    buffers = (positions + behind * lacking) // span
    begins = buffers * span - behind * lacking
    sizes = np.full(positions.size, span, dtype=np.int64)
    for odd in {short_buffer, last_buffer}:
        odd_begin = odd * span - (lacking if odd > short_buffer else 0)
        sizes[buffers == odd] = min((odd + 1) * span - lacking, samples) - odd_begin
    # Each buffer is shuffled. Its number alone would give buffers related keys, so it is scrambled first. All buffers
    # of one size are done at once; there are at most three sizes, and one in nearly all batches.
    base = derive_epoch_keys(seed, epoch, "buffers")
    own = mix64(mix64(buffers.astype(np.uint64) ^ base[0]) ^ base[1])
    is_one_size = sizes.size and (sizes == sizes[0]).all()
    places = np.empty_like(positions)
    for here in [slice(None)] if is_one_size else [np.flatnonzero(sizes == size) for size in np.unique(sizes)]:
        begin_here = begins[here]
        places[here] = begin_here + permute_positions(
            positions[here] - begin_here, int(sizes[here][0]), base ^ own[here]
        )
    # The samples at these places in the row of chunks. The short chunk is the last one of the stored order. Without it
    # all chunks of the row begin at multiples of `chunk`, and their numbers are shuffled among themselves.
    begin = short * chunk
    is_after_short = places >= begin + rest
    in_whole = places - is_after_short * rest
    numbers = np.minimum(in_whole // chunk, whole - 1)  # the short chunk may come behind them all
    keys = derive_epoch_keys(seed, epoch, "chunks")
    # Many samples share a chunk. If the places lie close together, each chunk is computed once instead of once for each
    # sample.
    first, last = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    if last - first >= numbers.size:
        shuffled = permute_positions(numbers, whole, keys)
    else:
        shuffled = permute_positions(np.arange(first, last + 1, dtype=np.int64), whole, keys)[numbers - first]
    ids: Ids = shuffled * chunk + in_whole - numbers * chunk
    is_short = (places >= begin) & ~is_after_short
    ids[is_short] = places[is_short] - begin + whole * chunk
    return ids


# --- The rule that replaces the known bad samples of a batch. It is pure, so every production of a batch agrees on it.

RowStatus = npt.NDArray[np.uint8]

GOOD: Final = 0
SUBSTITUTED: Final = 1
MASKED: Final = 2


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample of which no row can be made, for `reason`: first a worker's report, then the daemon's verdict.

    A verdict is recorded once, before the first batch that uses it is sent. It is `lasting`: other reports say that
    another attempt may succeed, as after an I/O error. `away`: it can succeed only when the data of the stream are
    back; the sample itself is not judged. `of_this_host`: the file is missing, forbidden, or not the listed one, which
    says nothing about the sample on another host.
    """

    sample_id: int
    reason: str
    lasting: bool = True
    away: bool = False
    of_this_host: bool = False

    @property
    def of_bytes(self) -> bool:
        """Whether its listed bytes were read, so that the verdict holds wherever they are."""
        return not self.of_this_host


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row whose planned sample was bad, as `batch.bad` and the receipt show it."""

    row: int
    sample_id: int
    file: str
    reason: str
    action: str  # "substituted" or "masked"


@lru_cache(maxsize=64)
def build_all_good_row_status(rows: int) -> RowStatus:
    """Returns the marks of a batch without bad rows, (rows,) uint8, read-only."""
    marks = np.zeros(rows, dtype=np.uint8)
    marks.setflags(write=False)
    return marks


def compute_most_bad(count: int, max_fraction: float, *, is_default: bool) -> int:
    """Returns how many of `count` pictures may be bad before their stream stops.

    `is_default`: the configuration names no fraction, so a small set may have more, see SMALL_SET_BAD_FRACTION.
    """
    by_default = min(SMALL_SET_BAD_FRACTION * count, SMALL_SET_MOST_BAD) if is_default else 0
    return max(TOLERATED_BAD, int(max(max_fraction * count, by_default)))


def replace_bad_sample_ids(planned: Ids, bad: Collection[int], policy: BadPolicy) -> tuple[Ids, RowStatus]:
    """Returns the ids delivered for the `planned` ids, and a mark for each row.

    Under `substitute`, a bad row shows the next good row of the same batch, cyclically. Under `mask`, and in a batch
    without a good row, a bad row becomes PAD_ID: zeros with weight 0. The result may be `planned` itself.
    """
    # Daemon and client both apply this rule, and the client refuses a batch for which they differ. So the choice may
    # depend on nothing but the arguments.
    rows = [sample_id in bad for sample_id in planned.tolist()] if bad else []
    if not any(rows):
        return planned, build_all_good_row_status(planned.size)
    delivered, marks = planned.copy(), np.zeros(planned.size, dtype=np.uint8)
    good = [row for row, is_bad in enumerate(rows) if not is_bad and planned[row] != PAD_ID]
    for row, is_bad in enumerate(rows):
        if not is_bad:
            continue
        if policy == "substitute" and good:
            delivered[row] = planned[next((other for other in good if other > row), good[0])]
            marks[row] = SUBSTITUTED
        else:
            delivered[row], marks[row] = PAD_ID, MASKED
    return delivered, marks
