"""The invariant checker: silent while the scheduler is right, and an error for each rule that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from support.scheduler_driver import MIB, World, train, wish

from streamd.core.spec import BatchKey, Cursor, Segment, UnevenPolicy
from streamd.errors import BrokenRuleError
from streamd.scheduler.events import (
    Action,
    AdmitSession,
    BatchProduced,
    CreditGranted,
    DrainRequested,
    DropSlots,
    Event,
    LeaseReleased,
    ProduceBatch,
    ProductionFailed,
    ProgressReported,
    SendBatch,
    SendReceipt,
    SessionClosed,
    SessionLost,
    SetCredit,
    StopStream,
    StreamChanged,
)
from streamd.scheduler.invariants import InvariantChecker

BATCHES = 6


def key(index: int, epoch: int = 0) -> BatchKey:
    return BatchKey("train", epoch, index)


def receipt(session: int, *segments: tuple[int, int, int, int], epoch: int = 0) -> SendReceipt:
    return SendReceipt(session, Cursor(epoch, tuple(Segment(*segment) for segment in segments)))


class Book:
    """An invariant checker, and a daemon that does as the test says: batch i is in slot i + 1."""

    def __init__(self, batches: int = BATCHES) -> None:
        shapes = [train(batches), train(batches, name="other")]
        self.checker = InvariantChecker(shapes, 8 * MIB, measure_session_bytes=lambda: self.room)
        self.room = 64 * MIB  # for sessions
        self.used = 0

    def enter(self, event: Event, *actions: Action) -> None:
        self.used += sum(isinstance(action, ProduceBatch) and action.slot * MIB > self.used for action in actions) * MIB
        self.checker.check_event(event, actions, self.used)

    def subscribe(self, session: int = 1, *, credit: int = 4, **wanted: Any) -> None:
        self.enter(wish(session, epochs=2, credit=credit, **wanted), AdmitSession(session, credit))
        self.enter(CreditGranted(session, credit))

    def produce(self, *indices: int, send: bool = False) -> None:
        for index in indices:
            self.enter(ProgressReported(0, 0), ProduceBatch(key(index), index + 1, MIB))
            sent = [SendBatch(1, index, index + 1)] if send else []
            self.enter(BatchProduced(index + 1), *sent)


def subscribed(session: int = 1, **wanted: Any) -> Book:
    book = Book()
    book.subscribe(session, **wanted)
    return book


def broken(rule: str, act: Callable[[], None]) -> str:
    with pytest.raises(BrokenRuleError) as caught:
        act()
    assert caught.value.rule == rule
    return str(caught.value)


def test_the_checker_counts_the_checks_of_each_rule() -> None:
    world = World(train(20))
    trainer = world.subscribe(epochs=2)
    world.run()
    checks = world.window.checks_by_rule

    assert len(trainer.taken) == 40
    assert checks["steps_consecutive"] == checks["slot_holds_batch"] == 40
    assert checks["receipt_after_last"] == checks["others_unmoved"] == 42
    assert checks["slot_free_to_write"] == len(world.made)
    assert checks["memory_within_budget"] > 80


def test_the_message_names_the_rule_the_facts_and_a_remedy() -> None:
    book = subscribed()
    book.produce(0)

    said = broken("numbers_dense", lambda: book.enter(CreditGranted(1, 4), SendBatch(1, 3, 1)))

    assert "number=3" in said
    assert "0 is the next number" in said
    assert "restart it" in said


@pytest.mark.parametrize(
    ("rule", "sent"),
    [
        ("numbers_dense", SendBatch(1, 2, 2)),
        ("numbers_dense", SendBatch(1, 0, 2)),
        ("steps_consecutive", SendBatch(1, 1, 1)),
        ("steps_consecutive", SendBatch(1, 1, 3)),
        ("steps_consecutive", SendBatch(1, 1, 4)),
        ("steps_consecutive", SendBatch(1, 1, 5)),
        ("slot_holds_batch", SendBatch(1, 1, 6)),
        ("slot_holds_batch", SendBatch(1, 1, 7)),
        ("sent_within_grant", SendBatch(1, 4, 2)),
        ("others_unmoved", SendBatch(2, 1, 2)),
    ],
)
def test_a_batch_that_is_not_the_next_one_breaks_a_rule(rule: str, sent: SendBatch) -> None:
    book = subscribed()
    book.produce(0, send=True)
    book.produce(1, 2)
    for slot, other in ((4, key(1, epoch=1)), (5, BatchKey("other", 0, 1))):
        book.enter(ProgressReported(0, 0), ProduceBatch(other, slot, MIB))
        book.enter(BatchProduced(slot))
    book.enter(ProgressReported(0, 0), ProduceBatch(key(1), 6, MIB))

    broken(rule, lambda: book.enter(CreditGranted(1, 4), sent))
    assert rule in book.checker.checks_by_rule


@pytest.mark.parametrize("granted", [4, 9], ids=["beyond the credit granted", "beyond the credit leased"])
def test_a_batch_beyond_the_credit_breaks_a_rule(granted: int) -> None:
    book = subscribed()
    book.produce(0, 1, 2, 3, send=True)
    book.produce(4)
    broken("sent_within_grant", lambda: book.enter(CreditGranted(1, granted), SendBatch(1, 4, 5)))


def test_sending_a_batch_in_production_or_of_the_old_stream_breaks_a_rule() -> None:
    book = subscribed()
    book.enter(ProgressReported(1, 0), ProduceBatch(key(0), 1, MIB))
    broken("slot_holds_batch", lambda: book.enter(CreditGranted(1, 5), SendBatch(1, 0, 1)))

    book = Book()
    book.produce(0)
    book.enter(StreamChanged("train", train(BATCHES)), StopStream("train", (), "changed", changed=True))
    book.subscribe()
    broken("slot_holds_batch", lambda: book.enter(CreditGranted(1, 5), SendBatch(1, 0, 1)))


@pytest.mark.parametrize(("uneven", "steps"), [("drop", 1), ("pad", 2)])
def test_a_receipt_must_follow_the_last_step_of_its_epoch_at_once(uneven: UnevenPolicy, steps: int) -> None:
    sent = [SendBatch(1, number, 2 + 4 * number) for number in range(steps)]
    told = receipt(1, (0, steps, 1, 4))
    for answer, rule in (
        (sent, "receipt_after_last"),
        ([*sent, told], None),
        ([*sent[:-1], told], "receipt_after_last"),
    ):
        book = subscribed(rank=1, world=4, uneven=uneven)
        book.produce(*range(BATCHES))
        if rule is None:
            book.enter(CreditGranted(1, 4), *answer)
        else:
            broken(rule, lambda book=book, answer=answer: book.enter(CreditGranted(1, 4), *answer))  # type: ignore[misc]  # bound early


@pytest.mark.parametrize(
    "told",
    [
        receipt(1, (0, 5, 0, 1)),
        receipt(1, (0, 6, 0, 1), epoch=1),
        receipt(1, (0, 2, 0, 3)),
        receipt(1, (0, 3, 0, 1), (3, 1, 0, 3)),
        receipt(1),
    ],
)
def test_a_receipt_of_other_steps_than_were_sent_breaks_a_rule(told: SendReceipt) -> None:
    book = subscribed(credit=8)
    book.produce(*range(5), send=True)
    book.enter(ProgressReported(1, 0), ProduceBatch(key(5), 6, MIB))
    last = SendBatch(1, 5, 6)

    broken("receipt_after_last", lambda: book.enter(BatchProduced(6), last, told))


def lost_with_a_lease(book: Book) -> None:
    book.produce(0, send=True)
    book.enter(SessionLost(1))


def held_over(book: Book) -> None:
    book.produce(0, send=True)
    book.enter(SessionClosed(1, (0,)))


def retired(book: Book) -> None:
    book.produce(0, send=True)
    book.enter(LeaseReleased(1, (0,), (0,)))


def failed(book: Book) -> None:
    book.enter(ProgressReported(1, 0), ProduceBatch(key(0), 1, MIB))
    book.enter(ProductionFailed(1, "no"), StopStream("train", (1,), "no", changed=False))


def dropped(book: Book) -> None:
    book.produce(0)
    book.used -= MIB
    book.enter(ProgressReported(1, 0), DropSlots((1,)))
    book.used += MIB


@pytest.mark.parametrize(
    "before",
    [
        lambda book: book.produce(0, send=True),
        lambda book: book.enter(ProgressReported(1, 0), ProduceBatch(key(0), 1, MIB)),
        lost_with_a_lease,
        held_over,
        retired,
        failed,
        dropped,
    ],
    ids=["leased", "in production", "of the dead", "held over", "retired", "failed", "dropped"],
)
def test_writing_to_a_slot_that_is_in_use_or_dropped_breaks_a_rule(before: Callable[[Book], None]) -> None:
    book = subscribed()
    before(book)

    broken("slot_free_to_write", lambda: book.enter(ProgressReported(1, 0), ProduceBatch(key(5), 1, MIB)))


def test_writing_to_a_released_slot_at_another_size_or_while_draining_breaks_a_rule() -> None:
    for again, drain in ((ProduceBatch(key(5), 1, MIB), True), (ProduceBatch(key(5), 1, 2 * MIB), False)):
        book = subscribed()
        book.produce(0, send=True)
        book.enter(LeaseReleased(1, (0,)))
        if drain:
            book.enter(ProgressReported(1, 0), msgspec.structs.replace(again, key=key(4)))
            book.enter(BatchProduced(1))
            book.enter(DrainRequested())
        broken("slot_free_to_write", lambda again=again, book=book: book.enter(ProgressReported(1, 0), again))  # type: ignore[misc]  # bound early


def test_dropping_a_slot_that_is_leased_in_production_or_gone_breaks_a_rule() -> None:
    book = subscribed()
    book.produce(0, send=True)
    broken("slot_free_to_drop", lambda: book.enter(ProgressReported(1, 0), DropSlots((1,))))
    book.enter(ProgressReported(1, 0), ProduceBatch(key(1), 2, MIB))
    broken("slot_free_to_drop", lambda: book.enter(ProgressReported(1, 0), DropSlots((2,))))
    broken("slot_free_to_drop", lambda: book.enter(ProgressReported(1, 0), DropSlots((3,))))


def test_dropping_a_slot_held_from_an_ended_session_breaks_a_rule() -> None:
    book = subscribed()
    book.produce(0, 1, send=True)
    book.enter(SessionClosed(1, (0,)))
    broken("slot_free_to_drop", lambda: book.enter(ProgressReported(1, 0), DropSlots((1,))))
    book.used -= MIB
    book.enter(ProgressReported(1, 0), DropSlots((2,)))


def test_batches_held_from_an_earlier_session_count_within_the_credit() -> None:
    book = subscribed(credit=2)
    book.produce(0, 1, send=True)
    book.enter(SessionClosed(1, (0,)))
    book.enter(wish(2, epochs=2, earlier=(1,)), AdmitSession(2, 2, None, (1,)))
    book.produce(2)
    book.enter(CreditGranted(2, 2), SendBatch(2, 0, 1))
    broken("sent_within_grant", lambda: book.enter(CreditGranted(2, 2), SendBatch(2, 1, 2)))


def test_admitting_a_session_with_batches_held_by_another_breaks_a_rule() -> None:
    book = subscribed(credit=2)
    held_over(book)
    broken("others_unmoved", lambda: book.enter(wish(2), AdmitSession(2, 2, None, (1,))))
    book = subscribed(credit=2)
    held_over(book)
    book.enter(wish(2, earlier=(1,)), AdmitSession(2, 2, None, (1,)))
    broken("others_unmoved", lambda: book.enter(wish(3, earlier=(1,)), AdmitSession(3, 2, None, (1,))))


@pytest.mark.parametrize(
    "event",
    [CreditGranted(2, 9), LeaseReleased(2, (0,)), ProgressReported(2, 1), CreditGranted(77, 9)],
)
def test_sending_to_one_session_on_an_event_of_another_breaks_a_rule(event: Event) -> None:
    book = subscribed()
    book.subscribe(2)
    book.produce(0)

    broken("others_unmoved", lambda: book.enter(event, SendBatch(1, 0, 1)))


def test_stopping_a_stream_without_its_own_failure_or_change_breaks_a_rule() -> None:
    book = subscribed()
    book.subscribe(2, stream="other")
    stop = StopStream("train", (1,), "changed", changed=True)

    broken("others_unmoved", lambda: book.enter(SessionLost(9), stop))
    changed = StreamChanged("train", None)
    broken("others_unmoved", lambda: book.enter(changed, replace(stop, stream="other")))
    broken("others_unmoved", lambda: book.enter(changed, replace(stop, sessions=(1, 2))))


def test_an_admission_without_a_subscription_breaks_a_rule() -> None:
    book = subscribed()

    broken("others_unmoved", lambda: book.enter(ProgressReported(1, 0), AdmitSession(1, 4)))


def test_credit_that_leaves_no_room_for_first_batches_breaks_a_rule() -> None:
    book = Book()
    book.room = 28 * MIB  # half of it is kept
    book.subscribe(1, credit=16)
    book.subscribe(2, credit=2)
    broken("room_for_sessions", lambda: book.subscribe(3, credit=3))
    broken("room_for_sessions", lambda: book.enter(SessionLost(9), SetCredit(2, 3)))


def test_held_batches_of_an_ended_session_are_credit_that_leaves_room() -> None:
    book = subscribed(credit=6)
    book.produce(0, 1, 2, 3, send=True)
    book.enter(SessionClosed(1, None))
    book.room = 8 * MIB
    book.subscribe(2, credit=4)
    broken("room_for_sessions", lambda: book.subscribe(3, credit=3))


def test_credit_of_a_user_that_leaves_no_room_for_other_users_breaks_a_rule() -> None:
    book = Book()
    book.room = 40 * MIB
    for session in range(16):
        book.subscribe(session, credit=2, user=1001)
    broken("room_for_users", lambda: book.subscribe(20, credit=2, user=1001))

    book.subscribe(21, credit=2, user=1002)
    broken("room_for_users", lambda: book.subscribe(22, credit=2, user=1002))


def test_sessions_of_the_daemons_own_user_leave_no_room_for_other_users() -> None:
    book = Book()
    book.room = 40 * MIB
    for session in range(20):
        book.subscribe(session, credit=2)


def test_admitting_a_session_with_batches_held_by_another_user_breaks_a_rule() -> None:
    book = subscribed(credit=2)
    held_over(book)
    broken("others_unmoved", lambda: book.enter(wish(2, earlier=(1,), user=7), AdmitSession(2, 2, None, (1,))))


def test_memory_over_the_budget_or_miscounted_breaks_a_rule() -> None:
    book = Book()
    broken("memory_within_budget", lambda: book.checker.check_event(ProgressReported(1, 0), [], MIB))
    book = Book()
    makes = [ProduceBatch(key(index), index + 1, MIB) for index in range(9)]
    broken("memory_within_budget", lambda: book.checker.check_event(ProgressReported(1, 0), makes, 9 * MIB))
