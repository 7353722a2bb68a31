"""Stream specifications, labels, cursors and identities."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from itertools import product
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sample_specs import SPEC, some_spec

from streamd.core.spec import (
    Cursor,
    ImageSpec,
    LabelSpec,
    OrderFacts,
    PixelId,
    Segment,
    compute_identity,
    count_steps_left,
)

CURSOR: Final = Cursor(4, (Segment(0, 2, 1, 3), Segment(6, 1, 0, 2)))


# --- streams


def test_every_batch_is_full_except_a_kept_remainder() -> None:
    keep, drop, pad = (some_spec(remainder=kind) for kind in ("keep", "drop", "pad"))
    assert [keep.batch_rows(index) for index in (0, 9, 10, 11, 12)] == [10, 10, 3, 10, 10]
    assert {drop.batch_rows(index) for index in range(12)} == {10}
    assert {pad.batch_rows(index) for index in range(12)} == {10}
    assert some_spec(samples=110).batch_rows(10) == 10
    assert sum(keep.batch_rows(index) for index in range(keep.batches)) == keep.samples


def test_an_image_knows_its_shape_and_bytes() -> None:
    image = ImageSpec(height=5, width=7, channels=3)
    assert (image.shape, image.row_bytes) == ((5, 7, 3), 105)
    assert some_spec(images={"image": image}).image_shape == (5, 7, 3)


def test_labels_have_the_dtypes_of_the_contract() -> None:
    assert [LabelSpec("x", kind).dtype for kind in ("category", "int", "float")] == ["int64", "int64", "float32"]
    assert LabelSpec("x", "tags", width=3).dtype == "float32"
    # Text has room for its longest bytes, and for one at least.
    assert [LabelSpec("x", "string", text_bytes=longest).dtype for longest in (12, 0)] == ["S12", "S1"]


def test_a_spec_lists_the_facts_of_its_order() -> None:
    assert some_spec(content_id="c").order_facts == OrderFacts(103, "c", 10, "keep", "full", 3)


def test_a_spec_names_its_differing_fields_except_the_pixels() -> None:
    unknown = some_spec(labels={"angle": LabelSpec("angle", "float", mean=float("nan"))})
    again = some_spec(labels={"angle": LabelSpec("angle", "float", mean=float("nan"))})
    assert unknown.differing_fields(again) == SPEC.differing_fields(some_spec(pixel_id=PixelId("other"))) == []
    assert SPEC.differing_fields(some_spec(images={"image": ImageSpec(1, 1, 3)}, seed=4)) == ["images", "seed"]


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        SPEC.seed = 4  # type: ignore[misc]  # the very thing that must not work


# --- cursors


def test_steps_of_one_rank_and_world_form_one_segment() -> None:
    cursor = Cursor(3)
    for _ in range(5):
        cursor = cursor.after_step(1, 4)
    assert cursor == Cursor(3, (Segment(0, 5, 1, 4),))
    assert cursor.next_base_index == 20


def test_a_change_of_rank_or_world_begins_a_new_segment() -> None:
    cursor = Cursor().after_step(3, 4).after_step(0, 4).after_step(0, 3)
    assert cursor.history == (Segment(0, 1, 3, 4), Segment(4, 1, 0, 4), Segment(8, 1, 0, 3))
    assert cursor.next_base_index == 11


@settings(derandomize=True, deadline=None)
@given(st.lists(st.sampled_from([(0, 1), (0, 2), (1, 2), (2, 3)]), max_size=40))
def test_every_step_advances_the_base_by_its_world(steps: list[tuple[int, int]]) -> None:
    cursor = Cursor(7)
    for rank, world in steps:
        cursor = cursor.after_step(rank, world)
    assert cursor.next_base_index == sum(world for _, world in steps)
    assert sum(part.steps for part in cursor.history) == len(steps)


def test_the_next_epoch_starts_at_the_beginning() -> None:
    assert CURSOR.at_next_epoch() == Cursor(5, ())
    assert CURSOR.at_next_epoch().next_base_index == 0


def test_steps_left_count_whole_steps_and_with_pad_also_partial_ones() -> None:
    for world, base in product(range(1, 6), range(15)):
        starts = range(base, 11, world)
        assert count_steps_left(base, world, 11, "pad") == len(starts), (world, base)
        assert count_steps_left(base, world, 11, "drop") == sum(start + world <= 11 for start in starts), (world, base)


# --- identities


def test_an_identity_is_unchanged_from_earlier_versions() -> None:
    assert compute_identity("streamd", 1, b"x") == "3209a6ccb9df238c33231c8bd1dbfecb"


def test_an_identity_depends_on_where_parts_are_divided() -> None:
    cuts: list[tuple[str, ...]] = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ()]
    assert len({compute_identity(*parts) for parts in cuts}) == len(cuts)


def test_equal_numbers_bytes_and_text_give_the_same_identity() -> None:
    assert compute_identity(12) == compute_identity("12") == compute_identity(b"12")
