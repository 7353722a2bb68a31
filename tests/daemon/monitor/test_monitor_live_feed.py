"""What is told second by second."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from support.daemon_process import write_images
from support.sample_metrics import STATUS, STREAM, Books
from support.served_folder import serve

from streamd.core.counters import ProcessStats
from streamd.core.status import StreamStatus
from streamd.daemon.monitor import live_feed as under_test
from streamd.daemon.monitor.live_feed import LiveFeed, StreamFacts, build_facts_by_stream
from streamd.daemon.monitor.snapshot import SnapshotBuilder
from streamd.daemon.streams.served_stream import ServedStream


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


def watching(books: Books) -> LiveFeed:
    live = LiveFeed("token")
    live.set_monitored_daemon(books, SnapshotBuilder(books, ProcessStats()))
    return live


def told(live: LiveFeed, *, whole: bool = True) -> dict[str, Any]:
    event = live.encode_current_event(is_full=whole).decode()
    assert event.startswith("data: ")
    assert event.endswith("\n\n")
    assert event.count("\n") == 2
    return dict(json.loads(event.removeprefix("data: ")))


def test_a_daemon_that_starts_says_so() -> None:
    assert list(told(LiveFeed("token"))) == ["starting"]


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
    told(live)
    for bad, (passed_s, new) in enumerate(((1.0, 1), (60.0, 0), (1.0, 1)), STREAM.bad + 1):
        clock.now_s += passed_s
        books.told = replace(STATUS, uptime_s=clock.now_s, streams=(replace(STREAM, bad=bad),))
        assert told(live)["streams"][0]["new_bad"] == new


def test_the_size_of_images_is_said_height_first_as_in_the_configuration(tmp_path: Path) -> None:
    wide = serve(write_images(tmp_path / "data", {"cat": 1}), tmp_path / "state", image={"size": [24, 32], "mode": "L"})
    assert build_facts_by_stream({"train": wide})["train"].image == "24x32 L"
    wide.manifest.close()


def test_a_stream_says_what_it_is_made_of(stream: ServedStream) -> None:
    assert build_facts_by_stream({"train": stream}) == {"train": StreamFacts("files", "32x32 RGB", cached=False)}


REASON: Final = "cat/0001.jpg is bad"


@pytest.mark.parametrize(
    ("why", "trouble"),
    [
        ("stopped", replace(STREAM, receipts_bad=0, stopped=REASON)),
        ("failed", replace(STREAM, receipts_bad=0, failed=REASON)),
    ],
)
def test_reasons_that_name_files_are_for_those_with_the_token(
    stream: ServedStream, why: str, trouble: StreamStatus
) -> None:
    live = watching(Books(replace(STATUS, streams=(trouble,)), streams={"train": stream}))
    whole, discreet = told(live), told(live, whole=False)
    assert whole["streams"][0][why] == REASON
    assert "cat/0001.jpg" in whole["troubles"][0]
    assert "cat/0001.jpg" not in json.dumps(discreet)
    assert "`streamd status`" in discreet["streams"][0][why]
    assert len(discreet["troubles"]) == 1


def test_where_nothing_is_wrong_all_are_told_the_same(stream: ServedStream) -> None:
    live = watching(Books(streams={"train": stream}))
    assert told(live) == told(live, whole=False)
