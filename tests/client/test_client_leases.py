"""Leases: how their end is reported, batches held of ended sessions, and forks."""

from __future__ import annotations

import os
from typing import cast

import pytest
from support.forked_child import in_a_forked_child

from streamd.client import leases as module
from streamd.client.handoff import Handoff
from streamd.client.leases import (
    EndedConnection,
    LeaseReturns,
    ReceivedBatch,
    check_ended_session_limit,
    list_ended_connections,
)
from streamd.core.spec import Cursor
from streamd.errors import BatchesHeldError
from streamd.ipc.lifeline import DROPPED, RETIRED, Lifeline
from streamd.ipc.messages import BatchReady
from streamd.limits import MAX_HELD_OVER, REPORT_INTERVAL_S

HELD = {3: (0, 3), 5: (0, 5)}


class Line:
    """The client's end of a lifeline, which records the reports."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, tuple[int, ...]]] = []
        self.is_closed = False
        self.is_broken = False

    def report_leases(self, kind: bytes, numbers: tuple[int, ...]) -> None:
        if self.is_broken:
            raise BrokenPipeError
        self.reports.append(({DROPPED: "dropped", RETIRED: "retired"}[kind], numbers))

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def known() -> set[EndedConnection]:
    return set()


@pytest.fixture
def ended(line: Line, known: set[EndedConnection]) -> EndedConnection:
    return EndedConnection(cast("Lifeline", line), (7, 1), "train", dict(HELD), {5}, known)


def track(returns: LeaseReturns, count: int) -> list[ReceivedBatch]:
    """Starts the leases of `count` batches of connection 1."""
    batches = [ReceivedBatch(number, BatchReady(0, number, 1, 7, 64, inline=False), 1) for number in range(count)]
    for each in batches:
        returns.track_lease(each)
    return batches


def take_wake_request(returns: LeaseReturns) -> bool:
    try:
        return os.eventfd_read(returns.wake_signal.descriptor) > 0
    except BlockingIOError:
        return False


def test_a_lease_ends_once_whether_it_is_returned_or_its_batch_is_collected() -> None:
    returns = LeaseReturns()
    batches = track(returns, 2)
    returns.return_lease(1, 0)
    del batches
    returns.return_lease(1, 1)
    assert returns.take_returned_leases(1) == [0, 1]
    assert not returns.returned


def test_a_slow_loop_wakes_the_io_thread_once_a_report_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr("streamd.client.leases.time.monotonic", lambda: now_s[0])
    returns = LeaseReturns()
    returns.wake_threshold = 8
    batches = track(returns, 3)
    returns.return_lease(1, 0)
    assert not take_wake_request(returns)
    now_s[0] += REPORT_INTERVAL_S
    returns.return_lease(1, 1)
    assert take_wake_request(returns)
    returns.take_returned_leases(1)
    returns.return_lease(1, 2)
    assert not take_wake_request(returns)
    assert batches


def test_enough_ended_leases_wake_the_io_thread_or_one_in_immediate_mode() -> None:
    returns = LeaseReturns()
    returns.wake_threshold = 2
    batches = track(returns, 4)
    returns.return_lease(1, 0)
    assert not take_wake_request(returns)
    returns.return_lease(1, 1)
    assert take_wake_request(returns)
    returns.take_returned_leases(1)
    returns.return_lease(1, 2)
    returns.set_immediate_lease_reports(now=True)
    assert take_wake_request(returns)
    returns.take_returned_leases(1)
    returns.return_lease(1, 3)
    assert take_wake_request(returns)
    assert batches


def test_a_lease_that_ends_after_its_connection_is_reported_separately(line: Line, known: set[EndedConnection]) -> None:
    returns = LeaseReturns()
    batches = track(returns, 2)
    returns.return_lease(1, 0)
    held = {0: (0, 0), 1: (0, 1)}
    returns.keep_ended_connection(1, EndedConnection(cast("Lifeline", line), (7, 1), "train", held, (), known))
    assert line.reports == [("dropped", (0,))]
    del batches
    assert line.reports[1:] == [("dropped", (1,))]
    assert returns.take_returned_leases(2) == []


def test_a_lease_of_an_ended_connection_is_reported_after_its_lease_returns_are_gone(
    line: Line, known: set[EndedConnection]
) -> None:
    returns = LeaseReturns()
    batches = track(returns, 1)
    returns.keep_ended_connection(1, EndedConnection(cast("Lifeline", line), (7, 1), "train", {0: (0, 0)}, (), known))
    del returns
    del batches
    assert (line.reports, known) == ([("dropped", (0,))], set())


# --- of sessions that have ended


def test_each_dropped_batch_is_reported_once_and_the_last_one_ends_the_lifeline(
    ended: EndedConnection, line: Line, known: set[EndedConnection]
) -> None:
    assert (ended.held_batches, known) == ([(0, 3), (0, 5)], {ended})
    ended.return_lease(3)
    ended.return_lease(3)
    ended.return_lease(4)
    assert (line.reports, line.is_closed, ended.held_batches) == ([("dropped", (3,))], False, [(0, 5)])
    ended.return_lease(5)
    assert (line.reports[1:], line.is_closed, known) == ([("retired", (5,))], True, set())


def test_a_lease_held_at_a_fork_is_reported_as_retired(ended: EndedConnection, line: Line) -> None:
    ended.before_fork()
    ended.return_lease(3)
    assert line.reports == [("retired", (3,))]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_is_known_to_an_ended_connection_whose_thread_is_gone(line: Line) -> None:
    import streamd.client.io_thread  # noqa: F401, PLC0415 - calls it around each fork

    one = EndedConnection(cast("Lifeline", line), (7, 1), "train", {3: (0, 3)}, ())
    assert in_a_forked_child(lambda: None) == 0
    one.return_lease(3)
    assert line.reports == [("retired", (3,))]


def test_a_forked_child_reports_no_leases_of_its_parent(
    ended: EndedConnection, line: Line, known: set[EndedConnection]
) -> None:
    ended.after_fork_in_child()
    assert (line.is_closed, known) == (True, set())
    ended.return_lease(3)
    ended.return_lease(5)
    assert line.reports == []


def test_a_lease_report_that_cannot_be_sent_still_ends_the_lifeline(ended: EndedConnection, line: Line) -> None:
    line.is_broken = True
    ended.return_lease(3)
    ended.return_lease(5)
    assert line.is_closed


def test_only_ended_connections_of_the_same_stream_are_listed(line: Line) -> None:
    one = EndedConnection(cast("Lifeline", line), (7, 1), "train", dict(HELD), ())
    assert list_ended_connections("train") == [one]
    assert list_ended_connections("other") == []
    for number in HELD:
        one.return_lease(number)
    assert list_ended_connections("train") == []


def test_batches_held_of_earlier_connections_count_within_the_credit(ended: EndedConnection) -> None:
    handoff = Handoff(Cursor())
    handoff.reset_for_new_connection()
    handoff.mark_session_open(2, [ended])
    assert handoff.list_credit_blocking_batches() == [(0, 3), (0, 5)]
    assert handoff.count_ended_connection_batches() == 2
    ended.return_lease(3)
    assert (handoff.list_credit_blocking_batches(), handoff.count_ended_connection_batches()) == ([], 1)
    handoff.reset_for_new_connection()
    assert handoff.count_ended_connection_batches() == 0


def test_a_process_may_hold_batches_of_a_limited_number_of_ended_sessions(
    line: Line, known: set[EndedConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD_OVER_CONNECTIONS", known)
    for number in range(MAX_HELD_OVER):
        check_ended_session_limit("train")
        EndedConnection(cast("Lifeline", line), (7, number), "train", {0: (0, number)}, (), known)
    check_ended_session_limit("validation")
    with pytest.raises(BatchesHeldError, match=f"of {MAX_HELD_OVER} subscriptions that have ended") as raised:
        check_ended_session_limit("train")
    assert raised.value.held == tuple((0, number) for number in range(MAX_HELD_OVER))
    next(iter(known)).return_lease(0)
    check_ended_session_limit("train")
