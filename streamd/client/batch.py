"""The batches that a stream yields: images are views of shared memory, labels are the caller's own copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamd.core.receipt import Receipt
from streamd.core.sampler import PAD_ID, BadRow, Ids, RowStatus, build_all_good_row_status, replace_bad_sample_ids
from streamd.core.slot_layout import SlotLayout
from streamd.core.spec import BadPolicy, Segment, StreamSpec, UnevenPolicy
from streamd.core.text import format_count
from streamd.errors import ConfigError, ProtocolError
from streamd.ipc.mapping import build_leased_arrays
from streamd.ipc.messages import BatchReady

FindNames = Callable[[Sequence[int]], Mapping[int, str]]  # file names by sample id; leaves out those not known soon


def _find_no_names(_: Sequence[int]) -> Mapping[int, str]:
    return {}


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One batch.

    arrays: the images of the samples by name, (B, H, W, C) of uint8, uint16 or float32, class numbers (B, H, W):
        read-only views of leased memory. The lease lasts while any view of any image lives.
    images: the first of the arrays, uint8 (B, H, W, C) unless the stream says otherwise.
    labels: arrays by name, (B,) or (B, k): int64 for category and int, float32 for float, float32 for tags (1 where a
        sample has the class, else 0), str for string. Rows without a sample have 0 or "".
    weights: float32 (B,). The sample's weight as the stream configures it, 1 by default; 0 in rows without a sample.
    sample_ids: int64 (B,), the samples that were delivered; -1 in rows without one.
    bad: the rows that were substituted or masked.
    spec: the stream's specification, with the classes behind the labels.
    find_names: returns the file names of `sample_ids` by id; an empty mapping while the daemon is away.

    A notebook shows a batch as pictures with labels and file names.
    """

    arrays: dict[str, npt.NDArray[Any]]
    labels: dict[str, npt.NDArray[Any]]
    weights: npt.NDArray[np.float32]
    sample_ids: npt.NDArray[np.int64]
    bad: tuple[BadRow, ...]
    epoch: int
    index: int
    make_token: Callable[[], str]
    spec: StreamSpec
    find_names: FindNames = _find_no_names

    @property
    def images(self) -> npt.NDArray[Any]:
        """The first image of each sample, as in `arrays`."""
        return next(iter(self.arrays.values()))

    @property
    def token(self) -> str:
        """The position after this batch, as JSON: `subscribe(resume=token)` continues there."""
        return self.make_token()

    def copy(self) -> Batch:
        """Returns the same batch with its own copy of the images, so that the lease may end."""
        return replace(self, arrays={name: values.copy() for name, values in self.arrays.items()})

    def __len__(self) -> int:
        return int(self.sample_ids.size)

    def __repr__(self) -> str:
        bad = f", {len(self.bad)} bad" if self.bad else ""
        return f"<Batch {self.epoch}:{self.index} of {self.spec.name!r}, {describe_rows(self.spec, len(self))}{bad}>"

    def _repr_html_(self) -> str:
        """Returns HTML for a notebook: pictures with labels, and file names if the daemon answers at once."""
        from streamd.client import notebook  # noqa: PLC0415 - a trainer's loop has no use for it

        return notebook.render_batch(self, self.find_names)


def describe_rows(spec: StreamSpec, rows: int) -> str:
    """Describes a number of rows of a stream for a repr: `8 images 32x32x3, labels angle, kind`.

    Several images of a sample have their names: `8 samples, photo 32x32x3, mask 32x32, labels kind`.
    """
    shapes = {name: "x".join(map(str, image.shape)) for name, image in spec.images.items()}
    if len(shapes) == 1:
        what = f"{format_count(rows, 'image')} {next(iter(shapes.values()))}"
    else:
        what = ", ".join([format_count(rows, "sample"), *(f"{name} {shape}" for name, shape in shapes.items())])
    return what + (f", labels {', '.join(spec.labels)}" if spec.labels else "")


def build_leased_batch(
    memory: memoryview,
    layout: SlotLayout,
    header: BatchReady,
    spec: StreamSpec,
    *,
    token: Callable[[], str],
    on_return: Callable[[], None],
    find_names: FindNames = _find_no_names,
) -> Batch:
    """Builds a batch over `memory`; `on_return` runs when the last view of its images is gone.

    Only the images stay in `memory`; ids, weights and labels are copied. `on_return` may run in any thread, also within
    the garbage collector.
    """
    start = layout.sample_ids.offset
    # Everything after the images is small, so one copy of it lets the caller keep labels after the lease has ended.
    own = memoryview(bytearray(memory[start : layout.size_bytes]))
    labels: dict[str, npt.NDArray[Any]] = {}
    for name, tensor in layout.labels.items():
        values = tensor.build_array_in_memory(own, start)
        # UTF-8 bytes become text; all else stays as in the slot.
        labels[name] = np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
    return Batch(
        build_leased_arrays(memory, layout.arrays.values(), on_return),
        labels,
        layout.weights.build_array_in_memory(own, start),
        layout.sample_ids.build_array_in_memory(own, start),
        header.bad,
        header.epoch,
        header.index,
        token,
        spec,
        find_names,
    )


def restore_planned_ids(delivered: Ids, bad: tuple[BadRow, ...], policy: BadPolicy) -> tuple[Ids, RowStatus]:
    """Returns the ids that the plan has for a batch, and the status of each row.

    Raises ProtocolError when the delivered ids do not follow from the planned ids and the verdicts in `bad`.
    """
    if not bad:
        return delivered, build_all_good_row_status(delivered.size)
    # Put the planned ids back, then apply the daemon's own rule again: equal results prove that the delivery follows
    # from the plan. The epoch's digest cannot show this, since it covers planned ids alone.
    planned = delivered.copy()
    planned[[row.row for row in bad]] = [row.sample_id for row in bad]
    resolved, marks = replace_bad_sample_ids(planned, {row.sample_id for row in bad}, policy)
    if not np.array_equal(resolved, delivered):
        raise ProtocolError(
            f"samples {delivered.tolist()} do not follow from the bad rows {bad} and the planned samples "
            f"{planned.tolist()}"
        )
    return planned, marks


# --- Batches of another size than the stream's: parts of one of its batches, or several of them joined.
#
# The daemon does not take part: sessions of any batch size share each decode. Parts are views of the same leased
# memory; joined batches are copied once.


@dataclass(frozen=True, slots=True)
class BatchSplit:
    """How the trainer's batches of `rows` rows are made of the stream's batches.

    parts: the number of the trainer's batches that each of the stream's is cut into.
    group: the number of the stream's batches that are joined into one of the trainer's.

    All ranks of a world take equally many steps. If one rank's last batch is too short for all its parts, the other
    ranks leave out the same parts of theirs; with `uneven` "pad", the short batch is padded with rows of weight 0.
    """

    served_spec: StreamSpec
    rows: int
    parts: int = 1
    group: int = 1
    uneven: UnevenPolicy = "drop"

    @staticmethod
    def from_batch_size(served_spec: StreamSpec, batch_size: int | None, uneven: UnevenPolicy = "drop") -> BatchSplit:
        """Returns the split for a trainer's batch size; None is the stream's own.

        Raises ConfigError unless `batch_size` divides the stream's or is a multiple of it.
        """
        whole = served_spec.batch_size
        rows = whole if batch_size is None else batch_size
        if rows > 0 and whole % rows == 0:
            return BatchSplit(served_spec, rows, parts=whole // rows, uneven=uneven)
        if rows > 0 and rows % whole == 0:
            return BatchSplit(served_spec, rows, group=rows // whole, uneven=uneven)
        divisors = [size for size in range(1, whole) if whole % size == 0]
        near = [*divisors, whole * 2, whole * 3, whole * 4]
        nearest = ", ".join(map(str, sorted(sorted(near, key=lambda size: abs(size - rows))[:4])))
        raise ConfigError(
            f"batch_size={rows}: stream {served_spec.name!r} has batches of {whole}, which are cut into equal parts "
            f"or put together: use a divisor or a multiple of {whole}, such as {nearest}"
        )

    @property
    def trainer_spec(self) -> StreamSpec:
        """The stream's specification in batches of the trainer's size."""
        batches = self.count_steps([Segment(0, self.served_spec.batches, 0, 1)])
        return replace(self.served_spec, batch_size=self.rows, batches=batches)

    def count_steps(self, segments: Sequence[Segment], *, gathered: int = 0) -> int:
        """Returns the trainer's steps in `segments` of the stream's batches, without the last `gathered` batches.

        A negative `gathered` adds batches that were gathered before the segments begin.
        """
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
        """Returns how many parts each rank's batch has in the step that ends before the stream's batch `end`."""
        if end < self.served_spec.batches or (world > 1 and self.uneven == "pad"):
            return self.parts
        return -(-self.served_spec.batch_rows(self.served_spec.batches - 1) // self.rows)

    def compute_group_index(self, first: int, rank: int, world: int) -> int:
        """Returns the index of the group that begins with the stream's batch `first`."""
        return first // world // self.group * world + rank


def slice_batch(batch: Batch, start: int, stop: int, index: int) -> Batch:
    """Returns rows `start` to `stop` of a batch as a batch with the given index; its arrays are views."""
    rows = slice(start, stop)
    return replace(
        batch,
        arrays={name: values[rows] for name, values in batch.arrays.items()},
        labels={name: values[rows] for name, values in batch.labels.items()},
        weights=batch.weights[rows],
        sample_ids=batch.sample_ids[rows],
        bad=_renumber_bad_rows((bad for bad in batch.bad if start <= bad.row < stop), -start),
        index=index,
    )


class BatchGroup:
    """Several of the stream's batches joined into one. Images are copied as they arrive, so each lease ends soon."""

    def __init__(self, split: BatchSplit) -> None:
        self._split = split
        self.batches: list[Batch] = []
        self._arrays: dict[str, npt.NDArray[Any]] = {
            name: np.empty((split.rows, *image.shape), image.dtype) for name, image in split.served_spec.images.items()
        }
        self.rows = 0

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def sample_count(self) -> int:
        """The number of rows that hold a sample."""
        return sum(_count_real_samples(batch.sample_ids) for batch in self.batches)

    def add_batch(self, batch: Batch) -> None:
        """Copies the images of a batch after those gathered so far."""
        stop = self.rows + len(batch)
        for name, values in batch.arrays.items():
            self._arrays[name][self.rows : stop] = values
        bad = _renumber_bad_rows(batch.bad, self.rows)
        # The stored batch refers to the copy, so that it does not keep the lease.
        own = {name: values[self.rows : stop] for name, values in self._arrays.items()}
        self.batches.append(replace(batch, arrays=own, bad=bad))
        self.rows = stop

    def build_batch(self, index: int) -> Batch:
        """Returns all gathered batches as one, padded with rows of weight 0 if the stream pads its last batch."""
        empty = self._split.rows - self.rows if self._split.served_spec.remainder == "pad" else 0
        arrays = {name: values[: self.rows + empty] for name, values in self._arrays.items()}
        for name, values in arrays.items():
            values[self.rows :] = self._split.served_spec.images[name].fill
            values.setflags(write=False)
        return _join_batches(self.batches, arrays, empty, index)


FetchBatch = Callable[[], Batch | None]  # waits for the stream's next batch; None at the epoch's end
CountBatch = Callable[[], None]  # counts the batch that was fetched last
# Takes a number of rows; returns a function that makes the token of the position after them, when it is needed.
MakeTokenWithin = Callable[[int], Callable[[], str]]


class Rebatcher:
    """Makes the trainer's batches from the stream's. A loop that is left early is continued by the next one.

    Used by the loop's thread only. Between two of the trainer's batches the rebatcher is in one of three states: at a
    boundary of the stream's batches; within one that is handed over in parts (`_current_batch`, `rows_taken`); or with
    a group that is not full yet (`_group`).

    A batch of the stream is counted when it was fetched for a group, or when its last part was handed over. Until an
    epoch's account is closed, `steps_in_open_batch`, `uncounted_samples` and `gathered_batch_count` correct the counts.
    """

    def __init__(self, split: BatchSplit, rank: int, world: int, rows_taken: int) -> None:
        self._split, self._rank, self._world = split, rank, world
        self._current_batch: Batch | None = None  # the batch that is handed over in parts
        self._group: BatchGroup | None = None
        self._evens_ranks = split.parts > 1 and world > 1
        self._is_unsplit = split.parts == split.group == 1
        self._cut_off_samples = 0  # samples at the end of the current batch for which other ranks have no part
        self.rows_taken = rows_taken  # rows handed over of the current batch, or, after a resume, of the next one
        self.unused_samples = 0  # samples of this epoch that did not fill a last batch

    def next_batch(
        self, fetch: FetchBatch, count_batch: CountBatch, make_token_within: MakeTokenWithin
    ) -> Batch | None:
        """Returns the trainer's next batch; None at the epoch's end.

        fetch: waits for the stream's next batch.
        count_batch: counts the batch that was fetched last; called once for each.
        make_token_within: see `MakeTokenWithin`.
        """
        if self._is_unsplit and not self.rows_taken:
            # The common case: the stream's batch as it is, without copies or views.
            batch = fetch()
            if batch is not None:
                count_batch()
            return batch
        if self._split.group == 1:
            return self._take_batch_part(fetch, count_batch, make_token_within)
        # The stream's next batches are joined. The group is stored before the first fetch: if a wait raises, the next
        # call continues the same group.
        group = self._group = self._group or BatchGroup(self._split)
        while len(group) < self._split.group:
            part = self._take_batch_part(fetch, count_batch, make_token_within)
            if part is None:
                break
            group.add_batch(part)
            del part  # ends the lease before the wait for the next batch
        self._group = None
        if not len(group):
            return None
        # An incomplete last group is dropped if the stream drops its last batch.
        if len(group) < self._split.group and self._split.served_spec.remainder == "drop":
            self.unused_samples += group.sample_count
            return None
        return group.build_batch(self._split.compute_group_index(group.batches[0].index, self._rank, self._world))

    @property
    def gathered_batch_count(self) -> int:
        """The number of the stream's batches that are counted and not handed over yet."""
        return len(self._group) if self._group else 0

    @property
    def steps_in_open_batch(self) -> int:
        """The number of the trainer's steps within a batch that is not counted yet."""
        return self.rows_taken // self._split.rows

    @property
    def uncounted_samples(self) -> int:
        """The samples handed over and not counted yet; negative for samples counted and not handed over yet."""
        if self._group:
            return -self._group.sample_count
        return (
            self.rows_taken
            if self._current_batch is None
            else _count_real_samples(self._current_batch.sample_ids[: self.rows_taken])
        )

    def count_steps_left(self, base: int, steps: int) -> int:
        """Returns the trainer's steps in the rest of an epoch: `steps` of the stream's, from its batch `base` on."""
        split, world = self._split, self._world
        left = split.count_steps([Segment(base, steps, self._rank, world)], gathered=-self.gathered_batch_count)
        if not self.rows_taken or split.group > 1 or not steps:
            return left
        parts = split.count_parts_per_batch(base + world, world)
        # In a world of several ranks, batches are cut or padded to the same number of parts.
        rows = split.served_spec.batch_rows(base) if world == 1 else parts * split.rows
        return left - parts - (self.rows_taken - rows) // split.rows

    def compute_next_index(self, base: int) -> int:
        """Returns the index of the trainer's next batch, if the stream's next step begins at batch `base`."""
        first = base + self._rank
        if self._split.group > 1:
            first = self._group.batches[0].index if self._group else first
            return self._split.compute_group_index(first, self._rank, self._world)
        return first * self._split.parts + self.steps_in_open_batch

    def recount_receipt(self, receipt: Receipt, history: Sequence[Segment]) -> Receipt:
        """Returns the receipt of an epoch's batches, of the steps in `history`, in the trainer's own steps."""
        steps = self._split.count_steps(history, gathered=self.gathered_batch_count)
        return replace(
            receipt,
            steps=steps + self.steps_in_open_batch,
            samples=receipt.samples + self.uncounted_samples - self.unused_samples,
            dropped=receipt.dropped + self.unused_samples,
        )

    def close(self) -> None:
        """Drops the current batch, whose lease can then end, and the group."""
        self._current_batch = self._group = None

    def _take_batch_part(
        self, fetch: FetchBatch, count_batch: CountBatch, make_token_within: MakeTokenWithin
    ) -> Batch | None:
        """Returns the next part of a batch; the batch is counted when its last part is handed over.

        For a group, the part is the rest of the batch.
        """
        split, batch = self._split, self._current_batch
        if batch is None:
            batch, self._cut_off_samples = fetch(), 0
            if batch is None:
                return None
            # A batch is cut or padded to as many parts as every other rank has in the same step.
            if self._evens_ranks:
                rows = split.rows * split.count_parts_per_batch(batch.index - self._rank + self._world, self._world)
                if rows - split.rows >= len(batch):
                    empty = rows - len(batch)
                    arrays = {
                        name: _concatenate_padded([values], empty, batch.spec.images[name].fill)
                        for name, values in batch.arrays.items()
                    }
                    for values in arrays.values():
                        values.setflags(write=False)
                    batch = _join_batches([batch], arrays, empty, batch.index)
                elif rows < len(batch):
                    self._cut_off_samples = _count_real_samples(batch.sample_ids[rows:])
                    batch = slice_batch(batch, 0, rows, batch.index)
        start = self.rows_taken
        stop = len(batch) if split.group > 1 else min(start + split.rows, len(batch))
        if stop == len(batch):
            self._current_batch, self.rows_taken = None, 0
            count_batch()
            self.unused_samples += self._cut_off_samples
        else:
            self._current_batch, self.rows_taken = batch, stop
            batch = replace(batch, make_token=make_token_within(stop))
        if stop - start == len(batch) and split.parts == 1:
            return batch
        return slice_batch(batch, start, stop, batch.index * split.parts + start // split.rows)


def _join_batches(batches: Sequence[Batch], arrays: dict[str, npt.NDArray[Any]], empty: int, index: int) -> Batch:
    """Returns batches as one whose images are `arrays`; the rest is joined, with `empty` rows of weight 0 behind."""
    last = batches[-1]
    blanks = {name: last.spec.labels[name].blank_value for name in last.labels}
    return replace(
        last,
        arrays=arrays,
        labels={
            name: _concatenate_padded([each.labels[name] for each in batches], empty, blank)
            for name, blank in blanks.items()
        },
        weights=_concatenate_padded([each.weights for each in batches], empty),
        sample_ids=_concatenate_padded([each.sample_ids for each in batches], empty, PAD_ID),
        bad=tuple(bad for each in batches for bad in each.bad),
        index=index,
    )


def _count_real_samples(ids: npt.NDArray[np.int64]) -> int:
    return int(np.count_nonzero(ids >= 0))


def _concatenate_padded(pieces: Sequence[npt.NDArray[Any]], empty: int, filler: int = 0) -> npt.NDArray[Any]:
    first = pieces[0]
    tail = np.zeros((empty, *first.shape[1:]), first.dtype)  # for text, these are "" and not "0"
    if filler:
        tail[:] = filler
    return np.concatenate([*pieces, tail])


def _renumber_bad_rows(rows: Iterable[BadRow], by: int) -> tuple[BadRow, ...]:
    return tuple(replace(bad, row=bad.row + by) for bad in rows)
