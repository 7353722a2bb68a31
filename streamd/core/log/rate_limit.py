"""Passes records to another handler, and suppresses events that repeat too often.

The decision is pure: time is an argument.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from streamd.core.log.events import NEVER_SUPPRESSED
from streamd.core.log.outputs import event_name
from streamd.limits import LOG_SPAN_EVENTS, LOG_SPAN_S


@dataclass(frozen=True, slots=True)
class SuppressedEvents:
    """`count` events of one name were suppressed."""

    event: str
    count: int


@dataclass(frozen=True, slots=True)
class RateDecision:
    """Whether an event is logged. `span_end_s`: the end of its span, if it is the first that is suppressed there."""

    is_allowed: bool
    span_end_s: float | None = None


@dataclass(slots=True)
class _EventSpan:
    began_s: float
    allowed: int = 0
    suppressed: int = 0


class RateLimiter:
    """Allows `max_events` events of one name within `span_s` seconds from the first, and counts the others."""

    def __init__(self, max_events: int = LOG_SPAN_EVENTS, span_s: float = LOG_SPAN_S) -> None:
        self._max_events = max_events
        self._span_s = span_s
        # By event. It needs no bound: only the program itself names events, and they are few.
        self._spans: dict[str, _EventSpan] = {}

    def decide_if_event_is_logged(self, event: str, now_s: float) -> RateDecision:
        """Decides on one event. Call `take_ended_suppressed_counts` with the same time first: it ends old spans."""
        span = self._spans.setdefault(event, _EventSpan(now_s))
        if span.allowed < self._max_events:
            span.allowed += 1
            return RateDecision(is_allowed=True)
        span.suppressed += 1
        return RateDecision(is_allowed=False, span_end_s=span.began_s + self._span_s if span.suppressed == 1 else None)

    def take_ended_suppressed_counts(self, now_s: float) -> list[SuppressedEvents]:
        """Returns the counts of spans that have ended by `now_s`, each count once."""
        return self._end_spans_of_events(
            [event for event, span in self._spans.items() if now_s >= span.began_s + self._span_s]
        )

    def take_all_suppressed_counts(self) -> list[SuppressedEvents]:
        """Returns all counts that were not returned yet, and ends all spans."""
        return self._end_spans_of_events(list(self._spans))

    def _end_spans_of_events(self, events: list[str]) -> list[SuppressedEvents]:
        taken = [SuppressedEvents(event, self._spans.pop(event).suppressed) for event in events]
        return [each for each in taken if each.count]


class RateLimitHandler(logging.Handler):
    """Passes records to `handler` within the rate limit.

    The number of suppressed events is logged when their span ends, at the latest when this handler closes. The logging
    library calls `emit` with the handler's lock held, from any thread: the lock protects `limiter`.
    """

    def __init__(
        self,
        handler: logging.Handler,
        *,
        limiter: RateLimiter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._handler = handler
        self._limiter = limiter or RateLimiter()
        self._clock = clock

    def emit(self, record: logging.LogRecord) -> None:
        now_s, event = self._clock(), event_name(record)
        self._log_suppressed_counts(self._limiter.take_ended_suppressed_counts(now_s))
        if event in NEVER_SUPPRESSED:
            self._handler.handle(record)
            return
        ruling = self._limiter.decide_if_event_is_logged(event, now_s)
        if ruling.is_allowed:
            self._handler.handle(record)
        elif ruling.span_end_s is not None:
            self._schedule_suppressed_count(ruling.span_end_s, now_s)

    def _schedule_suppressed_count(self, span_end_s: float, now_s: float) -> None:
        """Schedules the count for the span's end on the event loop of this thread.

        Without a loop, the count is logged with the next event, or when the handler closes.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # this thread has no running loop
            return
        loop.call_later(span_end_s - now_s, self._log_ended_suppressed_counts, span_end_s)

    def _log_ended_suppressed_counts(self, span_end_s: float) -> None:
        # A timer calls this directly, so it takes the lock that the logging library takes around `emit`.
        self.acquire()
        try:
            # The loop's timer may fire slightly before its time.
            self._log_suppressed_counts(self._limiter.take_ended_suppressed_counts(max(self._clock(), span_end_s)))
        finally:
            self.release()

    def _log_suppressed_counts(self, held: Iterable[SuppressedEvents]) -> None:
        for each in held:
            self._handler.handle(_build_suppressed_count_record(each))

    def close(self) -> None:
        self._log_suppressed_counts(self._limiter.take_all_suppressed_counts())
        super().close()


def _build_suppressed_count_record(held: SuppressedEvents) -> logging.LogRecord:
    return logging.makeLogRecord(
        {
            "name": "streamd",
            "levelno": logging.WARNING,
            "levelname": "WARNING",
            "msg": "an event was repeated so often that some repetitions were not logged",
            "event": "log.held",
            "fields": {"of": held.event, "count": held.count},
        }
    )
