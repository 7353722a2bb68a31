"""Turns of digests: users in rotation, equal requests together, and nothing that nobody wants."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from streamd.core.spec import Cursor
from streamd.daemon.streams.digest_turns import DigestJob, DigestTurns


@dataclass
class Waiter:
    """A trainer that waits, and what it was given."""

    wanted: bool = True
    given: list[str | None] = field(default_factory=list)

    def is_wanted(self) -> bool:
        return self.wanted and not self.given

    def settle(self, outcome: str | BaseException | None) -> None:
        assert not isinstance(outcome, BaseException)
        self.given.append(outcome)


def job(user: int, epoch: int) -> DigestJob:
    return DigestJob(user, ("order", Cursor(epoch)), iter([]))


def take_and_finish(turns: DigestTurns) -> DigestJob | None:
    taken = turns.take_next()
    if taken is not None:
        turns.remove_job(taken)
        taken.settle_waiters("done")
    return taken


def test_users_take_turns_however_many_digests_one_waits_for() -> None:
    turns = DigestTurns()
    for epoch in range(5):
        turns.add_waiter(job(1, epoch), Waiter())
    turns.add_waiter(job(2, 10), Waiter())
    turns.add_waiter(job(3, 20), Waiter())
    taken = [take_and_finish(turns) for _ in range(8)]
    assert [each.user if each else None for each in taken] == [1, 2, 3, 1, 1, 1, 1, None]


def test_a_short_digest_does_not_wait_for_all_of_a_long_one_of_its_user() -> None:
    turns, long, short = DigestTurns(), job(1, 0), job(1, 1)
    turns.add_waiter(long, Waiter())
    turns.add_waiter(short, Waiter())
    assert [turns.take_next() for _ in range(3)] == [long, short, long]


def test_equal_requests_are_one_job_in_the_turns_of_each_user() -> None:
    turns, waiters = DigestTurns(), [Waiter(), Waiter()]
    for epoch in range(100, 200):
        turns.add_waiter(job(1, epoch), Waiter())
    turns.add_waiter(job(1, 0), waiters[0])
    turns.add_waiter(job(2, 0), waiters[1])
    taken = [take_and_finish(turns) for _ in range(2)]
    assert [each.key[1].epoch if each else None for each in taken] == [100, 0]
    assert [each.given for each in waiters] == [["done"], ["done"]]


def test_a_request_that_is_not_wanted_any_more_is_dropped_at_its_turn() -> None:
    turns, gone, there = DigestTurns(), Waiter(wanted=False), Waiter()
    turns.add_waiter(job(1, 0), gone)
    turns.add_waiter(job(1, 1), there)
    taken = take_and_finish(turns)
    assert taken is not None
    assert (taken.key[1].epoch, gone.given, there.given, len(turns)) == (1, [None], ["done"], 0)


def test_digests_ahead_come_after_all_that_trainers_wait_for() -> None:
    turns, ahead, awaited = DigestTurns(), job(1, 0), job(2, 1)
    turns.add_ahead(ahead)
    turns.add_waiter(awaited, Waiter())
    assert [take_and_finish(turns) for _ in range(3)] == [awaited, ahead, None]


def test_a_digest_begun_ahead_is_continued_for_the_trainer_that_comes_to_wait_for_it() -> None:
    turns, ahead = DigestTurns(), job(1, 0)
    turns.add_ahead(ahead)
    assert turns.take_next() is ahead
    turns.add_waiter(job(2, 0), Waiter())
    assert [take_and_finish(turns), take_and_finish(turns)] == [ahead, None]


def test_the_number_of_digests_ahead_is_bounded_for_each_user() -> None:
    turns = DigestTurns()
    turns.add_ahead(job(2, 1000))
    for epoch in range(100):
        turns.add_ahead(job(1, epoch))
    assert len(turns) == 9
    assert turns.take_next() is not None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.booleans()), max_size=40))
def test_every_wanted_request_is_settled_once_and_nothing_is_left(requests: list[tuple[int, int, bool]]) -> None:
    turns, waiters, ahead = DigestTurns(), list[Waiter](), Counter[int]()
    for user, epoch, is_awaited in requests:
        if is_awaited:
            waiters.append(Waiter())
            turns.add_waiter(job(user, epoch), waiters[-1])
        else:
            ahead[user] += 1
            turns.add_ahead(job(user, epoch))
    while take_and_finish(turns):
        pass
    assert [each.given for each in waiters] == [["done"]] * len(waiters)
    assert len(turns) == 0
