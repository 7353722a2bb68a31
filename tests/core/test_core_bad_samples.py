"""Which sample replaces a bad one: one rule for every batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.core.sampler import GOOD, MASKED, PAD_ID, SUBSTITUTED, compute_most_bad, replace_bad_sample_ids
from streamd.core.spec import BadPolicy

G, S, M, P = GOOD, SUBSTITUTED, MASKED, PAD_ID


def resolved(planned: list[int], bad: set[int], policy: BadPolicy) -> tuple[list[int], list[int]]:
    ids, marks = replace_bad_sample_ids(np.array(planned, dtype=np.int64), bad, policy)
    assert ids.dtype == np.int64
    assert marks.dtype == np.uint8
    return ids.tolist(), marks.tolist()


@pytest.mark.parametrize(
    ("planned", "bad", "ids", "marks"),
    [
        ([7, 3, 9], set(), [7, 3, 9], [G, G, G]),
        ([7, 3, 9], {1000}, [7, 3, 9], [G, G, G]),
        ([7, 3, 9], {3}, [7, 9, 9], [G, S, G]),
        ([7, 3, 9], {9}, [7, 3, 7], [G, G, S]),
        ([7, 3, 9], {7, 3}, [9, 9, 9], [S, S, G]),
        ([7, 3, 9], {3, 9}, [7, 7, 7], [G, S, S]),
        ([7, 3, 9, 4], {7, 9}, [3, 3, 4, 4], [S, G, S, G]),
        ([7, 3, P, P], {3}, [7, 7, P, P], [G, S, G, G]),
        ([7, 3, P], {7, 3}, [P, P, P], [M, M, G]),
        ([P, P], {3}, [P, P], [G, G]),
        ([7, 3], {7, 3}, [P, P], [M, M]),
        ([5], {5}, [P], [M]),
        ([], {5}, [], []),
    ],
)
def test_the_next_good_row_replaces_a_bad_one_cyclically(
    planned: list[int], bad: set[int], ids: list[int], marks: list[int]
) -> None:
    assert resolved(planned, bad, "substitute") == (ids, marks)


@pytest.mark.parametrize(
    ("planned", "bad", "ids", "marks"),
    [
        ([7, 3, 9], {3}, [7, P, 9], [G, M, G]),
        ([7, 3, 9], {7, 3, 9}, [P, P, P], [M, M, M]),
        ([7, 3, P], {3}, [7, P, P], [G, M, G]),
        ([7, 3, P], set(), [7, 3, P], [G, G, G]),
    ],
)
def test_masked_rows_hold_no_sample(planned: list[int], bad: set[int], ids: list[int], marks: list[int]) -> None:
    assert resolved(planned, bad, "mask") == (ids, marks)


BATCHES = st.lists(st.integers(0, 40), unique=True, max_size=30)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(BATCHES, st.integers(0, 4), st.sets(st.integers(0, 40)), st.sampled_from(["substitute", "mask"]))
def test_good_rows_and_pad_rows_are_untouched_and_nothing_bad_is_delivered(
    planned: list[int], pads: int, bad: set[int], policy: BadPolicy
) -> None:
    rows = planned + [P] * pads
    ids, marks = resolved(rows, bad, policy)
    assert [mark != G for mark in marks] == [row in bad for row in rows]
    assert all(ids[row] == rows[row] for row in range(len(rows)) if rows[row] not in bad)
    assert not bad & set(ids)
    assert all(
        (delivered == P) == (mark == M) for delivered, mark, row in zip(ids, marks, rows, strict=True) if row != P
    )
    assert set(ids) <= set(rows) | {P}


@settings(derandomize=True, deadline=None, max_examples=200)
@given(BATCHES.filter(bool), st.sets(st.integers(0, 40)))
def test_the_substitute_is_the_next_good_row_in_cyclic_order(planned: list[int], bad: set[int]) -> None:
    ids, marks = resolved(planned, bad, "substitute")
    for row, mark in enumerate(marks):
        way = [planned[(row + ahead) % len(planned)] for ahead in range(1, len(planned))]
        assert mark != S or ids[row] == next(one for one in way if one not in bad)


@pytest.mark.parametrize("policy", ["substitute", "mask"])
def test_the_planned_ids_are_not_written(policy: BadPolicy) -> None:
    planned = np.array([7, 3, 9], dtype=np.int64)
    planned.setflags(write=False)
    replace_bad_sample_ids(planned, {3}, policy)
    assert planned.tolist() == [7, 3, 9]


def test_bad_samples_may_be_given_as_a_mapping_with_reasons() -> None:
    ids, marks = replace_bad_sample_ids(np.array([7, 3], dtype=np.int64), {3: "truncated"}, "substitute")
    assert (ids.tolist(), marks.tolist()) == ([7, 7], [G, S])


@pytest.mark.parametrize(
    ("count", "written", "most"),
    [
        (20, None, 10), (200, None, 10), (399, None, 19), (5_000, None, 250), (10_000, None, 500), (50_000, None, 500),
        (80_000, None, 800), (1_281_167, None, 12_811), (399, 0.01, 10), (399, 0.1, 39), (10_000, 0.01, 100),
        (10_000, 0.0001, 10), (399, 1.0, 399),
    ],
)  # fmt: skip
def test_a_small_set_may_have_more_bad_pictures_unless_the_fraction_is_written(
    count: int, written: float | None, most: int
) -> None:
    assert compute_most_bad(count, 0.01 if written is None else written, is_default=written is None) == most
