"""What is told second by second."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from daemons import write_images
from made_figures import STATUS, Books
from served_folders import serve

from streamd.monitor import live as under_test
from streamd.monitor.figures import Sight
from streamd.monitor.live import Live, makes
from streamd.monitor.view import Make
from streamd.served import ServedStream
from streamd.stats import Stats


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[ServedStream]:
    served = serve(write_images(tmp_path / "data", {"cat": 9}), tmp_path / "state")
    yield served
    served.manifest.close()


class Clock:
    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(under_test, "time", clock)
    return clock


def watching(books: Books) -> Live:
    live = Live()
    live.watch(books, Sight(books, Stats()))
    return live


def told(live: Live) -> dict[str, Any]:
    event = live.event().decode()
    assert event.startswith("data: ")
    assert event.endswith("\n\n")
    assert event.count("\n") == 2
    return dict(json.loads(event.removeprefix("data: ")))


def test_a_daemon_that_starts_says_so() -> None:
    assert list(told(Live())) == ["starting"]


def test_those_who_look_at_once_are_told_the_same(stream: ServedStream, clock: Clock) -> None:
    books = Books(streams={"train": stream})
    live = watching(books)
    first = told(live)
    books.told = replace(STATUS, uptime_s=61.0)
    clock.now_s += 0.1
    assert told(live) == first
    clock.now_s += 0.9
    assert told(live)["daemon"]["uptime_s"] == 61.0


def test_a_look_of_long_ago_says_nothing_of_now(stream: ServedStream, clock: Clock) -> None:
    books = Books(streams={"train": stream})
    live = watching(books)
    assert told(live)["way"] is None
    for passed_s, known in ((1.0, True), (60.0, False), (1.0, True)):
        clock.now_s += passed_s
        books.told = replace(STATUS, uptime_s=clock.now_s)
        assert (told(live)["way"] is not None) == known


def test_a_stream_says_what_it_is_made_of(stream: ServedStream) -> None:
    assert makes({"train": stream}) == {"train": Make("files", "32x32 RGB", cached=False)}
