"""Trainers for tests: one in a thread, which can be held back, and one in a process, which can be killed."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final, Self

import streamd
from streamd.client import Stream
from streamd.core.receipt import Receipt

LIMIT_S: Final = 30.0

_PROCESS: Final = """
import json, sys
from itertools import islice
import streamd

endpoint, stream, hold, epochs = sys.argv[1:]
with streamd.connect(endpoint) as client, client.subscribe(stream, epochs=int(epochs)) as batches:
    held = list(islice(batches, int(hold)))
    print("holding", flush=True)
    sys.stdin.readline()
    del held
    keys = [(batch.epoch, batch.index) for batch in batches]
    print(json.dumps([len(keys), [receipt.ok for receipt in batches.receipts]]))
"""


class Trainer:
    """Reads a stream in a thread of its own, as far as it is allowed to; None is as far as it goes.

    Its credit is small: of the small sets, not all of an epoch is on its way at once.
    """

    def __init__(self, endpoint: str, stream: str = "train", *, allowed: int | None = None, **wish: Any) -> None:
        self._client = streamd.connect(endpoint)
        self.stream: Stream = self._client.subscribe(stream, **{"prefetch": 8, **wish})
        self.keys: list[tuple[int, int]] = []
        self.rows: list[int] = []
        self.error: BaseException | None = None
        self._allowed = allowed
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> Self:
        self._thread.start()
        return self

    def allow(self, batches: int | None) -> None:
        with self._changed:
            self._allowed = batches
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            self._pause()
            for batch in self.stream:
                self.rows += batch.sample_ids.tolist()
                self.keys.append((batch.epoch, batch.index))
                self._pause()
        except BaseException as error:  # noqa: BLE001 - told to the test by `finish`
            self.error = error

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._allowed is None or len(self.keys) < self._allowed)

    @property
    def undelivered(self) -> int:
        """Batches that came and that the loop has not taken."""
        return len(self.stream._handoff._received)

    def finish(self) -> list[Receipt]:
        """Lets it read to the end; raises its error."""
        self.allow(None)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), f"still reading after {LIMIT_S:g} s, at {self.stream!r}"
        self._client.close()
        if self.error is not None:
            raise self.error
        return self.stream.receipts

    def abandon(self) -> None:
        """Ends it however it stands, so that a failed test leaves nothing behind."""
        self.allow(None)
        self._client.close()
        self._thread.join(LIMIT_S)


@contextlib.contextmanager
def trainers(*each: Trainer) -> Iterator[tuple[Trainer, ...]]:
    """Starts them together and ends them all."""
    try:
        yield tuple(one.start() for one in each)
    finally:
        for one in each:
            one.abandon()


class TrainerProcess:
    """A trainer that takes `hold` batches, reports it, and reads the rest when `finish` is called."""

    def __init__(self, endpoint: str, *, hold: int, stream: str = "train", epochs: int = 1) -> None:
        command = [sys.executable, "-c", _PROCESS, endpoint, stream, str(hold), str(epochs)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "holding\n"

    def finish(self) -> tuple[int, list[bool]]:
        """How many more batches it read, and whether each receipt was ok."""
        said, _ = self.process.communicate("go on\n", timeout=LIMIT_S)
        count, receipts = json.loads(said)
        return count, receipts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
