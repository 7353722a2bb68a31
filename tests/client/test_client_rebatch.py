"""Batches split into parts or joined into groups: every row once, in order, at any size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.rank_receipts import digest_of
from support.sample_specs import some_spec

from streamd.client.batch import Batch, BatchSplit, Rebatcher
from streamd.core.rank_receipts import NamedReceipt, add_up_receipts
from streamd.core.receipt import EpochTally
from streamd.core.sampler import GOOD, MASKED, BadRow, Ids, RowStatus, SampleOrder, compute_batch_ids, compute_order_id
from streamd.core.spec import (
    Cursor,
    ImageSpec,
    LabelSpec,
    RankSteps,
    RemainderPolicy,
    Segment,
    StreamSpec,
    UnevenPolicy,
)
from streamd.core.token import encode_token, parse_token, resume_tally, start_tally
from streamd.errors import ConfigError

B: Final = 12


def spec_of(samples: int, remainder: RemainderPolicy = "keep") -> StreamSpec:
    whole, rest = divmod(samples, B)
    batches = whole + bool(rest and remainder != "drop")
    return some_spec(
        samples=samples,
        batch_size=B,
        batches=batches,
        labels={"n": LabelSpec("n", "int"), "name": LabelSpec("name", "string")},
        images={"image": ImageSpec(1, 2, 3)},
        remainder=remainder,
    )


def batch_of(spec: StreamSpec, index: int) -> Batch:
    """Row r of the batch shows sample index * B + r, in every array."""
    rows = spec.batch_rows(index)
    ids = np.arange(index * B, index * B + rows, dtype=np.int64)
    ids[ids >= spec.samples] = -1
    images = np.broadcast_to(ids.astype(np.uint8)[:, None, None, None], (rows, 1, 2, 3))
    bad = (BadRow(1, int(ids[1]), "a.jpg", "broken", "masked"),) if rows > 1 else ()
    weights = (ids >= 0).astype(np.float32)
    return Batch({"image": images}, {"n": ids * 10}, weights, ids, bad, 0, index, lambda: f"after {index}", spec)


class Source:
    """The stream's batches in order, and which of them have been booked."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = iter(batches)
        self._fetched = -1
        self.booked: list[int] = []

    def fetch(self) -> Batch | None:
        batch = next(self._batches, None)
        if batch is not None:
            self._fetched = batch.index
        return batch

    def book(self) -> None:
        self.booked.append(self._fetched)

    def token_within(self, rows: int) -> Callable[[], str]:
        return partial("{} rows behind {}".format, rows, list(self.booked))

    def next_of(self, rebatcher: Rebatcher) -> Batch | None:
        return rebatcher.next_batch(self.fetch, self.book, self.token_within)


def source_of(spec: StreamSpec, *, rank: int = 0, world: int = 1) -> Source:
    return Source(batch_of(spec, index) for index in range(rank, spec.batches, world))


def take_all(rebatcher: Rebatcher, source: Source) -> Iterator[Batch]:
    while (batch := source.next_of(rebatcher)) is not None:
        yield batch


def batches_of_size(spec: StreamSpec, size: int, *, rows_taken: int = 0) -> tuple[list[Batch], Source, Rebatcher]:
    source = source_of(spec)
    rebatcher = Rebatcher(BatchSplit.from_batch_size(spec, size), 0, 1, rows_taken)
    return list(take_all(rebatcher, source)), source, rebatcher


def ids_of(batches: list[Batch]) -> list[int]:
    return [int(each) for batch in batches for each in batch.sample_ids]


@settings(derandomize=True, deadline=None)
@given(st.integers(1, 100), st.sampled_from([1, 2, 3, 4, 6, 12, 24, 36, 60]))
def test_every_sample_comes_once_in_order_in_batches_of_the_size_asked_for(samples: int, size: int) -> None:
    spec = spec_of(samples)
    batches, source, _ = batches_of_size(spec, size)
    assert ids_of(batches) == list(range(samples))
    assert all(len(batch) <= size for batch in batches)
    assert source.booked == list(range(spec.batches))
    assert len(batches) == BatchSplit.from_batch_size(spec, size).trainer_spec.batches
    assert [batch.index for batch in batches] == list(range(len(batches)))
    for batch in batches:
        assert batch.images[:, 0, 0, 0].tolist() == [each % 256 for each in batch.sample_ids.tolist()]
        assert batch.labels["n"].tolist() == (batch.sample_ids * 10).tolist()
        for bad in batch.bad:
            assert batch.sample_ids[bad.row] == bad.sample_id


def test_parts_are_views_and_groups_are_copies() -> None:
    spec = spec_of(24)
    whole = batch_of(spec, 0)
    rebatcher = Rebatcher(BatchSplit.from_batch_size(spec, 4), 0, 1, 0)
    part = Source([whole]).next_of(rebatcher)
    assert part is not None
    assert np.shares_memory(part.images, whole.images)
    (group,), _, _ = batches_of_size(spec, 24)
    assert not group.images.flags.writeable
    assert group.images.base is not whole.images


def test_a_batch_is_booked_with_its_last_part_and_earlier_tokens_point_within_it() -> None:
    spec, source = spec_of(24), source_of(spec_of(24))
    rebatcher = Rebatcher(BatchSplit.from_batch_size(spec, 4), 0, 1, 0)
    seen = [(batch.token, list(source.booked)) for batch in take_all(rebatcher, source)]
    assert seen[:4] == [
        ("4 rows behind []", []),
        ("8 rows behind []", []),
        ("after 0", [0]),
        ("4 rows behind [0]", [0]),
    ]


@pytest.mark.parametrize("size", [4, 12, 24])
def test_a_position_within_a_batch_resumes_at_any_size(size: int) -> None:
    batches, source, rebatcher = batches_of_size(spec_of(40), size, rows_taken=8)
    assert ids_of(batches) == list(range(8, 40))
    assert source.booked == [0, 1, 2, 3]
    assert rebatcher.rows_taken == 0


def test_an_incomplete_group_is_dropped_and_its_rows_counted_where_the_stream_drops() -> None:
    batches, source, rebatcher = batches_of_size(spec_of(65, "drop"), 24)  # five batches: two groups and one left over
    assert ids_of(batches) == list(range(48))
    assert rebatcher.unused_samples == 12
    assert source.booked == [0, 1, 2, 3, 4]


def test_an_incomplete_group_is_padded_where_the_stream_pads() -> None:
    batches, _, _ = batches_of_size(spec_of(65, "pad"), 48)
    assert [len(batch) for batch in batches] == [48, 48]
    assert batches[1].sample_ids.tolist() == [*range(48, 65), *[-1] * 31]
    assert batches[1].weights.tolist() == [1.0] * 17 + [0.0] * 31


def test_batches_gathered_before_an_error_are_not_lost() -> None:
    spec, failing = spec_of(48), iter([False, True, False, False, False, False])

    class Failing(Source):
        def fetch(self) -> Batch | None:
            if next(failing):
                raise ConnectionError
            return super().fetch()

    rebatcher, source = Rebatcher(BatchSplit.from_batch_size(spec, 24), 0, 1, 0), Failing(source_of(spec)._batches)
    with pytest.raises(ConnectionError):
        source.next_of(rebatcher)
    assert ids_of(list(take_all(rebatcher, source))) == list(range(48))


@pytest.mark.parametrize("size", [4, 12, 24, 36])
@pytest.mark.parametrize("world", [1, 2])
def test_the_index_of_the_next_batch_is_known_before_it_is_there(size: int, world: int) -> None:
    spec = spec_of(144)
    for rank in range(world):
        rebatcher = Rebatcher(BatchSplit.from_batch_size(spec, size), rank, world, 0)
        source, announced, found = source_of(spec, rank=rank, world=world), list[int](), list[int]()
        while True:
            announced.append(rebatcher.compute_next_index(len(source.booked) * world))
            if (batch := source.next_of(rebatcher)) is None:
                break
            found.append(batch.index)
        assert announced[:-1] == found


@pytest.mark.parametrize("size", [5, 7, 13, 18, 0, -12])
def test_a_size_that_does_not_fit_is_refused_with_sizes_that_do(size: int) -> None:
    with pytest.raises(ConfigError, match=r"batches of 12.* use a divisor or a multiple of 12, such as ") as refusal:
        BatchSplit.from_batch_size(spec_of(40), size)
    named = [int(number) for number in str(refusal.value).rpartition("such as ")[2].split(", ")]
    assert all(12 % number == 0 or number % 12 == 0 for number in named)


def test_every_rank_counts_the_same_steps_where_one_has_a_short_last_batch() -> None:
    halves = BatchSplit.from_batch_size(spec_of(40), 6)  # batches of 12, 12, 12 and 4: the last is one part, not two
    assert [halves.count_steps([Segment(0, 2, rank, 2)]) for rank in (0, 1)] == [3, 3]
    assert halves.count_steps([Segment(0, 1, 1, 2)]) == 2
    assert halves.count_steps([Segment(0, 1, 0, 1), Segment(1, 3, 0, 1)]) == 7
    assert halves.count_steps([Segment(0, 1, 2, 3)]) == 2
    filled = BatchSplit.from_batch_size(spec_of(40), 6, "pad")
    assert [filled.count_steps([Segment(0, 2, rank, 2)]) for rank in (0, 1)] == [4, 4]


def batches_of_rank(rank: int, split: BatchSplit) -> tuple[list[Batch], Rebatcher]:
    rebatcher = Rebatcher(split, rank, 2, 0)
    return list(take_all(rebatcher, source_of(split.served_spec, rank=rank, world=2))), rebatcher


def test_parts_that_another_rank_lacks_are_dropped_and_counted() -> None:
    first, rebatcher = batches_of_rank(0, BatchSplit.from_batch_size(spec_of(40), 4))
    assert ids_of(first) == [*range(12), *range(24, 28)]
    assert rebatcher.unused_samples == 8
    second, rebatcher = batches_of_rank(1, BatchSplit.from_batch_size(spec_of(40), 4))
    assert ids_of(second) == [*range(12, 24), *range(36, 40)]
    assert rebatcher.unused_samples == 0


def test_parts_that_a_rank_lacks_are_padded_with_weight_0_where_the_subscription_pads() -> None:
    batches, rebatcher = batches_of_rank(1, BatchSplit.from_batch_size(spec_of(40), 4, "pad"))
    assert ids_of(batches) == [*range(12, 24), *range(36, 40), *[-1] * 8]
    assert [float(batch.weights.sum()) for batch in batches] == [4, 4, 4, 4, 0, 0]
    assert all(batch.images.shape[0] == len(batch) == 4 and not batch.images.flags.writeable for batch in batches[3:])
    assert rebatcher.unused_samples == 0


def test_text_of_rows_without_a_sample_is_empty() -> None:
    spec = spec_of(15, "pad")

    def named(index: int) -> Batch:
        batch = batch_of(spec, index)
        return replace(batch, labels={"name": batch.sample_ids.astype(str)})

    group = Source(map(named, range(spec.batches))).next_of(Rebatcher(BatchSplit.from_batch_size(spec, 36), 0, 1, 0))
    assert group is not None
    assert group.labels["name"].tolist()[13:] == ["13", "14", *["-1"] * 9, *[""] * 12]


def test_the_trainers_spec_differs_in_nothing_but_the_size() -> None:
    served = spec_of(40)
    seen = BatchSplit.from_batch_size(served, 6).trainer_spec
    assert (seen.batch_size, seen.batches) == (6, 7)
    assert replace(seen, batch_size=served.batch_size, batches=served.batches) == served
    assert BatchSplit.from_batch_size(served, None).trainer_spec == served


@settings(derandomize=True, deadline=None)
@given(
    st.integers(1, 100),
    st.sampled_from([1, 2, 3, 4, 6, 12, 24, 36]),
    st.integers(0, 11),
    st.sampled_from(["keep", "drop", "pad"]),
)
def test_the_count_of_steps_left_is_exact_from_any_row_of_a_batch(
    samples: int, size: int, rows_taken: int, remainder: RemainderPolicy
) -> None:
    spec = spec_of(samples, remainder)
    if not spec.batches or rows_taken >= spec.batch_rows(0):
        return
    source, rebatcher = source_of(spec), Rebatcher(BatchSplit.from_batch_size(spec, size), 0, 1, rows_taken)
    told = []
    while True:
        base = len(source.booked)
        told.append(rebatcher.count_steps_left(base, spec.batches - base))
        if source.next_of(rebatcher) is None:
            break
    assert told == list(range(len(told) - 1, -1, -1))


@pytest.mark.parametrize(
    ("size", "uneven", "steps"),
    [(2, "drop", 16), (2, "pad", 18), (4, "drop", 8), (4, "pad", 9), (12, "drop", 3), (12, "pad", 3), (24, "drop", 2)],
)
def test_all_ranks_have_the_same_number_of_steps_left(size: int, uneven: UnevenPolicy, steps: int) -> None:
    spec, world = spec_of(5 * B + 7), 2
    for rank in range(world):
        rebatcher = Rebatcher(BatchSplit.from_batch_size(spec, size, uneven), rank, world, 0)
        left = rebatcher.count_steps_left(0, 3)
        mine = Source([batch_of(spec, index) for index in range(rank, 6, world)])
        assert sum(1 for _ in take_all(rebatcher, mine)) == left == steps, rank


@pytest.mark.long
@settings(derandomize=True, deadline=None, max_examples=500)
@given(st.data())
def test_no_receipt_that_a_trainer_can_have_contradicts_itself(data: st.DataObject) -> None:
    samples = data.draw(st.integers(1, 90))
    remainder: RemainderPolicy = data.draw(st.sampled_from(["keep", "drop", "pad"]))
    uneven: UnevenPolicy = data.draw(st.sampled_from(["drop", "pad"]))
    unnamed = spec_of(samples, remainder)
    assume(unnamed.batches)
    spec = replace(unnamed, order_id=compute_order_id(unnamed.order_facts))
    order = SampleOrder.from_spec(spec)
    bad = frozenset(data.draw(st.lists(st.integers(0, samples - 1), max_size=5)))
    world = data.draw(st.integers(1, 4))
    rank = data.draw(st.integers(0, world - 1))

    # What another rank of another world did before, as a token has it.
    earlier = RankSteps(spec.batches, 0, data.draw(st.integers(1, 3)), uneven, None)
    tally = start_tally(Cursor(), spec, spec.pixel_id)
    for _ in range(data.draw(st.integers(0, earlier.steps_per_epoch))):
        take_step(tally, spec, order, bad, earlier)
    own = RankSteps(spec.batches, rank, world, uneven, None)
    tally = resume_tally(parse_token(encode_token(spec, tally.take_snapshot()), spec), spec, own)

    taken: list[tuple[int, Ids, RowStatus]] = []

    def fetch() -> Batch | None:
        if not own.step_after(tally.cursor).steps:
            return None
        index = tally.cursor.next_base_index + rank
        ids, marks = plan_batch(spec, order, bad, tally.cursor.epoch, index)
        taken.append((index, ids, marks))
        delivered, empty = np.where(marks > 0, -1, ids), (ids < 0) | (marks > 0)
        images = np.zeros((ids.size, 1, 2, 3), np.uint8)
        labels = {"n": delivered, "name": delivered.astype("S")}
        return Batch({"image": images}, labels, (~empty).astype(np.float32), delivered, (), 0, index, str, spec)

    def book() -> None:
        tally.add_batch(*taken[-1], tally.cursor.after_step(rank, world))

    size = data.draw(st.sampled_from([1, 2, 3, 4, 6, 12, 24, 36]))
    rebatcher = Rebatcher(BatchSplit.from_batch_size(spec, size, uneven), rank, world, 0)
    steps = data.draw(st.none() | st.integers(0, 30))
    is_whole = steps is None
    for _ in range(1000 if steps is None else steps):
        if rebatcher.next_batch(fetch, book, source_of(spec).token_within) is None:
            is_whole = True
            break
    behind = max(0, samples - min(tally.cursor.next_base_index, spec.batches) * B)
    receipt = tally.build_receipt(
        expected_digest=digest_of(tally) if is_whole else None, steps_left=0, dropped=behind if is_whole else 0
    ).with_rank(rank, world, spec)
    (found,) = add_up_receipts([NamedReceipt("file:1", rebatcher.recount_receipt(receipt, tally.cursor.history))])
    # Where all batches are taken and the daemon's account has not come, the receipt says so.
    assert all("does not say complete" in each for each in found.different), found.different


def plan_batch(
    spec: StreamSpec, order: SampleOrder, bad: frozenset[int], epoch: int, index: int
) -> tuple[Ids, RowStatus]:
    """The planned ids of a batch, and which of them are masked."""
    ids = np.array(compute_batch_ids(order, epoch, index, spec.batch_rows(index)))
    return ids, np.where(np.isin(ids, [*bad]), MASKED, GOOD).astype(np.uint8)


def take_step(tally: EpochTally, spec: StreamSpec, order: SampleOrder, bad: frozenset[int], steps: RankSteps) -> None:
    """Takes the next step of a rank."""
    index = tally.cursor.next_base_index + steps.rank
    ids, marks = plan_batch(spec, order, bad, tally.cursor.epoch, index)
    tally.add_batch(index, ids, marks, tally.cursor.after_step(steps.rank, steps.world))
