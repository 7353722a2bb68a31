"""Trainers as processes that write down all they take, and what a test does with them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from account_log import Settled, Step, read_records
from logging_trainer import ALL, Orders
from oracle import Account, Judge, Truth
from support.daemon_process import wait_until

PROGRAM: Final = Path(__file__).with_name("logging_trainer.py")
LIMIT_S: Final = 60.0


class LoggedTrainer:
    """One trainer, over all its lives; `log` and the checkpoint beside it are its memory.

    `prefix` is a command that runs the trainer's own, as another user for example.
    """

    def __init__(
        self,
        endpoint: str,
        log: Path,
        *,
        environment: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        **orders: Any,
    ) -> None:
        self.orders = Orders(endpoint=endpoint, log=str(log), **orders)
        self.log = log
        self.steps: list[Step] = []
        self.children: list[int] = []
        self._environment = {**os.environ, **(environment or {})}
        self._prefix = prefix
        self._read_upto = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        """Starts it, or starts it again: it continues from its checkpoint if it has one."""
        command = [*self._prefix, sys.executable, str(PROGRAM), msgspec.json.encode(self.orders).decode()]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._environment
        )
        return self

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    def look(self) -> int:
        """Reads on in its log; how many steps it has taken in all its lives."""
        if self.log.exists():
            for end, record in read_records(self.log, self._read_upto):
                self._read_upto = end
                if isinstance(record, Step):
                    self.steps.append(record)
        return len(self.steps)

    def wait_for(self, steps: int) -> None:
        """Until it has taken so many in all its lives."""
        wait_until(lambda: self.look() >= steps or self.process.poll() is not None, f"{steps} steps", LIMIT_S)
        assert self.look() >= steps, f"{self.log.name} ended with status {self.process.returncode}"

    def allow(self, steps: int = ALL) -> None:
        """Opens the gate up to so many steps of this life."""
        self._say(f"allow {steps}")

    def lying_ready(self) -> int:
        """Batches sent to it that its loop has not taken. For one that stands at its gate."""
        return int(self._ask("waiting"))

    def held(self) -> list[str]:
        """Digests of the images that it holds, as they are now. For one that stands at its gate."""
        return self._ask("held").split()

    def fork(self) -> int:
        """A child of it that lives on; the child's pid. For one that stands at its gate."""
        self.children.append(int(self._ask("fork")))
        return self.children[-1]

    def _say(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()

    def _ask(self, question: str) -> str:
        self._say(question)
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and its end."""
        self.process.kill()
        self._bury()
        self.look()

    def finish(self) -> None:
        """Waits for its end, which must be a good one."""
        self._bury()
        assert self.process.returncode == 0, f"{self.log.name} ended with status {self.process.returncode}"
        self.look()

    def judge(self, truth: Truth) -> Account:
        """The oracle's word on its whole log."""
        orders = self.orders
        epochs = orders.epochs
        if orders.until_told:  # it ended with an epoch, whichever it was
            epochs = sum(isinstance(record, Settled) for _, record in read_records(self.log))
        walk = {"epochs": epochs, "rank": orders.rank, "world": orders.world, "live": orders.live}
        return Judge(truth, self.log, uneven=orders.uneven or "drop", **walk).finish()  # type: ignore[arg-type]  # as above

    def abandon(self) -> None:
        """Ends it, and its children, however they stand."""
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        if self._process is not None:
            self._process.kill()
            self._bury()

    def _bury(self) -> None:
        """Waits for the process and closes its pipes, which a child of it may hold open."""
        self.process.wait(LIMIT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                # Words that the process did not read before it died are flushed again here, and fail again.
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@contextlib.contextmanager
def running(*trainers: LoggedTrainer) -> Iterator[tuple[LoggedTrainer, ...]]:
    """Starts them, and leaves none."""
    try:
        yield tuple(each.start() for each in trainers)
    finally:
        for each in trainers:
            each.abandon()


def advance(trainers: Sequence[LoggedTrainer], steps: int) -> None:
    """Opens the gates of gated trainers up to so many steps, and waits until all have taken them."""
    for each in trainers:
        each.allow(steps)
    for each in trainers:
        each.wait_for(steps)


def finish_all(trainers: Sequence[LoggedTrainer]) -> None:
    """Opens the gates of gated trainers, and waits for the good end of all."""
    for each in trainers:
        each.allow()
    for each in trainers:
        each.finish()


def problems(truth: Truth, *trainers: LoggedTrainer) -> list[str]:
    """What the oracle finds wrong with their logs; nothing, if all is as promised."""
    return [problem for each in trainers for problem in each.judge(truth).problems]
