"""The digests that epochs must have, computed from the plan alone: in a thread, in short turns, shared by trainers."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from streamd.core.receipt import Lanes, add_digest_lanes, format_digest, sum_expected_lanes
from streamd.core.spec import Cursor
from streamd.daemon.streams.digest_turns import DigestJob, DigestKey, DigestTurns
from streamd.daemon.streams.served_stream import ServedStream
from streamd.daemon.time_shares import TimeShares
from streamd.limits import DIGEST_BURST_S, DIGEST_SHARE, DIGEST_TURN_S

_MAX_KEPT_DIGESTS: Final = 32  # of one user
_MAX_KEPT_USERS: Final = 16
_ROWS_AT_ONCE: Final = 16384  # rows of one NumPy call: few calls, and all arrays within the processor's cache


@dataclass(frozen=True, slots=True, eq=False)
class _TrainerWait:
    """A trainer's wait for a digest; it is over when the trainer is gone or its task was cancelled."""

    answer: asyncio.Future[str | None]
    is_trainer_there: Callable[[], bool]

    def is_wanted(self) -> bool:
        return not self.answer.done() and self.is_trainer_there()

    def settle(self, digest: str | None) -> None:
        if not self.answer.done():
            self.answer.set_result(digest)

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class ExpectedDigests:
    """Expected digests, by the order id and the cursor that determine them. Used by the event loop's thread alone.

    Streams are not keyed by name, since a reload may give a name to another stream. Users other than `own_user` have a
    share of the time, and their digests wait while it is spent.
    """

    def __init__(self, own_user: int) -> None:
        self._digests = _KeptDigests()
        self._turns = DigestTurns()
        self._shares = TimeShares(own_user, DIGEST_SHARE, DIGEST_BURST_S, most_charge_s=2 * DIGEST_TURN_S)
        self._is_computing = False
        self._next_turn: asyncio.TimerHandle | None = None
        # The thread starts now, and lasts: when an epoch ends, other users may have used up the host's tasks.
        self._thread = ThreadPoolExecutor(1, "digests")
        self._thread.submit(int)
        self._is_closed = False

    def close(self) -> None:
        """Ends the thread once its turn is over. What is still computed then reaches nobody."""
        self._is_closed = True
        if self._next_turn is not None:
            self._next_turn.cancel()
        self._thread.shutdown(wait=False)

    async def compute_digest(
        self, stream: ServedStream, cursor: Cursor, *, user: int = 0, is_wanted: Callable[[], bool] = lambda: True
    ) -> str | None:
        """Returns the digest of all steps in `cursor`'s history; None if it was not wanted any more before it was done.

        Then the digest of the next epoch is computed ahead: a trainer that has read one whole epoch usually reads
        another. For ten million samples this takes a second or two, during which trainers would wait between epochs.
        """
        digest = self._digests.find_digest((stream.spec.order_id, cursor))
        if digest is None:
            wait = _TrainerWait(asyncio.get_running_loop().create_future(), is_wanted)
            self._turns.add_waiter(_build_job(user, stream, cursor), wait)
            self._begin_turn()
            digest = await wait.answer
        if digest is not None:
            self._digests.keep_digest(user, (stream.spec.order_id, cursor), digest)
            self._compute_next_epoch_ahead(user, stream, cursor)
        return digest

    def _compute_next_epoch_ahead(self, user: int, stream: ServedStream, cursor: Cursor) -> None:
        after = replace(cursor, epoch=cursor.epoch + 1)
        is_whole = len(cursor.history) == 1 and not cursor.history[0].base
        if is_whole and self._digests.find_digest((stream.spec.order_id, after)) is None:
            self._turns.add_ahead(_build_job(user, stream, after))
            self._begin_turn()

    # There is one turn at a time, in a thread that does nothing else: the job belongs to that thread until `_end_turn`,
    # which runs on the loop again. So no pool is filled that something else needs, and the loop shares the processor
    # with one.

    def _begin_turn(self) -> None:
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        if self._is_computing or self._is_closed:
            return
        now_s = time.monotonic()
        job = self._turns.take_next(lambda user: self._shares.get_pause_s(user, now_s) > 0)
        if job is not None:
            self._is_computing = True
            turn = asyncio.wrap_future(self._thread.submit(_compute_for_one_turn, job))
            turn.add_done_callback(partial(self._end_turn, job))
        elif users := self._turns.users:
            pause_s = min(self._shares.get_pause_s(user, now_s) for user in users)
            self._next_turn = asyncio.get_running_loop().call_later(pause_s, self._begin_turn)

    def _end_turn(self, job: DigestJob, turn: asyncio.Future[tuple[str | None, float]]) -> None:
        self._is_computing = False
        if turn.cancelled():
            return
        error = turn.exception()
        digest, took_s = (None, 0.0) if error is not None else turn.result()
        self._shares.charge(job.user, took_s, time.monotonic())
        if error is not None or digest is not None:
            self._turns.remove_job(job)
        if error is not None:
            if not job.waiters:
                raise error  # of a digest that nobody waits for: the loop's handler reports it, and ends the daemon
            job.settle_waiters(lambda waiter: waiter.fail(error))
        elif digest is not None:
            self._digests.keep_digest(job.user, job.key, digest)
            job.settle_waiters(lambda waiter: waiter.settle(digest))
        self._begin_turn()


class _KeptDigests:
    """The digests used last, some for each of the users seen last, so that no user evicts another's."""

    def __init__(self) -> None:
        self._by_user: OrderedDict[int, OrderedDict[DigestKey, str]] = OrderedDict()

    def find_digest(self, key: DigestKey) -> str | None:
        """Returns a digest, whichever user it was computed for."""
        return next((kept[key] for kept in self._by_user.values() if key in kept), None)

    def keep_digest(self, user: int, key: DigestKey, digest: str) -> None:
        """Keeps a digest for a user, and drops the oldest."""
        kept = self._by_user.setdefault(user, OrderedDict())
        self._by_user.move_to_end(user)
        kept[key] = digest
        kept.move_to_end(key)
        if len(kept) > _MAX_KEPT_DIGESTS:
            kept.popitem(last=False)
        if len(self._by_user) > _MAX_KEPT_USERS:
            self._by_user.popitem(last=False)


def _build_job(user: int, stream: ServedStream, cursor: Cursor) -> DigestJob:
    return DigestJob(user, (stream.spec.order_id, cursor), lambda: _sum_lanes_of_groups(stream, cursor))


def _compute_for_one_turn(job: DigestJob) -> tuple[str | None, float]:
    """Continues a digest for DIGEST_TURN_S. Returns it, or None if it takes another turn, and the processor time."""
    if job.groups is None:
        job.groups = job.start_groups()
    began_s, end_s = time.thread_time(), time.monotonic() + DIGEST_TURN_S
    for lanes in job.groups:
        job.lanes = add_digest_lanes(job.lanes, lanes)
        if time.monotonic() >= end_s:
            return None, time.thread_time() - began_s
    return format_digest(job.lanes), time.thread_time() - began_s


def _sum_lanes_of_groups(stream: ServedStream, cursor: Cursor) -> Iterator[Lanes]:
    return sum_expected_lanes(
        stream.spec.order_id,
        cursor.epoch,
        cursor.history,
        lambda indices: stream.compute_planned_ids_of_batches(cursor.epoch, indices),
        batches_at_once=max(1, _ROWS_AT_ONCE // stream.spec.batch_size),
    )
