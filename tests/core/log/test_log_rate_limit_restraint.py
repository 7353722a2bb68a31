"""What repeats itself is counted and held back, each name by itself, as long as its span lasts."""

from __future__ import annotations

from streamd.core.log.rate_limit import RateDecision, RateLimiter, SuppressedEvents

SAID = RateDecision(is_allowed=True)
HELD = RateDecision(is_allowed=False)


def test_the_first_few_of_a_name_are_said_and_the_rest_of_its_span_is_held_back() -> None:
    restraint = RateLimiter(max_events=2, span_s=10.0)
    rulings = [restraint.decide_if_event_is_logged("a.b", now_s) for now_s in (5.0, 6.0, 7.0, 8.0)]
    assert rulings == [SAID, SAID, RateDecision(is_allowed=False, span_end_s=15.0), HELD]


def test_names_do_not_count_for_each_other() -> None:
    restraint = RateLimiter(max_events=1, span_s=10.0)
    assert [restraint.decide_if_event_is_logged(event, 0.0).is_allowed for event in ("a.b", "a.c", "a.b")] == [
        True,
        True,
        False,
    ]


def test_how_many_were_held_back_is_told_once_when_the_span_has_ended() -> None:
    restraint = RateLimiter(max_events=1, span_s=10.0)
    for now_s in (5.0, 6.0, 7.0):
        restraint.decide_if_event_is_logged("a.b", now_s)
    restraint.decide_if_event_is_logged("a.c", 5.0)
    assert [restraint.take_ended_suppressed_counts(now_s) for now_s in (14.9, 15.0, 15.1)] == [
        [],
        [SuppressedEvents("a.b", 2)],
        [],
    ]


def test_a_new_span_begins_with_the_next_event() -> None:
    restraint = RateLimiter(max_events=1, span_s=10.0)
    restraint.decide_if_event_is_logged("a.b", 0.0)
    restraint.take_ended_suppressed_counts(12.0)
    assert [restraint.decide_if_event_is_logged("a.b", now_s).is_allowed for now_s in (12.0, 21.9)] == [True, False]
    assert restraint.take_ended_suppressed_counts(21.9) == []


def test_at_the_end_all_is_told_that_was_not() -> None:
    restraint = RateLimiter(max_events=1, span_s=10.0)
    for event in ("a.b", "a.b", "a.c", "a.d", "a.d"):
        restraint.decide_if_event_is_logged(event, 0.0)
    assert restraint.take_all_suppressed_counts() == [SuppressedEvents("a.b", 1), SuppressedEvents("a.d", 1)]
    assert restraint.take_all_suppressed_counts() == []
