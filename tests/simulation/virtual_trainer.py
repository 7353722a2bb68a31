"""Training processes in virtual time: the real Tally and tokens, as `client.stream` uses them, around loops that do
whatever a loop may do. What each takes is held against what it must take, by counting instead of by arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from scenario import steps_of
from stage import Stage
from support.scheduler_driver import Place
from synthetic import Slot, ids_in, lies_in
from virtual_client import VirtualIOThread
from virtual_time import Process

from streamd.client.batch import restore_planned_ids
from streamd.client.handoff import Handoff
from streamd.client.leases import EndedConnection, ReceivedBatch
from streamd.client.session import ClientSession
from streamd.core.receipt import Receipt, TallySnapshot
from streamd.core.spec import Cursor, RankSteps, UnevenPolicy
from streamd.core.token import encode_token, parse_token, resume_tally, start_tally
from streamd.errors import RefusedError, StreamChangedError, StreamdError, StreamStoppedError
from streamd.ipc.messages import ReceiptDue, Subscribe
from streamd.limits import PROGRESS_DELAY_S, SILENCE_S

_SAVES: Final = 0.1  # of all steps
_HOLDS_S: Final = 0.05  # a loop that waits holds what it has at most so long


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint: how many batches its model has seen, and the tally's place, whose token is made when it is read."""

    place: TallySnapshot | None
    steps: int


@dataclass(slots=True, eq=False)
class Seat:
    """One rank's part of a job over all processes that ever do it. `expected` is all that it must take, in order."""

    name: str
    rank: int
    world: int
    uneven: UnevenPolicy
    epochs: int
    credit: int
    step_s: float
    expected: list[Place]
    to_the_end: bool  # not so where the job goes on in another world
    user: int = 0
    live: bool = False  # begins where the others are, which it hears with its first welcome
    saved: Saved = Saved(None, 0)
    saves: list[Saved] = field(default_factory=list)
    taken: list[Place] = field(default_factory=list)  # relative to the checkpoint that the present process began with
    pixels: list[str] = field(default_factory=list)  # and how each of them was made
    done: bool = False


@dataclass(slots=True, eq=False)
class Held:
    """A view of a batch, and what it showed when it was taken."""

    lender: VirtualIOThread
    connection: int
    number: int
    slot: Slot
    shown: bytes


class Trainer:
    """One process at a seat, from a checkpoint on."""

    def __init__(
        self,
        seat: Seat,
        stage: Stage,
        on_take: Callable[[Place], None],
        on_end: Callable[[Trainer, StreamdError | None], None],
    ) -> None:
        self.seat = seat
        self.process = Process(stage.agenda)
        self.slowness = 1.0
        self.children: list[list[Held]] = []
        self.held: list[Held] = []
        self._stage, self._rng, self._story = stage, stage.rng, stage.story
        self._on_take, self._on_end = on_take, on_end
        self._spec = stage.data.spec
        self._walk = RankSteps(self._spec.batches, seat.rank, seat.world, seat.uneven, seat.epochs)
        self._hold = self._rng.randint(0, seat.credit)
        self._left: list[VirtualIOThread] = []  # of sessions before a seek
        self._held_over: set[EndedConnection] = set()
        self._waits = 0
        self._waiting = self._busy = self.over = False
        self._begin(seat.saved, running=False)

    def __str__(self) -> str:
        return self.seat.name

    def _begin(self, saved: Saved, *, running: bool) -> None:
        """As Stream._begin and _open."""
        seat = self.seat
        del seat.taken[saved.steps :], seat.pixels[saved.steps :]
        seat.saved = saved
        seat.saves = [each for each in seat.saves if each.steps <= saved.steps]
        token = parse_token(encode_token(self._spec, saved.place), self._spec) if saved.place else None
        if token:
            self.tally = resume_tally(token, self._spec, self._walk)
        else:
            self.tally = start_tally(Cursor(), self._spec, self._spec.pixel_id)
        place = self._spec.name, seat.rank, seat.world, seat.epochs, Cursor()
        wish = Subscribe(*place, seat.uneven, seat.credit, "shared", None, resuming=False, live=seat.live)
        self.handoff = Handoff(self.tally.cursor)
        self.session = ClientSession(wish, self._spec, resuming=running)
        one = seat.name, self.process, self.session, self.handoff, self._stage, self._held_over
        self.io_thread = VirtualIOThread(*one, self.turn)

    # --- the loop

    def turn(self) -> None:
        """Something came, or the step is done: what next?"""
        if self._busy or self.over:
            return
        try:
            if not self.seat.live or self._find_place():
                self._move()
        except (StreamStoppedError, StreamChangedError, RefusedError) as error:
            self._end(error)

    def _find_place(self) -> bool:
        """As Stream.wait_until_open: whether a live trainer knows by now where it begins."""
        if not self.handoff.wait_for_session(0):
            return False
        seat, cursor = self.seat, self.handoff.cursor
        seat.live, seat.epochs = False, self.session.subscription.epochs or 0
        start, batches = (cursor.epoch, cursor.next_base_index), self._spec.batches
        seat.expected = list(steps_of(batches, seat.epochs, start, seat.world, seat.uneven))
        self._walk = RankSteps(batches, seat.rank, seat.world, seat.uneven, seat.epochs)
        self.tally = start_tally(cursor, self._spec, self._spec.pixel_id)
        seat.saved = Saved(self.tally.take_snapshot(), 0)
        self._story.counts["joined others"] += 1
        self._story.note(seat.name, "joins the others at {}:{}", *start)
        return True

    def _move(self) -> None:
        seat, tally = self.seat, self.tally
        if len(seat.taken) == len(seat.expected) and (not seat.to_the_end or tally.cursor.epoch >= seat.epochs):
            self.save()
            self._finish()
        elif self._walk.step_after(tally.cursor).steps:
            after = tally.cursor.after_step(seat.rank, seat.world)
            received = self.handoff.take_batch(after, 0)
            if received is not None:
                self._take(received, after)
            else:
                self._wait()
        else:
            due = self.handoff.wait_for_receipt(tally.cursor.epoch, 0)
            if due is not None:
                self._settle(due)
            else:
                self._wait()

    def _take(self, received: ReceivedBatch, after: Cursor) -> None:
        self._waiting = False
        self.io_thread.hurry(now=False)
        seat, header, memory = self.seat, received.header, received.memory
        place = header.epoch, header.index
        due = seat.expected[len(seat.taken)] if len(seat.taken) < len(seat.expected) else None
        self._story.require("each step once, in order", place == due, "{} takes {} where {} is due", self, place, due)
        said = (*place, int(received.pixel_id))
        self._story.require("a slot shows what it is sent as", lies_in(memory) == said, "{} is told {}", self, said)
        slot = memory.obj
        assert isinstance(slot, Slot)
        planned, marks = restore_planned_ids(ids_in(memory), header.bad, self._spec.bad_policy)
        right = planned.tobytes() == self._stage.data.planned(*place).tobytes()
        self._story.require("a batch holds its samples, or what verdicts make of them", right, "{}", place)
        self.tally.record_pixel_id(received.pixel_id)
        self.tally.add_batch(header.index, planned, marks, after)
        seat.taken.append(place)
        seat.pixels.append(received.pixel_id)
        slot.watchers += 1
        self.held.append(Held(self.io_thread, received.connection, received.number, slot, bytes(slot)))
        self._story.counts["batches"] += 1
        self._story.note(seat.name, "takes {}:{}", *place)
        if self._rng.random() < _SAVES:
            self.save()
        self._on_take(place)
        self._busy = True
        self.process.after(seat.step_s * self.slowness * (0.5 + self._rng.random()), self._stepped)

    def _stepped(self) -> None:
        self._busy = False
        keep = self._rng.randint(0, self._hold) if self._hold else 0
        while len(self.held) > keep:
            self._release()
        self.turn()

    def _release(self) -> None:
        held = self.held.pop(self._rng.randrange(len(self.held)))
        self.look(held)
        held.slot.watchers -= 1
        held.lender.give_back(held.connection, held.number)

    def look(self, held: Held) -> None:
        """What is held still shows what it did."""
        same = memoryview(held.slot) == held.shown
        self._story.require("what is held does not change", same, "{} saw slot {} change", self, held.slot.serial)

    def save(self) -> None:
        """A checkpoint behind the last batch; the one that is there is left as it is."""
        if self.seat.saved.steps == len(self.seat.taken):
            return
        self.seat.saved = Saved(self.tally.take_snapshot(), len(self.seat.taken))
        self.seat.saves.append(self.seat.saved)

    # --- waiting, as Stream._wait_long and WaitPolicy

    def _wait(self) -> None:
        if self._waiting:
            return
        self._waiting = True
        self._waits += 1
        self.io_thread.hurry(now=bool(self.handoff.list_credit_blocking_batches()))
        self.process.after(PROGRESS_DELAY_S, self._hurry, self._waits)
        self.process.after(SILENCE_S, self._ask, self._waits)
        if self.held:
            self.process.after(self._rng.random() * _HOLDS_S, self._let_go, self._waits)

    def _waits_still(self, wait: int) -> bool:
        return self._waiting and wait == self._waits and not self.over

    def _hurry(self, wait: int) -> None:
        if self._waits_still(wait):
            self.io_thread.hurry(now=True)

    def _ask(self, wait: int) -> None:
        if self._waits_still(wait):
            if self.handoff.away_since_s is None:
                self.io_thread.order(lambda: self.session.ping_daemon(self._stage.agenda.now_s))
            self.process.after(SILENCE_S, self._ask, wait)

    def _let_go(self, wait: int) -> None:
        if self._waits_still(wait):
            self._release_all()

    # --- an epoch's end

    def _settle(self, due: ReceiptDue) -> None:
        self._waiting = False
        epoch = self.tally.cursor.epoch
        receipt = self.tally.build_receipt(expected_digest=due.digest, steps_left=0, dropped=due.dropped)
        self._story.require("every epoch's receipt is ok", receipt.ok, "{} where {} is due", receipt, due.digest)
        self._judge_change(receipt)
        self._story.counts["receipts"] += 1
        self._story.note(self.seat.name, "has epoch {} accounted for", epoch)
        self.tally = start_tally(self.tally.cursor.at_next_epoch(), self._spec, self.tally.pixel_id)
        self.handoff.move_cursor(self.tally.cursor)
        self.io_thread.order(lambda: self.session.report_receipt_check(epoch, receipt.digest, ok=receipt.ok))
        self.turn()

    def _judge_change(self, receipt: Receipt) -> None:
        """An epoch that was seen with more than one kind of pixels says so."""
        steps = zip(self.seat.taken, self.seat.pixels, strict=True)
        kinds = {pixels for (epoch, _), pixels in steps if epoch == receipt.epoch}
        told = receipt.changed or len(kinds) < 2
        invented = receipt.changed and not self._story.counts["the stream is served anew"]
        self._story.require("a receipt tells of changed pixels", told and not invented, "{}: {}", self, receipt)

    # --- the end

    def _finish(self) -> None:
        """All done: says goodbye; what is held goes in its own time."""
        self.over = self.seat.done = True
        self._story.note(self.seat.name, "is done")
        self.io_thread.close()
        self.process.after(self._rng.random(), self._release_all)
        self._on_end(self, None)

    def _end(self, error: StreamdError) -> None:
        """The loop hears of an error, saves perhaps, and its process ends."""
        self._story.note(self.seat.name, "stops: {}", type(error).__name__)
        if self._rng.random() < 0.5:
            self.save()
        self.kill()
        self._on_end(self, error)

    def _release_all(self) -> None:
        while self.held:
            self._release()

    def _drop_views(self, views: list[Held]) -> None:
        for held in views:
            self.look(held)
            held.slot.watchers -= 1
        views.clear()

    # --- what others do to it

    def kill(self) -> None:
        """-9: the kernel closes its sockets and drops its views."""
        self._drop_views(self.held)
        self.over = True
        self.process.kill()
        for io_thread in (*self._left, self.io_thread):
            io_thread.die()

    @property
    def may_hold_earlier_batches(self) -> bool:
        """Whether it may hold batches of an earlier session, beside those that its credit counts."""
        return bool(self._left or self._held_over)

    def fork(self) -> None:
        """A child has every view that is held now, for as long as it likes.

        Each I/O thread hears of it, also one that is still saying goodbye for a stream that has sought elsewhere.
        """
        for io_thread in (*self._left, self.io_thread):
            io_thread.handoff.before_fork()
            io_thread.handoff.after_fork_in_parent()
            io_thread.shared = True
        for held in self.held:
            held.slot.watchers += 1
            held.slot.forked = True
        for ended in self._held_over:
            ended.before_fork()
        self.children.append(list(self.held))

    def end_children(self) -> None:
        for child in self.children:
            self._drop_views(child)
        self.children = []

    def leave(self) -> None:
        """An orderly end in the middle: saved, said goodbye; somebody goes on from there later."""
        self.save()
        self.over = True
        self.io_thread.close()
        self.process.after(self._rng.random(), self._release_all)

    def seek(self, saved: Saved) -> None:
        """As Stream.seek: another session, from that place on; views stay."""
        self._story.note(self.seat.name, "seeks step {}", saved.steps)
        self.io_thread.close()
        self._left.append(self.io_thread)
        self._waiting = False
        self._begin(saved, running=True)
