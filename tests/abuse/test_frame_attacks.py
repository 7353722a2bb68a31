"""Frames and questions of another user of the group cost the trainers nothing."""

from __future__ import annotations

import pytest
from scene import times
from siege import Record, besiege

pytestmark = pytest.mark.timeout(300)


@pytest.mark.abuse("2c", "names and status asked for, and no answer read")
def test_answers_that_nobody_reads_take_no_memory(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("ignore_answers", rounds=times(4, 2))
        siege.end(record_property)


@pytest.mark.abuse("3b", "questions of all kinds, as fast as two clients can ask them")
def test_a_flood_of_questions_costs_the_attacker(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("flood_questions", attackers=2, rounds=times(3, 2))
        siege.end(record_property)


@pytest.mark.abuse("3b", "questions that have no answer")
def test_wrong_questions_are_answered_with_refusals(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("ask_once_wrongly")
        siege.end(record_property)


@pytest.mark.abuse("33", "random, damaged, deep, empty and pickled frames")
def test_random_frames_end_nothing(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("send_nonsense", rounds=times(20, 5))
        siege.end(record_property)


@pytest.mark.abuse(
    "33", "the same at a daemon that an audit hook watches: nothing unpickles, evaluates or starts a shell"
)
def test_no_frame_makes_the_daemon_execute_anything(record_property: Record) -> None:
    with besiege(is_watched=True) as siege:
        siege.withstand("send_nonsense", rounds=times(10, 5))
        siege.end(record_property)


@pytest.mark.abuse("33", "frames longer than a client may send")
def test_long_frames_cost_only_their_connection(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("send_long_frames")
        siege.end(record_property)


@pytest.mark.abuse("47", "frames of every other version")
def test_other_versions_are_refused_by_name(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("speak_other_versions", rounds=times(10, 3))
        siege.end(record_property)


@pytest.mark.abuse("0", "nobody attacks: a busy loop")
def test_without_an_attack_all_is_well(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("burn", is_joined=True)
        siege.end(record_property)
