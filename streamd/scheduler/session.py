"""One trainer's place in its stream: what it gets next, how far its credit reaches, what it still holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from streamd.core.spec import BatchKey, Cursor, Segment, StreamShape
from streamd.core.steps import RankSteps, StepPosition
from streamd.limits import MAX_CREDIT, MIN_CREDIT
from streamd.scheduler.ended_sessions import EndedSession
from streamd.scheduler.events import Subscribed


@dataclass(slots=True)
class Session:
    """A subscription's state. `sent` is the number of the next delivery, `next_key` its batch."""

    id: int
    shape: StreamShape
    walk: RankSteps
    history: tuple[Segment, ...]
    at: StepPosition
    credit: int
    wanted: int = MIN_CREDIT  # the credit it asked for
    most_held: int = 0  # batches that its loop was seen to hold at a time, in this epoch
    upto: int = 0
    sent: int = 0
    taken: int = 0
    begin: int = 0  # the batch that its account of this epoch begins at
    together: int = 0  # nothing is sent before so many sessions of the stream are there
    leases: dict[int, int] = field(default_factory=dict)  # delivery number -> slot
    earlier: tuple[EndedSession, ...] = ()  # of the same trainer
    turn: float = 0.0  # batches produced for it, shared ones in part: the fair scheduler's account
    lost_s: float = 0.0  # what others' catching up has cost it in this epoch
    look_s: float = 0.0  # when it may next be considered for catching up
    chasing: int | None = None  # the session it is being brought level with
    _known: StepPosition | None = None  # all deliveries before this one are in the pool, ...
    _known_number: int = -1  # ... and this is its number: what has been looked up is not looked up again
    next_key: BatchKey = field(init=False)
    finished: bool = field(init=False)

    def __post_init__(self) -> None:
        self._begin(self.at)

    @staticmethod
    def of(event: Subscribed, shape: StreamShape, credit: int, earlier: tuple[EndedSession, ...] = ()) -> Session:
        walk = RankSteps(shape.batches, event.rank, event.world, event.uneven, event.epochs)
        cursor = event.cursor
        return Session(
            event.session,
            shape,
            walk,
            cursor.history,
            walk.step_after(cursor),
            credit,
            wanted_credit(event),
            begin=cursor.begin,
            together=event.together,
            earlier=earlier,
        )

    @property
    def least_credit(self) -> int:
        """With less its loop could not go on: what it holds, and one more."""
        return min(self.credit, max(MIN_CREDIT, self.most_held + 1) + self.held_over)

    @property
    def held_over(self) -> int:
        """Batches that its trainer still holds of earlier sessions: they count within the credit."""
        return sum(len(each.leases) for each in self.earlier) if self.earlier else 0

    @property
    def held(self) -> int:
        """All that counts within the credit."""
        return len(self.leases) + self.held_over

    def progressed(self, taken: int) -> None:
        """Its loop has taken so many deliveries."""
        self.taken = max(self.taken, taken)
        self.most_held = max(self.most_held, self._held)

    @property
    def _held(self) -> int:
        """Batches that its loop has taken and not given back."""
        return min(self.taken, self.sent) - (self.sent - len(self.leases))

    @property
    def at_epoch_end(self) -> bool:
        return self.at.is_at_epoch_end and not self.finished

    @property
    def room(self) -> int:
        """Batches that may be sent right now."""
        if self.finished or self.together:
            return 0
        return min(self.upto - self.sent, self.credit - self.held)

    def _begin(self, step: StepPosition) -> None:
        """Goes on with this step, of this epoch."""
        self.at, self.next_key, self.finished = step, self._key(step), self.walk.is_beyond_end(step)

    def _key(self, step: StepPosition) -> BatchKey:
        return BatchKey(self.shape.name, step.epoch, self.walk.batch_index(step))

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and base of the next step: where another session could begin to walk beside this one."""
        return self.at.epoch, self.at.base + self.at.step * self.walk.world

    def ahead(self, count: int) -> Iterator[BatchKey]:
        """The keys of the next `count` deliveries."""
        step = self.at
        while count > 0 and not self.walk.is_beyond_end(step) and not step.is_at_epoch_end:
            yield self._key(step)
            step, count = self.walk.next_step(step), count - 1

    def first_missing(self, reach: int, known: Callable[[BatchKey], bool]) -> tuple[BatchKey, int] | None:
        """The first of the next `reach` deliveries that is not `known`, and how many come before it."""
        if self._known is None or self._known_number < self.sent:
            self._known, self._known_number = self.at, self.sent
        while self._known_number - self.sent < reach and not self.walk.is_beyond_end(self._known):
            key = self._key(self._known)
            if not known(key):
                return key, self._known_number - self.sent
            self._known, self._known_number = self.walk.next_step(self._known), self._known_number + 1
        return None

    def forget(self, key: BatchKey) -> None:
        """This batch is not in the pool any more."""
        distance = self.distance(key)
        if distance is not None and self.sent + distance < self._known_number:
            self._known = None

    def send(self, slot: int) -> int:
        """Leases the next batch, which lies in `slot`; returns the delivery's number."""
        number = self.sent
        self.leases[number] = slot
        self.sent += 1
        self.at = StepPosition(self.at.epoch, self.at.base, self.at.step + 1, self.at.steps)
        self.next_key = self._key(self.at)
        return number

    def end_epoch(self) -> Cursor:
        """Moves on to the next epoch; the cursor of the one that ended, with all its steps."""
        steps = Segment(self.at.base, self.at.steps, self.walk.rank, self.walk.world)
        ended = Cursor(self.at.epoch, merge(self.history, steps), self.begin)
        self.history, self.begin = (), 0
        self.lost_s, self.most_held = 0.0, self._held
        self._begin(self.walk.start_of_next_epoch(self.at))
        return ended

    def distance(self, key: BatchKey) -> int | None:
        """Steps from here to `key`; None when it does not lie ahead."""
        return self.walk.count_steps_to(self.at, key.epoch, key.index) if key.stream == self.shape.name else None

    def wants(self, key: BatchKey) -> bool:
        """Whether `key` lies on the way ahead of this session."""
        return self.distance(key) is not None


def wanted_credit(event: Subscribed) -> int:
    """What a session asks for, within bounds."""
    return max(MIN_CREDIT, min(event.credit, MAX_CREDIT))


def joined(event: Subscribed, sessions: Iterable[Session]) -> Subscribed:
    """The event with the place that a live session begins at: where the one furthest ahead is, 0:0 when alone.

    The end of anybody's step is a beginning for every world.
    """
    places = [session.place for session in sessions if session.shape.name == event.stream and not session.finished]
    epoch, base = max(places, default=(0, 0))
    epochs = None if event.epochs is None else epoch + event.epochs
    return replace(event, cursor=Cursor(epoch, begin=base), epochs=epochs)


def merge(history: tuple[Segment, ...], segment: Segment) -> tuple[Segment, ...]:
    """The history with one more run of steps; a continued walk is told as one segment."""
    if not segment.steps:
        return history
    last = history[-1] if history else None
    if last is not None and (last.rank, last.world, last.next_base) == (segment.rank, segment.world, segment.base):
        return (*history[:-1], Segment(last.base, last.steps + segment.steps, last.rank, last.world))
    return (*history, segment)
