"""The handoff of batches from the I/O thread to the training loop."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial

import pytest
from support.daemon_process import wait_until
from support.keyboard_interrupts import Interrupter

from streamd.client.handoff import Handoff
from streamd.client.leases import ReceivedBatch
from streamd.core.spec import Cursor
from streamd.errors import RefusedError, StreamStoppedError
from streamd.ipc.messages import BatchReady, ReceiptDue

START = Cursor()
LONG_S = 20.0


def offer(handoff: Handoff, *numbers: int, connection: int = 1) -> None:
    handoff.put_batches(
        [ReceivedBatch(each, BatchReady(0, each, 1, 7, 64, inline=False), connection) for each in numbers]
    )


def take(handoff: Handoff, first: int, last: int) -> list[int | None]:
    """Takes a batch as each of these steps; the numbers of their deliveries, None where there was none."""
    taken = [handoff.take_batch(after(step), 0) for step in range(first, last + 1)]
    return [each.number if each else None for each in taken]


def fork(handoff: Handoff) -> None:
    handoff.before_fork()
    handoff.after_fork_in_parent()


def after(steps: int) -> Cursor:
    cursor = START
    for _ in range(steps):
        cursor = cursor.after_step(0, 1)
    return cursor


def meanwhile(what: Callable[[], object]) -> threading.Thread:
    """Does `what` in another thread, as the I/O thread does."""
    thread = threading.Thread(target=what)
    thread.start()
    return thread


def make_handoff() -> Handoff:
    handoff = Handoff(START)
    assert handoff.reset_for_new_connection() == (1, START)
    handoff.mark_session_open(credit=2)
    return handoff


@pytest.fixture
def handoff() -> Handoff:
    return make_handoff()


def offer_when_waited_for(handoff: Handoff) -> None:
    """Two batches, as soon as the loop waits."""
    wait_until(lambda: handoff._waiters, "the loop waits")
    offer(handoff, 0, 1)


def test_batches_are_taken_in_the_order_they_were_offered(handoff: Handoff) -> None:
    offer(handoff, 0)
    offer(handoff, 1, 2)
    assert take(handoff, 1, 4) == [0, 1, 2, None]


def test_a_waiting_loop_wakes_when_a_batch_is_offered(handoff: Handoff) -> None:
    thread = meanwhile(lambda: offer(handoff, 0))
    taken = handoff.take_batch(after(1), LONG_S)
    thread.join()
    assert taken is not None


def test_a_new_connection_begins_after_what_the_loop_took_and_discards_the_rest(handoff: Handoff) -> None:
    offer(handoff, 0, 1)
    take(handoff, 1, 1)
    assert handoff.reset_for_new_connection() == (2, after(1))
    assert take(handoff, 2, 2) == [None]


def test_discarding_a_connection_drops_its_untaken_batches_and_names_the_held_ones(handoff: Handoff) -> None:
    offer(handoff, 0, 1)
    take(handoff, 1, 1)
    fork(handoff)
    assert sorted(handoff.list_outstanding_leases()) == [0, 1]
    assert handoff.discard_untaken_batches() == ({0: (0, 0)}, {0})
    offer(handoff, 2)
    assert take(handoff, 2, 2) == [None]
    handoff.reset_for_new_connection()
    offer(handoff, 0, connection=2)
    assert take(handoff, 2, 2) == [0]


def test_a_loop_that_took_nothing_does_not_move_the_cursor(handoff: Handoff) -> None:
    assert take(handoff, 1, 1) == [None]
    assert handoff.reset_for_new_connection()[1] == START


def test_an_interrupt_at_any_moment_of_a_wait_leaves_the_handoff_usable() -> None:
    for moment in itertools.count(1):
        handoff = make_handoff()
        thread = meanwhile(partial(offer_when_waited_for, handoff))
        interrupter = Interrupter(moment, ("/handoff.py", "/threading.py"))
        try:
            assert interrupter.call(partial(handoff.take_batch, after(1), LONG_S))
        except KeyboardInterrupt:
            first = handoff.take_batch(after(2), LONG_S)  # the other one, where the first was taken in that moment
            assert first is not None
        thread.join(LONG_S)
        assert not thread.is_alive(), f"the handoff is locked after an interrupt at moment {moment}"
        if interrupter.passed < moment:
            break
    assert moment > 10


def test_held_batches_block_only_when_they_use_all_the_credit(handoff: Handoff) -> None:
    for number in range(2):
        offer(handoff, number)
        assert handoff.list_credit_blocking_batches() == []
        take(handoff, number + 1, number + 1)
    assert handoff.list_credit_blocking_batches() == [(0, 0), (0, 1)]
    assert handoff.release_leases(1, [0]) == (2, [])
    assert handoff.list_credit_blocking_batches() == []


def test_leases_of_an_earlier_connection_say_nothing_about_this_one(handoff: Handoff) -> None:
    offer(handoff, 0)
    take(handoff, 1, 1)
    handoff.reset_for_new_connection()
    offer(handoff, 0, 1, connection=2)
    take(handoff, 2, 3)
    assert handoff.release_leases(1, [0]) == (2, [])
    assert len(handoff.list_credit_blocking_batches()) == 2


def test_batches_that_came_before_an_error_are_taken_first(handoff: Handoff) -> None:
    offer(handoff, 0)
    handoff.set_error(StreamStoppedError("the first reason"))
    handoff.set_error(StreamStoppedError("a later one"))
    assert take(handoff, 1, 1) == [0]
    with pytest.raises(StreamStoppedError, match="the first reason"):
        take(handoff, 2, 2)


def test_a_receipt_is_kept_until_the_loop_moves_past_its_epoch(handoff: Handoff) -> None:
    due = ReceiptDue(3, "00", 0)
    handoff.put_receipt(due)
    assert handoff.wait_for_receipt(2, 0) is None
    assert handoff.wait_for_receipt(3, 0) is due
    assert handoff.wait_for_receipt(3, 0) is due
    handoff.move_cursor(Cursor(4))
    assert handoff.wait_for_receipt(3, 0) is None
    handoff.move_cursor(Cursor(3))
    handoff.put_receipt(due)
    handoff.set_error(StreamStoppedError("gone"))
    assert handoff.wait_for_receipt(3, 0) is due
    with pytest.raises(StreamStoppedError):
        handoff.wait_for_receipt(4, 0)


def test_a_welcome_ends_the_wait_for_it_and_a_refusal_raises() -> None:
    handoff = Handoff(START)
    assert handoff.wait_for_session(0) is False
    thread = meanwhile(lambda: handoff.mark_session_open(4))
    assert handoff.wait_for_session(LONG_S) is True
    thread.join()
    refused = Handoff(START)
    refused.set_error(RefusedError("no"))
    with pytest.raises(RefusedError):
        refused.wait_for_session(LONG_S)


@pytest.mark.parametrize("wait", [Handoff.take_batch, Handoff.wait_for_receipt])
def test_a_daemon_that_goes_away_ends_the_wait(handoff: Handoff, wait: Callable[..., object]) -> None:
    place = after(1) if wait is Handoff.take_batch else 0
    answers: list[object] = []
    thread = meanwhile(lambda: answers.append(wait(handoff, place, LONG_S)))
    wait_until(lambda: handoff._waiters, "the loop waits")
    handoff.mark_daemon_away()
    thread.join(LONG_S / 2)
    assert answers == [None]
    since_s = handoff.away_since_s
    handoff.mark_daemon_away()
    assert handoff.away_since_s == since_s


def test_the_next_connection_starts_at_a_moved_cursor(handoff: Handoff) -> None:
    handoff.move_cursor(Cursor(5))
    assert handoff.reset_for_new_connection() == (2, Cursor(5))


def test_a_closed_handoff_drops_untaken_batches_and_wakes_its_waiter(handoff: Handoff) -> None:
    offer(handoff, 0)
    handoff.close(RefusedError("closed"))
    with pytest.raises(RefusedError, match="closed"):
        take(handoff, 1, 1)
    thread = meanwhile(lambda: handoff.close(RefusedError("closed again")))
    with pytest.raises(RefusedError):
        handoff.wait_for_receipt(0, LONG_S)
    thread.join()


def test_leases_held_at_a_fork_are_retired_when_they_are_returned(handoff: Handoff) -> None:
    offer(handoff, 0, 1, 2)
    take(handoff, 1, 2)
    handoff.release_leases(1, [0])
    fork(handoff)
    take(handoff, 3, 3)
    assert handoff.release_leases(1, [1, 2]) == (3, [1])


def test_a_fork_in_an_earlier_connection_is_forgotten_with_it(handoff: Handoff) -> None:
    offer(handoff, 0)
    take(handoff, 1, 1)
    fork(handoff)
    handoff.reset_for_new_connection()
    offer(handoff, 0, connection=2)
    take(handoff, 1, 1)
    assert handoff.release_leases(2, [0]) == (1, [])


def test_a_credit_reduced_below_the_held_batches_makes_them_block(handoff: Handoff) -> None:
    handoff.mark_session_open(4)
    offer(handoff, 0, 1)
    take(handoff, 1, 2)
    assert handoff.list_credit_blocking_batches() == []
    handoff.set_credit(2)
    assert handoff.list_credit_blocking_batches() == [(0, 0), (0, 1)]


def test_leases_taken_during_a_fork_are_retired_too(handoff: Handoff) -> None:
    offer(handoff, 0, 1, 2)
    take(handoff, 1, 1)
    handoff.before_fork()
    take(handoff, 2, 2)
    handoff.after_fork_in_parent()
    handoff.after_fork_in_parent()
    take(handoff, 3, 3)
    assert handoff.release_leases(1, [0, 1, 2]) == (3, [0, 1])
