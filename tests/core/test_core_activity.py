"""What a daemon did between two looks at it, and where batches waited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

import pytest

from streamd.core.activity import (
    Bottleneck,
    DaemonActivity,
    StatusSnapshot,
    UnreachableDaemon,
    compare_snapshots,
    find_bottleneck,
    watch_activity,
)
from streamd.core.status import DaemonStatus, SessionStatus, StreamStatus
from streamd.errors import ConnectError

TRAIN: Final = StreamStatus("train", 1000, 8, 125, 2, 10.0, 80.0, 1.0, 3, 4, 0)
FIRST: Final = SessionStatus(1, "train", 0, 1, 3, None, 40, 125, 16, 5, "reading", 100.0, 60.0)
SECOND: Final = replace(FIRST, session=2, step=30)
STATUS: Final = DaemonStatus(
    "1", 7, "ipc:///s", 60.0, 4, 0.5, 1 << 30, 1 << 20, draining=False, streams=(TRAIN,), sessions=(FIRST, SECOND)
)
NUMBERS: Final = {
    "stream.train": {"produced": 100, "sent_samples": 1600, "read_s": 5, "decode_s": 10, "client_wait_s": 7},
    "daemon": {"slots": 12, "slot_wait_s": 1},
}


def later(seconds: float = 2.0, **more: float) -> StatusSnapshot:
    """A look some seconds after the first, with so much more of each number of the stream."""
    numbers = {name: value + more.get(name, 0) for name, value in NUMBERS["stream.train"].items()}
    return StatusSnapshot(replace(STATUS, uptime_s=STATUS.uptime_s + seconds), {**NUMBERS, "stream.train": numbers})


BEFORE: Final = later(0.0)


def test_rates_are_what_was_counted_between_the_looks() -> None:
    (stream,) = compare_snapshots(BEFORE, later(2.0, produced=10, sent_samples=160)).streams
    assert (stream.decoded_per_s, stream.samples_per_s) == (5.0, 80.0)


def test_reading_and_decoding_are_parts_of_all_workers_time() -> None:
    flow = compare_snapshots(BEFORE, later(2.0, read_s=1, decode_s=6, client_wait_s=3, sent_samples=8)).flow
    assert flow is not None
    assert (flow.reading, flow.decoding, flow.slots, flow.waiting) == (0.125, 0.75, 12, 1.5)


def test_samples_that_turned_bad_between_the_looks_are_told_and_never_fewer_than_none() -> None:
    now = later(2.0)
    for bad, new in ((5, 2), (0, 0)):
        status = replace(now.status, streams=(replace(TRAIN, bad=bad),))
        assert compare_snapshots(BEFORE, replace(now, status=status)).streams[0].new_bad == new


def test_a_trainers_rate_is_the_way_it_went_across_the_end_of_an_epoch() -> None:
    gone_on = replace(FIRST, epoch=4, step=5)  # 90 steps on
    now = replace(later(2.0).status, sessions=(gone_on, SECOND))
    first, second = compare_snapshots(BEFORE, StatusSnapshot(now, NUMBERS)).trainers
    assert (first.samples_per_s, second.samples_per_s) == (90 * 8 / 2.0, 0.0)


def test_a_trainer_that_has_just_come_has_the_rate_that_the_daemon_tells() -> None:
    now = replace(later().status, sessions=(replace(FIRST, session=9),))
    assert compare_snapshots(BEFORE, StatusSnapshot(now, NUMBERS)).trainers[0].samples_per_s == 100.0


def test_a_trainer_is_behind_by_steps_and_its_epoch_ends_at_its_rate() -> None:
    first, second = compare_snapshots(None, BEFORE).trainers
    assert (first.lag, second.lag) == (0, 10)
    assert first.left_s == (125 - 40) * 8 / 100.0


def test_who_gets_nothing_or_has_finished_has_no_time_left_to_tell() -> None:
    still, done = replace(FIRST, samples_per_s=0.0), replace(SECOND, doing="finished")
    trainers = compare_snapshots(None, StatusSnapshot(replace(STATUS, sessions=(still, done)), NUMBERS)).trainers
    assert [each.left_s for each in trainers] == [None, None]
    assert trainers[1].lag is None


@pytest.mark.parametrize(
    "before", [None, replace(BEFORE, status=replace(STATUS, pid=8)), later(100.0), later(2.0)]
)  # none, another daemon, one that had been up for longer, and this very moment
def test_without_an_earlier_look_at_the_same_run_rates_are_those_of_the_last_half_minute(
    before: StatusSnapshot | None,
) -> None:
    seen = compare_snapshots(before, later(2.0))
    assert (seen.flow, seen.streams[0].samples_per_s, seen.trainers[0].samples_per_s) == (None, 80.0, 100.0)


def test_while_nothing_comes_those_count_as_waiting_who_want_something() -> None:
    now = replace(later().status, sessions=(FIRST, replace(SECOND, doing="waiting")))
    flow = compare_snapshots(BEFORE, StatusSnapshot(now, NUMBERS)).flow
    assert flow is not None
    assert (flow.waiting, flow.bottleneck) == (1.0, "pending")


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
def test_where_batches_wait_is_decided_as_an_epochs_verdict(
    asking: int, waiting: float, reading: float, decoding: float, slot_wait: float, limit: Bottleneck
) -> None:
    assert find_bottleneck(asking, waiting, reading, decoding, slot_wait) == limit


def looks(*answers: StatusSnapshot | ConnectError) -> Callable[[], StatusSnapshot]:
    """Gives one answer after the other."""
    given: Iterator[StatusSnapshot | ConnectError] = iter(answers)

    def look() -> StatusSnapshot:
        answer = next(given)
        if isinstance(answer, ConnectError):
            raise answer
        return answer

    return look


def test_a_daemon_that_goes_away_is_shown_as_it_was_and_comes_back_with_counts_of_its_own() -> None:
    away = ConnectError("ipc:///s", "no answer")
    again = StatusSnapshot(replace(STATUS, pid=8, uptime_s=1.0), NUMBERS)
    now_s = iter([10.0, 13.0, 14.0, 20.0])
    waits: list[None] = []
    seen = watch_activity(looks(BEFORE, away, away, again), lambda: waits.append(None), lambda: next(now_s))
    first, *gone, back = islice(seen, 4)
    assert isinstance(first, DaemonActivity)
    assert gone == [UnreachableDaemon(first, 3.0), UnreachableDaemon(first, 4.0)]
    assert back == compare_snapshots(None, again)
    assert len(waits) == 3


def test_a_daemon_that_is_not_there_at_first_is_not_waited_for() -> None:
    with pytest.raises(ConnectError):
        next(watch_activity(looks(ConnectError("ipc:///s", "no answer")), lambda: None, lambda: 0.0))
