"""One session: credit, leases, the batches ahead, receipts."""

from __future__ import annotations

import pytest
from support.scheduler_driver import train, wish

from streamd.core.spec import BatchKey, Cursor, Segment, UnevenPolicy
from streamd.scheduler.session import ScheduledSession, append_segment


def session(
    batches: int = 6,
    *,
    rank: int = 0,
    world: int = 1,
    uneven: UnevenPolicy = "drop",
    epochs: int | None = 2,
    cursor: Cursor | None = None,
    credit: int = 4,
) -> ScheduledSession:
    event = wish(rank=rank, world=world, uneven=uneven, epochs=epochs, cursor=cursor, credit=credit)
    return ScheduledSession.from_subscription(event, train(batches), credit)


def test_sendable_batches_are_limited_by_the_grant_and_the_leases() -> None:
    one = session(credit=4)
    assert one.sendable_count == 0
    one.upto = 3
    assert one.sendable_count == 3
    one.lease_next_batch(11)
    assert one.sendable_count == 2
    one.upto = 100
    assert one.sendable_count == 3
    one.leases.clear()
    assert one.sendable_count == 4


def test_the_repr_of_a_session_shows_its_position_and_leases() -> None:
    one = session(4, epochs=1)
    assert repr(one) == "<ScheduledSession 1 of 'train', next 0:0, 0 of 4 batches held>"
    one.lease_next_batch(11)
    assert repr(one) == "<ScheduledSession 1 of 'train', next 0:1, 1 of 4 batches held>"


def test_a_finished_session_can_be_sent_nothing() -> None:
    one = session(epochs=1, cursor=Cursor(1))
    one.upto = 10

    assert repr(one) == "<ScheduledSession 1 of 'train', finished, 0 of 4 batches held>"
    assert one.sendable_count == 0


def test_a_rank_sees_only_its_own_batches_ahead() -> None:
    one = session(7, rank=1, world=3, epochs=2)

    assert one.wants_batch(BatchKey("train", 1, 4), 99)
    assert not one.wants_batch(BatchKey("train", 0, 3), 99)
    assert not one.wants_batch(BatchKey("validation", 0, 1), 99)
    assert one.count_steps_until_batch(BatchKey("train", 1, 4)) == 3
    assert not one.wants_batch(BatchKey("train", 1, 4), within=3)


def test_sent_batches_are_numbered_from_zero_and_leased() -> None:
    one = session()

    assert [one.lease_next_batch(slot) for slot in (7, 9)] == [0, 1]
    assert one.leases == {0: 7, 1: 9}
    assert one.next_key == BatchKey("train", 0, 2)
    assert not one.wants_batch(BatchKey("train", 0, 1), 99)


def test_an_epoch_ends_with_a_cursor_after_all_its_steps() -> None:
    one = session(3)
    for slot in range(3):
        one.lease_next_batch(slot)
    assert one.is_waiting_at_epoch_end
    one.catch_up_cost_s = 4.0

    assert one.finish_epoch() == Cursor(0, (Segment(0, 3, 0, 1),))
    assert one.next_key == BatchKey("train", 1, 0)
    assert one.catch_up_cost_s == 0.0


@pytest.mark.parametrize(
    ("history", "segment", "merged"),
    [
        ((), Segment(0, 3, 0, 1), (Segment(0, 3, 0, 1),)),
        ((Segment(0, 3, 0, 1),), Segment(3, 2, 0, 1), (Segment(0, 5, 0, 1),)),
        ((Segment(0, 3, 0, 2),), Segment(6, 2, 0, 1), (Segment(0, 3, 0, 2), Segment(6, 2, 0, 1))),
        ((Segment(0, 3, 1, 2),), Segment(6, 2, 0, 2), (Segment(0, 3, 1, 2), Segment(6, 2, 0, 2))),
        ((Segment(0, 3, 0, 1),), Segment(3, 0, 0, 1), (Segment(0, 3, 0, 1),)),
    ],
)
def test_consecutive_steps_of_one_rank_and_world_form_one_segment(
    history: tuple[Segment, ...], segment: Segment, merged: tuple[Segment, ...]
) -> None:
    assert append_segment(history, segment) == merged


def test_the_first_missing_batch_is_found_with_its_distance() -> None:
    one = session(6)
    pool = {BatchKey("train", 0, index) for index in (0, 1, 3)}

    assert one.find_missing_batch(6, pool.__contains__) == (BatchKey("train", 0, 2), 2)
    assert one.find_missing_batch(2, pool.__contains__) is None


def test_batches_already_found_are_not_looked_up_again() -> None:
    one = session(6)
    asked: list[int] = []

    def known(key: BatchKey) -> bool:
        asked.append(key.index)
        return key.index != 3

    one.find_missing_batch(6, known)
    one.lease_next_batch(1)
    one.find_missing_batch(6, known)

    assert asked == [0, 1, 2, 3, 3]


def test_a_batch_that_left_the_pool_is_missing_again() -> None:
    one = session(6)
    pool = {BatchKey("train", 0, index) for index in range(5)}
    assert one.find_missing_batch(6, pool.__contains__) == (BatchKey("train", 0, 5), 5)

    for gone in (4, 1):
        pool.remove(BatchKey("train", 0, gone))
        one.forget_batch(BatchKey("train", 0, gone))
        assert one.find_missing_batch(6, pool.__contains__) == (BatchKey("train", 0, gone), gone)


def test_the_lookup_continues_at_the_sessions_position() -> None:
    one = session(6)
    assert one.find_missing_batch(6, lambda _: False) == (BatchKey("train", 0, 0), 0)
    one.lease_next_batch(1)
    one.lease_next_batch(2)

    assert one.find_missing_batch(6, lambda _: False) == (BatchKey("train", 0, 2), 0)
