"""A simulated daemon with workers and trainers around the real scheduler.

The scheduler's invariant checker checks its rules. Checked here is what it cannot see: the batches of each trainer,
counted in another way, and that no worker idles while a trainer could have a batch.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from streamd.core.sampler import compute_batch_index_ranges
from streamd.core.spec import BatchKey, Cursor, StreamShape, UnevenPolicy
from streamd.limits import TASKS_AHEAD_PER_WORKER
from streamd.scheduler.admission import SchedulerLimits, compute_production_slots
from streamd.scheduler.events import (
    Action,
    AdmitSession,
    BatchProduced,
    CreditGranted,
    DrainRequested,
    DropSlots,
    Event,
    LeaseReleased,
    LogWarning,
    ProduceBatch,
    ProductionFailed,
    ProgressReported,
    RefuseSession,
    SendBatch,
    SendReceipt,
    SessionClosed,
    SessionLost,
    SetCredit,
    SlotDenied,
    StopStream,
    StreamChanged,
    StreamPaused,
    StreamResumed,
    Subscribed,
    WorkersChanged,
)
from streamd.scheduler.scheduler import Scheduler
from streamd.scheduler.session import ScheduledSession

MIB = 1 << 20

Place = tuple[int, int]  # epoch, index


def train(batches: int, *, name: str = "train", slot_bytes: int = MIB, tasks: int = 1) -> StreamShape:
    return StreamShape(name, batches, slot_bytes, tasks)


def wish(
    session: int = 1,
    stream: str = "train",
    *,
    rank: int = 0,
    world: int = 1,
    uneven: UnevenPolicy = "drop",
    epochs: int | None = 1,
    cursor: Cursor | None = None,
    credit: int = 4,
    resuming: bool = False,
    live: bool = False,
    together: int = 0,
    earlier: Collection[int] = (),
    user: int = 0,
) -> Subscribed:
    """What a trainer subscribes with, unless a test says otherwise."""
    place = rank, world, uneven, epochs, cursor or Cursor()
    return Subscribed(session, stream, *place, credit, resuming, live, together, tuple(earlier), user)


def epoch_of(batches: int, base: int, rank: int, world: int, uneven: UnevenPolicy) -> list[int]:
    """What a rank must get of an epoch, by counting instead of arithmetic."""
    beyond = batches + (world if uneven == "pad" else 0)
    starts = [start for start in range(base, beyond, world) if start < batches]
    return [start + rank for start in starts if start + world <= beyond]


@dataclass(slots=True)
class Trainer:
    """One trainer over all its sessions; `cursor` is the one its loop would save."""

    stream: str
    rank: int
    world: int
    uneven: UnevenPolicy
    epochs: int | None
    wanted: int
    cursor: Cursor = field(default_factory=Cursor)
    session: int = 0
    credit: int = 0
    upto: int = 0
    sent: int = 0
    held: dict[int, int] = field(default_factory=dict)  # delivery number -> slot
    earlier: dict[int, dict[int, int]] = field(default_factory=dict)  # session that ended -> what it holds of it still
    inbox: deque[tuple[int, BatchKey]] = field(default_factory=deque)
    due: Iterator[Place | int] = field(default_factory=lambda: iter(()))  # batches, and an epoch's number for a receipt
    taken: list[Place] = field(default_factory=list)
    receipts: list[Cursor] = field(default_factory=list)
    refused: RefuseSession | None = None
    user: int = 0
    stopped: StopStream | None = None

    @property
    def open(self) -> bool:
        return self.credit > 0

    def way(self, batches: int, cursor: Cursor) -> Iterator[Place | int]:
        """All that a session from `cursor` on must be sent, in order."""
        epochs = count(cursor.epoch) if self.epochs is None else range(cursor.epoch, self.epochs)
        for epoch in epochs:
            base = cursor.next_base_index if epoch == cursor.epoch else 0
            yield from ((epoch, index) for index in epoch_of(batches, base, self.rank, self.world, self.uneven))
            yield epoch

    def batches_of_all(self, batches: int, start: Cursor | None = None) -> list[Place]:
        return [step for step in self.way(batches, start or Cursor()) if not isinstance(step, int)]


class World:
    """The window with all that surrounds it. Time stands still unless a test moves `now_s`."""

    def __init__(self, *shapes: StreamShape, memory: int = 64 * MIB, workers: int = 2, check: bool = True) -> None:
        self.shapes = {shape.name: shape for shape in shapes}
        self.limits, self.checking = SchedulerLimits(memory, workers), check
        self.window = Scheduler(shapes, self.limits)
        self.now_s = 0.0
        self.trainers: list[Trainer] = []
        self.producing: deque[ProduceBatch] = deque()
        self.made: list[BatchKey] = []  # everything that was ever given to the workers
        self.warnings: list[str] = []
        self.slots: dict[int, int] = {}  # serial -> bytes
        self.lying: dict[int, BatchKey] = {}  # serial -> what was written there last
        self.gone: set[int] = set()
        self.erased: set[int] = set()  # of them, those whose pages were given back
        self.paused: set[str] = set()
        self.draining = False
        self.sound = True  # no event has failed half-way
        self._numbers = count(1)

    # --- what a test does

    def subscribe(
        self,
        stream: str = "train",
        *,
        rank: int = 0,
        world: int = 1,
        uneven: UnevenPolicy = "drop",
        epochs: int | None = 1,
        credit: int = 4,
        cursor: Cursor | None = None,
        live: bool = False,
        together: int = 0,
        user: int = 0,
    ) -> Trainer:
        trainer = Trainer(stream, rank, world, uneven, epochs, credit, cursor or Cursor(), user=user)
        self.trainers.append(trainer)
        self.connect(trainer, live=live, together=together)
        return trainer

    def connect(
        self, trainer: Trainer, *, resuming: bool = False, grant: bool = True, live: bool = False, together: int = 0
    ) -> bool:
        """A new session at the trainer's own cursor; False when it was refused."""
        trainer.session, trainer.refused = next(self._numbers), None
        trainer.upto = trainer.sent = 0
        trainer.held, trainer.inbox = {}, deque()
        trainer.due = trainer.way(self.shapes[trainer.stream].batches, trainer.cursor)
        place = trainer.rank, trainer.world, trainer.uneven, trainer.epochs, trainer.cursor, trainer.wanted
        earlier = tuple(trainer.earlier)
        wanted = Subscribed(trainer.session, trainer.stream, *place, resuming, live, together, earlier, trainer.user)
        self.handle(wanted)
        if trainer.open and grant:
            self.grant(trainer, trainer.credit)
        return trainer.open

    def grant(self, trainer: Trainer, upto: int) -> None:
        trainer.upto = max(trainer.upto, upto)
        self.handle(CreditGranted(trainer.session, upto))

    def produce(self, at: int = 0) -> BatchKey:
        """The workers finish a batch, the oldest unless told otherwise."""
        job = self.producing[at]
        del self.producing[at]
        self.handle(BatchProduced(job.slot))
        return job.key

    def produce_all(self) -> None:
        """The workers finish all that they have, and all that is begun meanwhile."""
        while self.producing:
            self.produce()

    def fail(self, reason: str, *, stream: str = "train") -> tuple[ProduceBatch, list[Action]]:
        """The oldest production of a stream fails."""
        job = next(job for job in self.producing if job.key.stream == stream)
        self.producing.remove(job)
        return job, self.handle(ProductionFailed(job.slot, reason))

    def pause(self, *, stream: str = "train") -> list[Action]:
        """The data of a stream are away: all its productions come to nothing."""
        jobs = [job for job in self.producing if job.key.stream == stream]
        self.producing = deque(job for job in self.producing if job not in jobs)
        self.paused.add(stream)
        return self.handle(StreamPaused(stream, tuple(job.slot for job in jobs)))

    def resume(self, *, stream: str = "train") -> list[Action]:
        """They are there again."""
        self.paused.discard(stream)
        return self.handle(StreamResumed(stream))

    def change_workers(self, workers: int, tasks_ahead: int = TASKS_AHEAD_PER_WORKER) -> list[Action]:
        self.limits = replace(self.limits, workers=workers)
        return self.handle(WorkersChanged(workers, tasks_ahead))

    def deny(self) -> list[Action]:
        """The host has no room for the slot that was asked for last."""
        job = self.producing.pop()
        del self.slots[job.slot]
        return self.handle(SlotDenied(job.slot, "no descriptor is left"))

    def take(self, trainer: Trainer, batches: int = 1) -> None:
        """The loop takes batches, drops each at once, and tells so."""
        for _ in range(batches):
            number = self.receive(trainer)
            self.release(trainer, number)
            self.handle(ProgressReported(trainer.session, number + 1))
            self.grant(trainer, trainer.upto + 1)

    def receive(self, trainer: Trainer) -> int:
        """The loop takes a batch and keeps it; returns the delivery's number."""
        number, key = trainer.inbox.popleft()
        trainer.taken.append((key.epoch, key.index))
        if key.epoch != trainer.cursor.epoch:
            trainer.cursor = Cursor(key.epoch)
        trainer.cursor = trainer.cursor.after_step(trainer.rank, trainer.world)
        return number

    def release(self, trainer: Trainer, *numbers: int, retired: tuple[int, ...] = ()) -> None:
        for number in numbers:
            trainer.held.pop(number, None)
        self.handle(LeaseReleased(trainer.session, numbers, retired))

    def end(self, trainer: Trainer, *, lost: bool) -> None:
        """Without a word, or with the word that nothing is held."""
        trainer.credit, trainer.held = 0, {}
        self.handle(SessionLost(trainer.session) if lost else SessionClosed(trainer.session, ()))

    def close(self, trainer: Trainer, *, told: bool = True) -> None:
        """The session ends; what its loop holds it goes on to hold. `told`: it says what that is."""
        waiting = {number for number, _ in trainer.inbox} if told else set()
        kept = {number: slot for number, slot in trainer.held.items() if number not in waiting}
        trainer.credit, trainer.held = 0, {}
        if kept:
            trainer.earlier[trainer.session] = kept
        self.handle(SessionClosed(trainer.session, tuple(kept) if told else None))

    def drop(self, trainer: Trainer, session: int, *numbers: int) -> None:
        """The loop drops what it held of a session that has ended."""
        held = trainer.earlier[session]
        for number in numbers:
            held.pop(number, None)
        if not held:
            del trainer.earlier[session]
        self.handle(LeaseReleased(session, numbers))

    def die(self, trainer: Trainer) -> None:
        """The process ends, and with it whatever it held of sessions that had ended."""
        if trainer.open:
            self.end(trainer, lost=True)
        for session in list(trainer.earlier):
            del trainer.earlier[session]
            self.handle(SessionLost(session))

    def drain(self) -> None:
        self.draining = True
        self.handle(DrainRequested())

    def run(self, *trainers: Trainer, cost_s: float = 0.0, until: Callable[[], bool] = lambda: False) -> None:
        """Eager trainers take all they are sent; one batch is decoded every `cost_s`; until nothing moves any more."""
        eager = trainers or tuple(self.trainers)
        while not until():
            for trainer in eager:
                while trainer.inbox and trainer.open:
                    self.take(trainer)
            if not self.producing:
                break
            self.now_s += cost_s
            self.produce()

    def handle(self, event: Event) -> list[Action]:
        self.sound = False
        if isinstance(event, StreamChanged):
            self.paused.discard(event.stream)
        actions = self.window.handle_events((event,), self.now_s)
        for action in actions:
            self._see(action)
        if self.checking:
            self.check()
        self.sound = True
        return actions

    # --- what the daemon around the window would do, and expects

    def _of(self, session: int) -> Trainer:
        return next(trainer for trainer in self.trainers if trainer.session == session)

    def _see(self, action: Action) -> None:
        match action:
            case SetCredit(session, credit):
                self._of(session).credit = credit
            case AdmitSession(session, credit, cursor):
                self._admit(self._of(session), credit, cursor)
            case RefuseSession(session):
                self._of(session).refused = action
            case ProduceBatch():
                self._see_production(action)
            case SendBatch():
                self._see_batch(action)
            case SendReceipt(session, cursor):
                trainer = self._of(session)
                assert next(trainer.due) == cursor.epoch, "a receipt follows the last batch of its epoch"
                trainer.receipts.append(cursor)
            case DropSlots(slots, may_be_read):
                for slot in slots:
                    del self.slots[slot]
                self.gone.update(slots)
                self.erased.update(set(slots) - set(may_be_read))
            case StopStream(_, sessions):
                for session in sessions:
                    trainer = self._of(session)
                    trainer.stopped, trainer.credit = action, 0
                    if trainer.held:
                        trainer.earlier[session] = trainer.held
                    trainer.held = {}
            case LogWarning(text):
                self.warnings.append(text)

    def _admit(self, trainer: Trainer, credit: int, joined: Cursor | None) -> None:
        trainer.credit = credit
        if joined is not None:
            trainer.cursor = joined
            trainer.epochs = None if trainer.epochs is None else joined.epoch + trainer.epochs
            trainer.due = trainer.way(self.shapes[trainer.stream].batches, joined)

    def _see_production(self, action: ProduceBatch) -> None:
        self.slots[action.slot] = action.slot_bytes
        self.lying[action.slot] = action.key
        assert action.key.stream not in self.paused, "nothing is begun of a stream that waits for its data"
        self.producing.append(action)
        self.made.append(action.key)

    def _see_batch(self, action: SendBatch) -> None:
        trainer = self._of(action.session)
        key = self.lying[action.slot]
        assert key.stream == trainer.stream, "nothing is sent of another stream"
        assert next(trainer.due) == (key.epoch, key.index), "each batch once and in order"
        trainer.sent += 1
        trainer.held[action.number] = action.slot
        trainer.inbox.append((action.number, key))

    # --- rules that hold after every event

    @property
    def leased(self) -> set[int]:
        now = {slot for trainer in self.trainers for slot in trainer.held.values()}
        return now | {slot for each in self.trainers for held in each.earlier.values() for slot in held.values()}

    def check(self) -> None:
        assert self.window.producing_count == len(self.producing)
        if not self.draining and self.tasks < self.limits.workers * TASKS_AHEAD_PER_WORKER:
            self._check_no_worker_idles()

    @property
    def tasks(self) -> int:
        return sum(self.shapes[job.key.stream].tasks for job in self.producing)

    def _check_no_worker_idles(self) -> None:
        needed = self.leased | {job.slot for job in self.producing}
        if len(needed) >= self.window._pool.most_slots:
            return
        left = self.limits.memory_bytes - sum(self.slots[slot] for slot in needed)
        for session in self.window.sessions:
            if session.shape.name in self.paused:
                continue
            missing = missing_batches(self.window, session)
            running = sum(job.key.stream == session.shape.name for job in self.producing)
            most = compute_production_slots(session.shape, self.limits)
            assert not missing or left < session.shape.slot_bytes or running >= most, f"{missing[0]} is not produced"


def missing_batches(window: Scheduler, session: ScheduledSession) -> list[BatchKey]:
    """The batches that a session could be sent now, and that nobody makes."""
    walk, step, keys = session.rank_steps, session.position, list[BatchKey]()
    while len(keys) < session.sendable_count and not walk.is_beyond_end(step) and not step.is_at_epoch_end:
        keys.append(BatchKey(session.shape.name, step.epoch, walk.batch_index(step)))
        step = walk.next_step(step)
    return [key for key in keys if key not in window._pool.entries]


def steps_told(cursor: Cursor) -> list[int]:
    """The indices that a receipt speaks of."""
    return [index for walk in compute_batch_index_ranges(cursor.history) for index in walk]


def wander(world: World, rng: random.Random, *, losses: int) -> None:
    """Random things happen, in any order, until every trainer has its last batch."""
    whole = {id(trainer): trainer.batches_of_all(world.shapes[trainer.stream].batches) for trainer in world.trainers}
    while waiting := [each for each in world.trainers if each.taken != whole[id(each)]]:
        here = [each for each in world.trainers if each.open]
        away = [each for each in waiting if not each.open]
        moves: list[Callable[[], object]] = [
            partial(_step, world, rng, each) for each in here if each.inbox or each.held
        ]
        moves += [partial(world.end, each, lost=False) for each in here if each not in waiting]
        if world.producing:
            moves.append(partial(world.produce, rng.randrange(len(world.producing))))
        moves += [partial(_drop_some, world, rng, each) for each in world.trainers if each.earlier]
        if losses and here and rng.random() < 0.05:
            losses -= 1
            rng.choice((world.die, world.close))(rng.choice(here))
        elif away and (not moves or rng.random() < 0.2):
            back = rng.choice(away)
            assert world.connect(back, resuming=bool(back.taken)) or moves, "memory is free, yet nobody is let in"
        else:
            assert moves, f"stuck with {len(waiting)} trainers waiting"
            rng.choice(moves)()


def _drop_some(world: World, rng: random.Random, trainer: Trainer) -> None:
    session = rng.choice(list(trainer.earlier))
    held = sorted(trainer.earlier[session])
    world.drop(trainer, session, *rng.sample(held, rng.randint(1, len(held))))


def _step(world: World, rng: random.Random, trainer: Trainer) -> None:
    """Does something that the trainer may do."""
    kept = sorted(trainer.held.keys() - {number for number, _ in trainer.inbox})
    if trainer.inbox and (not kept or rng.random() < 0.6):
        world.receive(trainer)
        return
    freed = rng.sample(kept, rng.randint(1, len(kept)))
    forked = rng.random() < 0.1
    world.release(trainer, *freed, retired=tuple(freed[:1]) if forked else ())
    if rng.random() < 0.2:
        world.release(trainer, *freed)  # a repeated message
    world.grant(trainer, trainer.sent + trainer.credit - len(trainer.held))
    if rng.random() < 0.2:
        world.handle(CreditGranted(trainer.session, rng.randrange(trainer.upto + 1)))  # an old one, late
