"""When the daemon is well, and how it says so in a line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamd.core.status import DaemonStatus, SessionStatus, StreamStatus
from streamd.daemon.systemd import ProgressWatch, format_status_headline

STREAM = StreamStatus("train", 100, 8, 13, 1, 4.0, 1234.4, 1.0, 0, 3, 0)
SESSION = SessionStatus(1, "train", 0, 1, 0, 2, 3, 13, 8, 2, "reading", 1234.4, 9.0)
STATUS = DaemonStatus("1", 7, "ipc:///s", 9.0, 2, 0.5, 1, 1, draining=False, streams=(STREAM,))


def test_a_daemon_that_nobody_asks_is_well_for_ever() -> None:
    pulse = ProgressWatch(0.0, stalled_s=10.0)
    assert [
        pulse.is_progressing(is_producing=False, progress_count=0, now_s=now_s) for now_s in (5.0, 500.0, 50000.0)
    ] == [True] * 3


def test_who_decodes_is_well_and_who_stands_still_is_not() -> None:
    pulse = ProgressWatch(0.0, stalled_s=10.0)
    assert pulse.is_progressing(is_producing=True, progress_count=1, now_s=1.0)
    assert pulse.is_progressing(is_producing=True, progress_count=2, now_s=10.5)
    assert pulse.is_progressing(is_producing=True, progress_count=2, now_s=20.0)
    assert not pulse.is_progressing(is_producing=True, progress_count=2, now_s=20.5)


def test_the_time_allowed_begins_with_the_wish_not_with_the_last_work() -> None:
    pulse = ProgressWatch(0.0, stalled_s=10.0)
    assert pulse.is_progressing(is_producing=False, progress_count=5, now_s=100.0)
    assert pulse.is_progressing(is_producing=True, progress_count=5, now_s=109.0)
    assert not pulse.is_progressing(is_producing=True, progress_count=5, now_s=110.0)


def test_who_moves_again_is_well_again() -> None:
    pulse = ProgressWatch(0.0, stalled_s=10.0)
    assert not pulse.is_progressing(is_producing=True, progress_count=0, now_s=11.0)
    assert pulse.is_progressing(is_producing=True, progress_count=1, now_s=12.0)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (STATUS, "serves train to 0 trainers"),
        (replace(STATUS, sessions=(SESSION,)), "serves train to 1 trainer: 1,234 images/s"),
        (replace(STATUS, streams=(STREAM, replace(STREAM, name="v"))), "serves train, v to 0 trainers"),
        (
            replace(STATUS, streams=(replace(STREAM, stopped="too many bad"),)),
            "serves train to 0 trainers; stream 'train' is stopped: too many bad",
        ),
    ],
)
def test_the_line_names_streams_trainers_rate_and_troubles(status: DaemonStatus, said: str) -> None:
    assert format_status_headline(status) == said
