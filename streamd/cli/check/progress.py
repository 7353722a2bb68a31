"""How far a check has come."""

from __future__ import annotations

import time
from collections.abc import Callable

from streamd.cli.terminal import progress
from streamd.core.text import format_duration


class Bar(progress.Bar):
    """For a terminal."""

    def begins(self, files: int) -> None:
        """So many files are read now."""
        self._progress.reset(self._task, total=files, description="reading")

    def read(self, files: int) -> None:
        """So many more have been."""
        self._progress.advance(self._task, files)


class Lines(progress.Lines):
    """For a log."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(say, clock)
        self._began_s = clock()
        self._files = self._done = 0

    def begins(self, files: int) -> None:
        """So many files are read now."""
        self._files, self._began_s = files, self._clock()

    def read(self, files: int) -> None:
        """So many more have been."""
        self._done += files
        if self._due():
            left_s = (self._clock() - self._began_s) / self._done * (self._files - self._done)
            self._say(f"read {self._done:,} of {self._files:,} files, about {format_duration(left_s)} to go")


def shown() -> Bar | Lines:
    """What fits stderr."""
    return progress.fitting(Bar, Lines)
