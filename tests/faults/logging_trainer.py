"""A trainer in a process of its own that writes down all it takes: `python logging_trainer.py ORDERS`, which is JSON.

A gated one takes only as many batches as it is allowed. It reads lines from standard input while it waits: `allow N`
(-1 for all), `waiting`, which it answers with the number of batches that lie ready, `held`, with the digests of the
images that it still holds, and `fork`, with the pid of a child that lives on until it is killed. It ends when standard
input does.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec
from account_log import (
    AccountLog,
    Began,
    Checkpoint,
    Ended,
    Settled,
    Step,
    images_digest,
    labels_digest,
    load_checkpoint,
    save_checkpoint,
)

import streamd
from streamd.client import Batch, Client, Stream
from streamd.core.spec import UnevenPolicy

ALL = -1


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a trainer does. `checkpoint_every` in batches, 0 for never; `hold`: batches that it keeps the images of."""

    endpoint: str
    log: str
    stream: str = "train"
    epochs: int | None = 1
    rank: int = 0
    world: int = 1
    uneven: UnevenPolicy | None = None
    prefetch: int | None = 8  # fewer than the default: an epoch of the small sets is not all on its way at once
    checkpoint_every: int = 0
    hold: int = 0
    gated: bool = False
    live: bool = False
    transport: str = "shared"
    until_told: bool = False


class Trainer:
    """One life."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._log = AccountLog(Path(orders.log))
        self._checkpoint = Path(orders.log).with_suffix(".checkpoint")
        self._held: deque[Batch] = deque(maxlen=orders.hold)
        self._allowed = 0 if orders.gated else ALL
        self._taken = 0
        self._settled = 0
        self._was_told = False
        if orders.until_told:
            signal.signal(signal.SIGTERM, self._note_end)

    def _note_end(self, _number: int, _frame: object) -> None:
        self._was_told = True

    def run(self) -> None:
        with streamd.connect(self._orders.endpoint, timeout=30) as client, self._subscribe(client) as stream:
            if self._orders.until_told:
                self._read_epochs(stream)
            else:
                self._read_batches(stream, iter(stream))
        self._log.add(Ended(time.monotonic_ns()))

    def _read_epochs(self, stream: Stream) -> None:
        """Whole epochs, until it is told."""
        for batches in stream.epochs():
            self._read_batches(stream, batches)
            if self._was_told:
                break

    def _read_batches(self, stream: Stream, batches: Iterator[Batch]) -> None:
        while self._may_go_on(stream):
            batch = next(batches, None)
            if batch is not None:
                self._take(stream, batch)
            # After the step, since the receipt of an epoch may be there as soon as its last batch is.
            self._settle(stream)
            if batch is None:
                break
            del batch

    def _subscribe(self, client: Client) -> Stream:
        orders, saved = self._orders, load_checkpoint(self._checkpoint)
        stream = client.subscribe(
            orders.stream,
            epochs=orders.epochs,
            rank=orders.rank,
            world=orders.world,
            uneven=orders.uneven,
            prefetch=orders.prefetch,
            start="live" if orders.live and not saved else "begin",
            resume=saved.token if saved else None,
            transport="inline" if orders.transport == "inline" else "shared",
        )
        cursor = stream._tally.cursor
        position = saved.position if saved else 0
        order_id = str(stream.spec.order_id)
        self._log.add(Began(os.getpid(), position, order_id, cursor.epoch, cursor.next_base_index, time.monotonic_ns()))
        return stream

    def _take(self, stream: Stream, batch: Batch) -> None:
        self._log.add(
            Step(
                batch.epoch,
                batch.index,
                tuple(batch.sample_ids.tolist()),
                tuple(batch.weights.tolist()),
                labels_digest(batch.labels),
                images_digest(batch.images),
                tuple((bad.row, bad.sample_id, bad.action) for bad in batch.bad),
                stream.reconnects,
                lying_ready(stream),
                time.monotonic_ns(),
            )
        )
        self._taken += 1
        self._held.append(batch)
        if self._orders.checkpoint_every and self._taken % self._orders.checkpoint_every == 0:
            save_checkpoint(self._checkpoint, Checkpoint(batch.token, self._log.length))

    def _settle(self, stream: Stream) -> None:
        for receipt in stream.receipts[self._settled :]:
            self._log.add(Settled(receipt))
            self._settled += 1

    def _may_go_on(self, stream: Stream) -> bool:
        """Waits at the gate; False when nobody is there any more to open it."""
        while self._allowed != ALL and self._taken >= self._allowed:
            match sys.stdin.readline().split():
                case ["allow", count]:
                    self._allowed = int(count)
                case ["waiting"]:
                    say(lying_ready(stream))
                case ["held"]:
                    say(*(images_digest(batch.images) for batch in self._held))
                case ["fork"]:
                    say(fork_a_child())
                case []:
                    return False
        return True


def say(*words: object) -> None:
    """Answers whoever asked."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def lying_ready(stream: Stream) -> int:
    """Batches that were sent and that the loop has not taken."""
    return len(stream._handoff._received)


def fork_a_child() -> int:
    """A child that does nothing, and keeps all that it inherited, until it is killed."""
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    return pid


if __name__ == "__main__":
    Trainer(msgspec.json.decode(sys.argv[1], type=Orders)).run()
