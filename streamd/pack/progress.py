"""How far a pack has come: a bar at a terminal, a line now and then elsewhere; on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from streamd.check.report import duration
from streamd.limits import MIB

_LINE_S: Final = 10.0


class Rate:
    """Samples and bytes a second since it began."""

    def __init__(self, row_bytes: int, clock: Callable[[], float]) -> None:
        self._row_bytes, self._clock = row_bytes, clock
        self._began_s, self._samples = clock(), 0

    def add(self, samples: int) -> None:
        self._samples += samples

    def left_s(self, samples: int) -> float:
        """The seconds that so many more take at this rate."""
        return (self._clock() - self._began_s) / max(self._samples, 1) * samples

    def __str__(self) -> str:
        each_s = self._samples / max(self._clock() - self._began_s, 1e-9)
        return f"{each_s:,.0f} samples/s, {each_s * self._row_bytes / MIB:,.0f} MiB/s"


class Bar:
    """For a terminal. A context: it leaves nothing on the screen."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=console, transient=True,
        )  # fmt: skip
        self._task = self._progress.add_task("listing the samples", total=None)
        self._row_bytes = 0
        self._rate = Rate(0, time.monotonic)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def listed(self, stream: str, files: int) -> None:
        self._progress.update(self._task, description=f"listing {stream}", completed=files)

    def begins(self, samples: int, done: int, row_bytes: int) -> None:
        self._progress.reset(self._task, total=samples, completed=done, description="packing")
        self._row_bytes, self._rate = row_bytes, Rate(row_bytes, time.monotonic)

    def packed(self, samples: int) -> None:
        self._rate.add(samples)
        self._progress.update(self._task, advance=samples, description=f"packing, {self._rate}")

    def verifies(self, rows: int) -> None:
        self._progress.reset(self._task, total=rows, description="reading back")
        self._rate = Rate(self._row_bytes, time.monotonic)

    def verified(self, rows: int) -> None:
        self._rate.add(rows)
        self._progress.update(self._task, advance=rows, description=f"reading back, {self._rate}")

    def note(self, text: str) -> None:
        """A line above the bar."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


class Lines:
    """For a log: a line every ten seconds, and one when the work goes on where it was left."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._said_s = clock()
        self._all = self._done = self._row_bytes = 0
        self._rate = Rate(0, clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return

    def listed(self, stream: str, files: int) -> None:
        if self._due():
            self._say(f"listing {stream}: {files:,} files so far")

    def begins(self, samples: int, done: int, row_bytes: int) -> None:
        if done:
            self._say(f"going on behind {done:,} of {samples:,} samples")
        self._row_bytes = row_bytes
        self._start(samples, done)

    def packed(self, samples: int) -> None:
        self._step(samples, "packed")

    def verifies(self, rows: int) -> None:
        self._start(rows, 0)

    def verified(self, rows: int) -> None:
        self._step(rows, "read back")

    def note(self, text: str) -> None:
        """A line of its own."""
        self._say(text)

    def _start(self, rows: int, done: int) -> None:
        self._all, self._done, self._rate = rows, done, Rate(self._row_bytes, self._clock)

    def _step(self, rows: int, what: str) -> None:
        self._done += rows
        self._rate.add(rows)
        if self._due():
            left = duration(self._rate.left_s(self._all - self._done))
            self._say(f"{what} {self._done:,} of {self._all:,} samples, {self._rate}, about {left} to go")

    def _due(self) -> bool:
        now_s = self._clock()
        if now_s < self._said_s + _LINE_S:
            return False
        self._said_s = now_s
        return True


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def shown() -> Bar | Lines:
    """What fits stderr."""
    console = Console(stderr=True)
    return Bar(console) if console.is_terminal else Lines(_say)
