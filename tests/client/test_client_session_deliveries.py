"""Which batches a client's session accepts, and how it tells what has become of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.daemon_messages import HERE, WISH, active, deliver, ready, told, welcome

from streamd.client.session import ReceivedBatch, SendMessage
from streamd.core.spec import Cursor, Segment
from streamd.ipc.messages import Progress
from streamd.limits import BACKOFF_MIN_S, PROGRESS_DELAY_S


def test_batches_in_order_are_offered_over_the_end_of_an_epoch() -> None:
    session = active()
    steps = [(epoch, index) for epoch in range(2) for index in range(5)]

    for number, (epoch, index) in enumerate(steps):
        assert deliver(session, number, epoch, index) == [ReceivedBatch(number, ready(epoch, index))]
    assert session.gaps == 0


def test_a_rank_expects_its_own_batches() -> None:
    session = active(replace(WISH, rank=1, world=2))

    assert deliver(session, 0, 0, 1) == [ReceivedBatch(0, ready(0, 1))]
    assert deliver(session, 1, 0, 3) == [ReceivedBatch(1, ready(0, 3))]
    assert deliver(session, 2, 1, 1) == [ReceivedBatch(2, ready(1, 1))]


@pytest.mark.parametrize(
    ("base", "first"), [(0, (0, 0)), (1, (0, 1)), (4, (0, 4)), (5, (1, 0))], ids=["0", "1", "N-1", "N"]
)
def test_the_first_batch_follows_the_cursor(base: int, first: tuple[int, int]) -> None:
    session = active(cursor=Cursor(0, (Segment(0, base, 0, 1),) if base else ()))

    assert deliver(session, 0, *first) == [ReceivedBatch(0, ready(*first))]


@pytest.mark.parametrize(
    ("number", "epoch", "index"),
    [(3, 0, 3), (2, 0, 3), (1, 0, 1), (2, 0, 1), (3, 0, 2), (2, 1, 2), (0, 0, 0), (2, 0, 0)],
    ids=["gap", "skipped", "again", "repeated", "misnumbered", "wrong epoch", "restarted", "out of order"],
)
def test_a_batch_that_is_not_the_next_is_never_delivered_and_ends_the_connection(
    number: int, epoch: int, index: int
) -> None:
    session = active()
    deliver(session, 0, 0, 0)
    deliver(session, 1, 0, 1)
    assert repr(session) == "<ClientSession of 'train', active, 2 of 8 batches received>"

    assert deliver(session, number, epoch, index) == []
    assert repr(session) == "<ClientSession of 'train', away>"
    assert session.gaps == 1
    assert session.next_deadline_s() == 1.0 + BACKOFF_MIN_S
    assert deliver(session, 2, 0, 2) == [], "not even the right one, once the connection is given up"


def test_a_batch_beyond_the_last_epoch_is_not_delivered() -> None:
    session = active(replace(WISH, epochs=1))
    for index in range(5):
        deliver(session, index, 0, index)

    assert deliver(session, 5, 1, 0) == []
    assert session.gaps == 1


# --- progress


def test_releases_are_told_together_when_half_of_the_credit_is_free() -> None:
    session = active(credit=4)

    assert session.handle_released_leases([0], 1, 10, 1.0) == []
    assert told(session.handle_released_leases([1], 2, 20, 1.0)) == [Progress(6, (0, 1), 2, 30)]
    assert session.handle_released_leases([2], 3, 5, 1.0) == []
    assert told(session.handle_released_leases([3], 4, 6, 1.0)) == [Progress(8, (2, 3), 4, 11)]


def test_a_small_credit_is_told_at_every_release() -> None:
    session = active(credit=2)

    assert told(session.handle_released_leases([0], 1, 0, 1.0)) == [Progress(3, (0,), 1, 0)]
    assert told(session.handle_released_leases([1], 2, 0, 1.0)) == [Progress(4, (1,), 2, 0)]


def test_a_release_without_company_is_told_after_a_short_wait_counted_from_the_first() -> None:
    session = active(credit=100)
    session.handle_released_leases([0], 1, 1, 1.0)
    session.handle_released_leases([1], 2, 1, 1.01)

    assert session.next_deadline_s() == 1.0 + PROGRESS_DELAY_S
    assert session.handle_deadline(1.0 + PROGRESS_DELAY_S) == [SendMessage(HERE, Progress(102, (0, 1), 2, 2))]
    assert session.next_deadline_s() is None


def test_credit_is_absolute_whatever_the_order_of_releases() -> None:
    session = active(credit=4)
    for number in (2, 0, 3, 1):
        said = session.handle_released_leases([number], 4, 0, 1.0)

    assert told(said)[0].upto == 8


def test_progress_begins_anew_with_a_connection_but_time_waited_is_kept() -> None:
    session = active(credit=4)
    session.handle_released_leases([0], 1, 50, 1.0)
    session.handle_lost(1.0)
    session.handle_opened(Cursor(), 2.0)
    session.handle_message(HERE, welcome(4), 2.0)

    assert told(session.handle_released_leases([0, 1], 2, 5, 3.0)) == [Progress(6, (0, 1), 2, 55)]


def test_nothing_is_told_to_a_daemon_that_is_not_there() -> None:
    session = active()
    session.handle_lost(1.0)

    assert session.handle_released_leases([0, 1, 2], 3, 0, 1.0) == []
    assert session.report_receipt_check(0, "digest", ok=True) == []
    assert session.close_session() == []
