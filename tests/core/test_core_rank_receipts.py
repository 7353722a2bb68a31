"""Receipts of ranks add up to one epoch, or what is missing, twice or different is named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.rank_receipts import BATCHES, SPEC, make_receipt, receipts_of_world, token_after

from streamd.core.rank_receipts import EpochSum, NamedReceipt, add_up_receipts, format_batches
from streamd.core.receipt import Receipt, ReceiptSegment
from streamd.errors import ConfigError
from streamd.limits import MAX_VERIFIED_BATCHES

OTHER: Final = "f" * 32
ORDER: Final = SPEC.order_facts


def sum_of(receipts: Iterable[Receipt]) -> EpochSum:
    (found,) = sums_of(receipts)
    return found


def sums_of(receipts: Iterable[Receipt]) -> list[EpochSum]:
    return add_up_receipts(NamedReceipt(f"file-{number}:1", each) for number, each in enumerate(receipts))


def without_facts(receipts: Sequence[Receipt]) -> list[Receipt]:
    return [replace(each, order=None) for each in receipts]


def with_digest(receipt: Receipt, digest: str) -> Receipt:
    """The receipt of a trainer that was sent other batches in its last segment."""
    *before, last = receipt.segments
    return replace(receipt, digest=digest, segments=(*before, replace(last, digest=digest)))


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_the_receipts_of_all_ranks_are_one_epoch_with_the_digest_of_world_1(world: int) -> None:
    found = sum_of(receipts_of_world(world))
    assert found.is_one_epoch
    assert found.dropped.tolist() == list(range(BATCHES - BATCHES % world, BATCHES))
    assert found.digest == make_receipt(0, 1).digest
    assert found.by_token == ()


def test_an_epoch_is_whole_across_two_changes_of_world_and_says_what_is_known_by_token() -> None:
    eight = token_after(5, 8, rank=3)
    six = token_after(4, 6, rank=1, start=eight)
    found = sum_of(make_receipt(rank, 8, start=six) for rank in range(8))
    assert found.is_one_epoch
    assert [(each.world, each.first, each.last, each.unreceipted) for each in found.by_token] == [
        (8, 0, 39, 40), (6, 40, 63, 24),
    ]  # fmt: skip
    assert "by token: batches 0 to 39, world 8" in "\n".join(found.format_lines())


def test_a_rank_that_went_on_from_another_ranks_token_joins_those_that_never_stopped() -> None:
    token = token_after(7, 4, rank=0)
    stayed = [make_receipt(rank, 4) for rank in (0, 1, 2)]
    found = sum_of([*stayed, make_receipt(3, 4, start=token)])
    assert found.is_one_epoch
    assert [(each.first, each.last, each.unreceipted) for each in found.by_token] == [(0, 27, 7)]


def test_steps_that_a_job_took_again_from_an_earlier_token_count_once() -> None:
    given_up = [make_receipt(rank, 8, steps=7) for rank in range(8)]
    again = [make_receipt(rank, 6, start=token_after(5, 8)) for rank in range(6)]
    assert sum_of([*given_up, *again]).is_one_epoch
    abandoned = [make_receipt(rank, 3, start=token_after(5, 8), steps=2) for rank in range(3)]
    assert sum_of([*given_up, *abandoned, *again]).is_one_epoch


def test_a_missing_file_names_the_batches_of_its_rank() -> None:
    found = sum_of(receipts_of_world(4)[:3])
    assert not found.is_one_epoch
    assert found.missing.tolist() == list(range(3, BATCHES - BATCHES % 4, 4))
    assert "missing: 25 batches: 3, 7, 11, 15, 19, 23, 27, 31 and so on, up to 99" in "\n".join(found.format_lines())


def test_an_epoch_that_everybody_left_early_lacks_its_end() -> None:
    found = sum_of(make_receipt(rank, 4, steps=5) for rank in range(4))
    assert found.missing.tolist() == list(range(20, BATCHES))


def test_the_same_file_given_twice_counts_once() -> None:
    receipts = receipts_of_world(2)
    assert sum_of([*receipts, *receipts]).is_one_epoch


def test_two_jobs_that_both_read_the_epoch_have_its_batches_twice() -> None:
    found = sum_of([*receipts_of_world(2), make_receipt(0, 1)])
    assert found.twice.tolist() == list(range(BATCHES - BATCHES % 2))
    assert not found.is_one_epoch


def test_ranks_that_went_on_from_different_tokens_have_batches_twice_and_missing() -> None:
    late, early = token_after(6, 4), token_after(4, 4)
    found = sum_of([make_receipt(0, 3, start=early), *(make_receipt(rank, 3, start=late) for rank in (1, 2))])
    assert found.twice.size
    assert not found.is_one_epoch


@pytest.mark.parametrize("has_facts", [True, False])
def test_files_that_differ_on_a_segment_are_both_named(has_facts: bool) -> None:
    receipts = receipts_of_world(2) if has_facts else without_facts(receipts_of_world(2))
    found = sum_of([*receipts, with_digest(receipts[1], OTHER)])
    assert not found.is_one_epoch
    assert any("of rank 1 of 2" in each and "file-1:1" in each and "file-2:1" in each for each in found.different)


def test_a_digest_that_is_not_the_plans_is_found_in_one_file_alone() -> None:
    receipts = receipts_of_world(2)
    found = sum_of([receipts[0], with_digest(receipts[1], OTHER)])
    (said,) = found.different
    assert said.startswith("batches 1 to 101 of rank 1 of 2: digest ffff")
    assert f"the plan gives {receipts[1].digest}" in said


def test_a_receipt_whose_segments_do_not_add_up_to_its_digest_is_different() -> None:
    (receipt,) = without_facts(receipts_of_world(1))
    (said,) = sum_of([replace(receipt, digest=OTHER)]).different
    assert "add up to" in said


def test_a_receipt_that_is_not_ok_is_different() -> None:
    (receipt,) = receipts_of_world(1)
    (said,) = sum_of([replace(receipt, ok=False, missed=1)]).different
    assert said == "file-0:1 is not ok: missed 1, repeated 0"


def test_ranks_of_different_orders_are_not_one_epoch() -> None:
    one, other = receipts_of_world(2)
    found = sums_of([one, replace(other, order_id=OTHER, order=None)])
    assert len(found) == 2
    assert not any(each.is_one_epoch for each in found)
    assert "in file-1:1" in found[0].different[0]


def test_facts_of_another_order_are_named_and_not_used() -> None:
    (receipt,) = receipts_of_world(1)
    assert receipt.order is not None
    found = sum_of([replace(receipt, order=replace(receipt.order, seed=99))])
    assert found.different == (f"file-0:1: the facts of its order are not those of order {receipt.order_id}",)
    assert found.digest == ""


def test_each_epoch_is_added_up_for_itself() -> None:
    found = sums_of([make_receipt(0, 1, epoch=epoch) for epoch in (1, 0)])
    assert [(each.epoch, each.is_one_epoch) for each in found] == [(0, True), (1, True)]


def test_padded_steps_beyond_the_last_batch_are_no_batches() -> None:
    assert sum_of(receipts_of_world(8, uneven="pad")).is_one_epoch


def test_a_segment_of_unknown_digest_from_an_older_token_is_not_different() -> None:
    token = token_after(5, 8)
    two = token_after(4, 6, start=token)
    old = replace(two, digests=())
    found = sum_of(make_receipt(rank, 6, start=old) for rank in range(6))
    assert found.is_one_epoch


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"segments": ()}, "an older streamd wrote it"),
        ({"order_id": ""}, "an older streamd wrote it"),
        ({"batches": 0}, "0 batches an epoch, but 1 to"),
        ({"batches": MAX_VERIFIED_BATCHES + 1}, "batches an epoch, but 1 to"),
        ({"segments": (ReceiptSegment(0, 5, 3, 2, "0" * 32),)}, "damaged: its history does not add up"),
        ({"segments": (ReceiptSegment(0, 5, 0, 2, "0" * 32), ReceiptSegment(3, 1, 0, 1, ""))}, "damaged: its history"),
        ({"digest": "abc"}, "damaged: a digest has 32"),
        ({"digest": ""}, "damaged: a digest has 32"),
        ({"rank": 1}, "damaged: rank 1 of 1"),
        ({"world": 1 << 20}, "damaged: rank 0 of 1048576"),
        ({"world": 4}, "damaged: rank 0 of 4, but its last segment is of rank 0 of 1"),
        ({"steps": -1}, "damaged: steps is -1"),
        ({"samples": 1 << 60}, "damaged: samples is 1152921504606846976"),
        ({"missed": -1}, "damaged: missed is -1"),
        ({"repeated": 1 << 40}, "damaged: repeated is"),
        ({"bad": -3}, "damaged: bad is -3"),
        ({"bad": 1026}, "damaged: 1026 samples are bad, but its batches have 1025"),
        ({"dropped": 5}, "damaged: 5 samples dropped, but 0 come after its last step"),
        ({"steps": BATCHES + 1}, f"damaged: {BATCHES + 1} steps, but its segments have {BATCHES}"),
        ({"steps": BATCHES - 1}, f"damaged: {BATCHES - 1} steps, but its segments have {BATCHES}"),
        ({"samples": 1024}, "damaged: 1024 samples, of which 0 are bad, but its batches have 1025"),
        ({"samples": 1026}, "damaged: 1026 samples, of which 0 are bad, but its batches have 1025"),
        ({"order_id": "an order"}, "damaged: order_id is 'an order'"),
        ({"pixel_id": "f" * 31}, "damaged: pixel_id is"),
        ({"order": replace(ORDER, batch_size=1 << 17)}, "damaged: batch_size of its order is 131072"),
        ({"order": replace(ORDER, seed=1 << 70)}, "damaged: seed of its order is"),
        ({"order": replace(ORDER, chunk=3)}, "damaged: chunk of its order is 3, but 0 to 0"),
    ],
)
def test_a_receipt_that_cannot_be_added_up_is_refused_by_file(change: dict[str, object], why: str) -> None:
    (receipt,) = receipts_of_world(1)
    with pytest.raises(ConfigError, match=f"file-0:1.*{why}"):
        sum_of([replace(receipt, **change)])  # type: ignore[arg-type]  # each key with its own type


def test_ranks_that_saw_other_pixels_are_not_one_epoch() -> None:
    receipts = receipts_of_world(4)
    receipts[2] = replace(receipts[2], pixel_id=OTHER)
    found = sum_of(receipts)
    assert not found.is_one_epoch
    (said,) = found.different
    assert said.startswith(f"pixels {SPEC.pixel_id} in file-0:1, but {OTHER} in file-2:1:")
    assert found.pixel_ids == (OTHER, SPEC.pixel_id)[:: -1 if SPEC.pixel_id < OTHER else 1]


def test_pixels_that_changed_within_the_epoch_are_noted() -> None:
    receipts = receipts_of_world(2)
    receipts[1] = replace(receipts[1], pixel_id=OTHER, changed=True)
    found = sum_of(receipts)
    assert found.is_one_epoch
    assert found.changed == ("file-1:1",)
    assert "  note: file-1:1 says changed: its pixels did not stay the same within the epoch" in found.format_lines()


def test_receipts_without_the_identity_of_the_pixels_are_noted_as_older() -> None:
    found = sum_of(replace(each, pixel_id="") for each in receipts_of_world(2))
    assert found.is_one_epoch
    assert any("2 receipts of an older streamd cannot say whether the pixels" in each for each in found.remarks)
    one, other = receipts_of_world(2)
    mixed = sum_of([one, replace(other, pixel_id="")])
    assert mixed.is_one_epoch
    assert any("1 receipt of an older streamd" in each and "file-1:1" in each for each in mixed.remarks)


def test_complete_must_be_what_the_segments_say() -> None:
    left = [make_receipt(rank, 2, steps=7) for rank in range(2)]
    found = sum_of(replace(each, complete=True, dropped=SPEC.samples - 140) for each in left)
    assert [each for each in found.different if "says complete, but its steps end at batch 14 of 103" in each]
    (whole,) = receipts_of_world(1)
    (said,) = sum_of([replace(whole, complete=False)]).different
    assert said.startswith("file-0:1 does not say complete, but its steps reach the end of the epoch")


def test_without_a_known_digest_of_each_segment_the_sum_of_all_must_be_the_plans() -> None:
    token = replace(token_after(4, 6, start=token_after(5, 8)), digests=())
    receipts = [make_receipt(rank, 6, start=token) for rank in range(6)]
    assert sum_of(receipts).is_one_epoch
    (said,) = sum_of([*receipts[:5], replace(receipts[5], digest=OTHER)]).different
    assert said.startswith("batches 0 to")
    assert "in 3 segments: digest ffff" in said
    # A receipt from which all digests of segments are taken is still compared as a whole.
    (whole,) = receipts_of_world(1)
    blank = replace(whole, digest=OTHER, segments=(replace(whole.segments[0], digest=""),))
    assert not sum_of([blank]).is_one_epoch


def test_without_the_facts_of_the_order_it_says_that_no_plan_was_compared() -> None:
    found = sum_of(without_facts(receipts_of_world(2)))
    assert found.is_one_epoch
    assert any("not compared with the plan" in each for each in found.remarks)


def test_an_epoch_that_was_left_within_its_first_batch_has_steps_without_a_segment() -> None:
    found = sum_of([replace(make_receipt(0, 1, steps=0), steps=1, samples=5)])
    assert found.missing.size == BATCHES
    with pytest.raises(ConfigError, match="10 steps, but its segments have 0"):
        sum_of([replace(make_receipt(0, 1, steps=0), steps=10)])


_NUMBERS: Final = ("steps", "samples", "missed", "repeated", "dropped", "rank", "world", "batches", "epoch")


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.data())
def test_no_single_number_of_a_receipt_can_be_changed_unnoticed(data: st.DataObject) -> None:
    world = data.draw(st.sampled_from([2, 3]))
    rank, receipts = data.draw(st.integers(0, world - 1)), whole_epoch(world, data.draw(st.integers(0, 2)))
    was = receipts[rank]
    number = st.integers(-1, 1200) | st.sampled_from([-(1 << 70), 1 << 31, 1 << 53, 1 << 64, 1 << 80])
    digests = st.sampled_from([OTHER, "", "0" * 32, "not a digest"])
    change: dict[str, object] = {}
    kind = data.draw(st.sampled_from([*_NUMBERS, "flag", "identity", "segment", "order"]))
    match kind:
        case "flag":
            change = {(flag := data.draw(st.sampled_from(["ok", "complete"]))): not getattr(was, flag)}
        case "identity":
            change = {data.draw(st.sampled_from(["digest", "order_id", "pixel_id"])): data.draw(digests)}
            assume(change != {"pixel_id": ""})  # that of an older version
        case "segment":
            place = data.draw(st.integers(0, len(was.segments) - 1))
            part = {data.draw(st.sampled_from(["base", "steps", "rank", "world"])): data.draw(number)}
            segments = list(was.segments)
            segments[place] = replace(segments[place], **part)  # type: ignore[arg-type]  # all are whole numbers
            change = {"segments": tuple(segments)}
        case "order":
            name = data.draw(st.sampled_from(["samples", "batch_size", "seed", "chunk", "buffer"]))
            facts: dict[str, Any] = {name: data.draw(number)}
            change = {"order": replace(ORDER, **facts)}
        case name:
            change = {name: data.draw(number)}
            # A trainer may take several batches a step, so fewer steps say nothing by themselves.
            assume(name != "steps" or not 0 <= int(str(change[name])) <= (was.steps + 1) // 2)
    changed = replace(was, **change)  # type: ignore[arg-type]  # each key with its own type
    assume(changed != was)
    receipts[rank] = changed
    try:
        noticed = not all(each.is_one_epoch for each in sums_of(receipts))
    except ConfigError as error:
        noticed = str(error).startswith(f"file-{rank}:1: ")
    assert noticed, change


def whole_epoch(world: int, earlier_worlds: int) -> list[Receipt]:
    """The receipts of all ranks of an epoch, of which other worlds did the beginning."""
    return list(_make_whole_epoch(world, earlier_worlds))


@cache
def _make_whole_epoch(world: int, earlier_worlds: int) -> tuple[Receipt, ...]:
    start = None
    for each in (8, 6)[:earlier_worlds]:
        start = token_after(4, each, start=start)
    receipts = tuple(make_receipt(rank, world, start=start) for rank in range(world))
    assert sum_of(receipts).is_one_epoch
    return receipts


def test_batches_are_shown_as_runs() -> None:
    assert format_batches(np.array([5])) == "1 batch: 5"
    assert format_batches(np.array([1, 2, 3, 7, 9, 10])) == "6 batches: 1 to 3, 7, 9 to 10"
