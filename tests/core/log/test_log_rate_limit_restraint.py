"""What repeats itself is counted and held back, each name by itself, as long as its span lasts."""

from __future__ import annotations

from streamd.core.log.rate_limit import Held, Restraint, Ruling

SAID = Ruling(is_said=True)
HELD = Ruling(is_said=False)


def test_the_first_few_of_a_name_are_said_and_the_rest_of_its_span_is_held_back() -> None:
    restraint = Restraint(most=2, span_s=10.0)
    rulings = [restraint.rule("a.b", now_s) for now_s in (5.0, 6.0, 7.0, 8.0)]
    assert rulings == [SAID, SAID, Ruling(is_said=False, until_s=15.0), HELD]


def test_names_do_not_count_for_each_other() -> None:
    restraint = Restraint(most=1, span_s=10.0)
    assert [restraint.rule(event, 0.0).is_said for event in ("a.b", "a.c", "a.b")] == [True, True, False]


def test_how_many_were_held_back_is_told_once_when_the_span_has_ended() -> None:
    restraint = Restraint(most=1, span_s=10.0)
    for now_s in (5.0, 6.0, 7.0):
        restraint.rule("a.b", now_s)
    restraint.rule("a.c", 5.0)
    assert [restraint.over(now_s) for now_s in (14.9, 15.0, 15.1)] == [[], [Held("a.b", 2)], []]


def test_a_new_span_begins_with_the_next_event() -> None:
    restraint = Restraint(most=1, span_s=10.0)
    restraint.rule("a.b", 0.0)
    restraint.over(12.0)
    assert [restraint.rule("a.b", now_s).is_said for now_s in (12.0, 21.9)] == [True, False]
    assert restraint.over(21.9) == []


def test_at_the_end_all_is_told_that_was_not() -> None:
    restraint = Restraint(most=1, span_s=10.0)
    for event in ("a.b", "a.b", "a.c", "a.d", "a.d"):
        restraint.rule(event, 0.0)
    assert restraint.rest() == [Held("a.b", 1), Held("a.d", 1)]
    assert restraint.rest() == []
