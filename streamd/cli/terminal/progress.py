"""The progress of a long command on stderr: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from streamd.core.text import format_count, format_duration
from streamd.limits import MIB

_LINE_INTERVAL_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a command, in the words of the bar and of a line; with `row_bytes`, its rate is shown too."""

    doing: str
    done: str
    unit: str
    row_bytes: int = 0


_READING: Final = Phase("reading", "read", "file")


class SilentProgress:
    """Counts what is done, and shows nothing: the base of the displays. A context manager.

    A command lists the samples of its streams, and then goes through its phases.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._phase, self._began_s = _READING, clock()
        self.total = self.done = self._done_before = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return

    def update_listing(self, stream: str, files: int) -> None:
        """Shows how many files of a stream have been listed."""

    def start_phase(self, phase: Phase, total: int, done: int = 0) -> None:
        """Begins a phase of `total` items, of which an earlier run has done some."""
        self._phase, self._began_s = phase, self._clock()
        self.total, self.done, self._done_before = total, done, done

    def advance(self, items: int) -> None:
        """Adds items to those that are done."""
        self.done += items

    def start_reading(self, files: int) -> None:
        """Begins the phase in which files are read."""
        self.start_phase(_READING, files)

    def advance_reading(self, files: int) -> None:
        """Adds files to those that have been read."""
        self.advance(files)

    def print_note(self, text: str) -> None:
        """Prints a line."""

    def _format_rate(self) -> str:
        if not self._phase.row_bytes:
            return ""
        items_per_s = (self.done - self._done_before) / max(self._clock() - self._began_s, 1e-9)
        return f", {items_per_s:,.0f} {self._phase.unit}s/s, {items_per_s * self._phase.row_bytes / MIB:,.0f} MiB/s"


class BarProgress(SilentProgress):
    """Shows a bar on a terminal, and removes it at the end."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=console, transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task("listing the samples", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def update_listing(self, stream: str, files: int) -> None:
        self._bar.update(self._task, description=f"listing {stream}", completed=files)

    def start_phase(self, phase: Phase, total: int, done: int = 0) -> None:
        super().start_phase(phase, total, done)
        self._bar.reset(self._task, total=total, completed=done, description=phase.doing)

    def advance(self, items: int) -> None:
        super().advance(items)
        self._bar.update(self._task, advance=items, description=f"{self._phase.doing}{self._format_rate()}")

    def print_note(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)


class LineProgress(SilentProgress):
    """Writes a line to a log every ten seconds, and none for shorter phases."""

    def __init__(self, write_line: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._write_line = write_line
        self._last_line_s = clock()

    def update_listing(self, stream: str, files: int) -> None:
        if self._claim_due_line():
            self._write_line(f"listing {stream}: {format_count(files, 'file')} so far")

    def start_phase(self, phase: Phase, total: int, done: int = 0) -> None:
        super().start_phase(phase, total, done)
        if done:
            self._write_line(f"continuing after {done:,} of {format_count(total, phase.unit)}")

    def advance(self, items: int) -> None:
        super().advance(items)
        if self._claim_due_line():
            elapsed_s = self._clock() - self._began_s
            left_s = elapsed_s / max(self.done - self._done_before, 1) * (self.total - self.done)
            self._write_line(
                f"{self._phase.done} {self.done:,} of {format_count(self.total, self._phase.unit)}"
                f"{self._format_rate()}, about {format_duration(left_s)} to go"
            )

    def print_note(self, text: str) -> None:
        self._write_line(text)

    def _claim_due_line(self) -> bool:
        """Returns whether a line is due, and if so starts the next interval."""
        now_s = self._clock()
        if now_s < self._last_line_s + _LINE_INTERVAL_S:
            return False
        self._last_line_s = now_s
        return True


def create_progress_display() -> BarProgress | LineProgress:
    """Creates the bar if stderr is a terminal, else the lines."""
    console = Console(stderr=True)
    return BarProgress(console) if console.is_terminal else LineProgress(_write_stderr_line)


def _write_stderr_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")
