"""Says records by another handler, and holds back those that repeat themselves.

When an event that repeats itself is held back: a pure decision, time is an argument.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from streamd.core.log.events import ALWAYS_SAID
from streamd.core.log.formatters import event_of
from streamd.limits import LOG_SPAN_EVENTS, LOG_SPAN_S


@dataclass(frozen=True, slots=True)
class Held:
    """So many of an event were held back."""

    event: str
    count: int


@dataclass(frozen=True, slots=True)
class Ruling:
    """Whether an event is said. `until_s`: when its span ends, for the first that is held back."""

    is_said: bool
    until_s: float | None = None


@dataclass(slots=True)
class _Span:
    began_s: float
    said: int = 0
    held: int = 0


class Restraint:
    """Lets `most` events of one name through within `span_s` seconds from the first, and counts the rest."""

    def __init__(self, most: int = LOG_SPAN_EVENTS, span_s: float = LOG_SPAN_S) -> None:
        self._most = most
        self._span_s = span_s
        self._spans: dict[str, _Span] = {}  # events' names are few, and none comes from outside

    def rule(self, event: str, now_s: float) -> Ruling:
        """Decides on one event; what `over` has for the same time comes first."""
        span = self._spans.setdefault(event, _Span(now_s))
        if span.said < self._most:
            span.said += 1
            return Ruling(is_said=True)
        span.held += 1
        return Ruling(is_said=False, until_s=span.began_s + self._span_s if span.held == 1 else None)

    def over(self, now_s: float) -> list[Held]:
        """What was held back in spans that have ended, each told once."""
        return self._taken([event for event, span in self._spans.items() if now_s >= span.began_s + self._span_s])

    def rest(self) -> list[Held]:
        """What was held back and not told yet, whenever it was."""
        return self._taken(list(self._spans))

    def _taken(self, events: list[str]) -> list[Held]:
        taken = [Held(event, self._spans.pop(event).held) for event in events]
        return [each for each in taken if each.count]


class Voice(logging.Handler):
    """Stands before `way_out`. How many were held back is said when their span ends, at the latest when it closes."""

    def __init__(
        self,
        way_out: logging.Handler,
        *,
        is_json: bool = False,
        restraint: Restraint | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.is_json = is_json
        self._way_out = way_out
        self._restraint = restraint or Restraint()
        self._clock = clock

    def emit(self, record: logging.LogRecord) -> None:
        now_s, event = self._clock(), event_of(record)
        self._tell(self._restraint.over(now_s))
        if event in ALWAYS_SAID:
            self._way_out.handle(record)
            return
        ruling = self._restraint.rule(event, now_s)
        if ruling.is_said:
            self._way_out.handle(record)
        elif ruling.until_s is not None:
            self._look_again(ruling.until_s, now_s)

    def _look_again(self, until_s: float, now_s: float) -> None:
        """Where a loop runs, the count is said in time; elsewhere with the next event, or at the end."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # there is none in this thread
            return
        loop.call_later(until_s - now_s, self._say_over, until_s)

    def _say_over(self, until_s: float) -> None:
        self.acquire()  # as whoever calls `emit` has done
        try:
            self._tell(self._restraint.over(max(self._clock(), until_s)))  # a timer may ring a moment early
        finally:
            self.release()

    def _tell(self, held: Iterable[Held]) -> None:
        for each in held:
            self._way_out.handle(_record(each))

    def close(self) -> None:
        self._tell(self._restraint.rest())
        super().close()


def _record(held: Held) -> logging.LogRecord:
    return logging.makeLogRecord(
        {
            "name": "streamd",
            "levelno": logging.WARNING,
            "levelname": "WARNING",
            "msg": "as often again, held back since it repeats itself",
            "event": "log.held",
            "fields": {"of": held.event, "count": held.count},
        }
    )
