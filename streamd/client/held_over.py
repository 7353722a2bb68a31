"""What a loop still holds of sessions that have ended. The daemon counts it, and hears on the lifeline when it is free.

The lifeline of such a session stays open as long as a view of its batches lives in this process.
"""

from __future__ import annotations

import gc
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from streamd.errors import BatchesHeldError
from streamd.ipc.fd_passing import Lifeline
from streamd.limits import MAX_HELD_OVER

Place = tuple[int, int]  # epoch, index

HELD_OVER: Final[set[EndedConnection]] = set()  # of this process, from a session's end to that of its last view


class EndedConnection:
    """The deliveries `held` of session `whose` (boot, session), by number. `forked`: a child sees them as well.

    It is one of `known` as long as something of it is held.
    """

    def __init__(
        self,
        lifeline: Lifeline,
        whose: tuple[int, int],
        stream: str,
        held: dict[int, Place],
        forked: Collection[int],
        known: set[EndedConnection] = HELD_OVER,
    ) -> None:
        self.whose = whose
        self.stream = stream
        self._lifeline = lifeline
        self._held = held
        self._forked = set(forked)
        self._known = known
        self._is_copy = False
        self.keeps: object = None  # what hears of the ends of its leases, which has to live as long as they do
        known.add(self)

    @property
    def held(self) -> list[Place]:
        """(epoch, index) of what the loop has of it."""
        return list(self._held.values())

    def give_back(self, number: int) -> None:
        """A lease ended. Called by finalisers, in any thread, even within the garbage collector: it never waits.

        A word that does not get through, since the daemon is gone or stopped, is said by the end of the lifeline.
        """
        if self._held.pop(number, None) is None:
            return
        if not self._is_copy:
            with suppress(OSError):
                (self._lifeline.retire if number in self._forked else self._lifeline.drop)((number,))
        if not self._held:
            self._known.discard(self)
            self._lifeline.close()
            self.keeps = None

    def fork_begins(self) -> None:
        """A child will have views of all that is held now; nobody hears when it drops them."""
        self._forked.update(self._held)

    def forked(self) -> None:
        """In the child, which says nothing of what its parent holds."""
        self._is_copy = True
        self._known.discard(self)
        self._lifeline.close()


def held_over(stream: str) -> list[EndedConnection]:
    """All of a stream's that this process has now."""
    known = list(HELD_OVER)  # a copy: made without a pause, while finalisers take some out
    return sorted((each for each in known if each.stream == stream), key=lambda each: each.whose)


def check_held_over(stream: str) -> None:
    """Raises BatchesHeldError where this process holds batches of as many ended sessions as one trainer may have.

    Each counts as a session at the daemon, of which there are so many for all trainers together.
    """
    if len(held_over(stream)) < MAX_HELD_OVER:
        return
    gc.collect()
    ended = held_over(stream)
    if len(ended) >= MAX_HELD_OVER:
        places = [place for each in ended for place in each.held]
        raise BatchesHeldError(places, len(places), ended=len(ended))
