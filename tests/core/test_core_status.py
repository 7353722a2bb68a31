"""Troubles and remedies that a status names."""

from __future__ import annotations

import re
from typing import Final

import pytest
from msgspec.structs import replace

from streamd.core.status import (
    MANY_DEATHS,
    DaemonStatus,
    SessionState,
    SessionStatus,
    StreamStatus,
    compare_sessions,
    count_new_bad_samples,
    format_window,
    sort_sessions,
    suggest_remedy_for_apart_trainers,
)
from streamd.limits import MAX_COUNT

STREAM: Final = StreamStatus("train", 100, 10, 10, 1, 5.0, 50.0, 1.0, 0, 3, 0)
DAEMON: Final = DaemonStatus("1", 7, "ipc:///s", 1.0, 2, 0.5, 100, 50, draining=False, streams=(STREAM,))


def test_a_healthy_daemon_has_no_troubles() -> None:
    assert DAEMON.all_troubles == []


def test_bad_receipts_are_a_trouble_that_names_the_stream() -> None:
    (trouble,) = replace(DAEMON, streams=(STREAM, replace(STREAM, name="other", receipts_bad=2))).all_troubles
    assert "'other'" in trouble
    assert "2 receipts do not" in trouble
    (trouble,) = replace(DAEMON, streams=(replace(STREAM, receipts_bad=1),)).all_troubles
    assert "1 receipt does not" in trouble


FAILED: Final = replace(STREAM, failed="a.jpg cannot be read: EIO")


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (replace(DAEMON, draining=True), "the daemon is shutting down$"),
        (replace(DAEMON, reload_failed=True), "the last reload failed, see the log; fix the configuration"),
        (
            replace(DAEMON, streams=(FAILED,)),
            (
                "stream 'train' has stopped its trainers: a.jpg cannot be read: EIO; start them again once the error "
                "is fixed$"
            ),
        ),
        (
            replace(DAEMON, streams=(replace(FAILED, stopped="too many are bad; mend them"),)),
            "stream 'train' is stopped: too many are bad; mend them$",
        ),
    ],
    ids=["a daemon that drains", "a reload that failed", "a stream that failed", "a stream that failed and stopped"],
)
def test_one_trouble_is_named_once_with_its_reason_and_remedy(status: DaemonStatus, says: str) -> None:
    (trouble,) = status.all_troubles
    assert re.match(says, trouble)


@pytest.mark.parametrize(("deaths", "dying"), [(0, False), (MANY_DEATHS - 1, False), (MANY_DEATHS, True)])
def test_only_many_recent_worker_deaths_are_a_trouble(deaths: int, *, dying: bool) -> None:
    troubles = replace(DAEMON, deaths_lately=deaths, worker_deaths=100).all_troubles
    assert any("workers died within half a minute" in trouble for trouble in troubles) == dying
    assert len(troubles) == dying


@pytest.mark.parametrize(("decodes", "apart"), [(None, True), (2.0, False), (1.1, True), (1.0, True)])
def test_trainers_that_share_batches_or_have_caught_up_need_no_remedy(decodes: float | None, *, apart: bool) -> None:
    assert suggest_remedy_for_apart_trainers(decodes, are_apart=apart) is None


def test_trainers_that_are_apart_get_both_remedies_and_the_decode_count() -> None:
    text = suggest_remedy_for_apart_trainers(1.9, are_apart=True)
    assert text is not None
    assert all(word in text for word in ("1.9 times", 'start="live"', '{"together": K}'))


def test_sessions_of_one_process_are_listed_together() -> None:
    def session(number: int, stream: str, pid: int) -> SessionStatus:
        return SessionStatus(number, stream, 0, 1, 0, None, 0, 9, 8, 0, "reading", 0.0, 1.0, pid=pid)

    sessions = [
        session(1, "train", 71), session(2, "train", 72), session(3, "train", 0),
        session(4, "validation", 0), session(5, "validation", 72), session(6, "validation", 71),
    ]  # fmt: skip
    assert [each.session for each in sort_sessions(sessions)] == [1, 6, 2, 5, 3, 4]


@pytest.mark.parametrize(("window_s", "words"), [(9.5, "10 s"), (9.99, "10 s"), (1.0, "1 s")])
def test_the_window_is_named_in_whole_seconds(window_s: float, words: str) -> None:
    assert format_window(window_s) == f"over the last {words}"


# --- bad samples since an earlier status


def test_new_bad_samples_since_an_earlier_status_are_counted_and_never_negative() -> None:
    before = replace(DAEMON, streams=(replace(STREAM, bad=3),))
    for bad, new in ((5, 2), (0, 0)):
        now = replace(DAEMON, uptime_s=3.0, streams=(replace(STREAM, bad=bad),))
        assert count_new_bad_samples(before, now) == {"train": new}


@pytest.mark.parametrize("before", [None, replace(DAEMON, pid=8), replace(DAEMON, uptime_s=101.0)])
def test_no_bad_sample_is_new_without_an_earlier_status_of_the_same_run(before: DaemonStatus | None) -> None:
    assert count_new_bad_samples(before, replace(DAEMON, streams=(replace(STREAM, bad=9),))) == {"train": 0}


# --- who is in step with whom

STEPS: Final = 62


def at(
    session: int,
    epoch: int,
    step: int,
    *,
    rank: int = 0,
    stream: str = "train",
    doing: SessionState = "reading",
    in_flight: int = 0,
    steps: int = STEPS,
) -> SessionStatus:
    return SessionStatus(
        session, stream, rank, 2, epoch, None, step, steps, 4, 0, doing, 80.0, 60.0, in_flight=in_flight
    )


def cohorts_of(*sessions: SessionStatus) -> list[int | None]:
    return [each.cohort for each in compare_sessions(sessions)]


def lags_of(*sessions: SessionStatus) -> list[int | None]:
    return [each.lag_steps for each in compare_sessions(sessions)]


@pytest.mark.parametrize(
    ("sessions", "cohorts"),
    [
        pytest.param([at(1, 0, 0), at(2, 0, 4), at(3, 0, 8)], [0, 0, 0], id="within each other's credit"),
        pytest.param([at(1, 0, 0), at(2, 0, 5), at(3, 0, 8)], [1, 0, 0], id="beyond each other's credit"),
        pytest.param([at(1, 0, STEPS - 2), at(2, 1, 1)], [0, 0], id="across the end of an epoch"),
        pytest.param([at(1, 0, 0), at(2, 0, 0, rank=1)], [0, 1], id="two ranks"),
        pytest.param([at(1, 0, 0), at(2, 0, 0, stream="other")], [0, 0], id="two streams"),
    ],
)
def test_a_cohort_is_the_sessions_within_each_others_credit(sessions: list[SessionStatus], cohorts: list[int]) -> None:
    assert cohorts_of(*sessions) == cohorts


def test_batches_in_flight_count_for_cohorts_and_not_for_the_lag() -> None:
    near, far = at(1, 0, 0, in_flight=4), at(2, 0, 8)
    assert cohorts_of(at(1, 0, 0), far) == [1, 0]
    assert cohorts_of(near, far) == [0, 0]
    assert lags_of(near, far) == [8, 0]


def test_a_finished_session_has_no_cohort_and_no_lag() -> None:
    sessions = (at(1, 0, 0), at(2, 3, 0, doing="finished"))
    assert (cohorts_of(*sessions), lags_of(*sessions)) == ([0, None], [0, None])


def test_a_lag_of_very_many_epochs_still_fits_into_64_bits() -> None:
    assert lags_of(at(1, 0, 0, steps=1 << 31), at(2, 1 << 40, 0, steps=1 << 31)) == [MAX_COUNT, 0]


def test_the_lag_is_behind_the_furthest_of_the_same_rank() -> None:
    assert lags_of(at(1, 0, 10), at(2, 1, 0), at(3, 0, 7, rank=1)) == [STEPS - 10, 0, 0]
