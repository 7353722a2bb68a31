"""The events sent every second, and the view that the page shows."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import replace
from support.opened_streams import Serve
from support.sample_metrics import SESSION, STATUS, STREAM, TIMING, Books, figures

from streamd.core.epoch_timing import BOTTLENECK_ADVICE
from streamd.core.status import STATE_WORDS, SessionState, StreamStatus
from streamd.daemon.monitor import http_server as under_test
from streamd.daemon.monitor.http_server import LiveFeed
from streamd.daemon.monitor.snapshot import MonitorSnapshot, build_dashboard_view
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
    live.daemon = books
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
    (shown,) = seen(wide, figures())["streams"]
    assert (shown["source"], shown["image"], shown["cached"]) == ("files", "24x32 L", False)


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


def seen(stream: ServedStream, now: MonitorSnapshot) -> dict[str, Any]:
    view: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode(build_dashboard_view(None, now, {"train": stream}, "gpu1"))
    )
    return view


def test_the_daemon_shows_its_identity_memory_and_the_time_span_of_its_rates(stream: ServedStream) -> None:
    told = seen(stream, figures())["daemon"]
    for name in ("pid", "version", "workers", "memory_used_bytes", "memory_bytes"):
        assert told[name] == getattr(STATUS, name)
    assert (told["host"], told["nodes"], told["window"]) == ("gpu1", [], "over the last 10 s")


def test_the_bottleneck_sentence_is_the_same_as_in_the_terminal(stream: ServedStream) -> None:
    now, advice = figures(SESSION), BOTTLENECK_ADVICE["none"]
    told = seen(stream, replace(now, status=replace(now.status, bottleneck="none", slots=12)))["way"]
    assert told == {
        "reading": 0.0, "decoding": 0.0, "slots": 12, "waiting": 0.0, "limit": "none", "words": advice.sentence,
        "tag": advice.limit, "is_bad": False,
    }  # fmt: skip


def test_a_stream_shows_taken_samples_and_bad_samples_by_kind(stream: ServedStream) -> None:
    now = replace(
        figures(numbers={"stream.train": {"taken_samples": 88.0}}), bad_counts={"train": {"damaged": 2, "stale": 1}}
    )
    (told,) = seen(stream, now)["streams"]
    assert (told["name"], told["samples"], told["sessions"], told["taken_samples"]) == ("train", 1000, 1, 88)
    assert (told["receipts_ok"], told["receipts_bad"]) == (4, 1)
    assert told["faults"] == {"damaged": 2, "stale": 1}


def test_a_trainer_shows_its_name_process_own_steps_and_time_left(stream: ServedStream) -> None:
    own = replace(SESSION, name="lr-0.01", pid=77, batch_size=4, own_step=80, own_steps=124, left_s=9.5)
    (told,) = seen(stream, figures(own))["trainers"]
    assert (told["name"], told["pid"], told["batch_size"], told["left_s"]) == ("lr-0.01", 77, 4, 9.5)
    assert (told["own_step"], told["own_steps"], told["samples_per_s"]) == (80, 124, own.samples_per_s)


def test_a_trainer_shows_its_last_epoch_its_lag_and_its_cohort(stream: ServedStream) -> None:
    ahead = replace(SESSION, session=8, step=50)
    away = replace(SESSION, session=9, step=5, last_epoch=None)
    told = seen(stream, figures(SESSION, ahead, away))["trainers"]
    assert [(each["verdict"], each["verdict_words"]) for each in told] == [
        ("disk", TIMING.summary_text), ("disk", TIMING.summary_text), (None, None),
    ]  # fmt: skip
    assert [(each["lag_steps"], each["cohort"]) for each in told] == [(10, 0), (0, 0), (45, 1)]


@pytest.mark.parametrize("doing", ["gathering", "finished"])
def test_a_finished_trainer_has_no_cohort_and_is_at_its_end(stream: ServedStream, doing: SessionState) -> None:
    (told,) = seen(stream, figures(replace(SESSION, epoch=4, step=0, own_step=0, doing=doing)))["trainers"]
    at_its_end = doing == "finished"
    assert (told["cohort"], told["lag_steps"]) == ((None, None) if at_its_end else (0, 0))
    assert (told["epoch"], told["own_step"]) == ((3, SESSION.own_steps) if at_its_end else (4, 0))
    assert told["doing_words"] == STATE_WORDS[doing]


def test_troubles_are_shown_as_sentences(stream: ServedStream) -> None:
    assert seen(stream, figures(streams=[replace(STREAM, stopped="why", receipts_bad=0)]))["troubles"] == [
        "stream 'train' is stopped: why"
    ]
