"""Single decisions on whose batch is next. The tests of fairness show their effect over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.scheduler_driver import train, wish

from streamd.core.spec import BatchKey, Cursor, Segment
from streamd.limits import CATCH_UP_S, USER_CATCH_UP_BURST_S, USER_CATCH_UP_SHARE
from streamd.scheduler import fair_share
from streamd.scheduler.fair_share import (
    DecodeShares,
    SessionsByBatch,
    choose_sessions_to_catch_up,
    find_far_batches,
    find_near_batches,
    pair_followers_with_leaders,
    waiting_sessions,
)
from streamd.scheduler.session import ScheduledSession

SHAPE = train(10_000)
LARGE = train(10_000, name="large", tasks=4)
OWN, OTHER, THIRD = 0, 1001, 1002
READ = 50  # batches that each session has released: so many make it one that has not just begun


def session(
    number: int,
    at: int,
    *,
    epoch: int = 0,
    epochs: int | None = 1,
    rank: int = 0,
    world: int = 1,
    large: bool = False,
    user: int = OWN,
) -> ScheduledSession:
    shape = LARGE if large else SHAPE
    history = (Segment(0, at // world, rank, world),) if at else ()
    event = wish(number, shape.name, rank=rank, world=world, epochs=epochs, cursor=Cursor(epoch, history))
    event = replace(event, user=user)
    made = ScheduledSession.from_subscription(event, shape, 4)
    made.sent, made.upto = READ, READ + 4
    return made


def find_wanted_batches(
    sessions: list[ScheduledSession], ahead: Callable[[str], int], known: Callable[[BatchKey], bool]
) -> tuple[SessionsByBatch, SessionsByBatch, set[BatchKey]]:
    near, in_reach = find_near_batches(sessions, ahead, known)
    return near, find_far_batches(sessions, ahead, known), in_reach


def never_ready(_: BatchKey) -> bool:
    return False


def key(index: int) -> BatchKey:
    return BatchKey("train", 0, index)


def test_sessions_that_want_the_same_batch_form_one_group() -> None:
    one, two, far = session(1, 5), session(2, 5), session(3, 9)

    near, ahead, in_reach = find_wanted_batches([one, two, far], lambda _: 3, never_ready)

    assert near == {key(5): [one, two], key(9): [far]}
    assert in_reach == {key(5), key(9)}
    assert ahead == {}


def test_batches_beyond_the_credit_are_listed_apart() -> None:
    one, two = session(1, 0), session(2, 3)
    pool = {key(index) for index in range(5)}

    near, ahead, in_reach = find_wanted_batches([one, two], lambda _: 3, pool.__contains__)

    assert near == {key(5): [two]}
    assert ahead == {key(5): [one]}
    assert in_reach == {key(5)}


@pytest.mark.parametrize(("released", "ahead"), [(0, 1), (1, 2), (2, 3), (3, 3)])
def test_the_horizon_of_a_session_that_has_just_begun_grows_with_what_it_releases(released: int, ahead: int) -> None:
    fresh = session(1, 0)
    fresh.sent, fresh.upto = released, released + 4
    known = {key(index) for index in range(4 + ahead - 1)}

    assert find_wanted_batches([fresh], lambda _: 3, known.__contains__)[1] == {key(4 + ahead - 1): [fresh]}
    assert find_wanted_batches([fresh], lambda _: 3, {*known, key(4 + ahead - 1)}.__contains__) == ({}, {}, set())


def test_no_batch_is_wanted_beyond_the_production_horizon() -> None:
    one = session(1, 0)

    assert find_wanted_batches([one], lambda _: 3, lambda wanted: wanted.index < 7) == ({}, {}, set())


def test_an_active_chaser_wants_batches_beyond_its_credit_and_an_idle_one_none() -> None:
    leader, chaser = session(1, 20), session(2, 0)
    chaser.chased_session = leader.id
    pool = {key(index) for index in range(5)}

    near, _, in_reach = find_wanted_batches([leader, chaser], lambda _: 3, pool.__contains__)
    assert near[key(5)] == [chaser]
    assert key(5) not in in_reach
    chaser.upto = 0
    assert key(5) not in find_wanted_batches([leader, chaser], lambda _: 9, pool.__contains__)[0]


def test_the_session_with_the_least_virtual_time_is_next() -> None:
    one, two = session(1, 5), session(2, 900)
    one.virtual_time, two.virtual_time = 7.0, 6.0
    groups = {key(5): [one], key(900): [two]}

    assert DecodeShares(OWN).choose_batch(groups, [], {}, 0.0) == (key(900), 0.0)


def test_group_members_share_the_charge() -> None:
    one, two, three, alone = session(1, 5), session(2, 5), session(3, 5), session(4, 5)
    shares = DecodeShares(OWN)

    shares.charge_sessions([one, two, three], 6.0)
    shares.charge_sessions([alone], 6.0)

    assert one.virtual_time == two.virtual_time == three.virtual_time == 2.0
    assert alone.virtual_time == 6.0


def test_a_session_that_slept_earns_no_claim() -> None:
    awake, late = session(1, 900), session(2, 5)
    shares = DecodeShares(OWN)
    for _ in range(50):
        shares.charge_sessions([awake], 1.0)

    shares.charge_sessions([late], 1.0)

    assert late.virtual_time == 50.0


def serve(shares: DecodeShares, sessions: list[ScheduledSession], turns: int) -> Counter[int]:
    """Returns how often each session was served, where each wants another batch and none shares one."""
    served: Counter[int] = Counter()
    for _ in range(turns):
        wanted, _ = shares.choose_batch({key(each.id): [each] for each in sessions}, [], {}, 0.0)
        shares.charge_sessions([each for each in sessions if each.id == wanted.index], 1.0)
        served[wanted.index] += 1
    return served


def test_all_sessions_of_another_user_divide_the_share_of_one() -> None:
    sessions = [session(1, 0), session(2, 0), *(session(10 + each, 0, user=OTHER) for each in range(20))]
    sessions += [session(40, 0, user=THIRD)]

    served = serve(DecodeShares(OWN), sessions, 400)

    assert (served[1], served[2], served[40]) == (100, 100, 100)
    assert {served[10 + each] for each in range(20)} == {5}


def test_a_batch_that_is_expensive_costs_its_user_as_many_turns() -> None:
    cheap, expensive = session(1, 5), session(2, 900, user=OTHER)
    shares, served = DecodeShares(OWN), Counter[int]()
    groups = {key(5): [cheap], key(900): [expensive]}

    for _ in range(110):
        wanted = shares.choose_batch(groups, [], {}, 0.0)[0]
        shares.charge_sessions(groups[wanted], 10.0 if wanted == key(900) else 1.0)
        served[wanted.index] += 1

    assert served == {5: 100, 900: 10}


def test_a_user_that_begins_anew_again_and_again_goes_first_for_a_part_of_the_time_only() -> None:
    shares, leader = DecodeShares(OWN), session(1, 500)
    first = 0
    for turn in range(1000):
        follower = session(2 + turn, 5, user=OTHER)
        follower.virtual_time = 1e9
        groups = {key(500): [leader], key(5): [follower]}
        _, cost_s = shares.choose_batch(groups, [follower], {"train": 0.01}, turn * 0.01)
        first += cost_s > 0
        leader.catch_up_cost_s = 0.0  # its next epoch

    assert first * 0.01 == pytest.approx(USER_CATCH_UP_BURST_S + 10.0 * USER_CATCH_UP_SHARE, rel=0.1)


def test_many_sessions_of_a_user_that_has_caught_up_enough_are_weighed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weighed: list[BatchKey] = []

    def note_and_find(groups: SessionsByBatch, served: BatchKey) -> list[ScheduledSession]:
        weighed.append(served)
        return waiting_sessions(groups, served)

    monkeypatch.setattr(fair_share, "waiting_sessions", note_and_find)
    shares, leader = DecodeShares(OWN), session(1, 500)
    followers = [session(2 + place, place, user=OTHER) for place in range(64)]
    for each in followers:
        each.virtual_time = 1e9
    groups = {key(500): [leader]} | {each.next_key: [each] for each in followers}
    while shares.choose_batch(groups, followers, {"train": 0.25}, 0.0)[1]:
        leader.catch_up_cost_s = 0.0
    weighed.clear()

    assert shares.choose_batch(groups, followers, {"train": 0.25}, 0.0) == (key(500), 0.0)
    assert len(weighed) == 1


def test_a_user_draws_level_with_its_own_sessions_without_that_bound() -> None:
    shares = DecodeShares(OWN)
    leader, follower = session(1, 500, user=OTHER), session(2, 5, user=OTHER)
    follower.virtual_time = 100.0
    groups = {key(500): [leader], key(5): [follower]}

    for _ in range(1000):
        assert shares.choose_batch(groups, [follower], {"train": 0.25}, 0.0) == (key(5), 0.25)


def test_what_a_user_owes_outlasts_its_sessions() -> None:
    shares, own = DecodeShares(OWN), session(1, 5)
    guest = session(2, 900, user=OTHER)
    shares.charge_sessions([guest], 7.0)
    shares.forget_absent_users([own], now_s=0.0)
    again = session(3, 900, user=OTHER)
    groups = {key(5): [own], key(900): [again]}

    assert shares.choose_batch(groups, [], {}, 0.0)[0] == key(5)
    for _ in range(8):
        shares.charge_sessions([own], 1.0)
    shares.forget_absent_users([own], now_s=0.0)
    shares.charge_sessions([again], 0.0)
    assert again.virtual_time == 0.0


def test_a_chaser_is_served_first_and_its_cost_returned() -> None:
    leader, follower = session(1, 500), session(2, 5)
    follower.virtual_time = 100.0
    groups = {key(500): [leader], key(5): [follower]}

    assert DecodeShares(OWN).choose_batch(groups, [follower], {"train": 0.25}, 0.0) == (key(5), 0.25)


def test_a_chaser_is_served_first_only_while_every_other_session_can_afford_it() -> None:
    leader, bystander, follower = session(1, 500), session(3, 7, large=True), session(2, 5)
    follower.virtual_time = 100.0
    groups = {key(500): [leader], key(5): [follower], BatchKey("large", 0, 7): [bystander]}
    assert DecodeShares(OWN).choose_batch(groups, [follower], {"train": 0.25}, 0.0)[0] == key(5)

    bystander.catch_up_cost_s = CATCH_UP_S - 0.1

    assert DecodeShares(OWN).choose_batch(groups, [follower], {"train": 0.25}, 0.0) == (key(500), 0.0)


def test_the_chaser_furthest_behind_is_served_first() -> None:
    leader, near, far = session(1, 500), session(2, 400), session(3, 5)
    groups = {key(500): [leader], key(400): [near], key(5): [far]}

    assert DecodeShares(OWN).choose_batch(groups, [far, near], {"train": 0.25}, 0.0)[0] == key(5)
    del groups[key(5)]
    assert DecodeShares(OWN).choose_batch(groups, [far, near], {"train": 0.25}, 0.0)[0] == key(400)


def test_all_sessions_outside_the_chosen_group_wait() -> None:
    one, two, three = session(1, 1), session(2, 2), session(3, 3)
    groups = {key(1): [one], key(2): [two], key(3): [three]}

    assert waiting_sessions(groups, key(2)) == [one, three]


def test_the_leader_is_the_nearest_session_ahead() -> None:
    near, far, last = session(1, 50), session(2, 90), session(3, 5)
    beyond = session(4, 0, epoch=1, epochs=2)

    assert pair_followers_with_leaders([near, far, beyond, last]) == [(last, near), (near, far), (far, beyond)]


def test_sessions_level_with_each_other_do_not_lead_each_other() -> None:
    one, two, ahead = session(1, 5), session(2, 5), session(3, 9)

    assert pair_followers_with_leaders([one, two]) == []
    assert pair_followers_with_leaders([one, two, ahead]) == [(one, ahead), (two, ahead)]


@pytest.mark.parametrize(
    "other",
    [
        session(2, 500, world=2),
        session(2, 500, large=True),
        session(2, 500, epoch=1, epochs=1),
    ],
    ids=["another world", "another stream", "at its end"],
)
def test_only_a_session_with_the_same_steps_can_lead(other: ScheduledSession) -> None:
    assert pair_followers_with_leaders([session(1, 5), other]) == []


def leader_that_lost(lost_s: float) -> ScheduledSession:
    leader = session(1, 505)
    leader.catch_up_cost_s = lost_s
    return leader


STEP_S = CATCH_UP_S / 500  # what a batch may cost where the follower is 500 behind and just affordable


@pytest.mark.parametrize(
    ("leader", "follower", "cost_s", "chasing"),
    [
        pytest.param(session(1, 505), session(2, 5), STEP_S, True, id="as much as the leader can afford"),
        pytest.param(leader_that_lost(CATCH_UP_S / 2), session(2, 5), 0.6 * STEP_S, False, id="the leader lost some"),
        pytest.param(session(1, 505), session(2, 5, epochs=None), 2.5 * STEP_S, False, id="one epoch left"),
        pytest.param(session(1, 505, epochs=2), session(2, 5, epochs=None), 2.5 * STEP_S, False, id="two epochs left"),
        pytest.param(session(1, 505, epochs=3), session(2, 5, epochs=None), 2.5 * STEP_S, True, id="three epochs left"),
        pytest.param(session(1, 505, epochs=None), session(2, 5, epochs=None), 2.5 * STEP_S, True, id="no end"),
        pytest.param(session(1, 505, epochs=None), session(2, 5, epochs=2), 2.5 * STEP_S, False, id="follower ends"),
        pytest.param(
            session(1, 100, epoch=1, epochs=2), session(2, 9900, epochs=2), 2.5 * STEP_S, True, id="in the epoch before"
        ),
        pytest.param(
            session(1, 100, epoch=1, epochs=2), session(2, 9900, epochs=2), 2.53 * STEP_S, False, id="too dear there"
        ),
        pytest.param(
            session(1, 100, epoch=1, epochs=2), session(2, 9900), 0.001, False, id="beyond the follower's last epoch"
        ),
        pytest.param(session(1, 9700), session(2, 9300), 0.001, False, id="not to be got back before the end"),
        pytest.param(session(1, 9700, epochs=2), session(2, 9300, epochs=2), 0.001, True, id="to be got back later"),
    ],
)
def test_a_follower_catches_up_only_where_its_leader_can_afford_it(
    leader: ScheduledSession, follower: ScheduledSession, cost_s: float, *, chasing: bool
) -> None:
    assert choose_sessions_to_catch_up([leader, follower], (), {"train": cost_s}, 0.0) == [follower][: int(chasing)]
    assert follower.chased_session == (leader.id if chasing else None)


def test_a_follower_too_far_behind_is_considered_again_after_a_second() -> None:
    leader, follower = session(1, 505), session(2, 5)
    too_dear, cheap = {"train": 1.01 * STEP_S}, {"train": 0.001}

    assert choose_sessions_to_catch_up([leader, follower], (), too_dear, 0.0) == []
    assert choose_sessions_to_catch_up([leader, follower], (), cheap, 0.9) == []
    assert choose_sessions_to_catch_up([leader, follower], (), cheap, 1.0) == [follower]


def test_ready_batches_cost_a_follower_nothing() -> None:
    leader, follower = session(1, 505), session(2, 5)

    ready = [key(index) for index in (*range(5, 400), 505, 506)]

    assert choose_sessions_to_catch_up([leader, follower], ready, {"train": 0.09}, 0.0) == [follower]
    assert choose_sessions_to_catch_up([leader, session(3, 5)], ready[-2:], {"train": 0.09}, 0.0) == []


def test_catching_up_stops_when_the_leader_has_paid_the_bound() -> None:
    leader, follower = session(1, 505), session(2, 5)
    costs_s = {"train": 0.001}
    choose_sessions_to_catch_up([leader, follower], (), costs_s, 0.0)
    leader.catch_up_cost_s = CATCH_UP_S

    assert choose_sessions_to_catch_up([leader, follower], (), costs_s, 0.1) == []
    assert follower.chased_session is None


def test_a_chaser_that_has_caught_up_stops_chasing() -> None:
    leader, follower = session(1, 6), session(2, 5)
    choose_sessions_to_catch_up([leader, follower], (), {"train": 0.001}, 0.0)
    follower.lease_next_batch(1)

    assert choose_sessions_to_catch_up([leader, follower], (), {"train": 0.001}, 0.1) == []
    assert follower.chased_session is None


def test_a_chaser_whose_leader_changes_is_reconsidered_at_once() -> None:
    leader, follower = session(1, 505), session(2, 5)
    choose_sessions_to_catch_up([leader, follower], (), {"train": 0.001}, 0.0)
    nearer = session(3, 400)

    assert follower in choose_sessions_to_catch_up([leader, nearer, follower], (), {"train": 0.001}, 0.1)
    assert follower.chased_session == 3
