"""Leases that end, and who hears of it."""

from __future__ import annotations

import os
from typing import cast

import pytest

from streamd.client.leases import EndedConnection, LeaseReturns
from streamd.client.session import ReceivedBatch
from streamd.ipc.fd_passing import Lifeline
from streamd.ipc.messages import BatchReady
from streamd.limits import REPORT_INTERVAL_S


class Silent:
    """A lifeline that counts what is said on it."""

    said = 0

    def report_dropped_leases(self, numbers: tuple[int, ...]) -> None:
        self.said += len(numbers)

    def close(self) -> None:
        """Nothing is open."""


def batch_of(number: int, connection: int = 1) -> ReceivedBatch:
    return ReceivedBatch(number, BatchReady(0, number, 1, 7, 64, inline=False), connection)


def rings(returns: LeaseReturns) -> bool:
    try:
        return os.eventfd_read(returns.wake_descriptor) > 0
    except BlockingIOError:
        return False


def test_a_lease_ends_once_whether_it_is_given_back_or_its_delivery_is_gone() -> None:
    returns = LeaseReturns()
    one, two = batch_of(0), batch_of(1)
    returns.track_lease(one)
    returns.track_lease(two)
    returns.return_lease(1, 0)
    del one, two
    returns.return_lease(1, 1)
    assert returns.take_returned_leases(1) == [0, 1]
    assert not returns


def test_a_slow_loop_rings_once_a_second_so_that_people_see_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr("streamd.client.leases.time.monotonic", lambda: now_s[0])
    returns = LeaseReturns()
    returns.wake_threshold = 8
    all_of_them = [batch_of(number) for number in range(3)]
    for each in all_of_them:
        returns.track_lease(each)
    returns.return_lease(1, 0)
    assert not rings(returns)
    now_s[0] += REPORT_INTERVAL_S
    returns.return_lease(1, 1)
    assert rings(returns)
    returns.take_returned_leases(1)
    returns.return_lease(1, 2)
    assert not rings(returns)


def test_the_bell_rings_when_as_many_have_ended_as_are_worth_it_or_at_once_in_a_hurry() -> None:
    returns = LeaseReturns()
    returns.wake_threshold = 2
    all_of_them = [batch_of(number) for number in range(4)]
    for each in all_of_them:
        returns.track_lease(each)
    returns.return_lease(1, 0)
    assert not rings(returns)
    returns.return_lease(1, 1)
    assert rings(returns)
    returns.take_returned_leases(1)
    returns.return_lease(1, 2)
    returns.set_immediate_lease_reports(now=True)
    assert rings(returns)
    returns.take_returned_leases(1)
    returns.return_lease(1, 3)
    assert rings(returns)


def test_what_ends_after_its_connection_is_told_by_itself() -> None:
    returns = LeaseReturns()
    early, late = batch_of(0), batch_of(1)
    returns.track_lease(early)
    returns.track_lease(late)
    returns.return_lease(1, 0)
    line = Silent()
    held = {0: (0, 0), 1: (0, 1)}
    returns.keep_ended_connection(1, EndedConnection(cast("Lifeline", line), (7, 1), "train", held, (), set()))
    assert line.said == 1
    del late
    assert line.said == 2
    assert returns.take_returned_leases(2) == []


def test_what_is_held_of_an_ended_connection_is_heard_of_when_nothing_else_of_it_is_left() -> None:
    returns = LeaseReturns()
    kept = batch_of(0)
    returns.track_lease(kept)
    line, known = Silent(), set[EndedConnection]()
    returns.keep_ended_connection(1, EndedConnection(cast("Lifeline", line), (7, 1), "train", {0: (0, 0)}, (), known))
    del returns
    del kept
    assert (line.said, known) == (1, set())
