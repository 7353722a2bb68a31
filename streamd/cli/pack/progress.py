"""How far a pack has come, and how fast."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

from streamd.cli.terminal import progress
from streamd.core.text import format_duration
from streamd.limits import MIB


class PackRate:
    """Samples and bytes a second since it began."""

    def __init__(self, row_bytes: int, clock: Callable[[], float]) -> None:
        self._row_bytes, self._clock = row_bytes, clock
        self._started_s, self._sample_count = clock(), 0

    def add_samples(self, samples: int) -> None:
        self._sample_count += samples

    def compute_seconds_left(self, samples: int) -> float:
        """The seconds that so many more take at this rate."""
        return (self._clock() - self._started_s) / max(self._sample_count, 1) * samples

    def __str__(self) -> str:
        each_s = self._sample_count / max(self._clock() - self._started_s, 1e-9)
        return f"{each_s:,.0f} samples/s, {each_s * self._row_bytes / MIB:,.0f} MiB/s"


class PackBar(progress.ListingBar):
    """For a terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._row_bytes = 0
        self._rate = PackRate(0, time.monotonic)

    def start_packing(self, samples: int, done: int, row_bytes: int) -> None:
        self._progress.reset(self._task, total=samples, completed=done, description="packing")
        self._row_bytes, self._rate = row_bytes, PackRate(row_bytes, time.monotonic)

    def advance_packing(self, samples: int) -> None:
        self._rate.add_samples(samples)
        self._progress.update(self._task, advance=samples, description=f"packing, {self._rate}")

    def start_verifying(self, rows: int) -> None:
        self._progress.reset(self._task, total=rows, description="reading back")
        self._rate = PackRate(self._row_bytes, time.monotonic)

    def advance_verifying(self, rows: int) -> None:
        self._rate.add_samples(rows)
        self._progress.update(self._task, advance=rows, description=f"reading back, {self._rate}")

    def print_note(self, text: str) -> None:
        """A line above the bar."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


class PackLines(progress.ListingLines):
    """For a log; also a line when the work goes on where it was left."""

    def __init__(self, write_line: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(write_line, clock)
        self._total_samples = self._done_samples = self._row_bytes = 0
        self._rate = PackRate(0, clock)

    def start_packing(self, samples: int, done: int, row_bytes: int) -> None:
        if done:
            self._write_line(f"going on behind {done:,} of {samples:,} samples")
        self._row_bytes = row_bytes
        self._start_phase(samples, done)

    def advance_packing(self, samples: int) -> None:
        self._advance_phase(samples, "packed")

    def start_verifying(self, rows: int) -> None:
        self._start_phase(rows, 0)

    def advance_verifying(self, rows: int) -> None:
        self._advance_phase(rows, "read back")

    def print_note(self, text: str) -> None:
        """A line of its own."""
        self._write_line(text)

    def _start_phase(self, rows: int, done: int) -> None:
        self._total_samples, self._done_samples, self._rate = rows, done, PackRate(self._row_bytes, self._clock)

    def _advance_phase(self, rows: int, phase_text: str) -> None:
        self._done_samples += rows
        self._rate.add_samples(rows)
        if self._mark_if_due():
            left = format_duration(self._rate.compute_seconds_left(self._total_samples - self._done_samples))
            self._write_line(
                f"{phase_text} {self._done_samples:,} of {self._total_samples:,} samples, {self._rate}, about "
                f"{left} to go"
            )


def create_pack_progress() -> PackBar | PackLines:
    """What fits stderr."""
    return progress.create_progress(PackBar, PackLines)
