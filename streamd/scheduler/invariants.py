"""A second set of books, kept only from the scheduler's events and actions, so that it can disagree with the first.

It does not know how the scheduler decides and shares no arithmetic with it: it counts. A broken rule ends the daemon.
The next daemon builds all state anew, and a trainer that waits loses less than one that sees a wrong batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn

from streamd.core.spec import BatchKey, Cursor, StreamShape
from streamd.errors import BrokenRuleError
from streamd.limits import KEPT_SESSIONS, MIN_CREDIT, OTHER_USERS
from streamd.scheduler.events import (
    Action,
    AdmitSession,
    BatchProduced,
    CreditGranted,
    DrainRequested,
    DropSlots,
    Event,
    LeaseReleased,
    ProduceBatch,
    ProductionFailed,
    ProgressReported,
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
    TimePassed,
)

InvariantRule = Literal[
    "sent_within_grant",  # deliveries are numbered below what was granted, and no more are leased than the credit
    "numbers_dense",  # 0, 1, 2, ... in every session
    "steps_consecutive",  # a session gets each of its batches once, in order, whatever happens to others
    "slot_holds_batch",  # a slot that is sent holds a whole batch
    "receipt_after_last",  # an epoch's receipt follows its last batch at once, and holds every step
    "slot_free_to_write",  # no slot is written that is leased, in production, or perhaps mapped by a forked child
    "slot_free_to_drop",  # no slot is dropped that is in production or leased, by a session that has ended or not
    "others_unmoved",  # credit and releases of a session send nothing to others; a stream's stop ends its own alone
    "room_for_sessions",  # credit beyond first batches leaves half of the memory, or the first batches of several
    "room_for_users",  # credit of a user other than the daemon's own leaves users to come their first batches
    "memory_within_budget",  # the slots add up to what the scheduler accounts for, never more than `memory`
]
_ALL_SESSIONS: Final = -1
_NO_SESSION: Final = 0


@dataclass(slots=True)
class _SlotRecord:
    """What the events and actions say of a slot.

    `key` is None when it holds no batch that may be sent; `may_stay_mapped`: a process may map it for ever.
    """

    slot_bytes: int
    stream: str = ""  # of the batch written last; the name may stand for another version of the stream by now
    key: BatchKey | None = None
    is_written: bool = False
    lease_count: int = 0
    may_stay_mapped: bool = False


@dataclass(slots=True)
class _SessionRecord:
    """One session, by its events and actions. Its next step begins at batch `base` of `epoch`."""

    stream: str
    user: int
    slot_bytes: int
    batches: int
    rank: int
    world: int
    least_step_batches: int  # batches that must be left for one more step
    epochs: int | None
    epoch: int
    base: int
    steps_before: Counter[tuple[int, int]]  # (rank, world) -> steps of this epoch before this session
    steps_sent: int = 0  # ... and by this session
    credit: int = 0
    upto: int = 0
    next_number: int = 0
    leases: dict[int, int] = field(default_factory=dict)  # delivery number -> slot
    # Ended sessions of the same trainer: their leases count within the credit.
    earlier_records: tuple[_SessionRecord, ...] = ()
    successor: int | None = None  # of an ended session: the session in whose credit its leases count

    @staticmethod
    def from_subscription(event: Subscribed, shape: StreamShape) -> _SessionRecord:
        cursor, least = event.cursor, 1 if event.uneven == "pad" else event.world
        data = event.stream, event.user, shape.slot_bytes, shape.batches
        place = event.epochs, cursor.epoch, cursor.next_base_index
        return _SessionRecord(*data, event.rank, event.world, least, *place, _count_history_steps_by_rank(cursor))

    def is_next_batch(self, key: BatchKey) -> bool:
        at_all = self.epochs is None or self.epoch < self.epochs
        return (
            at_all
            and key.index == self.base + self.rank
            and key.epoch == self.epoch
            and key.stream == self.stream
            and self.base + self.least_step_batches <= self.batches
        )

    def is_receipt_due(self) -> bool:
        """Whether all batches of the epoch were sent, and only its receipt is left."""
        return self.base + self.least_step_batches > self.batches and (self.epochs is None or self.epoch < self.epochs)

    def count_leases(self) -> int:
        return len(self.leases) + sum(len(each.leases) for each in self.earlier_records)


def _count_history_steps_by_rank(cursor: Cursor) -> Counter[tuple[int, int]]:
    steps: Counter[tuple[int, int]] = Counter()
    for segment in cursor.history:
        steps[segment.rank, segment.world] += segment.steps
    return steps


class InvariantChecker:
    """Checks every rule with each event and action.

    The time of a check does not grow with the number of sessions, slots or batches, but for events that are rare: a
    changed stream goes through all slots, and a credit that grows through all sessions. `measure_session_bytes` returns
    what the scheduler's sessions may take together now; by default they may take all memory.
    """

    def __init__(
        self,
        shapes: Iterable[StreamShape],
        memory_bytes: int,
        own_user: int = 0,
        measure_session_bytes: Callable[[], int] | None = None,
    ) -> None:
        self._shapes = {shape.name: shape for shape in shapes}
        self._memory_bytes, self._slot_bytes = memory_bytes, 0
        self._own_user = own_user
        self._measure_session_bytes = measure_session_bytes or (lambda: memory_bytes)
        self._grown_count = 0
        self._sessions: dict[int, _SessionRecord] = {}
        self._ended: dict[int, _SessionRecord] = {}  # ended sessions of which trainers still hold batches
        self._slots: dict[int, _SlotRecord] = {}
        self._newest_slot = 0
        self._draining = False
        self._paused_streams: set[str] = set()
        self._current_event: Event = TimePassed()
        # These two belong to the event that is being checked. The first is the session that may be sent something
        # because of it, or _ALL_SESSIONS, or _NO_SESSION.
        self._reached_session = _ALL_SESSIONS
        self._failed_stream: str | None = None  # the stream of the batch that the event says cannot be made
        self._receipt_session: int | None = None  # the session whose receipt must come next
        self._event_count = self._sent_count = self._receipt_count = self._produced_count = self._dropped_count = 0

    def check_event(self, event: Event, actions: Sequence[Action], used_bytes: int) -> None:
        """Records an event and checks the actions that answer it.

        `used_bytes` is what the scheduler accounts for after them. Raises BrokenRuleError, after which the books are
        not to be used any more.
        """
        self._event_count += 1
        self._current_event = event
        # The event is recorded before its actions are checked: what it releases or grants is what they may use.
        self._record_event(event)
        for action in actions:
            self._check_action(action)
        if self._receipt_session is not None:
            self._raise_broken_rule(
                "receipt_after_last", f"session {self._receipt_session} has all its steps, yet no receipt"
            )
        if not self._slot_bytes == used_bytes <= self._memory_bytes:
            facts = f"slots of {self._slot_bytes} bytes, {used_bytes} accounted, {self._memory_bytes} allowed"
            self._raise_broken_rule("memory_within_budget", facts)

    @property
    def checks_by_rule(self) -> dict[InvariantRule, int]:
        """How often each rule was checked."""
        return {
            "sent_within_grant": self._sent_count,
            "numbers_dense": self._sent_count,
            "steps_consecutive": self._sent_count,
            "slot_holds_batch": self._sent_count,
            "receipt_after_last": self._sent_count + self._receipt_count,
            "slot_free_to_write": self._produced_count,
            "slot_free_to_drop": self._dropped_count,
            "others_unmoved": self._sent_count + self._receipt_count,
            "room_for_sessions": self._grown_count,
            "room_for_users": self._grown_count,
            "memory_within_budget": self._event_count,
        }

    # --- events

    def _record_event(self, event: Event) -> None:  # noqa: C901, PLR0912 - one line an event
        self._reached_session, self._failed_stream = _NO_SESSION, None
        match event:
            case CreditGranted(session, upto):
                self._reached_session = session
                if account := self._sessions.get(session):
                    account.upto = max(account.upto, upto)
            case LeaseReleased():
                # Memory that an ended session frees may raise the credit of any session, which is then sent more.
                self._reached_session = _ALL_SESSIONS if event.session in self._ended else event.session
                self._record_release(event)
            case BatchProduced(slot):
                self._reached_session = _ALL_SESSIONS
                self._slots[slot].is_written = False
            case ProgressReported():
                pass
            case Subscribed():
                self._reached_session = _ALL_SESSIONS
            case SessionLost(session):
                self._reached_session = _ALL_SESSIONS  # credits may grow, and a larger credit allows more batches
                self._record_session_end(session)
                if account := self._ended.get(session):
                    numbers = tuple(account.leases)
                    self._record_release(LeaseReleased(session, numbers, numbers))
            case SessionClosed(session, kept):
                self._reached_session = _ALL_SESSIONS
                self._record_session_end(session, kept)
            case ProductionFailed(slot):
                self._failed_stream = self._slots[slot].stream
                self._record_failure(slot)
            case SlotDenied(slot):
                self._failed_stream = self._slots[slot].stream
                self._slot_bytes -= self._slots.pop(slot).slot_bytes
            case StreamChanged(stream, shape):
                self._paused_streams.discard(stream)
                # The old stream's batches must not be sent under the name any more, but leases on them go on.
                for record in self._slots.values():
                    if record.key is not None and record.key.stream == stream:
                        record.key = None
                if shape is not None:
                    self._shapes[stream] = shape
            case StreamPaused(stream, slots):
                self._paused_streams.add(stream)
                for slot in slots:
                    self._record_failure(slot)
            case StreamResumed(stream):
                self._paused_streams.discard(stream)
            case DrainRequested():
                self._draining = True
            case TimePassed():
                pass

    def _record_failure(self, number: int) -> None:
        # The worker may still be writing into the slot, so the slot may be dropped but not written again.
        slot = self._slots[number]
        slot.is_written, slot.key, slot.may_stay_mapped = False, None, True

    def _record_release(self, event: LeaseReleased) -> None:
        account = self._sessions.get(event.session) or self._ended.get(event.session)
        if account is None:
            return
        for number in event.numbers:
            slot = account.leases.pop(number, None)
            if slot is not None:
                self._slots[slot].lease_count -= 1
                self._slots[slot].may_stay_mapped |= number in event.retired
        if not account.leases:
            self._ended.pop(event.session, None)

    def _record_session_end(self, session: int, kept: Sequence[int] | None = None) -> None:
        """Ends a session. The deliveries `kept`, None for all, stay leased; the others are released."""
        account = self._sessions.pop(session, None)
        if account is not None and account.leases:
            self._ended[session] = account
        if kept is not None and session in self._ended:
            over = self._ended[session].leases.keys() - set(kept)
            self._record_release(LeaseReleased(session, tuple(over)))

    # --- actions

    def _check_action(self, action: Action) -> None:
        if self._receipt_session is not None and not isinstance(action, SendReceipt):
            self._raise_broken_rule(
                "receipt_after_last", f"session {self._receipt_session} has all its steps, yet next came {action}"
            )
        match action:
            case SendBatch():
                self._check_batch(action)
            case ProduceBatch():
                self._check_production(action)
            case SendReceipt():
                self._receipt_count += 1
                account, cursor = self._find_session_that_event_may_reach(action.session), action.cursor
                told = cursor.epoch, cursor.next_base_index, _count_history_steps_by_rank(cursor)
                steps = account.steps_before + Counter({(account.rank, account.world): account.steps_sent})
                if not account.is_receipt_due() or told != (account.epoch, account.base, steps):
                    self._raise_broken_rule("receipt_after_last", f"{action}, yet the account is {account}")
                account.epoch, account.base = account.epoch + 1, 0
                account.steps_sent, account.steps_before = 0, Counter()
                self._receipt_session = action.session if account.is_receipt_due() else None
            case DropSlots(slots):
                for number in slots:
                    self._dropped_count += 1
                    slot = self._slots.pop(number, None)
                    if slot is None or slot.lease_count or slot.is_written:
                        self._raise_broken_rule("slot_free_to_drop", f"slot {number} is dropped, yet it is {slot}")
                    self._slot_bytes -= slot.slot_bytes
            case AdmitSession():
                self._check_admission(action)
            case SetCredit(session, credit):
                self._record_credit(self._sessions[session], credit)
            case StopStream():
                came = self._current_event
                of_the_stream = (isinstance(came, StreamChanged) and came.stream == action.stream) or (
                    self._failed_stream == action.stream
                )
                wrong = [number for number in action.sessions if self._sessions[number].stream != action.stream]
                if not of_the_stream or wrong:
                    self._raise_broken_rule("others_unmoved", f"{action}, after {came}; of other streams: {wrong}")
                for session in action.sessions:
                    self._record_session_end(session)

    def _check_admission(self, action: AdmitSession) -> None:
        came = self._current_event
        if not isinstance(came, Subscribed) or came.session != action.session or action.session in self._sessions:
            self._raise_broken_rule("others_unmoved", f"{action} does not answer the current event")
        account = self._sessions[action.session] = _SessionRecord.from_subscription(came, self._shapes[came.stream])
        account.earlier_records = tuple(self._ended[session] for session in action.earlier)
        for number, each in zip(action.earlier, account.earlier_records, strict=True):
            if number not in came.earlier or each.successor in self._sessions or each.user != came.user:
                self._raise_broken_rule(
                    "others_unmoved", f"{action} counts session {number}, which is another trainer's"
                )
            each.successor = action.session
        self._record_credit(account, action.credit)
        if action.cursor is not None:
            # A session that joins others begins at their cursor instead of its own.
            account.epochs = None if account.epochs is None else action.cursor.epoch + account.epochs
            account.epoch, account.base = action.cursor.epoch, action.cursor.next_base_index
            account.steps_before = _count_history_steps_by_rank(action.cursor)
        self._receipt_session = action.session if account.is_receipt_due() else None

    # An epoch has three states here: batches are left; the receipt must be the very next action; a new epoch has begun.
    # `_receipt_session` names the session in the second of them, and `_check_action` lets no other action pass then.

    def _check_batch(self, action: SendBatch) -> None:
        self._sent_count += 1
        account, slot = self._find_session_that_event_may_reach(action.session), self._slots.get(action.slot)
        if action.number >= account.upto or account.count_leases() >= account.credit:
            facts = f"{action}: {account.upto} were granted, {account.count_leases()} of {account.credit} are leased"
            self._raise_broken_rule("sent_within_grant", facts)
        if action.number != account.next_number:
            self._raise_broken_rule("numbers_dense", f"{action}: {account.next_number} is the next number")
        if slot is None or slot.is_written or slot.key is None:
            self._raise_broken_rule("slot_holds_batch", f"{action}: its slot is {slot}")
        if not account.is_next_batch(slot.key):
            self._raise_broken_rule("steps_consecutive", f"{action} of {slot.key}, yet the account is {account}")
        account.next_number += 1
        account.steps_sent += 1
        account.base += account.world
        account.leases[action.number] = action.slot
        slot.lease_count += 1
        if account.is_receipt_due():
            self._receipt_session = action.session

    def _check_production(self, action: ProduceBatch) -> None:
        self._produced_count += 1
        slot = self._slots.get(action.slot)
        # Serials grow, and that of a dropped slot is never given to a new one. So a serial larger than any before is a
        # new slot, and any other must be known.
        if action.slot > self._newest_slot:
            slot = self._slots[action.slot] = _SlotRecord(action.slot_bytes)
            self._newest_slot = action.slot
            self._slot_bytes += action.slot_bytes
        if (
            slot is None
            or slot.is_written
            or slot.lease_count
            or slot.may_stay_mapped
            or slot.slot_bytes != action.slot_bytes
        ):
            self._raise_broken_rule("slot_free_to_write", f"{action}: its slot is {slot}")
        if self._draining or action.key.stream in self._paused_streams:
            self._raise_broken_rule(
                "slot_free_to_write", f"{action}, while {'draining' if self._draining else 'it is paused'}"
            )
        slot.key, slot.stream, slot.is_written = action.key, action.key.stream, True

    def _record_credit(self, account: _SessionRecord, credit: int) -> None:
        # Checked credit by credit: a session of the daemon's own user may take afterwards what this one had to leave.
        # A credit within what the session holds already takes no memory.
        has_grown, account.credit = credit > max(account.credit, account.count_leases()), credit
        if not has_grown:
            return
        self._grown_count += 1
        # A credit that grew must leave room for sessions and users to come.
        room, facts = self._measure_session_bytes(), f"with the credit {credit} of {account}"
        first_batches = MIN_CREDIT * max(each.slot_bytes for each in self._sessions.values())
        ownerless = [each for each in self._ended.values() if each.successor not in self._sessions]
        # The slots that count for a session: its credit, or what it holds beyond one that shrank.
        taken = [(each, max(each.credit, each.count_leases())) for each in self._sessions.values()]
        taken += [(each, len(each.leases)) for each in ownerless]
        # Neither rule concerns the first batches of a session or a user, and what a trainer held before.
        inherited = sum(len(each.leases) for each in account.earlier_records)
        if credit > max(MIN_CREDIT, inherited):
            beyond = sum(max(0, slots - MIN_CREDIT) * each.slot_bytes for each, slots in taken)
            if room - beyond < min(room // 2, KEPT_SESSIONS * first_batches):
                self._raise_broken_rule(
                    "room_for_sessions", f"{beyond} of {room} bytes are beyond first batches, {facts}"
                )
        is_first = credit <= MIN_CREDIT and [each.user for each, _ in taken].count(account.user) == 1
        if account.user != self._own_user and credit > inherited and not is_first:
            left = room - sum(slots * each.slot_bytes for each, slots in taken)
            bytes_by_user: Counter[int] = Counter()
            for each, slots in taken:
                bytes_by_user[each.user] += slots * each.slot_bytes
            others = [held for user, held in bytes_by_user.items() if user not in {self._own_user, account.user}]
            to_come = OTHER_USERS * first_batches - sum(min(first_batches, held) for held in others)
            if room >= 2 * (OTHER_USERS + 1) * first_batches and left < to_come:
                self._raise_broken_rule(
                    "room_for_users", f"{left} of {room} bytes are left, not {to_come} for users, {facts}"
                )

    def _find_session_that_event_may_reach(self, session: int) -> _SessionRecord:
        """Returns the record of a session that something is sent to. The current event must allow it."""
        account = self._sessions.get(session)
        if account is None or self._reached_session not in {_ALL_SESSIONS, session}:
            self._raise_broken_rule(
                "others_unmoved", f"session {session} is sent something after {self._current_event}"
            )
        return account

    def _raise_broken_rule(self, rule: InvariantRule, facts: str) -> NoReturn:
        raise BrokenRuleError(rule, facts)
