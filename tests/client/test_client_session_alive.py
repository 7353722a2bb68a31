"""The client's side of the protocol: asking a silent daemon whether both still agree."""

from __future__ import annotations

import pytest
from support.daemon_messages import HERE, SPEC, active, asking, deliver, told

from streamd.client.session import ClientSession, OpenSocket, SendMessage
from streamd.ipc.messages import CreditNow, FrameHeader, NoSession, Ping, Pong, ReceiptDue
from streamd.limits import ANSWER_TIMEOUT_S, BACKOFF_MIN_S, SILENCE_S


def pinged(session: ClientSession, now_s: float = 20.0) -> ClientSession:
    assert SendMessage(HERE, Ping()) in session.ping_daemon(now_s)
    return session


def test_a_ping_follows_pending_progress() -> None:
    session = active()
    deliver(session, 0, 0, 0)
    session.handle_released_leases([0], 1, 0, 1.0)

    said = session.ping_daemon(SILENCE_S)

    (progress,) = told(said)
    assert (progress.upto, progress.released) == (9, (0,))
    assert said[-1] == SendMessage(HERE, Ping())
    assert session.next_deadline_s() == SILENCE_S + ANSWER_TIMEOUT_S


def test_only_one_ping_is_sent_at_a_time_and_only_within_a_session() -> None:
    assert asking().ping_daemon(1.0) == []
    assert pinged(active()).ping_daemon(21.0) == []


def test_a_ping_without_an_answer_in_time_restarts_the_session() -> None:
    session = pinged(active(), 20.0)
    due_s = session.next_deadline_s()
    assert due_s == 20.0 + ANSWER_TIMEOUT_S

    assert session.handle_deadline(due_s) == []
    assert session.state == "away"
    assert session.next_deadline_s() == due_s + BACKOFF_MIN_S
    assert session.handle_deadline(due_s + BACKOFF_MIN_S) == [OpenSocket()]


def test_a_pong_that_agrees_keeps_the_session() -> None:
    session = active()
    deliver(session, 0, 0, 0)
    pinged(session)

    assert session.handle_message(HERE, Pong(1, 8, 0, 0), 21.0) == []
    assert session.state == "active"
    assert session.next_deadline_s() is None
    assert SendMessage(HERE, Ping()) in session.ping_daemon(30.0)


def test_a_pong_tells_whether_the_stream_waits_for_its_data() -> None:
    session = active()
    deliver(session, 0, 0, 0)
    for paused, awaited in ((True, "the data of stream 'train'"), (False, "")):
        pinged(session)
        assert session.handle_message(HERE, Pong(1, 8, 0, 0, paused), 21.0) == []
        assert session.describe_daemon_wait() == awaited


def test_progress_sent_after_the_ping_is_not_a_disagreement() -> None:
    session = active()
    deliver(session, 0, 0, 0)
    pinged(session)
    session.handle_released_leases([0], 1, 0, 20.1)

    session.handle_message(HERE, Pong(1, 8, 0, 0), 21.0)

    assert session.state == "active"


@pytest.mark.parametrize(
    "pong",
    [Pong(2, 8, 0, 1), Pong(0, 8, 0, 1), Pong(1, 7, 0, 1), Pong(1, 8, 1, 1), Pong(1, 8, 0, 2), Pong(1, 8, 0, 0)],
    ids=["a batch lost", "a batch too many", "credit lost", "a release too many", "a receipt lost", "too many"],
)
def test_any_disagreement_in_a_pong_restarts_the_session(pong: Pong) -> None:
    session = active()
    deliver(session, 0, 0, 0)
    session.handle_message(HERE, ReceiptDue(0, "digest", 0), 2.0)
    pinged(session)

    assert session.handle_message(HERE, pong, 21.0) == []

    assert session.state == "away"
    assert session.gaps == 1


def test_a_pong_for_another_session_counts_as_stale() -> None:
    session = pinged(active())

    session.handle_message(FrameHeader(HERE.boot, HERE.session + 1, 0), Pong(5, 5, 5, 5), 21.0)

    assert session.state == "active"
    assert session.stale_frames == 1


def test_a_session_that_the_daemon_does_not_know_is_requested_again() -> None:
    session = active()

    assert session.handle_message(HERE, NoSession(), 3.0) == []

    assert session.state == "away"


def test_a_new_connection_does_not_wait_for_the_pong_of_the_last() -> None:
    session = pinged(active())
    session.handle_lost(21.0)
    session.handle_opened(session._cursor, 22.0)

    assert session.next_deadline_s() == 22.0 + ANSWER_TIMEOUT_S
    assert session.spec == SPEC


def test_leases_that_a_forked_child_may_see_are_reported_as_retired() -> None:
    session = active(credit=2)
    deliver(session, 0, 0, 0)
    deliver(session, 1, 0, 1)

    (progress,) = told(session.handle_released_leases([0, 1], 2, 0, 1.0, [1]))
    assert (progress.released, progress.retired) == ((0, 1), (1,))

    deliver(session, 2, 0, 2)
    (progress,) = told(session.handle_released_leases([2], 3, 0, 2.0))
    assert progress.retired == ()


def test_a_changed_credit_applies_to_new_grants_only() -> None:
    session = active(credit=8)
    for number in range(3):
        deliver(session, number, 0, number)

    shrunk = session.handle_message(HERE, CreditNow(2), 2.0)
    assert shrunk[0] == CreditNow(2)
    assert told(shrunk)[0].upto == 8

    (progress,) = told(session.handle_released_leases([0], 3, 0, 3.0))
    assert (progress.upto, progress.released) == (8, (0,))

    grown = session.handle_message(HERE, CreditNow(9), 4.0)
    assert grown[0] == CreditNow(9)
    assert told(grown)[0].upto == 10
