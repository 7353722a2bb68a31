"""Lists of bad samples, some at a time."""

from __future__ import annotations

import pytest

from streamd.daemon.monitor.bad_samples import BadSamplePage, BadSampleView, build_bad_sample_page

REASONS = dict.fromkeys(range(100, 150), "a damaged JPEG: cut off")


def some(before: int | None, reasons: dict[int, str] = REASONS) -> BadSamplePage:
    return build_bad_sample_page(reasons, lambda sample_id: f"{sample_id}.jpg", before)


def test_the_newest_come_first_with_file_reason_and_kind() -> None:
    told = some(None)
    assert told.bad == 50
    assert told.samples[0] == BadSampleView(149, "149.jpg", "a damaged JPEG: cut off", "damaged")


def test_list_by_list_each_comes_once() -> None:
    seen, before, lists = [], None, 0
    while True:
        told = some(before)
        seen += [each.sample_id for each in told.samples]
        before, lists = told.before, lists + 1
        if before is None:
            break
    assert (seen, lists) == (list(range(149, 99, -1)), 3)


def test_those_that_come_meanwhile_shift_nothing() -> None:
    first = some(None)
    more = some(first.before, {**REASONS, 7: "an empty file"})
    assert more.samples[0].sample_id == first.samples[-1].sample_id - 1


@pytest.mark.parametrize("before", [0, None])
def test_where_there_are_none_there_is_nothing(before: int | None) -> None:
    assert some(before, {}) == BadSamplePage(0, [], None)


def test_a_place_that_never_was_is_the_end() -> None:
    assert some(10**17).samples == some(None).samples
