"""The iterator that a trainer holds: batches in order, epochs with receipts, and patience while a daemon is away."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np

from streamd.client.batch import Batch, marks_of, open_batch
from streamd.client.inbox import Delivery, Inbox
from streamd.client.io import Postman
from streamd.client.patience import Patience
from streamd.client.session import Session, Wish
from streamd.errors import ConnectError, ForkedClientError, ReceiptError
from streamd.layout import layout
from streamd.messages import ReceiptDue
from streamd.receipts import Place, Receipt, Tally, Totals, from_hex, to_hex
from streamd.spec import Cursor, StreamSpec, Token, read_token
from streamd.walk import Walk


class Stream:
    """A subscription. Iterate over it for all epochs, or over `epochs()` for one at a time.

    Breaking out keeps the place; a later loop goes on there. Not for use from several threads at a time.
    """

    def __init__(
        self, endpoint: str, spec: StreamSpec, wish: Wish, resume: Token | None, patience_s: float | None
    ) -> None:
        self.spec = spec
        self.receipts: list[Receipt] = []
        self.wait_s = 0.0
        self._endpoint = endpoint
        self._wish = wish
        self._patience_s = patience_s
        self._walk = Walk(spec.batches, wish.rank, wish.world, wish.uneven, wish.epochs)
        self._pid = os.getpid()
        self._closed = False
        self._tally = self._tally_at(resume)
        self._open()

    def _open(self) -> None:
        self._inbox = Inbox(self._tally.cursor)
        self._session = Session(self._wish, self.spec.order_id)
        self._postman = Postman(self._endpoint, self._session, self._inbox)
        self._postman.start()

    def wait_until_open(self, timeout_s: float) -> None:
        """Returns when the daemon has admitted the session. Raises RefusedError, TokenError or ConnectError."""
        if not self._inbox.wait_welcome(timeout_s):
            raise ConnectError(self._endpoint, f"no answer to a subscription within {timeout_s:g} s")

    # --- for the trainer

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return self._walk.steps

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
        return self._token(self._tally.snapshot())

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
        self._postman.stop()
        self._tally = self._tally_at(read_token(token, self.spec))
        self._open()

    def close(self) -> None:
        """Ends the subscription. Views of batches stay valid. An epoch left early gets a receipt that says so."""
        if self._closed:
            return
        self._closed = True
        if self._pid == os.getpid():
            self._postman.stop()
        if self._tally.steps and not self._over():
            self.receipts.append(self._tally.receipt(expected_digest=None, steps_left=0, dropped=0))

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
            if self._steps_left() == 0:
                self._settle()
                return
            yield self._next()

    def _over(self) -> bool:
        return self._wish.epochs is not None and self._tally.cursor.epoch >= self._wish.epochs

    def _steps_left(self) -> int:
        return self._walk.start(self._tally.cursor).steps

    def _next(self) -> Batch:
        """The next batch, counted the moment it is handed over."""
        self._check_usable()
        tally = self._tally
        after = tally.cursor.after_step(self._wish.rank, self._wish.world)
        delivery = self._wait_for_batch(after)
        header = delivery.batch
        placed = layout(self.spec, header.rows)
        ids = placed.sample_ids.view(delivery.memory).astype(np.int64)
        tally.take(header.index, ids, marks_of(ids, header.bad), after)
        return open_batch(
            delivery.memory,
            placed,
            header,
            token=partial(self._token, tally.snapshot()),
            on_return=partial(self._postman.give_back, delivery.connection, delivery.number),
        )

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
        receipt = self._tally.receipt(expected_digest=due.digest, steps_left=self._steps_left(), dropped=due.dropped)
        self.receipts.append(receipt)
        self._tally = Tally(self.spec.name, self.spec.order_id, self._tally.cursor.next_epoch())
        self._inbox.move(self._tally.cursor)
        self._postman.order(partial(self._session.checked, epoch, receipt.digest, ok=receipt.ok))
        if not receipt.ok:
            raise ReceiptError(
                f"epoch {epoch} of stream {self.spec.name!r} does not add up: missed {receipt.missed}, repeated "
                f"{receipt.repeated}, digest {receipt.digest} where the daemon's plan gives {due.digest}"
            )

    # --- tokens

    def _token(self, place: Place) -> str:
        totals, spec = place.totals(), self.spec
        digest = to_hex(totals.lanes)
        token = Token(spec.name, spec.order_id, spec.pixel_id, place.cursor, digest, totals.samples, totals.bad)
        return token.to_json()

    def _tally_at(self, token: Token | None) -> Tally:
        """The account that a token continues; a new epoch's where the token ends one."""
        if token is None:
            return Tally(self.spec.name, self.spec.order_id, Cursor())
        cursor = token.cursor
        if self._walk.start(cursor).steps == 0 and cursor.history:
            return Tally(self.spec.name, self.spec.order_id, cursor.next_epoch())
        changed = token.pixel_id != self.spec.pixel_id
        start = Totals(from_hex(token.digest), token.samples, token.bad)
        return Tally(self.spec.name, self.spec.order_id, cursor, start, changed=changed)

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise ForkedClientError
        if self._closed:
            raise ConnectError(self._endpoint, "this stream is closed; subscribe again")
