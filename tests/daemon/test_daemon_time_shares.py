"""Time by user: what a user takes is bounded over any time, and moderate use is never paused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.core.leaky_bucket import TimeShares
from streamd.limits import LOOP_BURST_S, LOOP_SHARE, MAX_FRAME_CHARGE_S

OWN, EVIL, HONEST = 1000, 1001, 1002
SLACK_S = 1e-9  # of floating-point sums

costs = st.floats(0, 2 * MAX_FRAME_CHARGE_S)
gaps = st.floats(0, 2)


def test_a_user_within_its_burst_is_not_paused_and_one_beyond_it_pays_by_its_share() -> None:
    shares = TimeShares(OWN, LOOP_SHARE, LOOP_BURST_S)
    shares.charge(EVIL, LOOP_BURST_S, 10.0)
    assert shares.get_pause_s(EVIL, 10.0) == 0
    shares.charge(EVIL, 0.015, 10.0)
    assert shares.get_pause_s(EVIL, 10.0) == pytest.approx(0.015 / LOOP_SHARE)
    assert shares.get_pause_s(EVIL, 10.05) == pytest.approx(0.015 / LOOP_SHARE - 0.05)
    assert shares.get_pause_s(EVIL, 10.0 + 0.015 / LOOP_SHARE + SLACK_S) == 0


def test_one_users_pause_is_no_other_users() -> None:
    shares = TimeShares(OWN, LOOP_SHARE, LOOP_BURST_S)
    for _ in range(100):
        shares.charge(EVIL, 1.0, 0.0)
    assert shares.get_pause_s(EVIL, 0.0) > 1
    assert shares.get_pause_s(HONEST, 0.0) == 0


def test_a_frame_during_which_the_host_stood_still_costs_no_more_than_the_longest() -> None:
    shares = TimeShares(OWN, LOOP_SHARE, LOOP_BURST_S)
    shares.charge(EVIL, 3600.0, 0.0)
    assert shares.get_pause_s(EVIL, 0.0) <= MAX_FRAME_CHARGE_S / LOOP_SHARE


def test_users_that_are_quiet_again_are_forgotten() -> None:
    shares = TimeShares(OWN, LOOP_SHARE, LOOP_BURST_S)
    for user in range(2000, 12_000):
        shares.charge(user, 0.001, float(user))
    assert len(shares._buckets) < 100


@given(st.lists(st.tuples(costs, gaps)))
def test_the_daemons_own_user_is_never_paused(frames: list[tuple[float, float]]) -> None:
    shares, now_s = TimeShares(OWN, LOOP_SHARE, LOOP_BURST_S), 0.0
    for cost_s, gap_s in frames:
        now_s += gap_s
        shares.charge(OWN, cost_s, now_s)
        assert shares.get_pause_s(OWN, now_s) == 0


@given(st.lists(st.tuples(costs, gaps), min_size=1), st.lists(st.tuples(costs, gaps)))
def test_over_any_window_what_a_user_is_charged_is_bounded(
    frames: list[tuple[float, float]], others: list[tuple[float, float]]
) -> None:
    """The user sends as fast as its pauses allow, while others send too."""
    shares, now_s, charged = TimeShares(OWN, LOOP_SHARE, LOOP_BURST_S), 0.0, list[tuple[float, float]]()
    for number, (cost_s, gap_s) in enumerate(frames):
        now_s += gap_s + shares.get_pause_s(EVIL, now_s + gap_s)
        charged.append((now_s, min(cost_s, MAX_FRAME_CHARGE_S)))
        shares.charge(EVIL, cost_s, now_s)
        for other_cost_s, _ in others[number : number + 1]:
            shares.charge(HONEST, other_cost_s, now_s)
    for first in range(len(charged)):
        total_s = 0.0
        for at_s, cost_s in charged[first:]:
            total_s += cost_s
            allowed_s = LOOP_BURST_S + MAX_FRAME_CHARGE_S + LOOP_SHARE * (at_s - charged[first][0])
            assert total_s <= allowed_s + SLACK_S


@given(st.lists(st.tuples(st.floats(0, LOOP_BURST_S / 2), st.floats(0, 1)), min_size=2))
def test_a_user_that_takes_less_than_its_share_is_never_paused(frames: list[tuple[float, float]]) -> None:
    """Each frame comes when the share has paid for the one before it."""
    shares, now_s = TimeShares(OWN, LOOP_SHARE, LOOP_BURST_S), 0.0
    for (cost_s, gap_s), (next_cost_s, _) in pairwise(frames):
        del next_cost_s
        shares.charge(HONEST, cost_s, now_s)
        assert shares.get_pause_s(HONEST, now_s) == 0
        now_s += cost_s / LOOP_SHARE + gap_s
