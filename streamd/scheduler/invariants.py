"""A second set of books, kept only from what goes into the window and what comes out, so that it can disagree.

It knows nothing of how the window decides and shares no arithmetic with it: it counts. A rule that does not hold ends
the daemon, since the next one makes all state anew, and a trainer would sooner wait than see a wrong batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn

from streamd.core.spec import BatchKey, Cursor, StreamShape
from streamd.errors import BrokenRuleError
from streamd.scheduler.actions import Action, Admit, DropSlots, Lend, Produce, SendBatch, SendReceipt, StopStream
from streamd.scheduler.events import (
    BatchProduced,
    CreditGranted,
    DrainRequested,
    Event,
    LeaseReleased,
    ProductionFailed,
    ProgressReported,
    SessionClosed,
    SessionLost,
    SlotDenied,
    StreamChanged,
    StreamPaused,
    StreamResumed,
    Subscribed,
    TimePassed,
)

Rule = Literal[
    "sent_within_grant",  # deliveries are numbered below what was granted, and no more are leased than the credit
    "numbers_dense",  # 0, 1, 2, ... in every session
    "steps_consecutive",  # each batch of a session's way once, in order, whatever becomes of others
    "slot_holds_batch",  # a slot that is sent holds a whole batch
    "receipt_after_last",  # an epoch's receipt follows its last batch at once, and holds every step
    "slot_free_to_write",  # nothing is written where a lease, a production or a dead session's child may look
    "slot_free_to_drop",  # no slot goes that is leased or written, nor one that a trainer holds of an ended session
    "others_unmoved",  # what happens to one session, or came from one that has ended, moves no other
    "memory_within_budget",  # the slots add up to what is accounted, never more than `memory`
]
_EVERYBODY: Final = -1
_NOBODY: Final = 0


@dataclass(slots=True)
class _Slot:
    """What is known of a slot. `key` is None when nothing of worth lies in it; `seen`: perhaps mapped for ever."""

    slot_bytes: int
    stream: str = ""  # of the batch that was written last, under whatever version of its stream
    key: BatchKey | None = None
    writing: bool = False
    leases: int = 0
    seen: bool = False


@dataclass(slots=True)
class _Account:
    """One session, by what it was told and has told. The next step begins at batch `base` of `epoch`."""

    stream: str
    batches: int
    rank: int
    world: int
    step: int  # batches that must be left for one more step
    epochs: int | None
    epoch: int
    base: int
    before: Counter[tuple[int, int]]  # (rank, world) -> steps of this epoch before this session
    steps: int = 0  # ... and in it
    credit: int = 0
    upto: int = 0
    sent: int = 0
    leases: dict[int, int] = field(default_factory=dict)  # delivery number -> slot
    earlier: tuple[_Account, ...] = ()  # of the same trainer, and ended: what is leased there counts within the credit
    heir: int | None = None  # of one that has ended: the session in whose credit it counts

    @staticmethod
    def of(event: Subscribed, batches: int) -> _Account:
        cursor, least = event.cursor, 1 if event.uneven == "pad" else event.world
        place = event.epochs, cursor.epoch, cursor.next_base
        return _Account(event.stream, batches, event.rank, event.world, least, *place, _steps(cursor))

    def join(self, cursor: Cursor) -> None:
        """Begins where others are instead."""
        self.epochs = None if self.epochs is None else cursor.epoch + self.epochs
        self.epoch, self.base, self.before = cursor.epoch, cursor.next_base, _steps(cursor)

    def is_next(self, key: BatchKey) -> bool:
        at_all = self.epochs is None or self.epoch < self.epochs
        return (
            at_all
            and key.index == self.base + self.rank
            and key.epoch == self.epoch
            and key.stream == self.stream
            and self.base + self.step <= self.batches
        )

    def owes_receipt(self) -> bool:
        """Whether nothing but the receipt is left of the epoch."""
        return self.base + self.step > self.batches and (self.epochs is None or self.epoch < self.epochs)

    def leased(self) -> int:
        return len(self.leases) + sum(len(each.leases) for each in self.earlier)

    def all_steps(self) -> Counter[tuple[int, int]]:
        return self.before + Counter({(self.rank, self.world): self.steps})

    def next_epoch(self) -> None:
        self.epoch, self.base, self.steps, self.before = self.epoch + 1, 0, 0, Counter()


def _steps(cursor: Cursor) -> Counter[tuple[int, int]]:
    steps: Counter[tuple[int, int]] = Counter()
    for segment in cursor.history:
        steps[segment.rank, segment.world] += segment.steps
    return steps


class Ledger:
    """Every rule of the window, checked with each event and each action in time that does not grow with anything."""

    def __init__(self, shapes: Iterable[StreamShape], memory_bytes: int) -> None:
        self._batches = {shape.name: shape.batches for shape in shapes}
        self._memory_bytes, self._bytes = memory_bytes, 0
        self._sessions: dict[int, _Account] = {}
        self._ended: dict[int, _Account] = {}  # whose trainers hold something still
        self._slots: dict[int, _Slot] = {}
        self._newest_slot = 0
        self._draining = False
        self._paused: set[str] = set()
        self._came: Event = TimePassed()
        self._reach = _EVERYBODY  # whom this event may have something sent to: a session
        self._failed_stream: str | None = None  # of which this event says that a batch cannot be made
        self._owed: int | None = None  # the session whose receipt must come next
        self._events = self._sent = self._receipts = self._produced = self._dropped = 0

    def enter(self, event: Event, actions: Sequence[Action], used_bytes: int) -> None:
        """Books what came and what was answered. Raises BrokenRuleError."""
        self._events += 1
        self._came = event
        self._hear(event)
        for action in actions:
            self._see(action)
        if self._owed is not None:
            self._broken("receipt_after_last", f"session {self._owed} has all its steps, yet no receipt")
        if not self._bytes == used_bytes <= self._memory_bytes:
            facts = f"slots of {self._bytes} bytes, {used_bytes} accounted, {self._memory_bytes} allowed"
            self._broken("memory_within_budget", facts)

    @property
    def checks(self) -> dict[Rule, int]:
        """How often each rule was checked."""
        return {
            "sent_within_grant": self._sent,
            "numbers_dense": self._sent,
            "steps_consecutive": self._sent,
            "slot_holds_batch": self._sent,
            "receipt_after_last": self._sent + self._receipts,
            "slot_free_to_write": self._produced,
            "slot_free_to_drop": self._dropped,
            "others_unmoved": self._sent + self._receipts,
            "memory_within_budget": self._events,
        }

    # --- what came

    def _hear(self, event: Event) -> None:  # noqa: C901, PLR0912 - one line an event
        self._reach, self._failed_stream = _NOBODY, None
        match event:
            case CreditGranted(session, upto):
                self._reach = session
                if account := self._sessions.get(session):
                    account.upto = max(account.upto, upto)
            case LeaseReleased():
                # Memory that is free again, of a session that has ended, may be anybody's.
                self._reach = _EVERYBODY if event.session in self._ended else event.session
                self._release(event)
            case BatchProduced(slot):
                self._reach = _EVERYBODY
                self._slots[slot].writing = False
            case ProgressReported():
                pass
            case Subscribed():
                self._reach = _EVERYBODY
            case SessionLost(session):
                self._reach = _EVERYBODY  # who is lent more may be sent more
                self._lose(session)
            case SessionClosed(session, kept):
                self._reach = _EVERYBODY
                self._end(session, kept)
            case ProductionFailed(slot):
                self._failed_stream = self._slots[slot].stream
                self._fail(slot)
            case SlotDenied(slot):
                self._failed_stream = self._slots[slot].stream
                self._bytes -= self._slots.pop(slot).slot_bytes
            case StreamChanged(stream, shape):
                self._change(stream, shape)
            case StreamPaused(stream, slots):
                self._paused.add(stream)
                for slot in slots:
                    self._fail(slot)
            case StreamResumed(stream):
                self._paused.discard(stream)
            case DrainRequested():
                self._draining = True
            case TimePassed():
                pass

    def _fail(self, number: int) -> None:
        slot = self._slots[number]
        slot.writing, slot.key, slot.seen = False, None, True

    def _release(self, event: LeaseReleased) -> None:
        account = self._sessions.get(event.session) or self._ended.get(event.session)
        if account is None:
            return
        for number in event.numbers:
            slot = account.leases.pop(number, None)
            if slot is not None:
                self._slots[slot].leases -= 1
                self._slots[slot].seen |= number in event.retired
        if not account.leases:
            self._ended.pop(event.session, None)

    def _end(self, session: int, kept: Sequence[int] | None = None) -> None:
        """Whatever is `kept`, which None says of all, stays leased."""
        account = self._sessions.pop(session, None)
        if account is not None and account.leases:
            self._ended[session] = account
        if kept is not None and session in self._ended:
            over = self._ended[session].leases.keys() - set(kept)
            self._release(LeaseReleased(session, tuple(over)))

    def _lose(self, session: int) -> None:
        self._end(session)
        account = self._ended.pop(session, None)
        if account is not None:
            for slot in account.leases.values():
                self._slots[slot].leases -= 1
                self._slots[slot].seen = True
            account.leases.clear()

    def _change(self, stream: str, shape: StreamShape | None) -> None:
        self._paused.discard(stream)
        for slot in self._slots.values():
            if slot.key is not None and slot.key.stream == stream:
                slot.key = None
        if shape is not None:
            self._batches[stream] = shape.batches

    # --- what was answered

    def _see(self, action: Action) -> None:
        if self._owed is not None and not isinstance(action, SendReceipt):
            self._broken("receipt_after_last", f"session {self._owed} has all its steps, yet next came {action}")
        match action:
            case SendBatch():
                self._see_batch(action)
            case Produce():
                self._see_production(action)
            case SendReceipt():
                self._see_receipt(action)
            case DropSlots(slots):
                for slot in slots:
                    self._see_drop(slot)
            case Admit():
                self._see_admission(action)
            case Lend(session, credit):
                self._sessions[session].credit = credit
            case StopStream():
                self._see_stop(action)

    def _see_admission(self, action: Admit) -> None:
        came = self._came
        if not isinstance(came, Subscribed) or came.session != action.session or action.session in self._sessions:
            self._broken("others_unmoved", f"{action} is no answer")
        account = self._sessions[action.session] = _Account.of(came, self._batches[came.stream])
        account.credit = action.credit
        account.earlier = tuple(self._ended[session] for session in action.earlier)
        for number, each in zip(action.earlier, account.earlier, strict=True):
            if number not in came.earlier or each.heir in self._sessions:
                self._broken("others_unmoved", f"{action} counts session {number}, which is another trainer's")
            each.heir = action.session
        if action.cursor is not None:
            account.join(action.cursor)
        self._owed = action.session if account.owes_receipt() else None

    def _see_batch(self, action: SendBatch) -> None:
        self._sent += 1
        account, slot = self._may_hear(action.session), self._slots.get(action.slot)
        if action.number >= account.upto or account.leased() >= account.credit:
            facts = f"{action}: {account.upto} were granted, {account.leased()} of {account.credit} are leased"
            self._broken("sent_within_grant", facts)
        if action.number != account.sent:
            self._broken("numbers_dense", f"{action}: {account.sent} is the next number")
        if slot is None or slot.writing or slot.key is None:
            self._broken("slot_holds_batch", f"{action}: its slot is {slot}")
        if not account.is_next(slot.key):
            self._broken("steps_consecutive", f"{action} of {slot.key}, yet the account is {account}")
        account.sent += 1
        account.steps += 1
        account.base += account.world
        account.leases[action.number] = action.slot
        slot.leases += 1
        if account.owes_receipt():
            self._owed = action.session

    def _see_receipt(self, action: SendReceipt) -> None:
        self._receipts += 1
        account, cursor = self._may_hear(action.session), action.cursor
        told = cursor.epoch, cursor.next_base, _steps(cursor)
        if not account.owes_receipt() or told != (account.epoch, account.base, account.all_steps()):
            self._broken("receipt_after_last", f"{action}, yet the account is {account}")
        account.next_epoch()
        self._owed = action.session if account.owes_receipt() else None

    def _see_production(self, action: Produce) -> None:
        self._produced += 1
        slot = self._slots.get(action.slot)
        if action.slot > self._newest_slot:
            slot = self._slots[action.slot] = _Slot(action.slot_bytes)
            self._newest_slot = action.slot
            self._bytes += action.slot_bytes
        if slot is None or slot.writing or slot.leases or slot.seen or slot.slot_bytes != action.slot_bytes:
            self._broken("slot_free_to_write", f"{action}: its slot is {slot}")
        if self._draining or action.key.stream in self._paused:
            self._broken("slot_free_to_write", f"{action}, while {'draining' if self._draining else 'it is paused'}")
        slot.key, slot.stream, slot.writing = action.key, action.key.stream, True

    def _see_drop(self, number: int) -> None:
        self._dropped += 1
        slot = self._slots.pop(number, None)
        if slot is None or slot.leases or slot.writing:
            self._broken("slot_free_to_drop", f"slot {number} goes: it is {slot}")
        self._bytes -= slot.slot_bytes

    def _see_stop(self, action: StopStream) -> None:
        came = self._came
        of_the_stream = (isinstance(came, StreamChanged) and came.stream == action.stream) or (
            self._failed_stream == action.stream
        )
        wrong = [number for number in action.sessions if self._sessions[number].stream != action.stream]
        if not of_the_stream or wrong:
            self._broken("others_unmoved", f"{action}, after {came}; of other streams: {wrong}")
        for session in action.sessions:
            self._end(session)

    def _may_hear(self, session: int) -> _Account:
        """The account of a session that something is sent to."""
        account = self._sessions.get(session)
        if account is None or self._reach not in {_EVERYBODY, session}:
            self._broken("others_unmoved", f"session {session} is sent something after {self._came}")
        return account

    def _broken(self, rule: Rule, facts: str) -> NoReturn:
        raise BrokenRuleError(rule, facts)
