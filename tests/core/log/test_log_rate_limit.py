"""Suppressed events are counted; the count is logged by a timer, with the next event, or at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from streamd.core.log.outputs import event_name, format_sentence
from streamd.core.log.rate_limit import RateDecision, RateLimiter, RateLimitHandler, SuppressedEvents


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Kept(logging.Handler):
    """What is logged in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.on_event: dict[str, Callable[[], None]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.on_event.get(event_name(record), bool)()


def make_record(event: str) -> logging.LogRecord:
    made = logging.LogRecord("streamd", logging.INFO, __file__, 1, "text", (), None)
    made.event, made.fields = event, {}
    return made


def logged_names(kept: Kept) -> list[str]:
    return [event_name(each) for each in kept.records]


def test_a_flood_is_suppressed_and_its_count_is_logged_with_the_next_event() -> None:
    kept, clock = Kept(), Clock()
    handler = RateLimitHandler(kept, limiter=RateLimiter(2, 10.0), clock=clock)
    for _ in range(5):
        handler.handle(make_record("a.b"))
    assert logged_names(kept) == ["a.b", "a.b"]
    clock.now_s = 10.0
    handler.handle(make_record("a.c"))
    assert logged_names(kept) == ["a.b", "a.b", "log.held", "a.c"]
    assert format_sentence(kept.records[2]) == (
        "log.held: an event was repeated so often that some repetitions were not logged of=a.b count=3"
    )
    assert kept.records[2].levelno == logging.WARNING


def test_fatal_events_are_never_suppressed() -> None:
    kept = Kept()
    handler = RateLimitHandler(kept, limiter=RateLimiter(0, 10.0), clock=Clock())
    for event in ("daemon.failed", "reload.failed", "a.b", "daemon.failed", "reload.failed"):
        handler.handle(make_record(event))
    assert logged_names(kept) == ["daemon.failed", "reload.failed", "daemon.failed", "reload.failed"]


def test_closing_the_handler_logs_the_remaining_counts_once() -> None:
    kept = Kept()
    handler = RateLimitHandler(kept, limiter=RateLimiter(1, 10.0), clock=Clock())
    for _ in range(3):
        handler.handle(make_record("a.b"))
    handler.close()
    handler.close()
    assert logged_names(kept) == ["a.b", "log.held"]


def test_an_event_loop_logs_the_count_without_another_event() -> None:
    kept, span_s = Kept(), 0.01

    async def flood() -> None:
        logged_again = asyncio.Event()
        loop = asyncio.get_running_loop()
        handler = RateLimitHandler(kept, limiter=RateLimiter(1, span_s), clock=loop.time)
        kept.on_event["log.held"] = logged_again.set
        for _ in range(3):
            handler.handle(make_record("a.b"))
        async with asyncio.timeout(10):
            await logged_again.wait()

    asyncio.run(flood())
    assert logged_names(kept) == ["a.b", "log.held"]


# --- what repeats itself is counted and held back, each name by itself, as long as its span lasts

SAID = RateDecision(is_allowed=True)
HELD = RateDecision(is_allowed=False)


def test_the_first_events_of_a_name_are_logged_and_the_rest_of_the_span_is_suppressed() -> None:
    rate_limiter = RateLimiter(max_events=2, span_s=10.0)
    allowed = [rate_limiter.decide_if_event_is_logged("a.b", now_s) for now_s in (5.0, 6.0, 7.0, 8.0)]
    assert allowed == [SAID, SAID, RateDecision(is_allowed=False, span_end_s=15.0), HELD]


def test_each_event_name_has_its_own_limit() -> None:
    rate_limiter = RateLimiter(max_events=1, span_s=10.0)
    decisions = [rate_limiter.decide_if_event_is_logged(event, 0.0).is_allowed for event in ("a.b", "a.c", "a.b")]
    assert decisions == [True, True, False]


def test_the_suppressed_count_is_given_once_after_the_span_has_ended() -> None:
    rate_limiter = RateLimiter(max_events=1, span_s=10.0)
    for now_s in (5.0, 6.0, 7.0):
        rate_limiter.decide_if_event_is_logged("a.b", now_s)
    rate_limiter.decide_if_event_is_logged("a.c", 5.0)
    counts = [rate_limiter.take_ended_suppressed_counts(now_s) for now_s in (14.9, 15.0, 15.1)]
    assert counts == [[], [SuppressedEvents("a.b", 2)], []]


def test_a_new_span_begins_with_the_next_event() -> None:
    rate_limiter = RateLimiter(max_events=1, span_s=10.0)
    rate_limiter.decide_if_event_is_logged("a.b", 0.0)
    rate_limiter.take_ended_suppressed_counts(12.0)
    assert [rate_limiter.decide_if_event_is_logged("a.b", now_s).is_allowed for now_s in (12.0, 21.9)] == [True, False]
    assert rate_limiter.take_ended_suppressed_counts(21.9) == []
