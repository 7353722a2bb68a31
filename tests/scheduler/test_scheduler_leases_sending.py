"""What is sent when something lies ready, and that a receipt comes right behind an epoch's last batch."""

from __future__ import annotations

from streamd.core.spec import BatchKey, Cursor, StreamShape
from streamd.scheduler.actions import Action, SendBatch, SendReceipt
from streamd.scheduler.events import Subscribed
from streamd.scheduler.leases import send_ready_batches
from streamd.scheduler.session import ScheduledSession
from streamd.scheduler.slot_pool import BatchDemand, SlotPool

SHAPE = StreamShape("train", batches=3, slot_bytes=1, tasks=1)
NOBODY = BatchDemand(lambda: (), lambda _: 0.0)


def session(*, upto: int = 9) -> ScheduledSession:
    event = Subscribed(1, "train", 0, 1, "drop", 2, Cursor(), 9, resuming=False)
    session = ScheduledSession.from_subscription(event, SHAPE, 9)
    session.upto = upto
    return session


def pool(*indices: int) -> SlotPool:
    pool = SlotPool(9)
    for index in indices:
        entry = pool.allocate_slot(BatchKey("train", 0, index), 1, NOBODY, is_modest=False)
        assert entry is not None
        pool.mark_batch_whole(entry.slot)
    return pool


def sent(session: ScheduledSession, pool: SlotPool) -> list[Action]:
    actions: list[Action] = []
    send_ready_batches(session, pool, actions)
    return actions


def test_what_lies_ready_is_sent_up_to_the_first_that_does_not() -> None:
    assert sent(session(), pool(0, 2)) == [SendBatch(1, 0, 1)]


def test_no_more_is_sent_than_was_granted() -> None:
    assert len(sent(session(upto=2), pool(0, 1, 2))) == 2


def test_a_receipt_follows_the_last_batch_of_its_epoch_at_once() -> None:
    actions = sent(session(), pool(0, 1, 2))
    assert [type(action) for action in actions] == [SendBatch, SendBatch, SendBatch, SendReceipt]
    assert isinstance(actions[-1], SendReceipt)
    assert actions[-1].cursor.next_base_index == 3
