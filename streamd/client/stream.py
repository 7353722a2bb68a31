"""The iterator that a trainer holds: batches in order, a receipt for each epoch, patience while the daemon is away."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice, repeat
from typing import Any, Literal, NoReturn, Self, TypeVar, overload

from msgspec.structs import replace

from streamd.client.batch import (
    Batch,
    BatchSplit,
    FindNames,
    Rebatcher,
    build_leased_batch,
    describe_rows,
    restore_planned_ids,
)
from streamd.client.handoff import Handoff
from streamd.client.io_thread import IOThread
from streamd.client.leases import ReceivedBatch, check_ended_session_limit
from streamd.client.session import ClientSession
from streamd.client.sockets import CurveKeys
from streamd.client.waiting import AbsenceReporter, WaitPolicy
from streamd.core.epoch_timing import EpochClock, EpochTiming
from streamd.core.receipt import Receipt
from streamd.core.slot_layout import compute_layout
from streamd.core.spec import Cursor, RankSteps, Segment, count_steps_left
from streamd.core.text import format_count
from streamd.core.token import Token, encode_token, parse_token, parse_token_for_rank, resume_tally, start_tally
from streamd.errors import (
    ClosedError,
    ConfigError,
    ConnectError,
    ForkedClientError,
    NoCopyError,
    NoDatasetError,
    ProtocolError,
    ReceiptError,
    RefusedError,
    StreamdError,
)
from streamd.ipc.messages import ReceiptDue, Subscribe
from streamd.limits import CONNECT_TIMEOUT_S, LAST_WORD_S, MIN_CREDIT, PROGRESS_DELAY_S


@dataclass(slots=True)
class _Pass:
    """What one iterator reads: the batches of `epoch`, or of all epochs if it is None.

    `is_anew`: the pass began at index 0 whatever was read before. It takes the stream away from every pass before it,
    so `number`, how many such passes had begun, says whether one of them came since. `convert` makes what the loop
    gets of each batch; None: the batch itself.
    """

    epoch: int | None
    number: int
    is_anew: bool = False
    convert: Callable[[Batch], Any] | None = None


Step = TypeVar("Step")


class _NotYetError(StreamdError):
    """What a stream needs to end an epoch has not come within the time that the caller has for it."""


class Stream:
    """A subscription. Iterate over it for all epochs, or over `epochs()` for one at a time.

    `spec` is the stream's specification in batches of the trainer's size, and `rank` that of this trainer among the
    `world` that share it.

    The position belongs to the stream: breaking out of a loop keeps it, a later loop continues there, and several
    iterators advance the same position. An epoch is over when its last batch was handed out, also for a program that
    takes exactly `len()` batches and asks for no more: the next pass is the next epoch. An error ends no iterator: once
    its cause is gone, `next()` returns the batch that was due. A loop that was interrupted (Ctrl-C) continues after the
    last batch that it received.

    Any thread may use a stream: threads that iterate over it share its batches, each of which goes to one of them. A
    stream that is no longer referenced closes itself.
    """

    def __init__(
        self,
        endpoint: str,
        split: BatchSplit,
        subscription: Subscribe,
        start: Token | Cursor | None,
        patience_s: float | None,
        reporter: AbsenceReporter,
        find_names: FindNames,
        curve: CurveKeys | None = None,
    ) -> None:
        check_ended_session_limit(split.served_spec.name)
        self.spec = split.trainer_spec
        self.rank, self.world = subscription.rank, subscription.world
        self.wait_s = 0.0
        self._receipts: list[Receipt] = []
        self._timings: list[EpochTiming] = []
        # References the client, whose finaliser would end a private daemon while this stream still reads from it.
        self.keep_alive: object = None
        self.lookup_names: Callable[[Iterable[int]], list[str]] | None = None  # set by the client
        self._endpoint, self._curve = endpoint, curve
        self._split = split
        self._served_spec = split.served_spec
        self._patience_s = patience_s
        self._reporter, self._find_names = reporter, find_names
        self._subscription = subscription
        self._pid = os.getpid()
        self._subscription = replace(subscription, pid=self._pid, batch_size=self.spec.batch_size, steps=len(self))
        self._closed = False
        self._fatal_error: StreamdError | None = None
        # True after an interrupt between taking a batch and counting it, after an interrupt within a change of
        # position, and after a batch that cannot be used. The tally and the handoff may then disagree, so the next call
        # begins a new session at the last token.
        self._is_interrupted = False
        self._handed_cursor = Cursor()  # the position after the last batch that the loop received
        self._is_finishing_epoch = False
        self._finish_limit_s: float | None = None  # the longest that the end of an epoch may wait; None: no limit
        self._unraised_error: ReceiptError | None = None  # an account that does not add up: raised by the next call
        # Held while a thread takes a batch or changes the position. Reentrant, since a signal's handler may `close`. A
        # forked child never takes it: the thread that held it may not exist there.
        self._lock = threading.RLock()
        # The pass that `epochs()` began last; None once the caller has moved the stream by other means.
        self._present_pass: _Pass | None = None
        self._passes_anew = 0  # those that have begun
        self._was_asked = True  # the last iterator of `epochs()` was asked for a batch
        self._lookup_slot_layout = lru_cache(1)(partial(compute_layout, self._served_spec))  # by the number of rows
        self._count_fetched: Callable[[], None] = lambda: None  # counts the batch that was fetched last
        self._set_start_position(start)
        self._note_place()
        self._first_epoch = self.epoch
        self._open_session()

    @property
    def _rank_steps(self) -> RankSteps:
        whole, how = self._served_spec.batches, self._subscription
        return RankSteps(whole, self.rank, self.world, how.uneven, how.epochs)

    def _set_start_position(self, start: Token | Cursor | None) -> None:
        """Sets the position from a token, from a cursor with an empty account, or to the first batch."""
        token, whose = start if isinstance(start, Token) else None, self._served_spec
        if token:
            self._tally = resume_tally(token, whose, self._rank_steps)
        else:
            self._tally = start_tally(start if isinstance(start, Cursor) else Cursor(), whose, whose.pixel_id)
        self._last_token = token.to_json if token else partial(encode_token, whose, self._tally.take_snapshot())
        self._start_token = self._last_token  # the same object until a batch is taken
        self._rebatcher = Rebatcher(self._split, self.rank, self.world, token.rows if token else 0)
        self._clock = EpochClock()

    def _note_place(self) -> None:
        """Notes that the caller has chosen the present position: passes that begin anew begin here first."""
        self._placed_token = self._last_token  # the same object until a batch is taken
        self._pass_epoch = self.epoch  # the epoch that all passes that begin anew read
        self._whole_passes = 0  # those that were read to their end

    def _open_session(self, *, is_running: bool = False) -> None:
        self._handoff = Handoff(self._tally.cursor)
        self._session = ClientSession(self._subscription, self._served_spec, resuming=is_running)
        self._io_thread = IOThread(self._endpoint, self._session, self._handoff, self._curve)
        # The finaliser must not refer to this stream, and must not wait: it may run in any thread.
        self._finalizer = weakref.finalize(self, self._io_thread.request_stop)
        self._finalizer.atexit = False  # the daemon sees the end of a process by itself
        self._io_thread.start()
        # `set_fatal_error` may have run in another thread while the handoff was replaced above.
        if self._fatal_error is not None:
            self.set_fatal_error(self._fatal_error)

    def _restart_session_at(self, place: Token | Cursor) -> None:
        """Ends the session and begins another one at `place`.

        Raises BatchesHeldError before it changes anything.
        """
        check_ended_session_limit(self._served_spec.name)
        # Set until the new session exists: after an interrupt in between, the next call begins one at the last token.
        self._is_interrupted = True
        self._finalizer.detach()
        self._io_thread.stop()
        self._subscription = self._session.subscription_to_reconnect
        self._set_start_position(place)
        self._open_session(is_running=True)
        self._is_interrupted = False

    def wait_until_open(self, timeout_s: float) -> None:
        """Waits until the daemon has admitted the session. Raises RefusedError, TokenError or ConnectError."""
        if not self._handoff.wait_for_session(timeout_s):
            if self._session.refusal is not None:
                raise RefusedError(f"{self._session.refusal} (tried for {timeout_s:g} s)")
            raise ConnectError(self._endpoint, f"no answer to a subscription within {timeout_s:g} s")
        # The daemon has chosen where a live session begins; from here on it is an ordinary one.
        if self._subscription.live:
            self._subscription = self._session.subscription
            self._set_start_position(self._handoff.cursor)
            self._note_place()
            self._first_epoch = self.epoch

    def set_fatal_error(self, error: StreamdError) -> None:
        """Makes every present and later wait raise `error`: the daemon will not come back. Called in any thread."""
        self._fatal_error = error  # first, so that a session that is being opened in this moment sees it
        self._handoff.set_error(error)
        self._io_thread.queue_session_call(self._session.close_session)

    # --- for the trainer

    def __len__(self) -> int:
        """The number of steps of a whole epoch."""
        return self._split.count_steps([Segment(0, self._rank_steps.steps_per_epoch, self.rank, self.world)])

    @property
    def steps_left(self) -> int:
        """The number of steps left in the present epoch; 0 after its last one, until the next epoch begins."""
        if self._is_past_last_epoch():
            return 0
        return self._rebatcher.count_steps_left(self._tally.cursor.next_base_index, self._count_epoch_steps_left())

    @property
    def epochs_left(self) -> int | None:
        """The number of epochs with steps left, including the present one; None for a subscription without end."""
        epochs = self._subscription.epochs
        return None if epochs is None else max(0, epochs - self._tally.cursor.epoch - (0 if self.steps_left else 1))

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._tally.cursor.epoch + (1 if self._is_epoch_handed_out() else 0)

    @property
    def receipts(self) -> list[Receipt]:
        """The accounts of the epochs so far; waits up to 1 s for that of an epoch whose last batch was handed out."""
        self._finish_epoch_quietly()
        return self._receipts

    @property
    def timings(self) -> list[EpochTiming]:
        """Where the time of each whole epoch went, for the epochs that have their receipt."""
        self._finish_epoch_quietly()
        return self._timings

    @property
    def reconnects(self) -> int:
        """The number of times that the connection was made again."""
        return max(0, self._session.reconnects)

    @property
    def token(self) -> str:
        """The position after the last batch taken, as JSON: that batch's token, or the one given to `seek`."""
        return self._last_token()

    def __iter__(self) -> Iterator[Batch]:
        """Iterates over all batches up to the last epoch's end; empty if that was reached."""
        return self._iterate_pass(_Pass(None, self._passes_anew))

    def names(self, sample_ids: Iterable[int]) -> list[str]:
        """Returns the file names of samples of this stream: see `Client.names`."""
        if self.lookup_names is None:
            raise self._build_closed_error()
        return self.lookup_names(sample_ids)

    @overload
    def epochs(self, *, anew: bool = False) -> Iterator[Iterator[Batch]]: ...
    @overload
    def epochs(self, *, anew: bool = False, convert: Callable[[Batch], Step]) -> Iterator[Iterator[Step]]: ...
    def epochs(self, *, anew: bool = False, convert: Callable[[Batch], Any] | None = None) -> Iterator[Iterator[Any]]:
        """Yields one iterator for each epoch, beginning with the rest of the present one.

        If an epoch is left early, the next iterator continues it: a loop that takes one batch from each iterator still
        reaches the end without losing any. Raises StreamdError when no batch is taken from an iterator, since such a
        loop would never end.

        anew: each iterator begins at index 0 of the same epoch instead, as an evaluation does, however much was read
            before. The first one after `resume=` or `seek` goes on there. `epochs` of the subscription then counts
            whole passes, and a pass that was left early gets a receipt `complete: false, ok: true`. Iterators from
            before raise StreamdError, and so does `epochs()` without `anew` until `seek` has moved the stream: passes
            that evaluate while others train need a subscription of their own.
        convert: yields what it makes of each batch. A batch counts as taken once that is made: if an error or Ctrl-C
            comes before, the next call takes the same batch again.
        """
        while (begun := self._begin_pass(anew=anew, convert=convert)) is not None:
            self._was_asked = False
            yield self._iterate_pass(begun)
            if not self._was_asked:
                raise StreamdError(
                    f"no batch was taken from epoch {self.epoch} of stream {self.spec.name!r}: iterate over each item "
                    "of epochs() before you ask for the next one, since each item continues where the stream is"
                )

    def end_epoch(self, limit_s: float | None = None) -> bool:
        """Waits for the receipt of an epoch whose last batch was handed out; does nothing within an epoch.

        The next pass does the same. Returns False if the receipt has not come within `limit_s`. Raises ReceiptError if
        the account does not add up.
        """
        if self._pid != os.getpid():
            return True
        with self._lock:
            if self._closed:
                return True
            self._complete_last_call()
            self._finish_limit_s = limit_s
            try:
                self._finish_epoch_if_handed_out()
            except _NotYetError:
                return False
            finally:
                self._finish_limit_s = None
        return True

    def seek(self, token: str | bytes, *, after: Literal["step", "epoch"] = "step") -> None:
        """Moves to the position after the token's batch, or after the end of its epoch, forwards or backwards.

        The account continues from there too: batches taken since that batch are not counted. Batches that are still
        held stay valid. Raises TokenError when the token belongs to another stream or order; the stream then keeps its
        position.
        """
        self._check_not_closed_or_forked()
        with self._lock:
            if after == "epoch":
                self._restart_session_at(parse_token(token, self._served_spec).at_next_epoch())
            else:
                self._move_to_token(token)
            self._note_place()
            self._present_pass = None

    def advance_to_epoch(self, epoch: int) -> None:
        """Moves to index 0 of a later epoch; does nothing at that epoch or behind it.

        An iterator of `epochs()` that was not asked for a batch yet moves along. An epoch left early gets a receipt
        that says so. Raises ConfigError for an epoch that the subscription has not.
        """
        epochs = self._subscription.epochs
        if epochs is not None and epoch >= epochs:
            raise ConfigError(
                f"stream {self.spec.name!r} has no epoch {epoch}: the subscription ends after {epochs}, counted from 0"
            )
        self._check_not_closed_or_forked()
        with self._lock:
            self._complete_last_call()
            self._finish_epoch_if_handed_out()
            if epoch > self.epoch:
                begun = None if self._was_asked else self._present_pass
                self._rewind_to_epoch(epoch)
                if begun is not None:
                    begun.epoch = epoch
                    self._present_pass = begun

    def rewind(self) -> None:
        """Moves to index 0 of the subscription's first epoch. An epoch left early gets a receipt that says so."""
        self._check_not_closed_or_forked()
        with self._lock:
            self._rewind_to_epoch(self._first_epoch)
            self._present_pass = None

    def return_to(self, token: str) -> None:
        """Moves like `seek`, from where other passes have read. An epoch left early gets a receipt that says so."""
        self._check_not_closed_or_forked()
        with self._lock:
            # Within an epoch the account of these passes must not go on as that of the token, which may be theirs too.
            if 0 < self.steps_left < len(self) or token != self.token:
                self._add_partial_receipt()
                self._move_to_token(token)
            self._present_pass = None

    def look_ahead(self, batches: int, *, anew: bool = False, token: str | None = None) -> list[Batch]:
        """Returns copies of the first batches of the next pass, read in a session of their own: nothing moves.

        anew: see `epochs`. token: the position to look from; default: this stream's.
        """
        self._check_not_closed_or_forked()
        start: Token | Cursor = Cursor(self._pass_epoch)
        if not anew or self._last_token is self._placed_token:
            start = parse_token_for_rank(token or self.token, self._served_spec, self.world, self._split.rows)
        # Without an end, so that there is something to look at behind the last epoch.
        subscription = replace(self._subscription, epochs=None, credit=MIN_CREDIT, live=False, together=0)
        places = self._endpoint, self._split, subscription, start
        with Stream(*places, self._patience_s, self._reporter, self._find_names, self._curve) as other:
            other.wait_until_open(CONNECT_TIMEOUT_S)
            return [batch.copy() for batch in islice(other, batches)]

    def _move_to_token(self, token: str | bytes) -> None:
        self._restart_session_at(parse_token_for_rank(token, self._served_spec, self.world, self._split.rows))

    def _rewind_to_epoch(self, epoch: int) -> None:
        start = Cursor(epoch)
        is_elsewhere = self._tally.cursor != start or self._rebatcher.rows_taken > 0
        if self._is_interrupted or self._last_token is not self._start_token or is_elsewhere:
            self._add_partial_receipt()
            self._restart_session_at(start)

    def _add_partial_receipt(self) -> None:
        self._finish_epoch_quietly()
        receipt = self._build_receipt(None)
        if self._last_token is not self._start_token and receipt.steps and not self._is_past_last_epoch():
            # There is no call between these two, at which an interrupt could be handled: the receipt is added once.
            self._receipts += [receipt]
            self._start_token = self._last_token

    def close(self) -> None:
        """Ends the subscription; a thread that waits for a batch gets ClosedError.

        Views of batches stay valid, and their leases end when they die. An epoch left early gets a receipt that says
        so.
        """
        if self._closed:
            return
        is_forked = self._pid != os.getpid()
        self._finish_epoch_quietly()
        self._closed = True
        # In a forked child the I/O thread does not exist, and the session is the parent's.
        if not is_forked:
            self._finalizer.detach()
            self._io_thread.stop()
            self._handoff.close(self._build_closed_error())
        # A thread that waited for a batch has its error now, and leaves the lock.
        with nullcontext() if is_forked else self._lock:
            receipt = self._build_receipt(None)
            if receipt.steps and not self._is_past_last_epoch():
                self._receipts.append(receipt)
            self._rebatcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, place: object) -> NoReturn:
        """Refuses what torch's DataLoader asks of a data set."""
        raise NoDatasetError

    def __reduce__(self) -> NoReturn:
        """Refuses pickle and copies, as for a spawned process or a trial."""
        raise NoCopyError(
            f"stream {self.spec.name!r}",
            f"write  streamd.connect({self._endpoint!r}).subscribe({self.spec.name!r})  in the other process; a rank "
            'adds rank="auto"',
        )

    @property
    def __array__(self) -> NoReturn:
        """Refuses what Keras looks for in data that it does not know, and NumPy in anything."""
        raise NoDatasetError(
            "a stream is not an array: for Keras write  model.fit(fit_data(stream)), with fit_data of "
            "streamd.frameworks.keras; in a loop of your own read batch.images"
        )

    def __repr__(self) -> str:
        cursor = self._tally.cursor
        state = ", closed" if self._closed else "" if self._handoff.away_since_s is None else ", no daemon"
        return (
            f"<Stream {self.spec.name!r} at {cursor.epoch}:{cursor.next_base_index}, {format_count(len(self), 'step')} "
            f"an epoch of {describe_rows(self.spec, self.spec.batch_size)}{state}>"
        )

    # --- an epoch

    def _begin_pass(self, *, anew: bool, convert: Callable[[Batch], Any] | None) -> _Pass | None:
        """Begins a pass, after the end of an epoch whose last batch was handed out; None if no epoch is left."""
        self._check_not_closed_or_forked()
        with self._lock:
            self._complete_last_call()
            self._finish_epoch_if_handed_out()
            if anew:
                epochs = self._subscription.epochs
                if epochs is not None and self._pass_epoch + self._whole_passes >= epochs:
                    return None
                if self._last_token is not self._placed_token:
                    self._rewind_to_epoch(self._pass_epoch)
            elif self._present_pass is not None and self._present_pass.is_anew:
                raise StreamdError(
                    f"a pass that begins anew has moved stream {self.spec.name!r}, and one that trains would go on "
                    f"behind it: evaluate by a subscription of its own, as in  client.subscribe({self.spec.name!r}), "
                    "or go back first, by  stream.seek(TOKEN)"
                )
            if not self._has_epochs_left():
                return None
            self._passes_anew += anew
            self._present_pass = _Pass(self._tally.cursor.epoch, self._passes_anew, anew, convert)
            return self._present_pass

    def _iterate_pass(self, one: _Pass) -> Iterator[Any]:
        # Written in C and without a state of its own: threads may share it, no interrupt falls between a batch and the
        # loop, and it keeps no batch, and with it no lease, as the frame of a generator would.
        return map(self._advance_to_next_batch, repeat(one))

    def _advance_to_next_batch(self, one: _Pass) -> Any:
        """Returns the next batch of a pass, or what the pass makes of it. Raises StopIteration at its end."""
        self._check_not_closed_or_forked()
        batch: Batch | None = None
        try:
            with self._lock:
                self._was_asked = True
                self._check_pass_is_present(one)
                self._complete_last_call()
                before = self._last_token
                while self._has_epochs_left() and one.epoch in (None, self._tally.cursor.epoch):
                    batch = self._take_trainer_batch()
                    if batch is not None:
                        self._last_token = batch.make_token
                        self._handed_cursor = self._tally.cursor
                        break
                    self._finish_epoch()
            if batch is not None:
                return batch if one.convert is None else one.convert(batch)
        except BaseException:
            # An interrupt or error after the batch was counted, so that the loop does not get it: the next call takes
            # it again.
            if batch is not None and self._last_token in (before, batch.make_token):
                self._last_token, self._is_interrupted = before, True
            raise
        raise StopIteration

    def _check_pass_is_present(self, one: _Pass) -> None:
        if one.number != self._passes_anew or (one.is_anew and one is not self._present_pass):
            raise StreamdError(
                f"this pass over stream {self.spec.name!r} is over: another one has begun at index 0, and they share "
                f"one position; give each its own, as in  client.subscribe({self.spec.name!r})"
            )

    def _complete_last_call(self) -> None:
        """Raises what an earlier call could not raise, and goes back to the last batch if an interrupt left it."""
        if self._unraised_error is not None:
            error, self._unraised_error = self._unraised_error, None
            raise error
        if self._is_interrupted:
            self._move_to_token(self._last_token())

    def _take_trainer_batch(self) -> Batch | None:
        """Returns the trainer's next batch; None at the epoch's end. Notes if an interrupt left a batch half taken."""
        try:
            return self._rebatcher.next_batch(
                self._fetch_served_batch, self._count_fetched_batch, self._build_partial_token_maker
            )
        except ProtocolError:
            self._is_interrupted = True  # the batch was taken, and cannot be used
            raise
        except StreamdError:
            raise  # from a wait, in which nothing is half done
        except BaseException:
            # Assume the worst first: another interrupt may arrive in the lines below. At an epoch's end there was no
            # batch to take, and starting a new session would lose the epoch's account.
            self._is_interrupted = True
            self._is_interrupted = self._count_epoch_steps_left() > 0 or self._handed_cursor is not self._tally.cursor
            raise

    def _has_epochs_left(self) -> bool:
        if self._closed:  # while this thread waited for the lock
            raise self._build_closed_error()
        return not self._is_past_last_epoch()

    def _is_past_last_epoch(self) -> bool:
        return self._subscription.epochs is not None and self._tally.cursor.epoch >= self._subscription.epochs

    def _is_epoch_handed_out(self) -> bool:
        """Whether the last batch of the present epoch was handed out, and its receipt is still to be added."""
        return bool(self._tally.cursor.history) and not self.steps_left and not self._is_past_last_epoch()

    def _count_epoch_steps_left(self) -> int:
        """Returns how many of the stream's own steps are left in the present epoch."""
        base, whole = self._tally.cursor.next_base_index, self._served_spec.batches
        return count_steps_left(base, self.world, whole, self._subscription.uneven)

    def _fetch_served_batch(self) -> Batch | None:
        """Waits for the stream's next batch and returns it; None at the epoch's end.

        `_count_fetched_batch` counts it later. Raises ProtocolError if the batch does not follow from the plan.
        """
        if not self._count_epoch_steps_left():
            return None
        tally = self._tally
        after = tally.cursor.after_step(self.rank, self.world)
        received = self._wait_for_batch(after)
        tally.record_pixel_id(received.pixel_id)
        header = received.header
        placed = self._lookup_slot_layout(header.rows)
        ids = placed.sample_ids.build_array_in_memory(received.memory).copy()
        planned, marks = restore_planned_ids(ids, header.bad, self._served_spec.bad_policy)
        self._count_fetched = partial(tally.add_batch, header.index, planned, marks, after)
        return build_leased_batch(
            received.memory,
            placed,
            header,
            self.spec,
            token=partial(encode_token, self._served_spec, tally.take_snapshot(after, (header.index, planned, marks))),
            on_return=self._io_thread.build_lease_end(received),
            find_names=self._find_names,
        )

    def _count_fetched_batch(self) -> None:
        """Counts the batch that was fetched last."""
        self._count_fetched()

    def _build_partial_token_maker(self, rows: int) -> Callable[[], str]:
        """Returns a function that makes the token of the position after `rows` rows of the last fetched batch."""
        return partial(encode_token, self._served_spec, self._tally.take_snapshot(), rows, self.world)

    def _wait_for_batch(self, after: Cursor) -> ReceivedBatch:
        """Returns the next batch and moves the cursor to `after`.

        Raises the stream's error, BatchesHeldError if the loop holds all the credit, or ConnectError when patience is
        over.
        """
        handoff, io_thread = self._handoff, self._io_thread
        started_ns = time.monotonic_ns()
        if self._clock.began_ns is None:
            self._clock.start_epoch(started_ns, self.wait_s)
        # A batch that is ready is taken without the cost of a wait's bookkeeping.
        received = handoff.take_batch(after, self._finish_limit_s or 0)
        if received is None and self._finish_limit_s is not None:
            raise _NotYetError
        if received is None:
            waiting = self._begin_wait("batch")
            io_thread.returns.set_immediate_lease_reports(now=bool(handoff.list_credit_blocking_batches()))
            try:
                received = handoff.take_batch(after, PROGRESS_DELAY_S)
                if received is None:
                    # The daemon may have reduced the credit meanwhile, so ended leases are now reported however few
                    # they are.
                    io_thread.returns.set_immediate_lease_reports(now=True)
                    while (received := handoff.take_batch(after, waiting.next_wait_s())) is None:
                        waiting.check_wait_can_end()
            finally:
                io_thread.returns.set_immediate_lease_reports(now=False)
                waiting.end_wait()
        self._clock.ended_ns = ended_ns = time.monotonic_ns()
        waited_ns = ended_ns - started_ns
        self.wait_s += waited_ns / 1e9
        io_thread.loop_waited_ns += waited_ns
        return received

    def _begin_wait(self, wanted: str, *, for_batch: bool = True) -> WaitPolicy:
        session, io_thread = self._session, self._io_thread

        # The session belongs to the I/O thread, so the ping is queued and not sent from here.
        def ping_daemon() -> None:
            io_thread.queue_session_call(lambda: session.ping_daemon(time.monotonic()))

        return WaitPolicy(
            self._handoff,
            self._endpoint,
            self._patience_s,
            ping_daemon,
            session.describe_daemon_wait if for_batch else str,
            describe_refusal=lambda: session.refusal or "",
            describe_place=self._describe_place,
            wanted=f"{wanted} of stream {session.subscription.stream!r}",
            reporter=self._reporter,
            for_batch=for_batch,
        )

    def _describe_place(self) -> str:
        """Describes where the stream continues, for a line on stderr."""
        cursor = self._tally.cursor
        place = f"stream {self.spec.name!r} continues at"
        if not self._count_epoch_steps_left():
            return f"{place} the end of epoch {cursor.epoch}"
        return f"{place} epoch {cursor.epoch}, index {self._rebatcher.compute_next_index(cursor.next_base_index)}"

    def _finish_epoch_if_handed_out(self) -> None:
        """Ends an epoch whose last batch was handed out. Does nothing within an epoch."""
        if self._is_epoch_handed_out():
            # Batches of the stream that fill none of the trainer's are left: they are counted, and not handed out.
            extra = self._take_trainer_batch()
            if extra is not None:
                raise ReceiptError(
                    f"epoch {extra.epoch} has more steps than announced: batch {extra.index} came after its end"
                )
            self._finish_epoch()

    def _finish_epoch(self) -> None:
        """Waits for the receipt at an epoch's end, stores it, and moves to the next epoch.

        Raises ReceiptError, after all of that, if the epoch's account differs from the daemon's.
        """
        self._check_not_closed_or_forked()
        epoch = self._tally.cursor.epoch
        self._is_finishing_epoch = True
        try:
            handoff = self._handoff
            if self._finish_limit_s is not None:
                due = handoff.wait_for_receipt(epoch, self._finish_limit_s)
            else:
                # Batches that the loop holds do not delay a receipt, so they raise no error here.
                waiting = self._begin_wait(f"receipt of epoch {epoch}", for_batch=False)
                try:
                    while (due := handoff.wait_for_receipt(epoch, waiting.next_wait_s())) is None:
                        waiting.check_wait_can_end()
                finally:
                    waiting.end_wait()
        finally:
            self._is_finishing_epoch = False
        if due is None:
            raise _NotYetError
        receipt = self._build_receipt(due)
        timing, clock = self._clock.compute_timing(epoch, self.wait_s, due.supply), EpochClock()
        following = start_tally(self._tally.cursor.at_next_epoch(), self._served_spec, self._tally.pixel_id)
        # There is no call between these five assignments, so an interrupt falls before all of them, or after.
        self._receipts += [receipt]
        self._timings += [timing]
        self._clock = clock
        self._rebatcher.unused_samples = 0
        self._tally = following
        self._handoff.move_cursor(following.cursor)
        report = partial(self._session.report_receipt_check, epoch, receipt.digest, ok=receipt.ok, timing=timing)
        self._io_thread.queue_session_call(report)
        if self._present_pass is not None and self._present_pass.is_anew:
            self._whole_passes += 1
        if not receipt.ok:
            raise ReceiptError(
                f"epoch {receipt.epoch} of stream {receipt.stream!r} does not add up: missed {receipt.missed}, "
                f"repeated {receipt.repeated}, digest {receipt.digest} where the daemon's plan gives {due.digest}"
            )
        if self._is_past_last_epoch():
            # A program may end right after its loop, and its threads with it. Without this wait, the daemon might never
            # get the report on this receipt.
            self._io_thread.wait_for_queued_calls(LAST_WORD_S)

    def _finish_epoch_quietly(self) -> None:
        """Ends an epoch whose last batch was handed out, if what that takes comes within `LAST_WORD_S`.

        Does nothing within an epoch, after an interrupt, in a forked child, or while another thread takes a batch. If
        the account does not add up, the receipt records it and the next call raises it.
        """
        if self._pid != os.getpid() or self._closed or not self._lock.acquire(blocking=False):
            return
        try:
            if not self._is_interrupted and not self._is_finishing_epoch:
                self._finish_limit_s = 0 if self._handoff.away_since_s else LAST_WORD_S
                self._finish_epoch_if_handed_out()
        except ReceiptError as error:
            self._unraised_error = error
        except StreamdError:  # the next call meets it again; without a receipt, the epoch counts as left early
            pass
        finally:
            self._finish_limit_s = None
            self._lock.release()

    def _build_receipt(self, due: ReceiptDue | None) -> Receipt:
        """Builds the receipt of the present epoch in the trainer's own steps; `due` is None if it is left early."""
        receipt = self._tally.build_receipt(
            expected_digest=due.digest if due else None,
            steps_left=self._count_epoch_steps_left() if due else 0,
            dropped=due.dropped if due else 0,
        )
        served = receipt.with_rank(self.rank, self.world, self._served_spec)
        return self._rebatcher.recount_receipt(served, self._tally.cursor.history)

    def _build_closed_error(self) -> ClosedError:
        return ClosedError(self._endpoint, "this stream is closed; subscribe again")

    def _check_not_closed_or_forked(self) -> None:
        if self._pid != os.getpid():
            raise ForkedClientError
        if self._closed:
            raise self._build_closed_error()
