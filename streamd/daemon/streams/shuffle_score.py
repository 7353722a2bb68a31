"""How well the batches of a stream mix its labels: the shuffle score. Pure.

Two samples of one batch have different labels with some probability; so have two of all samples. The score is the one
by the other: 1 where batches are as mixed as a full shuffle makes them, 0 where each is of one label. It is taken over
batches spread evenly over the first epoch, and "all samples" are those of these batches, so that rare labels weigh the
same on both sides. Numbers count as equal when they are of the same tenth, by rank; strings, which may well be names,
are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import PAD_ID, Ids, SampleOrder, compute_ids_of_batches
from streamd.core.spec import LabelSpec, StreamSpec
from streamd.core.text import format_count
from streamd.limits import MIXED_ENOUGH, MIXING_BATCHES, MIXING_COLUMNS, MIXING_ROWS, POORLY_MIXED

# A label and samples -> what batches carry of it, (B,) or (B, k).
LabelRowsReader = Callable[[str, Ids], npt.NDArray[Any]]

_TENTHS: Final = 10
_STANDARD_ERRORS: Final = 2  # so many standard errors below what is asked is no chance any more


@dataclass(frozen=True, slots=True)
class MixingScore:
    """The shuffle score by the worst label, from 0 to 1, and its standard error; `advice` where it should be better."""

    label: str
    score: float
    error: float
    advice: str | None = None

    @property
    def is_poorly_mixed(self) -> bool:
        return self.score < POORLY_MIXED - _STANDARD_ERRORS * self.error


@dataclass(frozen=True, slots=True)
class _SampledBatches:
    """Some samples of an epoch: their ids, the batch of each, counted from 0, and the rows of each batch."""

    ids: Ids
    batches: Ids
    rows: Ids


class ShuffleMeter:
    """How well one stream is mixed, worked out when somebody first asks for it, and remembered.

    That may take a tenth of a second, so a daemon asks in a thread before it shows the stream: see
    `measure_shuffles_in_thread`.
    """

    def __init__(self, spec: StreamSpec, read_label_rows: LabelRowsReader, *, is_packed: bool = False) -> None:
        self._spec, self._read_label_rows, self._is_packed = spec, read_label_rows, is_packed
        self._found: MixingScore | None = None
        self._is_measured = False

    def measure_mixing(self) -> MixingScore | None:
        """See `score_shuffle_mixing`."""
        if not self._is_measured:
            self._found = score_shuffle_mixing(self._spec, self._read_label_rows, is_packed=self._is_packed)
            self._is_measured = True
        return self._found


def score_shuffle_mixing(
    spec: StreamSpec, read_label_rows: LabelRowsReader, *, is_packed: bool = False
) -> MixingScore | None:
    """How well a stream is mixed; None where nothing can be: without labels, of one alone, or one sample a batch.

    `is_packed` says that its samples lie in compressed chunks, which another order decompresses over and over.
    """
    found = _find_worst_label_score(spec, read_label_rows)
    is_in_buffers = spec.shuffle == "chunk" and spec.chunk * spec.buffer < spec.samples
    if found is None or not is_in_buffers or not found.is_poorly_mixed:
        return found
    remedy = (
        _format_pack_remedy(spec)
        if is_packed
        else _format_shuffle_remedy(spec, _find_sufficient_buffer(spec, read_label_rows))
    )
    return replace(found, advice=_format_advice(spec, found, remedy))


def score_stored_order_mixing(spec: StreamSpec, read_label_rows: LabelRowsReader) -> MixingScore | None:
    """The same for batches in stored order: how far equal labels lie together."""
    return _find_worst_label_score(replace(spec, shuffle="none"), read_label_rows)


def _find_worst_label_score(spec: StreamSpec, read_label_rows: LabelRowsReader) -> MixingScore | None:
    sample = _choose_sampled_batches(SampleOrder.from_spec(spec))
    scored = [
        each
        for name, label in spec.labels.items()
        if label.type != "string"
        for members, classes in _iterate_class_assignments(label, read_label_rows(name, sample.ids))
        if (each := _score_label_mixing(name, sample, members, classes)) is not None
    ]
    return min(scored, key=lambda each: each.score, default=None)


def _find_sufficient_buffer(spec: StreamSpec, read_label_rows: LabelRowsReader) -> int | None:
    """The least buffer, out of doublings, that mixes a stream of chunks well; None if that takes a full shuffle."""
    buffer = 2 * spec.buffer
    while buffer * spec.chunk < spec.samples:
        found = _find_worst_label_score(replace(spec, buffer=buffer), read_label_rows)
        if found is None or found.score >= MIXED_ENOUGH:
            return buffer
        buffer *= 2
    return None


def _format_pack_remedy(spec: StreamSpec) -> str:
    return (
        f"mix the data once: streamd pack {spec.name} DEST --shuffle; a larger buffer, or shuffle: full, would "
        "decompress each chunk over and over"
    )


def _format_shuffle_remedy(spec: StreamSpec, buffer: int | None) -> str:
    larger = f"write shuffle: {{kind: chunk, chunk: {spec.chunk}, buffer: {buffer}}} or " if buffer else "write "
    return f"{larger}shuffle: full, or mix the data once: streamd pack {spec.name} DEST --shuffle"


def _format_advice(spec: StreamSpec, found: MixingScore, remedy: str) -> str:
    return (
        f"batches are poorly mixed, by a shuffle score of {found.score:.2f} where a full shuffle has 1: the stored "
        f"order follows the label {found.label!r}, and to mix {format_count(spec.buffer, 'chunk')} of "
        f"{format_count(spec.chunk, 'sample')} at a time is too little; {remedy}"
    )


def _choose_sampled_batches(order: SampleOrder) -> _SampledBatches:
    count = min(order.batches, MIXING_BATCHES, max(2, MIXING_ROWS // order.batch_size))
    indices = np.arange(count, dtype=np.int64) * order.batches // count
    ids = compute_ids_of_batches(order, 0, indices, np.full(count, order.batch_size, dtype=np.int64))
    there = ids != PAD_ID
    batches = np.repeat(np.arange(count, dtype=np.int64), order.batch_size)[there]
    return _SampledBatches(ids[there], batches, np.bincount(batches, minlength=count))


def _iterate_class_assignments(label: LabelSpec, values: npt.NDArray[Any]) -> Iterator[tuple[Ids, Ids]]:
    """Who is of which class, two arrays of the same length; once for each number of a vector, of the first ones."""
    if label.type == "tags":
        members, classes = np.nonzero(values)
        yield members, classes
        return
    everybody = np.arange(values.shape[0], dtype=np.int64)
    for column in values.reshape(values.shape[0], -1).T[:MIXING_COLUMNS]:
        yield everybody, column if label.type == "category" else _compute_tenths(column)


def _compute_tenths(values: npt.NDArray[Any]) -> Ids:
    """The tenth of all values that each is in; equal values are in the same."""
    ordered = np.sort(values)
    begins = np.unique(ordered[np.arange(1, _TENTHS) * ordered.size // _TENTHS])
    return np.searchsorted(begins, values, side="right").astype(np.int64, copy=False)


def _score_label_mixing(label: str, sample: _SampledBatches, members: Ids, classes: Ids) -> MixingScore | None:
    """The score of one label, of which sample `members[i]` has class `classes[i]`; tags give a sample several."""
    samples = sample.ids.size
    sizes = np.bincount(classes)
    apart_in_all = int((sizes * (samples - sizes)).sum())
    pairs = sample.rows * (sample.rows - 1)
    if not apart_in_all or not pairs.any():
        return None
    kinds, counts = np.unique(sample.batches[members] * sizes.size + classes, return_counts=True)
    batches = kinds // sizes.size
    apart = np.bincount(batches, counts * (sample.rows[batches] - counts), minlength=sample.rows.size)
    share, share_in_all = apart.sum() / pairs.sum(), apart_in_all / (samples * (samples - 1))
    error = float(np.sqrt(np.square(apart - share * pairs).sum())) / pairs.sum()
    return MixingScore(label, min(1.0, float(share / share_in_all)), float(error / share_in_all))
