"""What trainers still hold of sessions that have ended: it counts until they say that it is free, or are gone."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from streamd.core.spec import StreamShape
from streamd.scheduler.events import Subscribed


@dataclass(slots=True)
class EndedSession:
    """One of them. `successor` is the session of the same trainer in whose credit it counts."""

    slot_bytes: int
    leases: dict[int, int]  # delivery number -> slot
    successor: int | None = None

    @property
    def held_bytes(self) -> int:
        return len(self.leases) * self.slot_bytes


@dataclass(frozen=True, slots=True)
class HeldOverMemory:
    """What is held of ended sessions: `apart` counts by itself, `own` within the credit of the session asked about."""

    apart_bytes: int = 0
    apart_slots: int = 0
    own_slots: int = 0


class EndedSessions(Mapping[int, EndedSession]):
    """All of them, by the number that the session had."""

    def __init__(self) -> None:
        self._sessions: dict[int, EndedSession] = {}

    def __getitem__(self, session: int) -> EndedSession:
        return self._sessions[session]

    def __iter__(self) -> Iterator[int]:
        return iter(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    def add_session(self, session: int, slot_bytes: int, leases: dict[int, int]) -> None:
        """A session has ended; nothing is kept of one that holds nothing."""
        if leases:
            self._sessions[session] = EndedSession(slot_bytes, leases)

    def remove_session(self, session: int) -> EndedSession | None:
        """Nobody holds anything of it any more, or nobody will say so."""
        return self._sessions.pop(session, None)

    def find_inherited_sessions(
        self, event: Subscribed, shape: StreamShape, active_sessions: Container[int | None]
    ) -> dict[int, EndedSession]:
        """Those that a new session's trainer names, where they are of its batches' size and count with no other."""
        named = {number: self._sessions[number] for number in event.earlier if number in self._sessions}
        return {
            number: each
            for number, each in named.items()
            if each.successor not in active_sessions and each.slot_bytes == shape.slot_bytes
        }

    def compute_held_over_memory(
        self, active_sessions: Container[int | None], own: Mapping[int, EndedSession] | None = None
    ) -> HeldOverMemory:
        """What is held beside the sessions that are `active_sessions`, and what is a new one's `own`."""
        mine = own or {}
        apart = [
            each
            for number, each in self._sessions.items()
            if number not in mine and each.successor not in active_sessions
        ]
        return HeldOverMemory(
            sum(each.held_bytes for each in apart),
            sum(len(each.leases) for each in apart),
            sum(len(each.leases) for each in mine.values()),
        )
