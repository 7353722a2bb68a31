"""What trainers still hold of sessions that have ended: it counts until they say that it is free, or are gone."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from streamd.core.spec import StreamShape
from streamd.scheduler.events import Subscribed


@dataclass(slots=True)
class EndedSession:
    """One of them. `heir` is the session of the same trainer in whose credit it counts."""

    slot_bytes: int
    leases: dict[int, int]  # delivery number -> slot
    heir: int | None = None

    @property
    def held_bytes(self) -> int:
        return len(self.leases) * self.slot_bytes


@dataclass(frozen=True, slots=True)
class HeldOver:
    """What is held of ended sessions: `apart` counts by itself, `own` within the credit of the session asked about."""

    apart_bytes: int = 0
    apart_slots: int = 0
    own_slots: int = 0


class EndedSessions(Mapping[int, EndedSession]):
    """All of them, by the number that the session had."""

    def __init__(self) -> None:
        self._known: dict[int, EndedSession] = {}

    def __getitem__(self, session: int) -> EndedSession:
        return self._known[session]

    def __iter__(self) -> Iterator[int]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def add(self, session: int, slot_bytes: int, leases: dict[int, int]) -> None:
        """A session has ended; nothing is kept of one that holds nothing."""
        if leases:
            self._known[session] = EndedSession(slot_bytes, leases)

    def remove(self, session: int) -> EndedSession | None:
        """Nobody holds anything of it any more, or nobody will say so."""
        return self._known.pop(session, None)

    def inherited(self, event: Subscribed, shape: StreamShape, here: Container[int | None]) -> dict[int, EndedSession]:
        """Those that a new session's trainer names, where they are of its batches' size and count with no other."""
        named = {number: self._known[number] for number in event.earlier if number in self._known}
        return {
            number: each
            for number, each in named.items()
            if each.heir not in here and each.slot_bytes == shape.slot_bytes
        }

    def beside(self, here: Container[int | None], own: Mapping[int, EndedSession] | None = None) -> HeldOver:
        """What is held beside the sessions that are `here`, and what is a new one's `own`."""
        mine = own or {}
        apart = [each for number, each in self._known.items() if number not in mine and each.heir not in here]
        return HeldOver(
            sum(each.held_bytes for each in apart),
            sum(len(each.leases) for each in apart),
            sum(len(each.leases) for each in mine.values()),
        )
