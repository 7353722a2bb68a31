"""How far a check has come."""

from __future__ import annotations

import time
from collections.abc import Callable

from streamd.cli.terminal import progress
from streamd.core.text import format_duration


class CheckBar(progress.ListingBar):
    """For a terminal."""

    def start_reading(self, files: int) -> None:
        """So many files are read now."""
        self._progress.reset(self._task, total=files, description="reading")

    def advance_reading(self, files: int) -> None:
        """So many more have been."""
        self._progress.advance(self._task, files)


class CheckLines(progress.ListingLines):
    """For a log."""

    def __init__(self, write_line: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(write_line, clock)
        self._began_s = clock()
        self._files = self._done = 0

    def start_reading(self, files: int) -> None:
        """So many files are read now."""
        self._files, self._began_s = files, self._clock()

    def advance_reading(self, files: int) -> None:
        """So many more have been."""
        self._done += files
        if self._mark_if_due():
            left_s = (self._clock() - self._began_s) / self._done * (self._files - self._done)
            self._write_line(f"read {self._done:,} of {self._files:,} files, about {format_duration(left_s)} to go")


def create_check_progress() -> CheckBar | CheckLines:
    """What fits stderr."""
    return progress.create_progress(CheckBar, CheckLines)
