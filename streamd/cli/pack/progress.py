"""How far a pack has come, and how fast."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

from streamd.cli.terminal import progress
from streamd.core.text import format_duration
from streamd.limits import MIB


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


class Bar(progress.ListingBar):
    """For a terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._row_bytes = 0
        self._rate = Rate(0, time.monotonic)

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


class Lines(progress.ListingLines):
    """For a log; also a line when the work goes on where it was left."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(say, clock)
        self._all = self._done = self._row_bytes = 0
        self._rate = Rate(0, clock)

    def begins(self, samples: int, done: int, row_bytes: int) -> None:
        if done:
            self._write_line(f"going on behind {done:,} of {samples:,} samples")
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
        self._write_line(text)

    def _start(self, rows: int, done: int) -> None:
        self._all, self._done, self._rate = rows, done, Rate(self._row_bytes, self._clock)

    def _step(self, rows: int, what: str) -> None:
        self._done += rows
        self._rate.add(rows)
        if self._mark_if_due():
            left = format_duration(self._rate.left_s(self._all - self._done))
            self._write_line(f"{what} {self._done:,} of {self._all:,} samples, {self._rate}, about {left} to go")


def shown() -> Bar | Lines:
    """What fits stderr."""
    return progress.create_progress(Bar, Lines)
