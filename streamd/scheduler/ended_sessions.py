"""Batches that trainers still hold of ended sessions. Their memory counts until the trainer releases it or dies.

An ended session stays here while it has leases. It leaves when its last lease is released, or when its process or its
lifeline ends: then no further release can come.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from streamd.core.spec import StreamShape
from streamd.scheduler.events import Subscribed
from streamd.scheduler.memory_shares import SlotHolding, sum_holdings


@dataclass(slots=True)
class EndedSession:
    """An ended session with leases. `successor` is the session of the same trainer in whose credit they count."""

    slot_bytes: int
    leases: dict[int, int]  # delivery number -> slot
    successor: int | None = None
    user: int = 0

    @property
    def held_bytes(self) -> int:
        return len(self.leases) * self.slot_bytes


@dataclass(frozen=True, slots=True)
class HeldOverMemory:
    """What is held of ended sessions: `apart` counts by itself, `own` within the credit of a new session."""

    apart: tuple[SlotHolding, ...] = ()
    own_slots: int = 0

    @property
    def apart_bytes(self) -> int:
        return sum_holdings(self.apart).byte_count

    @property
    def apart_slots(self) -> int:
        return sum_holdings(self.apart).slot_count


class EndedSessions(Mapping[int, EndedSession]):
    """The ended sessions of which batches are held, by session number."""

    def __init__(self) -> None:
        self._sessions: dict[int, EndedSession] = {}

    def __getitem__(self, session: int) -> EndedSession:
        return self._sessions[session]

    def __iter__(self) -> Iterator[int]:
        return iter(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    def add_session(self, session: int, slot_bytes: int, leases: dict[int, int], user: int = 0) -> None:
        """Adds a session that has ended, if it has leases. Takes over `leases`: delivery number -> slot."""
        if leases:
            self._sessions[session] = EndedSession(slot_bytes, leases, user=user)

    def remove_session(self, session: int) -> EndedSession | None:
        """Removes a session that has no leases any more, or whose releases cannot be reported any more.

        Returns it, or None if it is not here.
        """
        return self._sessions.pop(session, None)

    def find_inherited_sessions(
        self, event: Subscribed, shape: StreamShape, active_sessions: Container[int | None]
    ) -> dict[int, EndedSession]:
        """Returns the ended sessions that count within the credit of a new one, by number.

        They are those that its trainer names, of the same user, with batches of the same size, and with no successor
        that is active.
        """
        # A credit counts batches and not bytes, so batches of another size cannot count within it.
        named = {number: self._sessions[number] for number in event.earlier if number in self._sessions}
        return {
            number: each
            for number, each in named.items()
            if each.successor not in active_sessions and each.slot_bytes == shape.slot_bytes and each.user == event.user
        }

    def compute_held_over_memory(
        self, active_sessions: Container[int | None], own: Mapping[int, EndedSession] | None = None
    ) -> HeldOverMemory:
        """Returns what is held in no active session's credit, and what would be held in a new session's.

        `own` are the ended sessions that the new one inherits.
        """
        mine = own or {}
        apart = tuple(
            SlotHolding(each.user, each.slot_bytes, len(each.leases))
            for number, each in self._sessions.items()
            if number not in mine and each.successor not in active_sessions
        )
        return HeldOverMemory(apart, sum(len(each.leases) for each in mine.values()))
