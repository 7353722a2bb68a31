"""What is sent when something lies ready, and that a receipt comes right behind an epoch's last batch."""

from __future__ import annotations

from streamd.core.spec import BatchKey, Cursor, StreamShape
from streamd.scheduler.actions import Action, SendBatch, SendReceipt
from streamd.scheduler.events import Subscribed
from streamd.scheduler.leases import deliver
from streamd.scheduler.session import Session
from streamd.scheduler.slot_pool import Demand, Pool

SHAPE = StreamShape("train", batches=3, slot_bytes=1, tasks=1)
NOBODY = Demand(lambda: (), lambda _: 0.0)


def session(*, upto: int = 9) -> Session:
    event = Subscribed(1, "train", 0, 1, "drop", 2, Cursor(), 9, resuming=False)
    session = Session.of(event, SHAPE, 9)
    session.upto = upto
    return session


def pool(*indices: int) -> Pool:
    pool = Pool(9)
    for index in indices:
        entry = pool.place(BatchKey("train", 0, index), 1, NOBODY, modest=False)
        assert entry is not None
        pool.finish(entry.slot)
    return pool


def sent(session: Session, pool: Pool) -> list[Action]:
    actions: list[Action] = []
    deliver(session, pool, actions)
    return actions


def test_what_lies_ready_is_sent_up_to_the_first_that_does_not() -> None:
    assert sent(session(), pool(0, 2)) == [SendBatch(1, 0, 1)]


def test_no_more_is_sent_than_was_granted() -> None:
    assert len(sent(session(upto=2), pool(0, 1, 2))) == 2


def test_a_receipt_follows_the_last_batch_of_its_epoch_at_once() -> None:
    actions = sent(session(), pool(0, 1, 2))
    assert [type(action) for action in actions] == [SendBatch, SendBatch, SendBatch, SendReceipt]
    assert isinstance(actions[-1], SendReceipt)
    assert actions[-1].cursor.next_base == 3
