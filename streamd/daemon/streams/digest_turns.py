"""Whose digest is computed next: users take turns, so that no user's digests wait for all of another's. Pure.

A digest may take many turns. Those that trainers wait for come first, then those computed ahead.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from streamd.core.receipt import EMPTY_LANES, DigestPiece, Lanes
from streamd.core.spec import Cursor

DigestKey = tuple[str, Cursor]  # the order id and the cursor, which determine a digest

_AHEAD_PER_USER: Final = 8  # digests computed ahead: one for each stream that a user reads


class DigestWaiter(Protocol):
    """A request that waits for a digest."""

    def is_wanted(self) -> bool: ...

    def settle(self, outcome: str | BaseException | None) -> None: ...


@dataclass(slots=True, eq=False)
class DigestJob:
    """One digest that is being computed for its `waiters`, or ahead for none. `user` was the first to ask for it.

    `piece` is the next one to compute, None before the first turn; `pieces` are those after it, and `lanes` is the sum
    of those before it.
    """

    user: int
    key: DigestKey
    pieces: Iterator[DigestPiece]
    waiters: list[DigestWaiter] = field(default_factory=list)
    piece: DigestPiece | None = None
    lanes: Lanes = EMPTY_LANES

    def is_wanted(self) -> bool:
        return any(each.is_wanted() for each in self.waiters)

    def settle_waiters(self, outcome: str | BaseException | None) -> None:
        """Ends all waits, with the digest, an error, or None for one that is not wanted any more."""
        waiters, self.waiters = self.waiters, []
        for each in waiters:
            each.settle(outcome)


class DigestTurns:
    """The digests that are not computed yet, by user. A digest that several users wait for is in the turns of each."""

    def __init__(self) -> None:
        self._jobs: dict[DigestKey, DigestJob] = {}
        self._queues: OrderedDict[int, deque[DigestJob]] = OrderedDict()  # of awaited digests; the next user is first
        self._ahead: OrderedDict[int, deque[DigestJob]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._jobs)

    def add_waiter(self, job: DigestJob, waiter: DigestWaiter) -> None:
        """Adds a request to the turns of the job's user. Equal ones share one computation, also one begun ahead."""
        known = self._jobs.setdefault(job.key, job)
        known.waiters.append(waiter)
        queue = self._queues.setdefault(job.user, deque())
        if known not in queue:
            queue.append(known)

    def add_ahead(self, job: DigestJob) -> None:
        """Adds a digest that no trainer waits for yet. With too many of them, the user's oldest is dropped."""
        if job.key in self._jobs:
            return
        self._jobs[job.key] = job
        queue = self._ahead.setdefault(job.user, deque())
        queue.append(job)
        if len(queue) > _AHEAD_PER_USER and not (oldest := queue.popleft()).waiters:
            self.remove_job(oldest)

    @property
    def users(self) -> set[int]:
        """The users that have jobs."""
        return self._queues.keys() | self._ahead.keys()

    def take_next(self, is_paused: Callable[[int], bool] = lambda _user: False) -> DigestJob | None:
        """Returns the job of the user whose turn it is; None if there is none. Users that are paused have no turn.

        It stays in the turns until `remove_job`. Requests that are not wanted any more are dropped here.
        """
        for queues, is_awaited in ((self._queues, True), (self._ahead, False)):
            for user in [user for user in queues if not is_paused(user)]:
                queue = queues[user]
                queues.move_to_end(user)
                while queue:
                    job = queue.popleft()
                    # A job is here no more if it is done, and in another queue if a trainer has begun to wait for it.
                    if self._jobs.get(job.key) is not job or bool(job.waiters) != is_awaited:
                        continue
                    if is_awaited and not job.is_wanted():
                        self.remove_job(job)
                        job.settle_waiters(None)
                        continue
                    queue.append(job)  # behind the user's others, so that a short one does not wait for a long one
                    return job
                del queues[user]
        return None

    def remove_job(self, job: DigestJob) -> None:
        """Removes a job that is done. It leaves the users' queues when their turns come."""
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]
