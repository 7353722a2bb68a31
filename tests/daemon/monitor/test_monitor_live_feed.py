"""The events sent every second, and the view that the page shows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import msgspec
import pytest
from support.opened_streams import Serve
from support.sample_metrics import SESSION, STATUS, STREAM, TIMING, Books, figures

from streamd.core.activity import compare_snapshots
from streamd.core.bottleneck import BOTTLENECK_ADVICE
from streamd.core.counters import ProcessStats
from streamd.core.status import SessionState, StreamStatus
from streamd.daemon.monitor import live_feed as under_test
from streamd.daemon.monitor.live_feed import (
    DashboardView,
    LiveFeed,
    StreamFacts,
    build_dashboard_view,
    build_facts_by_stream,
)
from streamd.daemon.monitor.snapshot import MonitorSnapshot, SnapshotBuilder
from streamd.daemon.streams.served_stream import ServedStream


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


def test_a_starting_daemon_sends_only_that_it_starts() -> None:
    assert list(told(LiveFeed("token"))) == ["starting"]


def test_viewers_at_the_same_moment_get_the_same_event(stream: ServedStream, clock: Clock) -> None:
    books = Books(streams={"train": stream})
    live = watching(books)
    first = told(live)
    books.told = replace(STATUS, uptime_s=61.0)
    clock.now_s += 0.1
    assert told(live) == first
    clock.now_s += 0.9
    assert told(live)["daemon"]["uptime_s"] == 61.0


def test_an_old_snapshot_is_not_used_to_count_new_bad_samples(stream: ServedStream, clock: Clock) -> None:
    books = Books(streams={"train": stream})
    live = watching(books)
    told(live)
    for bad, (passed_s, new) in enumerate(((1.0, 1), (60.0, 0), (1.0, 1)), STREAM.bad + 1):
        clock.now_s += passed_s
        books.told = replace(STATUS, uptime_s=clock.now_s, streams=(replace(STREAM, bad=bad),))
        assert told(live)["streams"][0]["new_bad"] == new


def test_the_facts_of_a_stream_give_its_height_before_its_width(serve_images: Serve) -> None:
    wide = serve_images({"cat": 1}, image={"size": [24, 32], "mode": "L"})
    assert build_facts_by_stream({"train": wide}) == {"train": StreamFacts("files", "24x32 L", cached=False)}


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


def test_without_troubles_all_viewers_get_the_same(stream: ServedStream) -> None:
    live = watching(Books(streams={"train": stream}))
    assert told(live) == told(live, whole=False)


# --- what the page shows


MAKES = {"train": StreamFacts("files", "128x96 RGB", cached=False)}


def seen(now: MonitorSnapshot, before: MonitorSnapshot | None = None) -> DashboardView:
    return build_dashboard_view(compare_snapshots(before, now), now, MAKES, "gpu1")


def later(then: MonitorSnapshot, seconds: float) -> MonitorSnapshot:
    return replace(then, status=replace(then.status, uptime_s=then.status.uptime_s + seconds))


def test_the_daemon_shows_its_identity_and_memory() -> None:
    told = seen(figures()).daemon
    assert (told.host, told.pid, told.version, told.workers) == ("gpu1", STATUS.pid, STATUS.version, STATUS.workers)
    assert (told.memory_used_bytes, told.memory_bytes) == (STATUS.memory_used_bytes, STATUS.memory_bytes)


def test_the_bottleneck_sentence_is_the_same_as_in_the_terminal() -> None:
    way, advice = seen(figures(SESSION)).way, BOTTLENECK_ADVICE["none"]
    assert (way.limit, way.words, way.tag, way.is_bad) == ("none", advice.sentence, advice.limit, False)


def test_the_view_names_the_time_span_of_its_rates() -> None:
    assert seen(figures()).daemon.window == "over the last 10 s"


def test_a_stream_shows_sent_samples_and_bad_samples_by_kind() -> None:
    now = replace(
        figures(numbers={"stream.train": {"sent_samples": 96.0, "taken_samples": 88.0}}),
        bad_counts={"train": {"damaged": 2, "stale": 1}},
    )
    (told,) = seen(now).streams
    assert (told.name, told.samples, told.sent_samples, told.taken_samples) == ("train", 1000, 96, 88)
    assert (told.receipts_ok, told.receipts_bad) == (4, 1)
    assert (told.source, told.image, told.cached) == ("files", "128x96 RGB", False)
    assert told.faults == {"damaged": 2, "stale": 1}


def test_a_trainer_shows_its_name_process_and_own_steps() -> None:
    own = replace(SESSION, name="lr-0.01", pid=77, batch_size=4, own_step=80, own_steps=124)
    (told,) = seen(figures(own)).trainers
    assert (told.name, told.pid, told.batch_size) == ("lr-0.01", 77, 4)
    assert (told.own_step, told.own_steps, told.samples_per_s) == (80, 124, own.samples_per_s)


def test_a_trainer_shows_its_last_epoch_and_its_cohort() -> None:
    ahead = replace(SESSION, session=8, step=50)
    away = replace(SESSION, session=9, step=5, last_epoch=None)
    first, second, third = seen(figures(SESSION, ahead, away)).trainers
    assert (first.verdict, first.verdict_words, first.lag) == ("disk", TIMING.summary_text, 10)
    assert (third.verdict, third.verdict_words, third.lag) == (None, None, 45)
    assert [first.cohort, second.cohort, third.cohort] == [0, 0, 1]


@pytest.mark.parametrize("doing", ["gathering", "finished"])
def test_a_finished_trainer_has_no_cohort_and_is_at_its_end(doing: SessionState) -> None:
    (told,) = seen(figures(replace(SESSION, epoch=4, step=0, own_step=0, doing=doing))).trainers
    at_its_end = doing == "finished"
    assert (told.cohort, told.lag) == ((None, None) if at_its_end else (0, 0))
    assert (told.epoch, told.own_step) == ((3, SESSION.own_steps) if at_its_end else (4, 0))


def test_troubles_are_shown_as_sentences() -> None:
    assert seen(figures(streams=[replace(STREAM, stopped="why", receipts_bad=0)])).troubles == [
        "stream 'train' is stopped: why"
    ]


def test_the_whole_view_is_encoded_as_json() -> None:
    told = msgspec.json.decode(msgspec.json.encode(seen(figures(SESSION))))
    assert told["trainers"][0]["doing_words"] == "reads"
    assert told["streams"][0]["sessions"] == 1
