"""What a loop holds of sessions that have ended, with a lifeline that writes down what it is told."""

from __future__ import annotations

from typing import cast

import pytest

from streamd.client import leases as module
from streamd.client.handoff import Handoff
from streamd.client.leases import EndedConnection, check_ended_session_limit, list_ended_connections
from streamd.core.spec import Cursor
from streamd.errors import BatchesHeldError
from streamd.ipc.fd_passing import Lifeline
from streamd.limits import MAX_HELD_OVER

HELD = {3: (0, 3), 5: (0, 5)}


class Line:
    """The client's end of a lifeline."""

    def __init__(self) -> None:
        self.said: list[tuple[str, tuple[int, ...]]] = []
        self.is_closed = False
        self.is_broken = False

    def report_dropped_leases(self, numbers: tuple[int, ...]) -> None:
        self._send_report("dropped", numbers)

    def report_retired_leases(self, numbers: tuple[int, ...]) -> None:
        self._send_report("retired", numbers)

    def _send_report(self, word: str, numbers: tuple[int, ...]) -> None:
        if self.is_broken:
            raise BrokenPipeError
        self.said.append((word, numbers))

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


def test_each_batch_that_is_dropped_is_told_once_and_the_lifeline_ends_with_the_last(
    ended: EndedConnection, line: Line, known: set[EndedConnection]
) -> None:
    assert (ended.held_batches, known) == ([(0, 3), (0, 5)], {ended})
    ended.return_lease(3)
    ended.return_lease(3)
    ended.return_lease(4)
    assert (line.said, line.is_closed, ended.held_batches) == ([("dropped", (3,))], False, [(0, 5)])
    ended.return_lease(5)
    assert (line.said[1:], line.is_closed, known) == ([("retired", (5,))], True, set())


def test_what_a_child_sees_since_a_fork_is_told_to_be_retired(ended: EndedConnection, line: Line) -> None:
    ended.before_fork()
    ended.return_lease(3)
    assert line.said == [("retired", (3,))]


def test_a_child_says_nothing_of_what_its_parent_holds(
    ended: EndedConnection, line: Line, known: set[EndedConnection]
) -> None:
    ended.after_fork_in_child()
    assert (line.is_closed, known) == (True, set())
    ended.return_lease(3)
    ended.return_lease(5)
    assert line.said == []


def test_a_word_that_does_not_get_through_is_said_by_the_end(ended: EndedConnection, line: Line) -> None:
    line.is_broken = True
    ended.return_lease(3)
    ended.return_lease(5)
    assert line.is_closed


def test_only_what_is_held_of_the_stream_is_named(line: Line) -> None:
    one = EndedConnection(cast("Lifeline", line), (7, 1), "train", dict(HELD), ())
    assert list_ended_connections("train") == [one]
    assert list_ended_connections("other") == []
    for number in HELD:
        one.return_lease(number)
    assert list_ended_connections("train") == []


def test_what_is_held_of_earlier_connections_counts_within_the_credit(ended: EndedConnection) -> None:
    handoff = Handoff(Cursor())
    handoff.reset_for_new_connection()
    handoff.mark_session_open(2, [ended])
    assert handoff.list_credit_blocking_batches() == [(0, 3), (0, 5)]
    assert handoff.count_ended_connection_batches() == 2
    ended.return_lease(3)
    assert (handoff.list_credit_blocking_batches(), handoff.count_ended_connection_batches()) == ([], 1)
    handoff.reset_for_new_connection()
    assert handoff.count_ended_connection_batches() == 0


def test_one_process_may_hold_batches_of_so_many_ended_sessions_of_a_stream(
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
