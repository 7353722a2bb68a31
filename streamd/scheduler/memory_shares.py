"""How much memory one session and one user may take, so that the next one finds room whatever the others hold.

Two rules, both for bytes and for numbers of slots:

- What sessions hold beyond MIN_CREDIT batches each comes out of a first part of the memory. The rest is kept for the
  first batches of sessions, so that trainers that stopped with all their batches keep no other out.
- A user other than the daemon's own may take a share: what all others leave to it, less a part, and less the first
  batches of users that hold nothing yet. The first rule divides this share too. Where memory is too small for that,
  there is nothing to share, and this rule does not apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from streamd.limits import KEPT_SESSIONS, KEPT_SHARE, MIN_CREDIT, OTHER_USERS, OWN_USER_SHARE, USER_KEPT_SHARE


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """An amount of memory: bytes, and slots, since each slot is a descriptor in the daemon and in every worker.

    What is left of it may be negative.
    """

    byte_count: int
    slot_count: int

    def __add__(self, other: MemoryRoom) -> MemoryRoom:
        return MemoryRoom(self.byte_count + other.byte_count, self.slot_count + other.slot_count)

    def __sub__(self, other: MemoryRoom) -> MemoryRoom:
        return MemoryRoom(self.byte_count - other.byte_count, self.slot_count - other.slot_count)

    def __floordiv__(self, parts: int) -> MemoryRoom:
        return MemoryRoom(self.byte_count // parts, self.slot_count // parts)

    def at_least(self, other: MemoryRoom) -> MemoryRoom:
        """Returns the larger number of bytes and the larger number of slots."""
        return MemoryRoom(max(self.byte_count, other.byte_count), max(self.slot_count, other.slot_count))

    def at_most(self, other: MemoryRoom) -> MemoryRoom:
        """Returns the smaller number of bytes and the smaller number of slots."""
        return MemoryRoom(min(self.byte_count, other.byte_count), min(self.slot_count, other.slot_count))

    def count_fitting_batches(self, slot_bytes: int) -> int:
        """Returns how many batches of `slot_bytes` fit; negative where more is taken than there is."""
        return min(self.byte_count // slot_bytes, self.slot_count)


class SlotHolding(NamedTuple):
    """The slots that count for one session, running or ended, of a user."""

    user: int
    slot_bytes: int
    slots: int


@dataclass(frozen=True, slots=True)
class CreditBounds:
    """The most batches that a session may have by each rule, next to what the other sessions have."""

    by_memory: int
    by_common_room: int  # by what all sessions may have beyond their first batches
    by_user: int

    def admits(self, least: int) -> bool:
        """Whether a session with the credit `least` fits."""
        return min(self.by_memory, self.by_user) >= least

    def allows(self, credit: int, least: int) -> bool:
        """Whether a session fits with `credit`, of which it needs `least`."""
        return self.admits(credit) and (credit <= least or credit <= self.by_common_room)

    def limit_credit(self, wanted: int, least: int) -> int:
        """Returns the credit that a session gets: at most half of what is free, but `least` where that fits."""
        half = max(min(self.by_memory, least), self.by_memory // 2)
        return min(wanted, half, max(least, self.by_common_room), self.by_user)


@dataclass(frozen=True, slots=True)
class MemoryShares:
    """Divides `total`, which is what all sessions together may take, among sessions and users.

    `largest_slot_bytes` is the size of the largest batch in use, since a session to come may want such batches.
    """

    total: MemoryRoom
    largest_slot_bytes: int
    own_user: int

    @property
    def kept(self) -> MemoryRoom:
        """What is kept for the first batches of sessions."""
        return self._keep_first_batches(self.total)

    @property
    def kept_for_own_user(self) -> MemoryRoom:
        """What other users leave to the daemon's own."""
        return (self.total // OWN_USER_SHARE).at_least(self._count_first_batches(1))

    def is_divided_for(self, user: int) -> bool:
        """Whether the user has a share: it is not the daemon's own, and all users would have two sessions."""
        needed = self._count_first_batches(2 * (OTHER_USERS + 1))
        return user != self.own_user and self.total.at_most(needed) == needed

    def count_sessions_kept(self, slot_bytes: int) -> int:
        """Returns how many sessions with batches of `slot_bytes` fit, whatever each of them holds."""
        return self.kept.count_fitting_batches(slot_bytes) // MIN_CREDIT

    def bound_credit(
        self, user: int, slot_bytes: int, others: Sequence[SlotHolding], already_held: int
    ) -> CreditBounds:
        """Returns the bounds of a session's credit next to the `others`.

        `already_held` of its batches are there already: its user may have those in any case.
        """
        by_memory = (self.total - sum_holdings(others)).count_fitting_batches(slot_bytes)
        beyond_first = self.total - self.kept - sum_beyond_first(others)
        if not self.is_divided_for(user):
            return CreditBounds(by_memory, _compute_credit_within(beyond_first, slot_bytes), by_memory)
        # The share is divided in the same way: stopped trainers of a user do not keep that user's other trainers out.
        share = self.compute_user_share(user, others)
        mine = [each for each in others if each.user == user and each.slots]
        beyond_first = beyond_first.at_most(share - self._keep_first_batches(share) - sum_beyond_first(mine))
        left = self.compute_left_to_user(user, others).count_fitting_batches(slot_bytes)
        room = (share - sum_holdings(mine)).count_fitting_batches(slot_bytes)
        first = 0 if mine else min(MIN_CREDIT, left)
        return CreditBounds(by_memory, _compute_credit_within(beyond_first, slot_bytes), max(room, first, already_held))

    def compute_left_to_user(self, user: int, holdings: Sequence[SlotHolding]) -> MemoryRoom:
        """Returns what all others leave to the user; the daemon's own user counts with what is kept for it at least."""
        own = sum_holdings(each for each in holdings if each.user == self.own_user)
        others = sum_holdings(each for each in holdings if each.user not in {self.own_user, user})
        return self.total - own.at_least(self.kept_for_own_user) - others

    def compute_user_share(self, user: int, holdings: Sequence[SlotHolding]) -> MemoryRoom:
        """Returns what the user may take of `total`, the batches that it holds among it."""
        left = self.compute_left_to_user(user, holdings)
        # Kept for users to come: the first batches of OTHER_USERS users, less what others have of theirs by now.
        kept, first = self._count_first_batches(OTHER_USERS), self._count_first_batches(1)
        for other in {each.user for each in holdings} - {self.own_user, user}:
            kept -= sum_holdings(each for each in holdings if each.user == other).at_most(first)
        return left - (left // USER_KEPT_SHARE).at_least(kept)

    def _keep_first_batches(self, room: MemoryRoom) -> MemoryRoom:
        """Returns what is kept for first batches: a part of `room` and space for a few sessions, at most half of it."""
        return (room // KEPT_SHARE + self._count_first_batches(KEPT_SESSIONS)).at_most(room // 2)

    def _count_first_batches(self, sessions: int) -> MemoryRoom:
        """Returns what the first batches of so many sessions take."""
        slots = sessions * MIN_CREDIT
        return MemoryRoom(slots * self.largest_slot_bytes, slots)


def _compute_credit_within(room: MemoryRoom, slot_bytes: int) -> int:
    """Returns how many batches a session may have that takes those beyond the first ones out of `room`."""
    return MIN_CREDIT + max(0, room.count_fitting_batches(slot_bytes))


def sum_holdings(holdings: Iterable[SlotHolding]) -> MemoryRoom:
    """Returns what the holdings take together."""
    byte_count = slot_count = 0
    for each in holdings:
        byte_count += each.slots * each.slot_bytes
        slot_count += each.slots
    return MemoryRoom(byte_count, slot_count)


def sum_beyond_first(holdings: Iterable[SlotHolding]) -> MemoryRoom:
    """Returns what the holdings take together beyond the first batches of each."""
    byte_count = slot_count = 0
    for each in holdings:
        if each.slots > MIN_CREDIT:
            byte_count += (each.slots - MIN_CREDIT) * each.slot_bytes
            slot_count += each.slots - MIN_CREDIT
    return MemoryRoom(byte_count, slot_count)
