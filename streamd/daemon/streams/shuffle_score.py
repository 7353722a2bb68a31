"""The shuffle score: how well the batches of a stream mix its labels. Pure.

Two samples of one batch have different labels with some probability, and so have two of all samples. The score divides
the first probability by the second: it is 1 where batches are as mixed as a full shuffle makes them, and 0 where each
batch has one label. It is computed from batches spread evenly over the first epoch, and "all samples" are the samples
of these batches, so that rare labels weigh the same on both sides. Two numbers count as equal when they lie in the same
tenth of all values, by rank. Strings are ignored, since they may be names, and so are boxes and points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import PAD_ID, Ids, SampleOrder, compute_ids_of_batches
from streamd.core.spec import StreamSpec
from streamd.core.text import format_count
from streamd.limits import MIXED_ENOUGH, MIXING_BATCHES, MIXING_COLUMNS, MIXING_ROWS, POORLY_MIXED

# The name of a label and n sample ids -> its values as batches carry them, (n,) or (n, k).
LabelRowsReader = Callable[[str, Ids], npt.NDArray[Any]]

_TENTHS: Final = 10
_STANDARD_ERRORS: Final = 2  # a score this many standard errors below the threshold is not due to chance


@dataclass(frozen=True, slots=True)
class MixingScore:
    """The shuffle score of the worst label, from 0 to 1, its standard error, and `advice` if it should be better."""

    label: str
    score: float
    error: float
    advice: str | None = None

    @property
    def is_poorly_mixed(self) -> bool:
        return self.score < POORLY_MIXED - _STANDARD_ERRORS * self.error


@dataclass(frozen=True, slots=True)
class _SampledBatches:
    """Some samples of an epoch: their ids, the batch of each, counted from 0, and the number of rows of each batch."""

    ids: Ids
    batches: Ids
    rows: Ids


def score_shuffle_mixing(
    spec: StreamSpec, read_label_rows: LabelRowsReader, *, is_packed: bool = False
) -> MixingScore | None:
    """Returns the shuffle score of a stream; None where there is nothing to mix.

    There is nothing to mix without labels, with one label value alone, or with one sample a batch. `is_packed` means
    that the samples lie in compressed chunks, which another order would decompress over and over.
    """
    found = _find_worst_label_score(spec, read_label_rows)
    is_in_buffers = spec.shuffle == "chunk" and spec.chunk * spec.buffer < spec.samples
    if found is None or not is_in_buffers or not found.is_poorly_mixed:
        return found
    once = f"shuffle the data once: streamd pack {spec.name} DEST --shuffle"
    if is_packed:
        remedy = f"{once}; a larger buffer, or shuffle: full, would decompress each chunk over and over"
    else:
        # The smallest buffer that mixes well is found by doubling. There may be none but a full shuffle.
        buffer, enough = 2 * spec.buffer, ""
        while not enough and buffer * spec.chunk < spec.samples:
            mixed = _find_worst_label_score(replace(spec, buffer=buffer), read_label_rows)
            if mixed is None or mixed.score >= MIXED_ENOUGH:
                enough = f"shuffle: {{kind: chunk, chunk: {spec.chunk}, buffer: {buffer}}} or "
            buffer *= 2
        remedy = f"write {enough}shuffle: full, or {once}"
    advice = (
        f"batches are poorly mixed: their shuffle score is {found.score:.2f}, and that of a full shuffle is 1; the "
        f"stored order follows the label {found.label!r}, and mixing {format_count(spec.buffer, 'chunk')} of "
        f"{format_count(spec.chunk, 'sample')} at a time is not enough; {remedy}"
    )
    return replace(found, advice=advice)


def score_stored_order_mixing(spec: StreamSpec, read_label_rows: LabelRowsReader) -> MixingScore | None:
    """Returns the score of batches in stored order, which shows how far equal labels lie together."""
    return _find_worst_label_score(replace(spec, shuffle="none"), read_label_rows)


def _find_worst_label_score(spec: StreamSpec, read_label_rows: LabelRowsReader) -> MixingScore | None:
    # Batches spread evenly over the first epoch stand for all.
    order = SampleOrder.from_spec(spec)
    count = min(order.batches, MIXING_BATCHES, max(2, MIXING_ROWS // order.batch_size))
    indices = np.arange(count, dtype=np.int64) * order.batches // count
    ids = compute_ids_of_batches(order, 0, indices, np.full(count, order.batch_size, dtype=np.int64))
    there = ids != PAD_ID
    batches = np.repeat(np.arange(count, dtype=np.int64), order.batch_size)[there]
    sample = _SampledBatches(ids[there], batches, np.bincount(batches, minlength=count))
    scores: list[MixingScore | None] = []
    for name, label in spec.labels.items():
        if label.type == "string" or label.is_ragged:
            continue
        values = read_label_rows(name, sample.ids)
        # Tags: a row is a member once for each of its tags.
        if label.type == "tags":
            scores.append(_score_label_mixing(name, sample, *np.nonzero(values)))
            continue
        # Standard case: a row has one class; in a vector, one by each of the first numbers.
        everybody = np.arange(values.shape[0], dtype=np.int64)
        for column in values.reshape(values.shape[0], -1).T[:MIXING_COLUMNS]:
            classes = column
            # The class of a number is the tenth of all values in which it lies; equal values lie in the same tenth.
            if label.type != "category":
                ordered = np.sort(column)
                begins = np.unique(ordered[np.arange(1, _TENTHS) * ordered.size // _TENTHS])
                classes = np.searchsorted(begins, column, side="right").astype(np.int64, copy=False)
            scores.append(_score_label_mixing(name, sample, everybody, classes))
    return min((each for each in scores if each is not None), key=lambda each: each.score, default=None)


def _score_label_mixing(label: str, sample: _SampledBatches, members: Ids, classes: Ids) -> MixingScore | None:
    """Returns the score of one label: sample `members[i]` has class `classes[i]`. A sample may have several tags."""
    samples = sample.ids.size
    # All counts are of ordered pairs: for each class, its samples times the samples that are not in it.
    sizes = np.bincount(classes)
    apart_in_all = int((sizes * (samples - sizes)).sum())
    pairs = sample.rows * (sample.rows - 1)
    if not apart_in_all or not pairs.any():
        return None
    # One number for each (batch, class): a single pass counts how many rows of each batch have each class.
    kinds, counts = np.unique(sample.batches[members] * sizes.size + classes, return_counts=True)
    batches = kinds // sizes.size
    apart = np.bincount(batches, counts * (sample.rows[batches] - counts), minlength=sample.rows.size)
    share, share_in_all = apart.sum() / pairs.sum(), apart_in_all / (samples * (samples - 1))
    error = float(np.sqrt(np.square(apart - share * pairs).sum())) / pairs.sum()
    return MixingScore(label, min(1.0, float(share / share_in_all)), float(error / share_in_all))
