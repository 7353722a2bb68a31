"""Receipts of ranks add up to one epoch, or what is missing, twice or different is named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pytest
from support.rank_receipts import BATCHES, make_receipt, receipts_of_world, token_after

from streamd.core.rank_receipts import EpochSum, NamedReceipt, add_up_receipts, format_batches
from streamd.core.receipt import Receipt, ReceiptSegment
from streamd.errors import ConfigError
from streamd.limits import MAX_VERIFIED_BATCHES

OTHER: Final = "f" * 32


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
    ],
)
def test_a_receipt_that_cannot_be_added_up_is_refused_by_file(change: dict[str, object], why: str) -> None:
    (receipt,) = receipts_of_world(1)
    with pytest.raises(ConfigError, match=f"file-0:1.*{why}"):
        sum_of([replace(receipt, **change)])  # type: ignore[arg-type]  # each key with its own type


def test_batches_are_shown_as_runs() -> None:
    assert format_batches(np.array([5])) == "1 batch: 5"
    assert format_batches(np.array([1, 2, 3, 7, 9, 10])) == "6 batches: 1 to 3, 7, 9 to 10"
