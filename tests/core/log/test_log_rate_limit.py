"""Suppressed events are counted; the count is logged by a timer, with the next event, or at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from streamd.core.log import OutputHandler, event_name, format_sentence


class Log(logging.Formatter):
    """What one handler writes, at times that a test sets: the formatter sees each record that is written."""

    def __init__(self, max_events: int, span_s: float = 10.0) -> None:
        super().__init__()
        self.now_s = 0.0
        self.clock: Callable[[], float] = lambda: self.now_s
        self.records: list[logging.LogRecord] = []
        self.held = asyncio.Event()
        self.handler = OutputHandler(
            lambda *_: None,
            self,
            max_events=max_events,
            span_s=span_s,
            clock=lambda: self.clock(),  # noqa: PLW0108 - a test replaces it
        )

    def format(self, record: logging.LogRecord) -> str:
        self.records.append(record)
        if event_name(record) == "log.held":
            self.held.set()
        return ""

    def say(self, event: str, now_s: float | None = None) -> None:
        self.now_s = self.now_s if now_s is None else now_s
        made = logging.LogRecord("streamd", logging.INFO, __file__, 1, "text", (), None)
        made.event, made.fields = event, {}
        self.handler.handle(made)

    def names(self) -> list[str]:
        return [event_name(each) for each in self.records]


def test_a_flood_is_suppressed_and_its_count_is_logged_with_the_next_event() -> None:
    log = Log(max_events=2)
    for _ in range(5):
        log.say("a.b")
    assert log.names() == ["a.b", "a.b"]
    log.say("a.c", now_s=10.0)
    assert log.names() == ["a.b", "a.b", "log.held", "a.c"]
    assert format_sentence(log.records[2]) == (
        "log.held: an event was repeated so often that some repetitions were not logged of=a.b count=3"
    )
    assert log.records[2].levelno == logging.WARNING


def test_fatal_events_are_never_suppressed() -> None:
    log = Log(max_events=0)
    for event in ("daemon.failed", "reload.failed", "a.b", "daemon.failed", "reload.failed"):
        log.say(event)
    assert log.names() == ["daemon.failed", "reload.failed", "daemon.failed", "reload.failed"]


def test_closing_the_handler_logs_the_remaining_counts_once() -> None:
    log = Log(max_events=1)
    for _ in range(3):
        log.say("a.b")
    log.handler.close()
    log.handler.close()
    assert log.names() == ["a.b", "log.held"]


def test_an_event_loop_logs_the_count_without_another_event() -> None:
    log = Log(max_events=1, span_s=0.01)

    async def flood() -> None:
        log.clock = asyncio.get_running_loop().time
        for _ in range(3):
            log.say("a.b")
        async with asyncio.timeout(10):
            await log.held.wait()

    asyncio.run(flood())
    assert log.names() == ["a.b", "log.held"]


def test_a_timer_that_fires_early_ends_its_span() -> None:
    log = Log(max_events=1)
    for _ in range(3):
        log.say("a.b")
    log.now_s = 9.99
    log.handler.end_span(10.0)
    assert log.names() == ["a.b", "log.held"]


@pytest.mark.parametrize(
    ("max_events", "said", "written"),
    [
        pytest.param(2, "b5 b6 b7 b8", "b b", id="the rest of a span is suppressed"),
        pytest.param(1, "b0 c0 b0", "b c", id="each name has a limit of its own"),
        pytest.param(1, "b5 c5 b6 b7 c14.9", "b c", id="no count before the span has ended"),
        pytest.param(1, "b5 b6 b7 d15 e15.1", "b held d e", id="the count once after it has ended"),
        pytest.param(1, "b0 b12 b21.9", "b b", id="a new span begins with the next event"),
        pytest.param(1, "b0 b12 b21.9 c22", "b b held c", id="and has a count of its own"),
    ],
)
def test_the_first_events_of_each_name_are_written_and_the_rest_of_the_span_is_counted(
    max_events: int, said: str, written: str
) -> None:
    log = Log(max_events)
    for each in said.split():
        log.say(f"a.{each[0]}", float(each[1:]))
    assert [name.partition(".")[2] for name in log.names()] == written.split()
