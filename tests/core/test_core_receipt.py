"""The digest depends on everything but the order of adding up; the receipt tells what happened."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import reduce
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rank_receipts import digest_of
from support.sample_batches import joined
from support.sample_specs import SPEC

from streamd.core.receipt import (
    EpochTally,
    Lanes,
    Receipt,
    ReceiptSegment,
    TallySnapshot,
    TallyStart,
    add_digest_lanes,
    compute_digest_row_places,
    digest_rows,
    format_digest,
    parse_digest,
    sum_expected_lanes,
)
from streamd.core.sampler import (
    GOOD,
    MASKED,
    SUBSTITUTED,
    Ids,
    RowStatus,
    SampleOrder,
    compute_batch_ids,
    compute_batch_index_ranges,
    replace_bad_sample_ids,
)
from streamd.core.spec import Cursor, Segment

Content = tuple[Ids, RowStatus]
ORDER: Final = SPEC.order_id
PIXELS: Final = SPEC.pixel_id
BATCHES: Final = 150  # more than twice what is digested together, so that every path is walked
ROWS: Final = 4


def content(index: int, bad: frozenset[int] = frozenset(), epoch: int = 0) -> Content:
    order = SampleOrder(BATCHES * ROWS - 1, ROWS, BATCHES, "full", 9)
    planned = compute_batch_ids(order, epoch, index, ROWS - (index == BATCHES - 1))
    return planned, replace_bad_sample_ids(planned, bad, "substitute")[1]


def new_tally(epoch: int = 0, order_id: str = ORDER) -> EpochTally:
    return EpochTally("train", order_id, Cursor(epoch), pixel_id=PIXELS)


def took(
    indices: Iterable[int], tally: EpochTally | None = None, batch: Callable[[int], Content] = content
) -> EpochTally:
    tally = tally or new_tally()
    for index in indices:
        tally.add_batch(index, *batch(index), tally.cursor.after_step(0, 1))
    return tally


def start_of(place: TallySnapshot) -> TallyStart:
    """The start of a tally that continues at a place."""
    totals = place.compute_totals()
    return TallyStart(totals, place.start.compute_segment_digests(totals.lanes, place.cursor.history))


def lanes_of(index: int, ids: list[int], epoch: int = 0, order: str = ORDER) -> Lanes:
    return digest_rows(order, epoch, compute_digest_row_places([index], [len(ids)]), np.array(ids, dtype=np.int64))


# --- the digest


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.permutations(range(BATCHES)))
def test_the_digest_does_not_depend_on_the_order_of_batches(order: list[int]) -> None:
    assert digest_of(took(order)) == digest_of(took(range(BATCHES)))


def test_the_digest_of_rows_is_unchanged_from_earlier_versions() -> None:
    assert format_digest(lanes_of(5, [7, -1, 9], epoch=3, order="abc")) == "b6a11b738153285fa6a4b64fdbc6d0a8"


@pytest.mark.parametrize(
    "other",
    [
        lanes_of(5, [1, 2, 4]),
        lanes_of(5, [1, 2]),
        lanes_of(5, [2, 1, 3]),
        lanes_of(5, [1, 2, -1]),
        lanes_of(6, [1, 2, 3]),
        lanes_of(5, [1, 2, 3], epoch=1),
        lanes_of(5, [1, 2, 3], order="another"),
        (0, 0),
    ],
    ids=["sample", "row lost", "rows exchanged", "none", "index", "epoch", "order", "nothing"],
)
def test_any_other_row_place_epoch_or_order_changes_both_lanes(other: Lanes) -> None:
    whole = lanes_of(5, [1, 2, 3])
    assert whole[0] != other[0]
    assert whole[1] != other[1]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(0, BATCHES - 1), st.integers(0, BATCHES - 1))
def test_loss_repetition_and_exchange_of_batches_change_the_digest(one: int, other: int) -> None:
    everything = list(range(BATCHES))
    right = digest_of(took(everything))
    assert digest_of(took([index for index in everything if index != one])) != right
    assert digest_of(took([*everything, one])) != right
    if one != other:
        swapped = {one: other, other: one}
        assert digest_of(took(everything, batch=lambda index: content(swapped.get(index, index)))) != right


def test_a_bad_sample_changes_the_bad_count_and_not_the_digest() -> None:
    bad = frozenset([int(content(3)[0][2])])
    later = took(range(BATCHES), batch=lambda index: content(index, bad))
    assert digest_of(later) == digest_of(took(range(BATCHES)))
    assert (later.take_snapshot().compute_totals().bad, took(range(BATCHES)).take_snapshot().compute_totals().bad) == (
        1,
        0,
    )


@pytest.mark.parametrize("bad", [frozenset[int](), frozenset(range(0, 600, 7))])
@pytest.mark.parametrize(
    "history",
    [
        (),
        (Segment(0, BATCHES, 0, 1),),
        (Segment(0, 1, 0, 1),),
        (Segment(0, 64, 0, 1),),
        (Segment(0, 65, 0, 1),),
        (Segment(0, 30, 2, 4), Segment(120, 10, 1, 3)),
    ],
)
def test_the_expected_digest_equals_the_digest_of_a_tally_of_the_same_batches(
    history: tuple[Segment, ...], bad: frozenset[int]
) -> None:
    tally = new_tally(epoch=2)
    for part in history:
        for step in range(part.steps):
            index = part.base + step * part.world + part.rank
            tally.add_batch(index, *content(index, bad, 2), tally.cursor.after_step(part.rank, part.world))
    assert tally.cursor == Cursor(2, history)
    for together in (1, 7, 64):
        assert digest_of(tally) == format_digest(
            sum_expected_lanes(
                ORDER,
                2,
                history,
                lambda indices: joined(content(index, bad, 2)[0] for index in indices),
                batches_at_once=together,
            )
        )


def test_digest_places_of_rows_are_unique_across_batches() -> None:
    assert compute_digest_row_places([0], [65536])[-1] + 1 == compute_digest_row_places([1], [1])[0]
    assert compute_digest_row_places([2**40], [2]).tolist() == [2**56, 2**56 + 1]


# --- digests as text


@settings(derandomize=True, deadline=None)
@given(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)))
def test_a_digest_round_trips_through_its_text(lanes: Lanes) -> None:
    assert len(format_digest(lanes)) == 32
    assert parse_digest(format_digest(lanes)) == lanes


@pytest.mark.parametrize(
    "text", ["", "0" * 31, "0" * 33, "g" * 32, "-" + "0" * 31, "0_" * 16, " " * 31 + "1", "٣" * 32]
)
def test_a_malformed_digest_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        parse_digest(text)


# --- continuing


@pytest.mark.parametrize("stop", [1, 63, 64, 65, 100, 149])
def test_a_tally_resumed_from_a_token_ends_with_the_same_digest(stop: int) -> None:
    place = took(range(stop)).take_snapshot()
    resumed = EpochTally("train", ORDER, place.cursor, start_of(place))
    took(range(stop, BATCHES), resumed)
    whole = took(range(BATCHES))
    assert (digest_of(resumed), resumed.cursor, resumed.steps_taken) == (digest_of(whole), whole.cursor, BATCHES)
    receipt = resumed.build_receipt(expected_digest=digest_of(whole), steps_left=0, dropped=0)
    assert receipt.ok
    assert (receipt.missed, receipt.repeated) == (0, 0)


@pytest.mark.parametrize("stop", [0, 1, 63, 64, 65])
def test_later_batches_do_not_change_a_snapshot(stop: int) -> None:
    tally = took(range(stop))
    place = tally.take_snapshot()
    took(range(stop, BATCHES), tally)
    assert digest_of(tally) != digest_of(took(range(stop)))
    assert digest_of(place) == digest_of(took(range(stop)))
    assert place.cursor == took(range(stop)).cursor


def test_reading_the_digest_does_not_change_it() -> None:
    tally = new_tally()
    for index in range(BATCHES):
        took([index], tally)
        before = digest_of(tally)
        assert receipt_of(tally, None).digest == receipt_of(tally, None).digest == before
        assert digest_of(tally) == before
    assert digest_of(tally) == digest_of(took(range(BATCHES)))


# --- the receipt


def receipt_of(tally: EpochTally, expected: str | None, steps_left: int = 0) -> Receipt:
    return tally.build_receipt(expected_digest=expected, steps_left=steps_left, dropped=3)


def test_a_whole_epoch_has_a_receipt_that_is_complete_and_ok() -> None:
    bad = frozenset([int(content(3)[0][2])])
    tally = took(range(BATCHES), batch=lambda index: content(index, bad))
    assert receipt_of(tally, digest_of(tally)) == Receipt(
        stream="train", epoch=0, steps=BATCHES, samples=BATCHES * ROWS - 1, missed=0, repeated=0, bad=1, dropped=3,
        changed=False, complete=True, ok=True, digest=digest_of(tally), order_id=ORDER,
        segments=(ReceiptSegment(0, BATCHES, 0, 1, digest_of(tally)),), pixel_id=tally.pixel_id,
    )  # fmt: skip


def test_rows_without_a_sample_are_not_counted_as_samples() -> None:
    tally = new_tally()
    marks = np.array([GOOD, SUBSTITUTED, MASKED, GOOD], dtype=np.uint8)
    tally.add_batch(0, np.array([4, 5, 6, -1]), marks, tally.cursor.after_step(0, 1))
    receipt = receipt_of(tally, None)
    assert (receipt.samples, receipt.bad) == (2, 2)


@pytest.mark.parametrize(
    ("taken", "expected", "steps_left", "facts"),
    [
        pytest.param(range(20), None, 130, (False, True, 20, 0, 0), id="stopped: incomplete and ok"),
        pytest.param(range(9), range(8), 0, (True, False, 9, 0, 0), id="another digest than the plan: not ok"),
        pytest.param(range(20), range(20), 5, (True, False, 20, 5, 0), id="ended too early: the rest is missed"),
        pytest.param([0, 1, 1, 3], range(4), 0, (True, False, 4, 1, 1), id="one batch twice, another missed"),
        pytest.param([0, 1, 1], None, 0, (False, False, 3, 1, 1), id="a batch twice, without the daemon's digest"),
    ],
)
def test_a_receipt_says_what_differs_from_the_plan(
    taken: Iterable[int], expected: Iterable[int] | None, steps_left: int, facts: tuple[bool, bool, int, int, int]
) -> None:
    digest = None if expected is None else digest_of(took(expected))
    receipt = receipt_of(took(taken), digest, steps_left)
    assert (receipt.complete, receipt.ok, receipt.steps, receipt.missed, receipt.repeated) == facts


def test_a_batch_from_before_the_token_counts_as_repeated() -> None:
    place = took(range(5)).take_snapshot()
    resumed = took([4], EpochTally("train", ORDER, place.cursor, start_of(place)))
    receipt = receipt_of(resumed, digest_of(resumed))
    assert (receipt.repeated, receipt.missed, receipt.ok) == (1, 1, False)


def digest_of_segment(segment: Segment) -> str:
    """The digest of one segment, batch by batch."""
    (indices,) = compute_batch_index_ranges([segment])
    return digest_of(took(indices))


def test_a_receipt_has_the_digest_of_each_segment_also_after_two_changes_of_world() -> None:
    cursor, start = Cursor(), TallyStart()
    for rank, world, steps in ((1, 4, 5), (1, 4, 2), (2, 3, 20), (0, 4, 15)):
        tally = EpochTally("train", ORDER, cursor, start)
        for _ in range(steps):
            index = tally.cursor.next_base_index + rank
            tally.add_batch(index, *content(index), tally.cursor.after_step(rank, world))
        place = tally.take_snapshot()
        cursor, start = place.cursor, start_of(place)

    receipt = receipt_of(tally, None)

    assert [(each.base, each.steps, each.rank, each.world) for each in receipt.segments] == [
        (0, 7, 1, 4), (28, 20, 2, 3), (88, 15, 0, 4),
    ]  # fmt: skip
    assert [each.digest for each in receipt.segments] == [digest_of_segment(segment) for segment in cursor.history]
    lanes = reduce(add_digest_lanes, (parse_digest(each.digest) for each in receipt.segments))
    assert format_digest(lanes) == receipt.digest


def test_a_receipt_is_one_line_of_json_with_rank_world_and_batches() -> None:
    tally = took(range(3))
    said = json.loads(receipt_of(tally, None).with_rank(1, 2, SPEC).to_json())
    assert (said["rank"], said["world"], said["batches"], said["order_id"]) == (1, 2, SPEC.batches, ORDER)
    assert said["segments"] == [{"base": 0, "steps": 3, "rank": 0, "world": 1, "digest": digest_of(tally)}]
    assert "\n" not in receipt_of(tally, None).to_json()


def test_changed_pixels_are_recorded_and_the_receipt_stays_ok() -> None:
    tally = took(range(2))
    tally.record_pixel_id("other")
    took([2, 3], tally)
    receipt = receipt_of(tally, digest_of(tally))
    assert (receipt.changed, receipt.ok, receipt.pixel_id) == (True, True, "other")
    assert replace(receipt, changed=False, pixel_id=PIXELS) == receipt_of(took(range(4)), digest_of(tally))


def test_unchanged_pixels_are_not_recorded_as_a_change() -> None:
    tally = new_tally()
    tally.record_pixel_id(PIXELS)
    assert not receipt_of(took(range(4), tally), digest_of(tally)).changed


def test_only_snapshots_after_a_change_of_pixels_record_it() -> None:
    tally = new_tally()
    before = tally.take_snapshot()
    tally.record_pixel_id("other")
    tally.record_pixel_id("other")
    behind = [tally.take_snapshot(tally.cursor.after_step(0, 1), (0, *content(0))), tally.take_snapshot()]
    assert (before.pixel_id, before.changed) == (PIXELS, False)
    assert [(place.pixel_id, place.changed) for place in behind] == [("other", True)] * 2


def test_the_cursor_moves_past_each_batch() -> None:
    tally = new_tally(epoch=4)
    tally.add_batch(1, *content(1), tally.cursor.after_step(1, 3))
    assert tally.cursor == Cursor(4, (Segment(0, 1, 1, 3),))
    tally.add_batch(4, *content(4), tally.cursor.after_step(1, 3))
    assert tally.cursor == Cursor(4, (Segment(0, 2, 1, 3),))
    assert tally.steps_taken == 2
