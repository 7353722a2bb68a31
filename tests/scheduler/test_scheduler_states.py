"""Every sequence of events that Hypothesis finds, with all rules checked after each event."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.hypothesis_settings import explored, seldom
from support.scheduler_driver import MIB, Trainer, World, train

from streamd.core.spec import Cursor, UnevenPolicy
from streamd.scheduler.events import (
    CreditGranted,
    LeaseReleased,
    ProgressReported,
    SessionLost,
    StreamChanged,
    TimePassed,
)

STREAMS: Final = ("train", "validation")
USERS: Final = (0, 0, 1001, 1002, 1003)  # the first is the daemon's own
MOST_SESSIONS: Final = 6
COMPANY: Final = 2  # whom those who begin together wait for

which = st.integers(0, 7)  # one of those that are there, counted round
few = st.integers(1, 4)


class Daemon(RuleBasedStateMachine):
    """The scheduler, its workers and its trainers; each rule is one thing that may happen at any time."""

    world: World

    @initialize(
        batches=st.tuples(st.integers(2, 9), st.integers(2, 9)),
        sizes=st.tuples(few, few),
        tasks=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        room=st.one_of(st.integers(0, 20), st.integers(20, 160)),
        workers=st.integers(1, 3),
    )
    def begin(
        self, batches: tuple[int, int], sizes: tuple[int, int], tasks: tuple[int, int], room: int, workers: int
    ) -> None:
        shapes = [
            train(count, name=name, slot_bytes=size * MIB, tasks=number)
            for name, count, size, number in zip(STREAMS, batches, sizes, tasks, strict=True)
        ]
        self.world = World(*shapes, memory=(3 * max(sizes) + room) * MIB, workers=workers)
        self.starts: dict[int, Cursor] = {}
        self.written: set[int] = set()
        for stream, credit in zip(STREAMS, sizes, strict=True):
            self.starts[self.world.subscribe(stream, epochs=2, credit=credit).session] = Cursor()

    # --- trainers come, take, give back and go

    @rule(
        stream=st.sampled_from(STREAMS),
        ranks=st.sampled_from([(0, 1), (0, 2), (1, 2), (2, 3)]),
        uneven=st.sampled_from(["drop", "pad"]),
        epochs=st.sampled_from([1, 2, 3, None]),
        credit=st.one_of(st.integers(0, 9), st.just(32)),
        behind=st.lists(st.tuples(few, few), max_size=2),
        manner=st.sampled_from(["from a cursor", "from a cursor", "live", "together"]),
        user=st.sampled_from(USERS),
    )
    @precondition(lambda self: len(self.here()) < MOST_SESSIONS)
    def subscribe(
        self,
        stream: str,
        ranks: tuple[int, int],
        uneven: UnevenPolicy,
        epochs: int | None,
        credit: int,
        behind: list[tuple[int, int]],
        manner: str,
        user: int,
    ) -> None:
        rank, world = ranks
        trainer = self.world.subscribe(
            stream,
            rank=rank,
            world=world,
            uneven=uneven,
            epochs=epochs,
            credit=credit,
            cursor=Cursor() if manner == "live" else self._after(behind, stream),
            live=manner == "live",
            together=COMPANY if manner == "together" else 0,
            user=user,
        )
        self.starts[trainer.session] = trainer.cursor

    def _after(self, behind: list[tuple[int, int]], stream: str) -> Cursor:
        """A cursor with `steps` of a `world` behind it, and others before, as far as the epoch has batches."""
        cursor = Cursor()
        for world, steps in behind:
            for _ in range(steps):
                if cursor.next_base_index + world <= self.world.shapes[stream].batches:
                    cursor = cursor.after_step(0, world)
        return cursor

    @rule(at=which)
    @precondition(lambda self: self.waiting())
    def take(self, at: int) -> None:
        trainer = self.one(self.waiting(), at)
        number = self.world.receive(trainer)
        self.world.handle(ProgressReported(trainer.session, number + 1))

    @rule(at=which, first=which, count=few, retired=st.booleans(), twice=st.booleans())
    @precondition(lambda self: self.keeping())
    def release(self, at: int, first: int, count: int, retired: bool, twice: bool) -> None:
        trainer = self.one(self.keeping(), at)
        kept = self.kept(trainer)
        freed = [kept[(first + more) % len(kept)] for more in range(min(count, len(kept)))]
        self.world.release(trainer, *freed, retired=tuple(freed[:1]) if retired else ())
        if twice:
            self.world.release(trainer, *freed)

    @rule(at=which, late=st.integers(-2, 3))
    @precondition(lambda self: self.here())
    def grant(self, at: int, late: int) -> None:
        """What the client tells: an absolute number, which may come twice, or late, or be more than it may have."""
        trainer = self.one(self.here(), at)
        self.world.grant(trainer, trainer.sent - len(trainer.held) + trainer.credit - late)

    @rule(at=which, lost=st.booleans(), now=seldom)
    @precondition(lambda self: self.here())
    def end(self, at: int, lost: bool, now: bool) -> None:
        if now:
            self.world.end(self.one(self.here(), at), lost=lost)

    @rule(at=which, told=st.booleans(), back=st.booleans(), now=seldom)
    @precondition(lambda self: self.here())
    def close(self, at: int, told: bool, back: bool, now: bool) -> None:
        """A session ends, perhaps for another one at once, and its loop goes on to hold what it has."""
        if now:
            trainer = self.one(self.here(), at)
            self.world.close(trainer, told=told)
            if back and self.world.connect(trainer, resuming=True):
                self.starts[trainer.session] = trainer.cursor

    @rule(at=which, first=which, count=few)
    @precondition(lambda self: self.holding_earlier_batches())
    def drop(self, at: int, first: int, count: int) -> None:
        trainer = self.one(self.holding_earlier_batches(), at)
        session, held = list(trainer.earlier.items())[first % len(trainer.earlier)]
        self.world.drop(trainer, session, *sorted(held)[:count])

    @rule(at=which, now=seldom)
    @precondition(lambda self: self.holding_earlier_batches())
    def die(self, at: int, now: bool) -> None:
        if now:
            self.world.die(self.one(self.holding_earlier_batches(), at))

    @rule(at=which)
    @precondition(lambda self: self.away())
    def come_back(self, at: int) -> None:
        """A trainer that lost its session subscribes where its loop is; what it was sent and did not take is lost."""
        trainer = self.one(self.away(), at)
        taken = trainer.taken.copy()
        if len(self.here()) < MOST_SESSIONS and self.world.connect(trainer, resuming=True):
            self.starts[trainer.session] = trainer.cursor
            assert trainer.taken == taken

    @rule(at=which, number=which)
    @precondition(lambda self: self.away())
    def send_events_of_an_ended_session(self, at: int, number: int) -> None:
        """Late events of a session that has ended change nothing."""
        session = self.one(self.away(), at).session
        if any(session in trainer.earlier for trainer in self.world.trainers):
            return  # there is something of it that may be dropped
        before = self.world.window.sessions, self.world.window.used_bytes
        for late in (CreditGranted(session, 99), LeaseReleased(session, (number,), (number,)), SessionLost(session)):
            assert self.world.handle(late) == []
        assert (self.world.window.sessions, self.world.window.used_bytes) == before

    # --- workers, streams, time

    @rule(at=which, count=st.integers(1, 6))
    @precondition(lambda self: self.world.producing)
    def produce(self, at: int, count: int) -> None:
        for _ in range(min(count, len(self.world.producing))):
            place = at % len(self.world.producing)
            self.written.add(self.world.producing[place].slot)
            self.world.produce(place)

    @rule(now=seldom)
    @precondition(lambda self: self.world.producing)
    def deny(self, now: bool) -> None:
        """The host cannot make the slot that was asked for last, if that is a new one."""
        if now and self.world.producing[-1].slot not in self.written:
            self.world.deny()

    @rule(at=which, now=seldom)
    @precondition(lambda self: self.world.producing)
    def fail(self, at: int, now: bool) -> None:
        if now:
            stream = self.world.producing[at % len(self.world.producing)].key.stream
            self.world.fail("no more", stream=stream)

    @rule(stream=st.sampled_from(STREAMS), now=seldom)
    def pause_or_resume(self, stream: str, now: bool) -> None:
        """The data of a stream disappear or return."""
        if stream in self.world.paused:
            self.world.resume(stream=stream)
        elif now:
            self.world.pause(stream=stream)

    @rule(stream=st.sampled_from(STREAMS), batches=st.integers(2, 9), now=seldom)
    def change(self, stream: str, batches: int, now: bool) -> None:
        old = self.world.shapes[stream]
        if not now:
            return
        new = self.world.shapes[stream] = train(batches, name=stream, slot_bytes=old.slot_bytes, tasks=old.tasks)
        self.world.handle(StreamChanged(stream, new))

    @rule(workers=st.integers(1, 6), now=seldom)
    def change_workers(self, workers: int, now: bool) -> None:
        """Nodes of a cluster join or leave."""
        if now:
            self.world.change_workers(workers)

    @rule(time_s=st.sampled_from([0.001, 0.1, 31.0]))
    def pass_time(self, time_s: float) -> None:
        self.world.now_s += time_s
        self.world.handle(TimePassed())

    @rule(now=seldom)
    def drain(self, now: bool) -> None:
        if now and len(self.world.made) > 10:  # nothing much happens after it
            self.world.drain()

    # --- what holds at any time

    @invariant()
    def every_trainer_took_each_batch_once_in_order(self) -> None:
        for trainer in self.here():
            start = self.starts[trainer.session]
            due = [step for step in self._way(trainer, start, len(trainer.taken)) if not isinstance(step, int)]
            since = trainer.taken[len(trainer.taken) - self.taken_since(trainer) :]
            assert due[: len(since)] == since, f"{trainer.session} took another way"

    @invariant()
    def no_session_waits_once_enough_have_come(self) -> None:
        sessions = self.world.window.sessions
        for session in sessions:
            company = sum(other.shape.name == session.shape.name for other in sessions)
            assert not session.gathering_count or company < COMPANY, f"{session.id} waits for company that is there"

    def _way(self, trainer: Trainer, start: Cursor, least: int) -> list[tuple[int, int] | int]:
        way = trainer.way(self.world.shapes[trainer.stream].batches, start)
        steps = (next(way, None) for _ in range(2 * least + 2))
        return [step for step in steps if step is not None]

    def taken_since(self, trainer: Trainer) -> int:
        """How many batches of this session its loop has taken."""
        return trainer.sent - len(trainer.inbox)

    def teardown(self) -> None:
        """Without further disturbance every open session gets all the batches that are left for it."""
        if not hasattr(self, "world") or self.world.draining or not self.world.sound:
            return
        for stream in sorted(self.world.paused):
            self.world.resume(stream=stream)
        for trainer in self.world.trainers:
            for session, held in list(trainer.earlier.items()):
                self.world.drop(trainer, session, *held)
        for trainer in self.here():
            self.world.release(trainer, *self.kept(trainer))
            self.world.grant(trainer, trainer.sent - len(trainer.held) + trainer.credit)
        alone = {each.id for each in self.world.window.sessions if each.gathering_count}
        ends = [each for each in self.here() if each.session not in alone and each.epochs is not None]
        self.world.run(*self.here(), until=lambda: all(self.has_all(each) for each in ends))
        assert all(self.has_all(each) for each in ends), "somebody waits for ever"

    def has_all(self, trainer: Trainer) -> bool:
        way = list(trainer.way(self.world.shapes[trainer.stream].batches, self.starts[trainer.session]))
        return self.taken_since(trainer) == sum(not isinstance(step, int) for step in way)

    # --- who is there

    def here(self) -> list[Trainer]:
        return [trainer for trainer in self.world.trainers if trainer.open]

    def away(self) -> list[Trainer]:
        return [each for each in self.world.trainers if each.session and not each.open and each.stopped is None]

    def waiting(self) -> list[Trainer]:
        return [trainer for trainer in self.here() if trainer.inbox]

    def kept(self, trainer: Trainer) -> list[int]:
        return sorted(trainer.held.keys() - {number for number, _ in trainer.inbox})

    def keeping(self) -> list[Trainer]:
        return [trainer for trainer in self.here() if self.kept(trainer)]

    def holding_earlier_batches(self) -> list[Trainer]:
        return [trainer for trainer in self.world.trainers if trainer.earlier]

    def one(self, some: list[Trainer], at: int) -> Trainer:
        return some[at % len(some)]


TestDaemon = Daemon.TestCase
TestDaemon.settings = explored()
