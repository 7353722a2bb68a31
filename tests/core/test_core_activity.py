"""What a daemon did between two snapshots of its status, and which sessions read in step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

import pytest
from support.sample_metrics import SESSION

from streamd.core.activity import (
    DaemonActivity,
    StatusSnapshot,
    UnreachableDaemon,
    compare_snapshots,
    compute_steps_behind_leader,
    count_cohorts_by_stream,
    count_steps_done,
    find_bottleneck,
    watch_activity,
)
from streamd.core.bottleneck import Bottleneck
from streamd.core.status import DaemonStatus, SessionState, SessionStatus, StreamStatus
from streamd.errors import ConnectError
from streamd.limits import MAX_COUNT

TRAIN: Final = StreamStatus("train", 1000, 8, 125, 2, 10.0, 80.0, 1.0, 3, 4, 0)
FIRST: Final = SessionStatus(1, "train", 0, 1, 3, None, 40, 125, 16, 5, "reading", 100.0, 60.0)
SECOND: Final = replace(FIRST, session=2, step=30)
STATUS: Final = DaemonStatus(
    "1", 7, "ipc:///s", 60.0, 4, 0.5, 1 << 30, 1 << 20, draining=False, streams=(TRAIN,), sessions=(FIRST, SECOND)
)
NUMBERS: Final = {"daemon": {"slots": 12}}


def snapshot_after(seconds: float = 2.0, status: DaemonStatus = STATUS) -> StatusSnapshot:
    """A snapshot some seconds after the first."""
    return StatusSnapshot(replace(status, uptime_s=status.uptime_s + seconds), NUMBERS)


BEFORE: Final = snapshot_after(0.0)


def test_the_flow_shows_the_fractions_of_the_status_window() -> None:
    status = replace(
        STATUS, reading_fraction=0.125, decoding_fraction=0.75, waiting_trainers=1.5, slot_wait_fraction=0.1
    )
    flow = compare_snapshots(None, snapshot_after(2.0, status)).flow
    assert (flow.reading, flow.decoding, flow.slots, flow.waiting) == (0.125, 0.75, 12, 1.5)
    assert flow.bottleneck == "decode"


def test_new_bad_samples_since_the_last_snapshot_are_counted_and_never_negative() -> None:
    for bad, new in ((5, 2), (0, 0)):
        status = replace(STATUS, streams=(replace(TRAIN, bad=bad),))
        assert compare_snapshots(BEFORE, snapshot_after(2.0, status)).streams[0].new_bad == new


def test_a_trainer_shows_its_lag_in_batches_and_the_time_left_at_its_rate() -> None:
    first, second = compare_snapshots(None, BEFORE).trainers
    assert (first.lag, second.lag) == (0, 10)
    assert first.left_s == (125 - 40) * 8 / 100.0


def test_the_rate_of_a_trainer_younger_than_the_window_covers_its_age() -> None:
    status = replace(STATUS, sessions=(replace(FIRST, age_s=5.0),), window_s=10.0)
    (young,) = compare_snapshots(None, snapshot_after(2.0, status)).trainers
    assert young.left_s == (125 - 40) * 8 / 200.0


def test_an_idle_or_finished_trainer_has_no_time_left() -> None:
    still, done = replace(FIRST, samples_per_s=0.0), replace(SECOND, doing="finished")
    trainers = compare_snapshots(None, snapshot_after(0.0, replace(STATUS, sessions=(still, done)))).trainers
    assert [each.left_s for each in trainers] == [None, None]
    assert trainers[1].lag is None


@pytest.mark.parametrize("before", [None, snapshot_after(0.0, replace(STATUS, pid=8)), snapshot_after(100.0)])
def test_no_bad_sample_is_new_without_an_earlier_snapshot_of_the_same_run(before: StatusSnapshot | None) -> None:
    status = replace(STATUS, streams=(replace(TRAIN, bad=9),))
    assert compare_snapshots(before, snapshot_after(2.0, status)).streams[0].new_bad == 0


@pytest.mark.parametrize(
    ("asking", "waiting", "reading", "decoding", "slot_wait", "limit"),
    [
        (0, 0.0, 0.5, 0.5, 1.0, "nobody"),
        (2, 0.1, 0.1, 0.9, 1.0, "none"),
        (2, 0.2, 0.1, 0.9, 0.6, "memory"),
        (2, 0.2, 0.1, 0.9, 0.4, "decode"),
        (2, 0.2, 0.6, 0.5, 0.0, "disk"),
        (2, 0.2, 0.1, 0.2, 0.0, "transport"),
        (2, 1.0, 0.0, 0.0, 0.0, "pending"),
    ],
)
def test_the_bottleneck_follows_from_the_flow(
    asking: int, waiting: float, reading: float, decoding: float, slot_wait: float, limit: Bottleneck
) -> None:
    assert find_bottleneck(asking, waiting, reading, decoding, slot_wait) == limit


def answer_in_turn(*answers: StatusSnapshot | ConnectError) -> Callable[[], StatusSnapshot]:
    """Returns one answer after the other, or raises it."""
    given: Iterator[StatusSnapshot | ConnectError] = iter(answers)

    def fetch() -> StatusSnapshot:
        answer = next(given)
        if isinstance(answer, ConnectError):
            raise answer
        return answer

    return fetch


def test_an_unreachable_daemon_keeps_its_last_activity_and_restarts_with_new_counts() -> None:
    away = ConnectError("ipc:///s", "no answer")
    again = StatusSnapshot(replace(STATUS, pid=8, uptime_s=1.0), NUMBERS)
    now_s = iter([10.0, 13.0, 14.0, 20.0])
    waits: list[None] = []
    seen = watch_activity(answer_in_turn(BEFORE, away, away, again), lambda: waits.append(None), lambda: next(now_s))
    first, *gone, back = islice(seen, 4)
    assert isinstance(first, DaemonActivity)
    assert gone == [UnreachableDaemon(first, 3.0), UnreachableDaemon(first, 4.0)]
    assert back == compare_snapshots(None, again)
    assert len(waits) == 3


def test_watching_an_absent_daemon_fails_at_once() -> None:
    with pytest.raises(ConnectError):
        next(watch_activity(answer_in_turn(ConnectError("ipc:///s", "no answer")), lambda: None, lambda: 0.0))


# --- who is in step with whom


def at(
    session: int, epoch: int, step: int, *, rank: int = 0, stream: str = "train", doing: SessionState = "reading"
) -> SessionStatus:
    return replace(SESSION, session=session, stream=stream, rank=rank, epoch=epoch, step=step, credit=4, doing=doing)


def test_steps_done_are_counted_across_epochs() -> None:
    assert count_steps_done(at(1, 1, 0)) == count_steps_done(at(2, 0, SESSION.steps))


@pytest.mark.parametrize(
    ("sessions", "cohorts"),
    [
        pytest.param([at(1, 0, 0), at(2, 0, 4), at(3, 0, 8)], {"train": 1}, id="within each other's credit"),
        pytest.param([at(1, 0, 0), at(2, 0, 5), at(3, 0, 8)], {"train": 2}, id="beyond each other's credit"),
        pytest.param([at(1, 0, SESSION.steps - 2), at(2, 1, 1)], {"train": 1}, id="across the end of an epoch"),
        pytest.param([at(1, 0, 0), at(2, 0, 0, rank=1)], {"train": 2}, id="two ranks"),
        pytest.param([at(1, 0, 0), at(2, 0, 0, stream="other")], {"train": 1, "other": 1}, id="two streams"),
    ],
)
def test_a_cohort_is_the_sessions_within_each_others_credit(
    sessions: list[SessionStatus], cohorts: dict[str, int]
) -> None:
    assert count_cohorts_by_stream(sessions) == cohorts


def test_batches_in_flight_count_for_cohorts_and_not_for_the_lag() -> None:
    near, far = at(1, 0, 0), replace(at(2, 0, 8), in_flight=0)
    assert count_cohorts_by_stream([near, far]) == {"train": 2}
    assert count_cohorts_by_stream([replace(near, in_flight=4), far]) == {"train": 1}
    assert compute_steps_behind_leader([replace(near, in_flight=4), far]) == {1: 8, 2: 0}


def test_a_finished_session_has_no_cohort_and_no_lag() -> None:
    sessions = [at(1, 0, 0), at(2, 3, 0, doing="finished")]
    assert count_cohorts_by_stream(sessions) == {"train": 1}
    assert compute_steps_behind_leader(sessions) == {1: 0}


def test_a_lag_of_very_many_epochs_still_fits_into_64_bits() -> None:
    sessions = [replace(at(1, 0, 0), steps=1 << 31), replace(at(2, 1 << 40, 0), steps=1 << 31)]
    assert compute_steps_behind_leader(sessions) == {1: MAX_COUNT, 2: 0}


def test_the_lag_is_behind_the_furthest_of_the_same_rank() -> None:
    sessions = [at(1, 0, 10), at(2, 1, 0), at(3, 0, 7, rank=1)]
    assert compute_steps_behind_leader(sessions) == {1: SESSION.steps - 10, 2: 0, 3: 0}
