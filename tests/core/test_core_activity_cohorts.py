"""Who is in step with whom."""

from __future__ import annotations

from dataclasses import replace

from support.sample_metrics import SESSION

from streamd.core.activity import compute_steps_behind_leader, count_cohorts_by_stream, count_steps_done
from streamd.core.status import SessionState, SessionStatus


def at(
    session: int, epoch: int, step: int, *, rank: int = 0, stream: str = "train", doing: SessionState = "reading"
) -> SessionStatus:
    return replace(SESSION, session=session, stream=stream, rank=rank, epoch=epoch, step=step, credit=4, doing=doing)


def test_the_place_goes_on_from_epoch_to_epoch() -> None:
    assert count_steps_done(at(1, 1, 0)) == count_steps_done(at(2, 0, SESSION.steps))


def test_those_within_each_others_credit_are_one_cohort() -> None:
    assert count_cohorts_by_stream([at(1, 0, 0), at(2, 0, 4), at(3, 0, 8)]) == {"train": 1}
    assert count_cohorts_by_stream([at(1, 0, 0), at(2, 0, 5), at(3, 0, 8)]) == {"train": 2}


def test_what_is_on_its_way_to_a_trainer_counts_for_sharing_and_not_for_its_lag() -> None:
    near, far = at(1, 0, 0), replace(at(2, 0, 8), in_flight=0)
    assert count_cohorts_by_stream([near, far]) == {"train": 2}
    assert count_cohorts_by_stream([replace(near, in_flight=4), far]) == {"train": 1}
    assert compute_steps_behind_leader([replace(near, in_flight=4), far]) == {1: 8, 2: 0}


def test_the_end_of_an_epoch_parts_nobody() -> None:
    assert count_cohorts_by_stream([at(1, 0, SESSION.steps - 2), at(2, 1, 1)]) == {"train": 1}


def test_ranks_and_streams_share_nothing() -> None:
    assert count_cohorts_by_stream([at(1, 0, 0), at(2, 0, 0, rank=1), at(3, 0, 0, stream="other")]) == {
        "train": 2,
        "other": 1,
    }


def test_who_has_finished_is_no_cohort_and_behind_nobody() -> None:
    sessions = [at(1, 0, 0), at(2, 3, 0, doing="finished")]
    assert count_cohorts_by_stream(sessions) == {"train": 1}
    assert compute_steps_behind_leader(sessions) == {1: 0}


def test_the_lag_is_behind_the_furthest_of_the_same_rank() -> None:
    sessions = [at(1, 0, 10), at(2, 1, 0), at(3, 0, 7, rank=1)]
    assert compute_steps_behind_leader(sessions) == {1: SESSION.steps - 10, 2: 0, 3: 0}
