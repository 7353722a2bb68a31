"""The iterator that a trainer holds: batches in order, epochs with receipts, and patience while a daemon is away."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Literal, NoReturn, Self

from streamd.client.batch import Batch, FindNames, build_leased_batch, describe_rows, restore_planned_ids
from streamd.client.handoff import Handoff
from streamd.client.io_thread import IOThread
from streamd.client.leases import check_ended_session_limit
from streamd.client.rebatch import BatchSplit, Rebatcher
from streamd.client.session import ClientSession, ReceivedBatch, Subscription
from streamd.client.session_waits import SessionWaits
from streamd.client.waiting import AbsenceReporter
from streamd.core.epoch_timing import EpochClock, EpochTiming
from streamd.core.receipt import Receipt
from streamd.core.slot_layout import SlotLayout, compute_layout
from streamd.core.spec import Cursor, Segment, count_steps_left
from streamd.core.steps import RankSteps
from streamd.core.text import format_count
from streamd.core.token import Token, encode_token, parse_token, parse_token_for_rank, resume_tally, start_tally
from streamd.errors import (
    ClosedError,
    ConnectError,
    ForkedClientError,
    NoDatasetError,
    ProtocolError,
    ReceiptError,
    RefusedError,
    StreamdError,
)
from streamd.ipc.messages import ReceiptDue
from streamd.limits import LAST_WORD_S


class Stream:
    """A subscription. Iterate over it for all epochs, or over `epochs()` for one at a time.

    `spec` is the stream as this trainer sees it, in batches of the size it asked for, `world` how many ranks share it.
    The place is the stream's own: breaking out keeps it, a later loop goes on there, and several iterators take turns.
    An error ends no iterator: once its reason is gone, `next()` goes on with the batch that was due. A loop that was
    interrupted (Ctrl-C) begins again behind the last batch that it got.

    `receipts` has the account of every epoch, `timings` where the time of every whole one went.

    One thread at a time may iterate, `seek` or ask for the `token`; any may `close`. A stream that nobody refers to any
    more closes by itself.
    """

    def __init__(
        self,
        endpoint: str,
        split: BatchSplit,
        subscription: Subscription,
        start: Token | Cursor | None,
        patience_s: float | None,
        reporter: AbsenceReporter,
        find_names: FindNames,
    ) -> None:
        check_ended_session_limit(split.served_spec.name)
        self.spec = split.trainer_spec
        self.world = subscription.world
        self.receipts: list[Receipt] = []
        self.timings: list[EpochTiming] = []
        self.wait_s = 0.0
        self.keep_alive: object = (
            None  # lives as long as this stream: the client, whose end may be its private daemon's
        )
        self.lookup_names: Callable[[Iterable[int]], list[str]] | None = (
            None  # as the client that opened this knows them
        )
        self._endpoint = endpoint
        self._split = split
        self._served_spec = split.served_spec
        self._patience_s = patience_s
        self._reporter = reporter
        self._find_names = find_names
        self._rank_steps = self._build_rank_steps(subscription)
        self._pid = os.getpid()
        self._subscription = subscription
        self._subscription = replace(subscription, pid=self._pid, batch_size=self.spec.batch_size, steps=len(self))
        self._closed = False
        self._fatal_error: StreamdError | None = None
        self._is_interrupted = False  # an interrupt fell between taking and booking, or into a change of place
        self._handed_cursor = Cursor()  # behind the last batch that the loop got
        self._is_finishing_epoch = False
        self._was_asked = True
        self._layout_by_rows: tuple[int, SlotLayout] | None = None
        self._count_fetched: Callable[[], None] = lambda: None  # counts the batch that was fetched last
        self._set_start_position(start)
        self._first_epoch = self.epoch
        self._open_session()

    def _build_rank_steps(self, subscription: Subscription) -> RankSteps:
        return RankSteps(
            self._served_spec.batches, subscription.rank, subscription.world, subscription.uneven, subscription.epochs
        )

    def _set_start_position(self, start: Token | Cursor | None) -> None:
        """Takes the place that a token names, or a cursor without a past, or the first."""
        token = start if isinstance(start, Token) else None
        cursor = start if isinstance(start, Cursor) else Cursor()
        whose = self._served_spec
        self._tally = (
            resume_tally(token, whose, self._rank_steps) if token else start_tally(cursor, whose, whose.pixel_id)
        )
        self._last_token = (
            token.to_json if token else partial(encode_token, self._served_spec, self._tally.take_snapshot())
        )
        self._start_token = self._last_token  # the same as long as nothing was taken from here on
        self._rebatcher = Rebatcher(
            self._split, self._subscription.rank, self._subscription.world, token.rows if token else 0
        )
        self._clock = EpochClock()

    def _open_session(self, *, is_running: bool = False) -> None:
        self._handoff = Handoff(self._tally.cursor)
        self._session = ClientSession(self._subscription, self._served_spec, resuming=is_running)
        self._io_thread = IOThread(self._endpoint, self._session, self._handoff)
        self._waits = SessionWaits(
            self._endpoint, self._session, self._handoff, self._io_thread, self._patience_s, self._reporter
        )
        self._finalizer = weakref.finalize(self, self._io_thread.request_stop)
        self._finalizer.atexit = False  # the daemon sees the end of a process by itself
        self._io_thread.start()
        if self._fatal_error is not None:
            self.set_fatal_error(self._fatal_error)

    def _restart_session_at(self, place: Token | Cursor) -> None:
        """Ends the session and begins another one at `place`. Raises BatchesHeldError, and stays where it is."""
        check_ended_session_limit(self._served_spec.name)
        self._is_interrupted = True
        self._finalizer.detach()
        self._io_thread.stop()
        self._subscription = self._session.next_subscription
        self._set_start_position(place)
        self._open_session(is_running=True)
        self._is_interrupted = False

    def wait_until_open(self, timeout_s: float) -> None:
        """Returns when the daemon has admitted the session. Raises RefusedError, TokenError or ConnectError."""
        if not self._handoff.wait_for_session(timeout_s):
            if self._session.refusal is not None:
                raise RefusedError(f"{self._session.refusal} (tried for {timeout_s:g} s)")
            raise ConnectError(self._endpoint, f"no answer to a subscription within {timeout_s:g} s")
        if self._subscription.live:
            self._subscription = self._session.subscription
            self._rank_steps = self._build_rank_steps(self._subscription)
            self._set_start_position(self._handoff.cursor)
            self._first_epoch = self.epoch

    def set_fatal_error(self, error: StreamdError) -> None:
        """Ends every wait, now and later, with `error`: its daemon will not come back. Called in any thread."""
        self._fatal_error = error  # first: whoever opens the next session in this moment will see it
        self._handoff.set_error(error)
        self._io_thread.queue_session_call(self._session.close_session)

    # --- for the trainer

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return self._split.count_steps(
            [Segment(0, self._rank_steps.steps_per_epoch, self._subscription.rank, self._subscription.world)]
        )

    @property
    def steps_left(self) -> int:
        """Steps of the present epoch that are still to come; 0 behind its last one, until the next epoch begins."""
        return (
            0
            if self._is_past_last_epoch()
            else self._rebatcher.count_steps_left(self._tally.cursor.next_base_index, self._count_epoch_steps_left())
        )

    @property
    def epochs_left(self) -> int | None:
        """Epochs that have steps to come, the present one among them; None when the subscription runs on."""
        epochs = self._subscription.epochs
        return None if epochs is None else max(0, epochs - self.epoch - (0 if self.steps_left else 1))

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._tally.cursor.epoch

    @property
    def reconnects(self) -> int:
        """How often the connection was made again."""
        return max(0, self._session.reconnects)

    @property
    def token(self) -> str:
        """The place behind the last batch taken, as JSON: that batch's own token, or the one that was sought."""
        return self._last_token()

    def __iter__(self) -> Iterator[Batch]:
        """All batches from here to the last epoch's end; nothing, at once, when that is behind."""
        return iter(partial(self._advance_to_next_batch, None), None)

    def names(self, sample_ids: Iterable[int]) -> list[str]:
        """The file names of samples of this stream: see `Client.names`."""
        if self.lookup_names is None:
            raise self._build_closed_error()
        return self.lookup_names(sample_ids)

    def epochs(self) -> Iterator[Iterator[Batch]]:
        """One iterator an epoch, the rest of the present one first.

        An epoch that is left early is gone on with by the next iterator: a loop that takes one batch of each comes to
        the end all the same, losing none. Raises StreamdError when an iterator is not asked for a single batch, since
        such a loop would never end.
        """
        while self._has_epochs_left():
            self._was_asked = False
            yield iter(partial(self._advance_to_next_batch, self._tally.cursor.epoch), None)
            if not self._was_asked:
                raise StreamdError(
                    f"nothing was taken of epoch {self.epoch} of stream {self.spec.name!r}: iterate over each of "
                    "epochs() before the next one is asked for, since they all go on where the stream is"
                )

    def seek(self, token: str | bytes, *, after: Literal["step", "epoch"] = "step") -> None:
        """Goes on behind the batch whose token this is, in any epoch, before or after here; or behind all of its epoch.

        The account goes on from there too: what was taken since that batch is not counted. Batches that are still held
        stay valid. Raises TokenError when it belongs to another stream or order; then the stream stays where it is.
        """
        self._check_not_closed_or_forked()
        if after == "epoch":
            self._restart_session_at(parse_token(token, self._served_spec).at_next_epoch())
        else:
            self._restart_session_at(parse_token_for_rank(token, self._served_spec, self.world, self._split.rows))

    def rewind(self) -> None:
        """Goes to index 0 of the subscription's first epoch. An epoch left in its midst gets a receipt that says so."""
        self._check_not_closed_or_forked()
        start = Cursor(self._first_epoch)
        is_elsewhere = self._tally.cursor != start or self._rebatcher.rows_taken > 0
        if self._is_interrupted or self._last_token is not self._start_token or is_elsewhere:
            self._add_partial_receipt()
            self._restart_session_at(start)

    def return_to(self, token: str) -> None:
        """Like `seek`, with a receipt as above."""
        self._check_not_closed_or_forked()
        self._add_partial_receipt()
        self.seek(token)

    def _add_partial_receipt(self) -> None:
        self._finish_last_epoch()
        receipt = self._build_receipt(None)
        if self._last_token is not self._start_token and receipt.steps and not self._is_past_last_epoch():
            self.receipts += [receipt]  # and nothing is called between these two
            self._start_token = self._last_token

    def close(self) -> None:
        """Ends the subscription; whoever waits for a batch gets an error.

        Views of batches stay valid, and their memory goes back when they die. An epoch left early gets a receipt that
        says so.
        """
        if self._closed:
            return
        self._finish_last_epoch()
        self._closed = True
        if self._pid == os.getpid():
            self._finalizer.detach()
            self._io_thread.stop()
            self._handoff.close(self._build_closed_error())
        receipt = self._build_receipt(None)
        if receipt.steps and not self._is_past_last_epoch():
            self.receipts.append(receipt)
        self._rebatcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, place: object) -> NoReturn:
        """What torch's DataLoader asks a data set for."""
        raise NoDatasetError

    @property
    def __array__(self) -> NoReturn:
        """What Keras looks for in data that it does not know, and NumPy in anything."""
        raise NoDatasetError(
            "a stream is no array: for Keras write  model.fit(fit_data(stream)), with fit_data of "
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

    def _advance_to_next_batch(self, epoch: int | None) -> Batch | None:
        """The next batch, of `epoch` where it is given; None at its end. Called, not resumed: it keeps no batch."""
        self._was_asked = True
        if self._is_interrupted:
            self.seek(self._last_token())
        while self._has_epochs_left() and (epoch is None or epoch == self._tally.cursor.epoch):
            batch = self._take_trainer_batch()
            if batch is not None:
                # Nothing is called between these, nor behind them.
                self._last_token = batch.make_token
                self._handed_cursor = self._tally.cursor
                return batch
            self._finish_epoch()
        return None

    def _take_trainer_batch(self) -> Batch | None:
        """The trainer's next batch; None at the epoch's end."""
        try:
            return self._rebatcher.next_batch(
                self._fetch_served_batch, self._count_fetched_batch, self._build_partial_token_maker
            )
        except ProtocolError:
            self._is_interrupted = True  # the batch was taken, and is none
            raise
        except StreamdError:
            raise  # from a wait, in which nothing is half done
        except BaseException:
            self._is_interrupted = (
                True  # but at an epoch's end there was nothing to take, and to go anywhere loses its account
            )
            self._is_interrupted = self._count_epoch_steps_left() > 0 or self._handed_cursor is not self._tally.cursor
            raise

    def _has_epochs_left(self) -> bool:
        self._check_not_closed_or_forked()
        return not self._is_past_last_epoch()

    def _is_past_last_epoch(self) -> bool:
        return self._subscription.epochs is not None and self._tally.cursor.epoch >= self._subscription.epochs

    def _count_epoch_steps_left(self) -> int:
        """Of the epoch, from here on."""
        subscription = self._subscription
        return count_steps_left(
            self._tally.cursor.next_base_index, subscription.world, self._served_spec.batches, subscription.uneven
        )

    def _fetch_served_batch(self) -> Batch | None:
        """Waits for the stream's next batch, which `_count_fetched_batch` counts; None at the epoch's end."""
        if not self._count_epoch_steps_left():
            return None
        tally = self._tally
        after = tally.cursor.after_step(self._subscription.rank, self._subscription.world)
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
            token=partial(
                encode_token, self._served_spec, tally.take_snapshot_after_batch(header.index, planned, marks, after)
            ),
            on_return=partial(self._io_thread.return_lease, received),
            find_names=self._find_names,
        )

    def _count_fetched_batch(self) -> None:
        """Counts the batch that was fetched last."""
        self._count_fetched()

    def _build_partial_token_maker(self, rows: int) -> Callable[[], str]:
        """What makes the token behind so many rows of the batch that was fetched last."""
        return partial(encode_token, self._served_spec, self._tally.take_snapshot(), rows, self.world)

    def _lookup_slot_layout(self, rows: int) -> SlotLayout:
        """The same one as long as batches have as many rows."""
        if self._layout_by_rows is None or self._layout_by_rows[0] != rows:
            self._layout_by_rows = rows, compute_layout(self._served_spec, rows)
        return self._layout_by_rows[1]

    def _wait_for_batch(self, after: Cursor) -> ReceivedBatch:
        started_ns = time.monotonic_ns()
        if self._clock.began_ns is None:
            self._clock.start_epoch(started_ns, self.wait_s)
        received = self._handoff.take_batch(after, 0)
        if received is None:
            received = self._waits.wait_for_batch(after, self._describe_place)
        self._clock.ended_ns = ended_ns = time.monotonic_ns()
        waited_ns = ended_ns - started_ns
        self.wait_s += waited_ns / 1e9
        self._io_thread.add_loop_wait_ns(waited_ns)
        return received

    def _describe_place(self) -> str:
        """Where the stream goes on, for a line on stderr."""
        cursor = self._tally.cursor
        place = f"stream {self.spec.name!r} goes on at"
        if not self._count_epoch_steps_left():
            return f"{place} the end of epoch {cursor.epoch}"
        return f"{place} epoch {cursor.epoch}, index {self._rebatcher.compute_next_index(cursor.next_base_index)}"

    def _finish_epoch(self) -> None:
        """Waits for the daemon's word at an epoch's end, and compares."""
        self._check_not_closed_or_forked()
        self._is_finishing_epoch = True
        try:
            due = self._waits.wait_for_receipt(self._tally.cursor.epoch, self._describe_place)
        finally:
            self._is_finishing_epoch = False
        self._check_receipt(due)
        if self._is_past_last_epoch():
            # A program may end right behind its loop, and its threads with it: the daemon would miss this receipt.
            self._io_thread.wait_for_queued_calls(LAST_WORD_S)

    def _finish_last_epoch(self) -> None:
        """An epoch whose last batch was taken is complete, though nobody has asked for what comes after it."""
        at_end = (
            self._tally.steps_taken
            and not self._is_past_last_epoch()
            and not self._count_epoch_steps_left()
            and self._rebatcher.is_between_batches
        )
        if not at_end or self._is_interrupted or self._is_finishing_epoch or self._pid != os.getpid():
            return
        with suppress(StreamdError):  # its receipt says so, or that there is none
            due = self._handoff.wait_for_receipt(
                self._tally.cursor.epoch, 0 if self._handoff.away_since_s else LAST_WORD_S
            )
            if due is not None:
                self._check_receipt(due)

    def _check_receipt(self, due: ReceiptDue) -> None:
        """Compares accounts, keeps the receipt, and goes on to the next epoch."""
        epoch = self._tally.cursor.epoch
        receipt = self._build_receipt(due)
        timing, clock = self._clock.compute_timing(epoch, self.wait_s, due.supply), EpochClock()
        following = start_tally(self._tally.cursor.at_next_epoch(), self._served_spec, self._tally.pixel_id)
        # Nothing is called between these five, so that an interrupt falls before all of them, or after.
        self.receipts += [receipt]
        self.timings += [timing]
        self._clock = clock
        self._rebatcher.unused_samples = 0
        self._tally = following
        self._handoff.move_cursor(following.cursor)
        self._io_thread.queue_session_call(
            partial(self._session.report_receipt_check, epoch, receipt.digest, ok=receipt.ok, timing=timing)
        )
        if not receipt.ok:
            raise ReceiptError(
                f"epoch {epoch} of stream {self.spec.name!r} does not add up: missed {receipt.missed}, repeated "
                f"{receipt.repeated}, digest {receipt.digest} where the daemon's plan gives {due.digest}"
            )

    def _build_receipt(self, due: ReceiptDue | None) -> Receipt:
        """Closes the account, in this trainer's own steps; without the daemon's word when the epoch is left early."""
        rebatcher = self._rebatcher
        receipt = self._tally.build_receipt(
            expected_digest=due.digest if due else None,
            steps_left=self._count_epoch_steps_left() if due else 0,
            dropped=(due.dropped if due else 0) + rebatcher.unused_samples,
        )
        steps = self._split.count_steps(self._tally.cursor.history, gathered=rebatcher.gathered_batch_count)
        return replace(
            receipt,
            steps=steps + rebatcher.steps_in_open_batch,
            samples=receipt.samples + rebatcher.uncounted_samples - rebatcher.unused_samples,
        )

    def _build_closed_error(self) -> ClosedError:
        return ClosedError(self._endpoint, "this stream is closed; subscribe again")

    def _check_not_closed_or_forked(self) -> None:
        if self._pid != os.getpid():
            raise ForkedClientError
        if self._closed:
            raise self._build_closed_error()
