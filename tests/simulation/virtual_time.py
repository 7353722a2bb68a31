"""One clock for everything that is simulated, and processes that can be stopped and killed."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

Happening = Callable[..., object]


class Agenda:
    """What is to happen, and when. Nothing else moves the time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Happening, tuple[Any, ...]]] = []
        self._order = 0  # what is due at the same moment happens in the order it was asked for

    def after(self, delay_s: float, happen: Happening, *details: Any) -> None:
        self.at(self.now_s + delay_s, happen, *details)

    def at(self, time_s: float, happen: Happening, *details: Any) -> None:
        self._order += 1
        heapq.heappush(self._heap, (time_s, self._order, happen, details))

    @property
    def busy(self) -> bool:
        """Whether anything is still to happen."""
        return bool(self._heap)

    def step(self) -> bool:
        """The next thing happens; False when there is none."""
        if not self._heap:
            return False
        self.now_s, _, happen, details = heapq.heappop(self._heap)
        happen(*details)
        return True


class Process:
    """Somebody to whom things happen: at once, later while it is stopped, never when it is dead."""

    def __init__(self, agenda: Agenda) -> None:
        self.alive = True
        self.stopped = False
        self._agenda = agenda
        self._waiting: deque[tuple[Happening, tuple[Any, ...]]] = deque()

    def after(self, delay_s: float, do: Happening, *details: Any) -> None:
        self._agenda.after(delay_s, self.meet, do, *details)

    def meet(self, do: Happening, *details: Any) -> None:
        """Something comes in: a frame, a timer, an end."""
        if self.stopped:
            self._waiting.append((do, details))
        elif self.alive:
            do(*details)

    def stop(self) -> None:
        self.stopped = True

    def go_on(self) -> None:
        """All that came in meanwhile is dealt with now."""
        self.stopped = False
        while self._waiting and not self.stopped:
            do, details = self._waiting.popleft()
            self.meet(do, *details)

    def kill(self) -> None:
        self.alive = self.stopped = False
        self._waiting.clear()
