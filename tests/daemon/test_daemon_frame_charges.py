"""The time of a link's turn is divided among the users whose frames took it."""

from __future__ import annotations

import pytest

from streamd.daemon.gate_keeper import FrameCharges
from streamd.limits import QUESTION_WEIGHT


def test_each_user_bears_the_part_of_its_own_frames() -> None:
    charges = FrameCharges()
    charges.add_frame(1, 0.003, is_question=False)
    charges.add_frame(2, 0.001, is_question=False)
    assert charges.take_charges(0.008) == pytest.approx({1: 0.006, 2: 0.002})


def test_a_question_is_weighed_and_makes_nobody_elses_frames_dearer() -> None:
    charges = FrameCharges()
    charges.add_frame(1, 0.001, is_question=True)
    charges.add_frame(2, 0.001, is_question=False)
    assert charges.take_charges(0.002) == pytest.approx({1: 0.001 * QUESTION_WEIGHT, 2: 0.001})


def test_each_turn_is_charged_once() -> None:
    charges = FrameCharges()
    charges.add_frame(1, 0.001, is_question=False)
    charges.take_charges(0.001)
    assert charges.take_charges(0.001) == {}


def test_a_turn_without_frames_is_the_only_users() -> None:
    assert FrameCharges(owner=5).take_charges(0.001) == {5: 0.001}


def test_frames_for_which_the_clock_did_not_move_share_the_turn() -> None:
    charges = FrameCharges()
    for user in (1, 2):
        charges.add_frame(user, 0.0, is_question=False)
    assert charges.take_charges(0.002) == pytest.approx({1: 0.001, 2: 0.001})
