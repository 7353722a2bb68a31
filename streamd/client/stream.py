"""The iterator that a trainer holds: batches in order, epochs with receipts, and patience while a daemon is away."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np

from streamd.client.batch import Batch, marks_of, open_batch
from streamd.client.inbox import Delivery, Inbox
from streamd.client.io import Postman
from streamd.client.patience import Patience
from streamd.client.recut import Cut, Fetched, Recut
from streamd.client.session import Session, Wish
from streamd.errors import ConnectError, ForkedClientError, ReceiptError
from streamd.layout import layout
from streamd.messages import ReceiptDue
from streamd.receipts import Place, Receipt, Tally, Totals, from_hex, to_hex
from streamd.spec import Cursor, Segment, Token, read_token
from streamd.walk import Walk


class Stream:
    """A subscription. Iterate over it for all epochs, or over `epochs()` for one at a time.

    `spec` is the stream as this trainer sees it, in batches of the size it asked for. Breaking out keeps the place; a
    later loop goes on there. Not for use from several threads at a time.
    """

    def __init__(
        self, endpoint: str, cut: Cut, wish: Wish, start: Token | Cursor | None, patience_s: float | None
    ) -> None:
        self.spec = cut.spec
        self.receipts: list[Receipt] = []
        self.wait_s = 0.0
        self._endpoint = endpoint
        self._cut = cut
        self._served = cut.served
        self._wish = wish
        self._patience_s = patience_s
        self._walk = self._walk_of(wish)
        self._pid = os.getpid()
        self._closed = False
        self._begin(start)
        self._open()

    def _walk_of(self, wish: Wish) -> Walk:
        return Walk(self._served.batches, wish.rank, wish.world, wish.uneven, wish.epochs)

    def _begin(self, start: Token | Cursor | None) -> None:
        """Takes the place that a token names, or a cursor without a past, or the first."""
        token = start if isinstance(start, Token) else None
        cursor = start if isinstance(start, Cursor) else Cursor()
        self._tally = self._tally_at(token) if token else Tally(self._served.name, self._served.order_id, cursor)
        self._last_token: Callable[[], str] | None = None
        self._recut = Recut(self._cut, self._wish.rank, self._wish.world, token.rows if token else 0)

    def _open(self) -> None:
        self._inbox = Inbox(self._tally.cursor)
        self._session = Session(self._wish, self._served.order_id)
        self._postman = Postman(self._endpoint, self._session, self._inbox)
        self._postman.start()

    def wait_until_open(self, timeout_s: float) -> None:
        """Returns when the daemon has admitted the session. Raises RefusedError, TokenError or ConnectError."""
        if not self._inbox.wait_welcome(timeout_s):
            raise ConnectError(self._endpoint, f"no answer to a subscription within {timeout_s:g} s")
        if self._wish.live:
            self._wish = self._session.wish
            self._walk = self._walk_of(self._wish)
            self._tally = Tally(self.spec.name, self.spec.order_id, self._inbox.cursor)

    # --- for the trainer

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return self._cut.steps([Segment(0, self._walk.steps, self._wish.rank, self._wish.world)])

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
        """The place behind the last batch taken, as JSON."""
        return self._last_token() if self._last_token else self._token(self._tally.snapshot(), self._recut.rows_taken)

    def __iter__(self) -> Iterator[Batch]:
        """All batches from here to the last epoch's end."""
        for epoch in self.epochs():
            yield from epoch

    def epochs(self) -> Iterator[Iterator[Batch]]:
        """One iterator an epoch, the rest of the present one first. An epoch that is left early is gone on with."""
        while not self._over():
            yield self._epoch(self._tally.cursor.epoch)

    def seek(self, token: str | bytes) -> None:
        """Goes on behind the batch whose token this is. Raises TokenError when it belongs to another order."""
        self._check_usable()
        place = read_token(token, self._served)
        self._postman.stop()
        self._begin(place)
        self._open()

    def close(self) -> None:
        """Ends the subscription. Views of batches stay valid. An epoch left early gets a receipt that says so."""
        if self._closed:
            return
        self._closed = True
        if self._pid == os.getpid():
            self._postman.stop()
        if self._tally.steps and not self._over():
            self.receipts.append(self._receipt(None))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        cursor = self._tally.cursor
        return f"<Stream {self.spec.name!r} at {cursor.epoch}:{cursor.base}, {len(self)} steps an epoch>"

    # --- an epoch

    def _epoch(self, epoch: int) -> Iterator[Batch]:
        while self._tally.cursor.epoch == epoch and not self._over():
            found = self._next()
            if not found:
                self._settle()
                return
            yield found.pop()  # a variable would keep the batch's memory while the loop is at work

    def _over(self) -> bool:
        return self._wish.epochs is not None and self._tally.cursor.epoch >= self._wish.epochs

    def _steps_left(self) -> int:
        return self._walk.start(self._tally.cursor).steps

    def _next(self) -> list[Batch]:
        """The trainer's next batch; nothing at the epoch's end."""
        self._check_usable()
        batch = self._recut.next(self._fetch)
        if batch is None:
            return []
        self._last_token = batch.make_token
        return [batch]

    def _fetch(self) -> Fetched | None:
        """Waits for the stream's next batch; None at the epoch's end."""
        if not self._steps_left():
            return None
        tally = self._tally
        after = tally.cursor.after_step(self._wish.rank, self._wish.world)
        delivery = self._wait_for_batch(after)
        header = delivery.batch
        placed = layout(self._served, header.rows)
        ids = placed.sample_ids.view(delivery.memory).astype(np.int64)
        marks = marks_of(ids, header.bad)
        batch = open_batch(
            delivery.memory,
            placed,
            header,
            self.spec,
            token=partial(self._token, tally.after(header.index, ids, marks, after)),
            on_return=partial(self._postman.give_back, delivery.connection, delivery.number),
        )
        count = partial(tally.take, header.index, ids, marks, after)
        return Fetched(batch, count, partial(self._token, tally.snapshot()))

    def _wait_for_batch(self, after: Cursor) -> Delivery:
        started_ns = time.monotonic_ns()
        delivery = self._inbox.take(after, 0)
        if delivery is None:
            delivery = self._wait_long(after)
        waited_ns = time.monotonic_ns() - started_ns
        self.wait_s += waited_ns / 1e9
        self._postman.add_wait(waited_ns)
        return delivery

    def _wait_long(self, after: Cursor) -> Delivery:
        waiting = Patience(self._inbox, self._endpoint, self._patience_s)
        self._postman.hurry(now=bool(self._inbox.held()))
        try:
            while (delivery := self._inbox.take(after, waiting.turn_s())) is None:
                waiting.look()
        finally:
            self._postman.hurry(now=False)
        return delivery

    def _settle(self) -> None:
        """Compares accounts at an epoch's end, keeps the receipt, and goes on to the next epoch."""
        self._check_usable()
        epoch = self._tally.cursor.epoch
        waiting = Patience(self._inbox, self._endpoint, self._patience_s)
        due: ReceiptDue | None = None
        while due is None:
            due = self._inbox.take_receipt(epoch, waiting.turn_s())
            if due is None:
                waiting.look()
        receipt = self._receipt(due)
        self.receipts.append(receipt)
        self._recut.unused = 0
        self._tally = Tally(self.spec.name, self.spec.order_id, self._tally.cursor.next_epoch())
        self._inbox.move(self._tally.cursor)
        self._postman.order(partial(self._session.checked, epoch, receipt.digest, ok=receipt.ok))
        if not receipt.ok:
            raise ReceiptError(
                f"epoch {epoch} of stream {self.spec.name!r} does not add up: missed {receipt.missed}, repeated "
                f"{receipt.repeated}, digest {receipt.digest} where the daemon's plan gives {due.digest}"
            )

    def _receipt(self, due: ReceiptDue | None) -> Receipt:
        """Closes the account, in this trainer's own steps; without the daemon's word when the epoch is left early."""
        receipt = self._tally.receipt(
            expected_digest=due.digest if due else None,
            steps_left=self._steps_left() if due else 0,
            dropped=(due.dropped if due else 0) + self._recut.unused,
        )
        return replace(
            receipt, steps=self._cut.steps(self._tally.cursor.history), samples=receipt.samples - self._recut.unused
        )

    # --- tokens

    def _token(self, place: Place, rows: int = 0) -> str:
        totals, spec = place.totals(), self._served
        digest = to_hex(totals.lanes)
        token = Token(
            spec.name, spec.order_id, spec.pixel_id, place.cursor, digest, totals.samples, totals.bad, rows=rows
        )
        return token.to_json()

    def _tally_at(self, token: Token) -> Tally:
        """The account that a token continues; a new epoch's where the token ends one."""
        cursor = token.cursor
        if self._walk.start(cursor).steps == 0 and cursor.base:
            return Tally(self.spec.name, self.spec.order_id, cursor.next_epoch())
        changed = token.pixel_id != self.spec.pixel_id
        start = Totals(from_hex(token.digest), token.samples, token.bad)
        return Tally(self.spec.name, self.spec.order_id, cursor, start, changed=changed)

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise ForkedClientError
        if self._closed:
            raise ConnectError(self._endpoint, "this stream is closed; subscribe again")
