"""Sessions that join others at their position, and sessions that wait for others to come."""

from __future__ import annotations

from itertools import count

from support.scheduler_driver import MIB, World, train, wish

from streamd.core.spec import Cursor
from streamd.scheduler.admission import SchedulerLimits
from streamd.scheduler.events import Action, AdmitSession, BatchProduced, CreditGranted, Event, SendBatch, SessionLost
from streamd.scheduler.scheduler import Scheduler
from streamd.scheduler.session import ScheduledSession


def live(world: World, number: int, *, epochs: int | None = 2, rank: int = 0, of: int = 1) -> Cursor:
    """Subscribes a live session; returns the cursor that it starts at."""
    event = wish(number, rank=rank, world=of, epochs=epochs, live=True)
    (admitted,) = [action for action in world.window.handle_events((event,), 0.0) if isinstance(action, AdmitSession)]
    assert admitted.cursor is not None
    return admitted.cursor


class Gathering:
    """A scheduler whose trainers wait for one another."""

    def __init__(self) -> None:
        self.scheduler = Scheduler([train(10)], SchedulerLimits(64 * MIB, workers=2))
        self._numbers = count(101)

    def subscribe(self, together: int) -> ScheduledSession:
        number = next(self._numbers)
        self.handle(wish(number, together=together))
        self.handle(CreditGranted(number, 4))
        return next(session for session in self.scheduler.sessions if session.id == number)

    def handle(self, event: Event) -> list[Action]:
        return self.scheduler.handle_events((event,), 0.0)


def test_a_live_session_alone_starts_at_the_beginning() -> None:
    assert live(World(train(10)), 100) == Cursor()


def test_a_live_session_starts_at_the_furthest_position() -> None:
    world = World(train(10))
    world.subscribe(cursor=Cursor(0).after_step(0, 1), epochs=9)
    world.subscribe(cursor=Cursor(5).after_step(0, 1).after_step(0, 1), epochs=9)
    cursor = live(world, 100)
    assert cursor.epoch == 5
    assert cursor.begin >= 2
    assert cursor.history == ()
    (joined,) = [session for session in world.window.sessions if session.id == 100]
    assert joined.next_key.index == cursor.begin


def test_a_live_sessions_epochs_count_from_its_start() -> None:
    world = World(train(10))
    world.subscribe(cursor=Cursor(7), epochs=None)
    live(world, 100, epochs=2)
    (joined,) = [session for session in world.window.sessions if session.id == 100]
    assert joined.rank_steps.epochs == 9


def test_a_live_session_ignores_finished_sessions() -> None:
    world = World(train(3))
    world.subscribe(cursor=Cursor(4), epochs=4)
    assert live(world, 100) == Cursor()


def test_a_live_rank_starts_at_the_end_of_a_step_of_another_world() -> None:
    world = World(train(12))
    world.subscribe(rank=0, world=3, cursor=Cursor(0).after_step(0, 3), epochs=1, credit=2)
    sent = next(session for session in world.window.sessions).sent
    assert live(world, 100, rank=1, of=2).begin == 3 * (1 + sent)


def test_the_receipt_of_a_joined_epoch_begins_at_the_live_start() -> None:
    world = World(train(4))
    trainer = world.subscribe(cursor=Cursor(0, begin=3))
    world.produce_all()
    assert [place for _, place in trainer.inbox][-1].index == 3
    (receipt,) = trainer.receipts
    assert (receipt.begin, receipt.next_base_index, receipt.history[0].base) == (3, 4, 3)


def test_nothing_is_sent_before_all_gathering_sessions_have_come() -> None:
    gathering = Gathering()
    early = [gathering.subscribe(3), gathering.subscribe(3)]
    assert [session.sendable_count for session in early] == [0, 0]
    (produce,) = [job for job in gathering.scheduler._pool.entries.values() if job.key.index == 0]
    done = gathering.handle(BatchProduced(produce.slot))
    assert not [action for action in done if isinstance(action, SendBatch)]
    number = early[0].id + 2
    last = gathering.handle(wish(number, together=3))
    sent = [action.session for action in last if isinstance(action, SendBatch)]
    assert sent == [session.id for session in early]  # the newcomer has yet to grant credit
    assert [action.session for action in gathering.handle(CreditGranted(number, 4)) if isinstance(action, SendBatch)]


def test_a_lost_session_does_not_count_as_gathered() -> None:
    gathering = Gathering()
    gathering.handle(SessionLost(gathering.subscribe(2).id))
    left = gathering.subscribe(2)
    assert left.gathering_count == 2
    assert (gathering.subscribe(2).gathering_count, left.gathering_count) == (0, 0)


def test_a_session_that_returns_to_a_started_group_starts_at_once() -> None:
    gathering = Gathering()
    gathering.subscribe(2)
    gathering.handle(SessionLost(gathering.subscribe(2).id))
    assert gathering.subscribe(2).gathering_count == 0


def test_batches_are_produced_while_sessions_gather() -> None:
    gathering = Gathering()
    gathering.subscribe(2)
    assert gathering.scheduler.producing_count > 0
