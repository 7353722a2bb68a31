"""Batches of another size than the stream's: each of its batches in parts, or several of them together.

The daemon knows nothing of it: sessions of any batch size share each decode. Parts are views of the same lent memory;
what is put together is copied once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from streamd.client.batch import Batch
from streamd.core.bad_samples import BadRow
from streamd.core.sampler import PAD_ID
from streamd.core.spec import Segment, StreamSpec, UnevenPolicy
from streamd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BatchSplit:
    """`parts` of each of the stream's batches, or a `group` of them together, are one batch of `rows` rows.

    All ranks of a world take equally many steps. So where one of them has a last batch too short for all its parts, the
    others' last batches lose as many, or, with `uneven` "pad", it gets parts of weight 0.
    """

    served_spec: StreamSpec
    rows: int
    parts: int = 1
    group: int = 1
    uneven: UnevenPolicy = "drop"

    @staticmethod
    def from_batch_size(served_spec: StreamSpec, batch_size: int | None, uneven: UnevenPolicy = "drop") -> BatchSplit:
        """Raises ConfigError unless `batch_size` divides the stream's or is a multiple of it."""
        whole = served_spec.batch_size
        rows = whole if batch_size is None else batch_size
        if rows > 0 and whole % rows == 0:
            return BatchSplit(served_spec, rows, parts=whole // rows, uneven=uneven)
        if rows > 0 and rows % whole == 0:
            return BatchSplit(served_spec, rows, group=rows // whole, uneven=uneven)
        near = [size for size in (*_find_divisors(whole), whole * 2, whole * 3, whole * 4) if size != whole]
        nearest = ", ".join(map(str, sorted(sorted(near, key=lambda size: abs(size - rows))[:4])))
        raise ConfigError(
            f"batch_size={rows}: stream {served_spec.name!r} has batches of {whole}, which are cut into equal "
            f"parts or put together: use a divisor or a multiple of {whole}, such as {nearest}"
        )

    @property
    def trainer_spec(self) -> StreamSpec:
        """The stream as its trainer sees it."""
        batches = self.count_steps([Segment(0, self.served_spec.batches, 0, 1)])
        return replace(self.served_spec, batch_size=self.rows, batches=batches)

    def count_steps(self, segments: Sequence[Segment], *, gathered: int = 0) -> int:
        """The trainer's steps in a walk over the stream's batches, but for the last `gathered` of them."""
        taken = sum(segment.steps for segment in segments) - gathered
        if self.group > 1:
            return taken // self.group if self.served_spec.remainder == "drop" else -(-taken // self.group)
        ends = [
            self.parts - self.count_parts_per_batch(segment.next_base_index, segment.world)
            for segment in segments
            if segment.steps
        ]
        return taken * self.parts - max(ends, default=0)

    def count_parts_per_batch(self, end: int, world: int) -> int:
        """The parts of each batch of a step that ends before the stream's batch `end`."""
        if end < self.served_spec.batches or (world > 1 and self.uneven == "pad"):
            return self.parts
        return -(-self.served_spec.batch_rows(self.served_spec.batches - 1) // self.rows)

    def compute_part_index(self, batch: Batch, start: int) -> int:
        """The index of the part of `batch` that begins at row `start`."""
        return batch.index * self.parts + start // self.rows

    def compute_group_index(self, first: int, rank: int, world: int) -> int:
        """The index of the group that begins with the stream's batch `first`."""
        return first // world // self.group * world + rank


def _find_divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number) if number % divisor == 0]


def slice_batch(batch: Batch, start: int, stop: int, index: int) -> Batch:
    """Rows `start` to `stop` of a batch: its images stay a view."""
    rows = slice(start, stop)
    return replace(
        batch,
        images=batch.images[rows],
        labels={name: values[rows] for name, values in batch.labels.items()},
        weights=batch.weights[rows],
        sample_ids=batch.sample_ids[rows],
        bad=_renumber_bad_rows((bad for bad in batch.bad if start <= bad.row < stop), -start),
        index=index,
    )


class BatchGroup:
    """Batches put together, copied as they come, so that none of them is held for long."""

    def __init__(self, split: BatchSplit) -> None:
        self._split = split
        self._batches: list[Batch] = []
        self._images: npt.NDArray[np.uint8] = np.empty((split.rows, *split.served_spec.image_shape), dtype=np.uint8)
        self.rows = 0

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def sample_count(self) -> int:
        """Rows that show a sample."""
        return sum(_count_real_samples(batch.sample_ids) for batch in self._batches)

    def add_batch(self, batch: Batch) -> None:
        """Copies a batch behind those that are here."""
        stop = self.rows + len(batch)
        self._images[self.rows : stop] = batch.images
        bad = _renumber_bad_rows(batch.bad, self.rows)
        self._batches.append(replace(batch, images=self._images[self.rows : stop], bad=bad))
        self.rows = stop

    def first_batch_index(self) -> int:
        """The index of the stream's batch that it begins with."""
        return self._batches[0].index

    def build_batch(self, index: int) -> Batch:
        """One batch of all; with rows of weight 0 behind them where the stream fills up its last one."""
        empty = self._split.rows - self.rows if self._split.served_spec.remainder == "pad" else 0
        self._images[self.rows : self.rows + empty] = 0
        images = self._images[: self.rows + empty]
        images.setflags(write=False)
        last = self._batches[-1]
        return replace(
            last,
            images=images,
            labels={
                name: _concatenate_padded([each.labels[name] for each in self._batches], empty) for name in last.labels
            },
            weights=_concatenate_padded([each.weights for each in self._batches], empty),
            sample_ids=_concatenate_padded([each.sample_ids for each in self._batches], empty, PAD_ID),
            bad=tuple(bad for each in self._batches for bad in each.bad),
            index=index,
        )


FetchBatch = Callable[[], Batch | None]  # waits for the stream's next batch; None at the epoch's end
CountBatch = Callable[[], None]  # counts the batch that was fetched last
# Makes the token behind so many of its rows, when that is asked for.
MakeTokenWithin = Callable[[int], Callable[[], str]]


class Rebatcher:
    """Makes the trainer's batches of the stream's. What was begun when a loop is left is gone on with by the next.

    A batch counts when all of it was handed over. Until then an account has to add `steps_in_open_batch`,
    `uncounted_samples` and `gathered_batch_count` to what was counted.
    """

    def __init__(self, split: BatchSplit, rank: int, world: int, rows_taken: int) -> None:
        self._split, self._rank, self._world = split, rank, world
        self._current_batch: Batch | None = None  # some of its parts were handed over
        self._group: BatchGroup | None = None
        self._evens_ranks = split.parts > 1 and world > 1
        self._is_unsplit = split.parts == split.group == 1
        self._cut_off_samples = 0  # samples at the end of the batch at hand, which other ranks have no part for
        self.rows_taken = rows_taken  # of the stream's batch at hand, or of the next one
        self.unused_samples = 0  # of this epoch, that did not fill a last batch

    def next_batch(
        self, fetch: FetchBatch, count_batch: CountBatch, make_token_within: MakeTokenWithin
    ) -> Batch | None:
        """The trainer's next batch; None at the epoch's end."""
        if self._is_unsplit and not self.rows_taken:
            return self._take_whole_batch(fetch, count_batch)
        if self._split.group > 1:
            return self._gather_batch_group(partial(self._take_batch_part, fetch, count_batch, make_token_within))
        return self._take_batch_part(fetch, count_batch, make_token_within)

    @property
    def is_between_batches(self) -> bool:
        """Whether all that was fetched of the stream was handed over and counted."""
        return not self._group and not self.rows_taken

    @property
    def gathered_batch_count(self) -> int:
        """The stream's batches that are counted and not handed over yet."""
        return len(self._group) if self._group else 0

    @property
    def steps_in_open_batch(self) -> int:
        """The trainer's steps within a batch that is not counted yet."""
        return self.rows_taken // self._split.rows

    @property
    def uncounted_samples(self) -> int:
        """Samples that were handed over and are not counted; below 0, those counted and not handed over."""
        if self._group:
            return -self._group.sample_count
        return (
            self.rows_taken
            if self._current_batch is None
            else _count_real_samples(self._current_batch.sample_ids[: self.rows_taken])
        )

    def count_steps_left(self, base: int, steps: int) -> int:
        """The trainer's steps in what is left of an epoch: `steps` of the stream's own from its batch `base` on."""
        split, world = self._split, self._world
        left = split.count_steps([Segment(base, steps, self._rank, world)], gathered=-self.gathered_batch_count)
        if not self.rows_taken or split.group > 1 or not steps:
            return left
        parts = split.count_parts_per_batch(base + world, world)
        # Ranks fill theirs up to each other's.
        rows = split.served_spec.batch_rows(base) if world == 1 else parts * split.rows
        return left - parts - (self.rows_taken - rows) // split.rows

    def compute_next_index(self, base: int) -> int:
        """The index of the trainer's next batch, where the stream's next step begins at `base`."""
        first = base + self._rank
        if self._split.group > 1:
            first = self._group.first_batch_index() if self._group else first
            return self._split.compute_group_index(first, self._rank, self._world)
        return first * self._split.parts + self.steps_in_open_batch

    def close(self) -> None:
        """Lets go of the batch at hand."""
        self._current_batch = self._group = None

    @staticmethod
    def _take_whole_batch(fetch: FetchBatch, count_batch: CountBatch) -> Batch | None:
        """The stream's next batch as it is, which is what nearly all trainers take."""
        batch = fetch()
        if batch is not None:
            count_batch()
        return batch

    def _take_batch_part(
        self, fetch: FetchBatch, count_batch: CountBatch, make_token_within: MakeTokenWithin
    ) -> Batch | None:
        """A part of the stream's next batch, which is counted when its last part is handed over."""
        batch = self._fetch_evened_batch(fetch) if self._current_batch is None else self._current_batch
        if batch is None:
            return None
        start = self.rows_taken
        stop = len(batch) if self._split.group > 1 else min(start + self._split.rows, len(batch))
        if stop == len(batch):
            self._current_batch, self.rows_taken = None, 0
            count_batch()
            self.unused_samples += self._cut_off_samples
        else:
            self._current_batch, self.rows_taken = batch, stop
            batch = replace(batch, make_token=make_token_within(stop))
        if stop - start == len(batch) and self._split.parts == 1:
            return batch
        return slice_batch(batch, start, stop, self._split.compute_part_index(batch, start))

    def _fetch_evened_batch(self, fetch: FetchBatch) -> Batch | None:
        """The stream's next batch, with as many parts as every other rank's of the same step."""
        batch, split = fetch(), self._split
        self._cut_off_samples = 0
        if batch is None or not self._evens_ranks:
            return batch
        parts = split.count_parts_per_batch(batch.index - self._rank + self._world, self._world)
        if parts > -(-len(batch) // split.rows):
            return _pad_batch(batch, parts * split.rows)
        if parts * split.rows >= len(batch):
            return batch
        kept = slice_batch(batch, 0, parts * split.rows, batch.index)
        self._cut_off_samples = _count_real_samples(batch.sample_ids[len(kept) :])
        return kept

    def _gather_batch_group(self, next_part: FetchBatch) -> Batch | None:
        """Several of the stream's batches as one; what does not fill a last one is dropped where the stream does so."""
        group = self._group = self._group or BatchGroup(self._split)
        while len(group) < self._split.group and (batch := next_part()) is not None:
            group.add_batch(batch)
            del batch  # its memory goes back before the next one is waited for
        self._group = None
        if not len(group):
            return None
        if len(group) < self._split.group and self._split.served_spec.remainder == "drop":
            self.unused_samples += group.sample_count
            return None
        return group.build_batch(self._split.compute_group_index(group.first_batch_index(), self._rank, self._world))


def _pad_batch(batch: Batch, rows: int) -> Batch:
    """A copy with rows of weight 0 behind those that are there."""
    empty = rows - len(batch)
    images = _concatenate_padded([batch.images], empty)
    images.setflags(write=False)
    return replace(
        batch,
        images=images,
        labels={name: _concatenate_padded([values], empty) for name, values in batch.labels.items()},
        weights=_concatenate_padded([batch.weights], empty),
        sample_ids=_concatenate_padded([batch.sample_ids], empty, PAD_ID),
    )


def _count_real_samples(ids: npt.NDArray[np.int64]) -> int:
    return int(np.count_nonzero(ids >= 0))


def _concatenate_padded(pieces: Sequence[npt.NDArray[Any]], empty: int, filler: int = 0) -> npt.NDArray[Any]:
    first = pieces[0]
    tail = np.zeros((empty, *first.shape[1:]), first.dtype)  # of text, "" and not "0"
    if filler:
        tail[:] = filler
    return np.concatenate([*pieces, tail])


def _renumber_bad_rows(rows: Iterable[BadRow], by: int) -> tuple[BadRow, ...]:
    return tuple(replace(bad, row=bad.row + by) for bad in rows)
