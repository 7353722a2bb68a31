"""The progress of a long command on stderr: a bar on a terminal, a line every ten seconds elsewhere.

Both begin with the listing of the samples; each command adds its own phases.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from streamd.core.text import format_count

_LINE_INTERVAL_S: Final = 10.0


class ListingBar:
    """Progress on a terminal. A context manager, which removes the bar at the end."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=console, transient=True,
        )  # fmt: skip
        self._task = self._progress.add_task("listing the samples", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def update_listing(self, stream: str, files: int) -> None:
        """Shows how many files of a stream have been listed."""
        self._progress.update(self._task, description=f"listing {stream}", completed=files)


class ListingLines:
    """Progress in a log: a line every ten seconds, and none for shorter phases. A context manager, like the bar."""

    def __init__(self, write_line: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write_line = write_line
        self._clock = clock
        self._last_line_s = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return

    def update_listing(self, stream: str, files: int) -> None:
        """Shows how many files of a stream have been listed."""
        if self._claim_due_line():
            self._write_line(f"listing {stream}: {format_count(files, 'file')} so far")

    def _claim_due_line(self) -> bool:
        """Returns whether a line is due, and if so starts the next interval."""
        now_s = self._clock()
        if now_s < self._last_line_s + _LINE_INTERVAL_S:
            return False
        self._last_line_s = now_s
        return True


BarOf = TypeVar("BarOf", bound=ListingBar)
LinesOf = TypeVar("LinesOf", bound=ListingLines)


def create_progress_display(bar: type[BarOf], lines: type[LinesOf]) -> BarOf | LinesOf:
    """Creates the bar if stderr is a terminal, else the lines."""
    console = Console(stderr=True)
    return bar(console) if console.is_terminal else lines(_write_stderr_line)


def _write_stderr_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")
