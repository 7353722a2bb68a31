"""The digests that epochs must have, from the plan alone: off the event loop, in short turns, shared by trainers."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from streamd.core import log
from streamd.core.leaky_bucket import TimeShares
from streamd.core.receipt import DigestPiece, add_digest_lanes, compute_piece_lanes, format_digest, split_into_pieces
from streamd.core.spec import Cursor
from streamd.daemon.streams.digest_turns import DigestJob, DigestKey, DigestTurns, DigestWaiter
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.worker_messages import COMPUTED_PIECE, AddUpDigest, ComputedPiece, WorkerDied
from streamd.limits import (
    DIGEST_ANSWER_S,
    DIGEST_BURST_S,
    DIGEST_RESTART_S,
    DIGEST_SHARE,
    DIGEST_TURN_ROWS,
    MAX_DIGEST_TURN_S,
)
from streamd.supervisor.worker_process import RestartingWorker

_MAX_KEPT_DIGESTS: Final = 32  # of one user
_MAX_KEPT_USERS: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class _TrainerWait:
    """A trainer's wait for a digest; it is over when the trainer is gone or its task was cancelled."""

    answer: asyncio.Future[str | None]
    is_trainer_there: Callable[[], bool]

    def is_wanted(self) -> bool:
        return not self.answer.done() and self.is_trainer_there()

    def settle(self, outcome: str | BaseException | None) -> None:
        if self.answer.done():
            return
        if isinstance(outcome, BaseException):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


class ExpectedDigests:
    """Expected digests, by the order id and the cursor that determine them. Used by the event loop's thread alone.

    Streams are not keyed by name, since a reload may give a name to another stream. The digests of users other than
    `own_user` are computed by a worker of their own, so that they slow down neither the event loop nor the own user's
    digests. Each of these users has a share of the time, and its digests wait while it is spent.
    """

    def __init__(self, own_user: int) -> None:
        self._own_user = own_user
        self._digests = _KeptDigests()
        shares = TimeShares(own_user, DIGEST_SHARE, DIGEST_BURST_S, most_charge_s=MAX_DIGEST_TURN_S)
        keep_digest = self._digests.keep_digest
        self._own_line = DigestLine("own digests", shares, keep_digest)
        self._line_of_others = DigestLine("digests of others", shares, keep_digest, DigestWorker())

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being computed, or waits to be."""
        return self._own_line.is_idle and self._line_of_others.is_idle

    async def close(self) -> None:
        """Ends the worker, and each thread once its turn is over. What is still computed then reaches nobody."""
        await self._own_line.close()
        await self._line_of_others.close()

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
            self._get_line(user).add_waiter(_build_job(user, stream, cursor), wait)
            digest = await wait.answer
        if digest is not None:
            self._digests.keep_digest(user, (stream.spec.order_id, cursor), digest)
            after = replace(cursor, epoch=cursor.epoch + 1)
            is_whole = len(cursor.history) == 1 and not cursor.history[0].base
            if is_whole and self._digests.find_digest((stream.spec.order_id, after)) is None:
                self._get_line(user).add_ahead(_build_job(user, stream, after))
        return digest

    def _get_line(self, user: int) -> DigestLine:
        return self._own_line if user == self._own_user else self._line_of_others


class DigestWorker:
    """A worker that adds up pieces of digests, and starts with the first one. Lives on the event loop.

    A piece needs no data, so that this worker, which opens no stream, may be lost at any time.
    """

    def __init__(self) -> None:
        self._worker = RestartingWorker(COMPUTED_PIECE)
        self._next_start_s = 0.0
        self.stop = self._worker.stop

    async def compute_piece(self, piece: DigestPiece) -> ComputedPiece | None:
        """Returns the lanes of a piece, and the processor time that it took, in seconds.

        Returns None where the worker cannot start, has ended or does not answer. It is tried again after
        DIGEST_RESTART_S.
        """
        if time.monotonic() < self._next_start_s:
            return None
        try:
            async with asyncio.timeout(DIGEST_ANSWER_S):
                found = await self._worker.run_task(AddUpDigest(piece))
            if not isinstance(found, WorkerDied):
                return found
            reason = f"it has ended, {found.description}"
        except TimeoutError:
            reason = f"it has not answered for {DIGEST_ANSWER_S:g} s"
        # The host may have no room for a process, or for the thread with which asyncio waits for its end.
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
        log.warning(
            "daemon.no_digest_process",
            f"no process computes the digests of other users ({reason}); the daemon computes them itself for "
            f"{DIGEST_RESTART_S:g} s",
        )
        await self._worker.stop()
        self._next_start_s = time.monotonic() + DIGEST_RESTART_S
        return None


class DigestLine:
    """The digests that are computed one after the other, in turns of the users that wait for them.

    Those of a line with a `worker` are computed there, and by a thread of this process while there is none.
    `on_computed` gets each digest, with the first user that asked for it. Lives on the event loop.
    """

    # There is one turn at a time, so no pool is filled that something else needs, and the loop shares the processor
    # with one.

    def __init__(
        self,
        name: str,
        shares: TimeShares,
        on_computed: Callable[[int, DigestKey, str], None],
        worker: DigestWorker | None = None,
    ) -> None:
        self._worker = worker
        self._shares = shares
        self._on_computed = on_computed
        self._turns = DigestTurns()
        self._turn: asyncio.Task[tuple[str | None, float]] | None = None
        self._next_turn: asyncio.TimerHandle | None = None
        # The thread starts now, and lasts: when an epoch ends, other users may have used up the host's tasks.
        self._thread = ThreadPoolExecutor(1, name)
        self._thread.submit(int)
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being computed, or waits to be."""
        return self._turn is None and not len(self._turns)

    async def close(self) -> None:
        """Ends the worker, and the thread once its turn is over."""
        self._is_closed = True
        if self._next_turn is not None:
            self._next_turn.cancel()
        if self._turn is not None:
            self._turn.cancel()
            await asyncio.wait({self._turn})
        if self._worker is not None:
            await self._worker.stop()
        self._thread.shutdown(wait=False)

    def add_waiter(self, job: DigestJob, waiter: DigestWaiter) -> None:
        """Has a digest computed for `waiter`. See DigestTurns."""
        self._turns.add_waiter(job, waiter)
        self._begin_turn()

    def add_ahead(self, job: DigestJob) -> None:
        """Has a digest computed for which no trainer waits yet. See DigestTurns."""
        self._turns.add_ahead(job)
        self._begin_turn()

    def _begin_turn(self) -> None:
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        if self._turn is not None or self._is_closed:
            return
        now_s = time.monotonic()
        job = self._turns.take_next(lambda user: self._shares.get_pause_s(user, now_s) > 0)
        if job is not None:
            self._turn = asyncio.ensure_future(self._compute_next_piece(job))
            self._turn.add_done_callback(partial(self._end_turn, job))
        elif users := self._turns.users:
            pause_s = min(self._shares.get_pause_s(user, now_s) for user in users)
            self._next_turn = asyncio.get_running_loop().call_later(pause_s, self._begin_turn)

    async def _compute_next_piece(self, job: DigestJob) -> tuple[str | None, float]:
        """Adds a digest's next piece. Returns the digest, None while pieces are left, and the processor time."""
        piece, took_s = job.piece or next(job.pieces, None), 0.0
        if piece is not None:  # an epoch without a step has none
            computed = None if self._worker is None else await self._worker.compute_piece(piece)
            if computed is None:
                computed = await asyncio.wrap_future(self._thread.submit(_compute_piece, piece))
            lanes, took_s = computed
            job.lanes = add_digest_lanes(job.lanes, lanes)
        job.piece = next(job.pieces, None)
        return None if job.piece is not None else format_digest(job.lanes), took_s

    def _end_turn(self, job: DigestJob, turn: asyncio.Future[tuple[str | None, float]]) -> None:
        self._turn = None
        if turn.cancelled():
            return
        error = turn.exception()
        digest, took_s = (None, 0.0) if error is not None else turn.result()
        self._shares.charge(job.user, took_s, time.monotonic())
        if error is not None or digest is not None:
            self._turns.remove_job(job)
            if error is not None and not job.waiters:
                raise error  # of a digest that nobody waits for: the loop's handler reports it, and ends the daemon
            if digest is not None:
                self._on_computed(job.user, job.key, digest)
            job.settle_waiters(error or digest)
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
    return DigestJob(
        user, (stream.spec.order_id, cursor), split_into_pieces(stream.spec, stream.order, cursor, DIGEST_TURN_ROWS)
    )


def _compute_piece(piece: DigestPiece) -> ComputedPiece:
    began_s = time.thread_time()
    return compute_piece_lanes(piece), time.thread_time() - began_s
