"""One trainer's position in its stream: the next batch, the credit, the leases, and what it holds once it has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from streamd.core.spec import BatchKey, Cursor, RankSteps, Segment, StepPosition, StreamShape
from streamd.core.text import format_count
from streamd.limits import MAX_CREDIT, MIN_CREDIT
from streamd.scheduler.events import Subscribed


@dataclass(slots=True, eq=False)
class EndedSession:
    """A session that has ended, of which its trainer still holds batches. Their memory counts until it releases them.

    They count within the credit of `counted_in`, a running session of the same trainer, and by themselves while that is
    None. The last release takes the session off the books, as does the end of its process or its lifeline: then no
    further release can come.
    """

    user: int
    slot_bytes: int
    leases: dict[int, int]  # delivery number -> slot
    counted_in: ScheduledSession | None = None

    @property
    def held_bytes(self) -> int:
        return len(self.leases) * self.slot_bytes


@dataclass(slots=True, eq=False)
class ScheduledSession:
    """A subscription's state. `sent` is the number of the next delivery, and `next_key` its batch.

    Two bounds hold at once: deliveries are numbered below `upto`, which the trainer grants, and no more than `credit`
    of them are leased, which the scheduler sets. `position`, `next_key` and `finished` change together.
    """

    id: int
    shape: StreamShape
    rank_steps: RankSteps
    history: tuple[Segment, ...]
    position: StepPosition
    credit: int
    wanted_credit: int = MIN_CREDIT  # the credit that it requested, within bounds
    most_held: int = 0  # the most batches that its loop was seen to hold at a time, in this epoch
    upto: int = 0
    sent: int = 0
    taken: int = 0
    first_base: int = 0  # the batch at which its account of this epoch begins
    user: int = 0  # the uid that its trainer runs as
    gathering_count: int = 0  # nothing is sent before the stream has this many sessions; 0 from then on
    leases: dict[int, int] = field(default_factory=dict)  # delivery number -> slot
    earlier_sessions: list[EndedSession] = field(default_factory=list)  # those that are `counted_in` this one
    virtual_time: float = 0.0  # tasks produced for it, shared ones in part: the fair scheduler's account
    catch_up_cost_s: float = 0.0  # what others' catching up has cost it in this epoch
    next_catch_up_check_s: float = 0.0  # when it may next be considered for catching up
    chased_session: int | None = None  # the session it is being brought level with
    # All batches that may be made for it are in the pool. It is not asked again before it may be sent more, one of them
    # leaves the pool, or the horizon of its stream grows.
    is_resting: bool = False
    # A memo of `find_missing_batch`: all deliveries before this step, whose number is `_known_number`, are in the pool,
    # and are not looked up again. `forget_batch` clears it when one of them leaves the pool.
    _known_step: StepPosition | None = None
    _known_number: int = -1
    next_key: BatchKey = field(init=False)
    finished: bool = field(init=False)

    def __post_init__(self) -> None:
        self._move_to_step(self.position)

    def __repr__(self) -> str:
        key = self.next_key
        place = "finished" if self.finished else f"next {key.epoch}:{key.index}"
        held = f"{self.held_count} of {format_count(self.credit, 'batch', 'batches')} held"
        return f"<ScheduledSession {self.id} of {key.stream!r}, {place}, {held}>"

    @staticmethod
    def from_subscription(event: Subscribed, shape: StreamShape, credit: int) -> ScheduledSession:
        walk = RankSteps(shape.batches, event.rank, event.world, event.uneven, event.epochs)
        cursor = event.cursor
        return ScheduledSession(
            event.session,
            shape,
            walk,
            cursor.history,
            walk.step_after(cursor),
            credit,
            clamp_wanted_credit(event),
            first_base=cursor.begin,
            user=event.user,
            gathering_count=event.together,
        )

    @property
    def least_credit(self) -> int:
        """The credit below which its loop could not go on: the batches that it holds, and one more."""
        return min(self.credit, max(MIN_CREDIT, self.most_held + 1) + self.count_of_earlier_leases)

    @property
    def count_of_earlier_leases(self) -> int:
        """The number of batches that its trainer still holds of earlier sessions; they count within the credit."""
        return sum(len(each.leases) for each in self.earlier_sessions) if self.earlier_sessions else 0

    @property
    def held_count(self) -> int:
        """The number of batches that count within the credit."""
        return len(self.leases) + self.count_of_earlier_leases

    @property
    def released_count(self) -> int:
        """The number of deliveries whose leases have ended."""
        return self.sent - len(self.leases)

    def record_progress(self, taken: int) -> None:
        """Records that its loop has taken `taken` deliveries in all."""
        self.taken = max(self.taken, taken)
        self.most_held = max(self.most_held, self._count_of_taken_leases)

    @property
    def _count_of_taken_leases(self) -> int:
        """The number of batches that its loop has taken and not released."""
        # Only deliveries that the loop has taken can be released, so all that were released are among those taken.
        return min(self.taken, self.sent) - self.released_count

    @property
    def is_waiting_at_epoch_end(self) -> bool:
        return self.position.is_at_epoch_end and not self.finished

    @property
    def sendable_count(self) -> int:
        """The number of batches that may be sent now, if they are whole; 0 or less for none."""
        if self.finished or self.gathering_count:
            return 0
        return min(self.upto - self.sent, self.credit - self.held_count)

    def _move_to_step(self, step: StepPosition) -> None:
        """Makes `step` the next step, of any epoch."""
        self.position, self.next_key, self.finished = step, self._batch_key(step), self.rank_steps.is_beyond_end(step)

    def _batch_key(self, step: StepPosition) -> BatchKey:
        return BatchKey(self.shape.name, step.epoch, self.rank_steps.batch_index(step))

    @property
    def next_epoch_and_base(self) -> tuple[int, int]:
        """The epoch and base of the next step, at which another session could begin beside this one."""
        return self.position.epoch, self.position.base + self.position.step * self.rank_steps.world

    def find_missing_batch(self, reach: int, is_known: Callable[[BatchKey], bool]) -> tuple[BatchKey, int] | None:
        """Returns the first of the next `reach` deliveries that is not `is_known`, and how many come before it.

        Returns None if all are known, or the stream ends before one that is not.
        """
        if self._known_step is None or self._known_number < self.sent:
            self._known_step, self._known_number = self.position, self.sent
        while self._known_number - self.sent < reach and not self.rank_steps.is_beyond_end(self._known_step):
            key = self._batch_key(self._known_step)
            if not is_known(key):
                return key, self._known_number - self.sent
            self._known_step, self._known_number = self.rank_steps.next_step(self._known_step), self._known_number + 1
        return None

    def forget_batch(self, key: BatchKey) -> None:
        """Clears the memo of `find_missing_batch` if it covers this batch, which has left the pool."""
        distance = self.count_steps_until_batch(key)
        if distance is not None and self.sent + distance < self._known_number:
            self._known_step, self.is_resting = None, False

    def lease_next_batch(self, slot: int) -> int:
        """Leases the next batch, which lies in `slot`, and moves to the next step; returns the delivery's number."""
        number = self.sent
        self.leases[number] = slot
        self.sent += 1
        # The position may now be the epoch's end. It stays there until `finish_epoch`, which belongs to the receipt.
        now = self.position
        self.position = StepPosition(now.epoch, now.base, now.step + 1, now.steps)
        self.next_key = self._batch_key(self.position)
        return number

    def finish_epoch(self) -> Cursor:
        """Moves on to the next epoch; returns the cursor of the one that ended, with all its steps."""
        steps = Segment(self.position.base, self.position.steps, self.rank_steps.rank, self.rank_steps.world)
        ended = Cursor(self.position.epoch, append_segment(self.history, steps), self.first_base)
        self.history, self.first_base = (), 0
        self.catch_up_cost_s, self.most_held = 0.0, self._count_of_taken_leases
        self._move_to_step(self.rank_steps.start_of_next_epoch(self.position))
        return ended

    def count_steps_until_batch(self, key: BatchKey) -> int | None:
        """Returns the number of steps from the next one to `key`; None if the session will not come to that batch."""
        return (
            self.rank_steps.count_steps_to(self.position, key.epoch, key.index)
            if key.stream == self.shape.name
            else None
        )

    def wants_batch(self, key: BatchKey, within: int) -> bool:
        """Whether `key` is a batch that this session is still to be sent, less than `within` steps from now."""
        steps = self.count_steps_until_batch(key)
        return steps is not None and steps < within


def clamp_wanted_credit(event: Subscribed) -> int:
    """Returns the credit that a subscription requests, from MIN_CREDIT to MAX_CREDIT."""
    return max(MIN_CREDIT, min(event.credit, MAX_CREDIT))


def move_start_to_live_sessions(event: Subscribed, sessions: Iterable[ScheduledSession]) -> Subscribed:
    """Returns the event with the cursor at which a live session begins: that of the furthest session, 0:0 if alone.

    A session of any rank and world may begin where a step of another session ends.
    """
    places = [
        session.next_epoch_and_base
        for session in sessions
        if session.shape.name == event.stream and not session.finished
    ]
    epoch, base = max(places, default=(0, 0))
    epochs = None if event.epochs is None else epoch + event.epochs
    return replace(event, cursor=Cursor(epoch, begin=base), epochs=epochs)


def append_segment(history: tuple[Segment, ...], segment: Segment) -> tuple[Segment, ...]:
    """Returns the history with one more segment; a segment that continues the last one is joined to it."""
    if not segment.steps:
        return history
    last = history[-1] if history else None
    rank, world, base = segment.rank, segment.world, segment.base
    if last is not None and (last.rank, last.world, last.next_base_index) == (rank, world, base):
        return (*history[:-1], Segment(last.base, last.steps + segment.steps, last.rank, last.world))
    return (*history, segment)
