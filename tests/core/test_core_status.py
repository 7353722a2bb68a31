"""Troubles and remedies that a status names."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import pytest

from streamd.core.status import (
    MANY_DEATHS,
    DaemonStatus,
    SessionStatus,
    StreamStatus,
    format_window,
    sort_sessions,
    suggest_remedy_for_apart_trainers,
)

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
