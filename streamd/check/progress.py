"""How far a check has come: a bar at a terminal, a line now and then elsewhere; on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from streamd.check.report import duration

_LINE_S: Final = 10.0


class Bar:
    """For a terminal. A context: it leaves nothing on the screen."""

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

    def listed(self, stream: str, files: int) -> None:
        self._progress.update(self._task, description=f"listing {stream}", completed=files)

    def begins(self, files: int) -> None:
        self._progress.reset(self._task, total=files, description="reading")

    def read(self, files: int) -> None:
        self._progress.advance(self._task, files)


class Lines:
    """For a log: a line every ten seconds, none for what is quicker."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._said_s = self._began_s = clock()
        self._files = self._done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return

    def listed(self, stream: str, files: int) -> None:
        if self._due():
            self._say(f"listing {stream}: {files:,} files so far")

    def begins(self, files: int) -> None:
        self._files, self._began_s = files, self._clock()

    def read(self, files: int) -> None:
        self._done += files
        if self._due():
            left_s = (self._clock() - self._began_s) / self._done * (self._files - self._done)
            self._say(f"read {self._done:,} of {self._files:,} files, about {duration(left_s)} to go")

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
