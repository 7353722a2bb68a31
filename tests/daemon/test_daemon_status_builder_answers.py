"""What anyone may ask: the answers are of now, whatever has been reloaded since."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.daemon_process import write_images
from support.served_folder import serve

from streamd.core.counters import ProcessStats as Numbers
from streamd.daemon.status_builder import QueryResponder, StatusBuilder
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.messages import (
    AskMonitor,
    AskNames,
    AskStats,
    AskStatus,
    AskStreams,
    MonitorAt,
    Names,
    Refused,
    Stats,
    StatusNow,
    Streams,
)
from streamd.ipc.slots import SlotStore
from streamd.scheduler.admission import SchedulerLimits
from streamd.scheduler.events import TimePassed
from streamd.scheduler.scheduler import Scheduler

MIB = 1 << 20


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[dict[str, ServedStream]]:
    streams = {"train": serve(write_images(tmp_path / "data", {"cat": 10}, size=(8, 8)), tmp_path / "state")}
    yield streams
    streams.clear()


@pytest.fixture
def answers(streams: dict[str, ServedStream]) -> QueryResponder:
    stats, window = (
        Numbers(),
        Scheduler([each.stream_shape for each in streams.values()], SchedulerLimits(8 * MIB, workers=2)),
    )
    overview = StatusBuilder(streams, 2, 8 * MIB, "ipc:///s", stats, began_s=0.0)
    return QueryResponder(streams, window, SlotStore(), stats, overview)


def test_streams_are_those_served_now(answers: QueryResponder, streams: dict[str, ServedStream]) -> None:
    spec = streams["train"].spec
    assert answers.answer_query(AskStreams(), session_count=0, is_draining=False) == Streams({"train": spec})
    del streams["train"]
    assert answers.answer_query(AskStreams(), session_count=0, is_draining=False) == Streams({})


def test_numbers_are_read_when_they_are_asked_for(answers: QueryResponder) -> None:
    told = answers.answer_query(AskStats(), session_count=3, is_draining=False)
    assert isinstance(told, Stats)
    assert told.values["daemon"] == {
        "sessions": 3, "memory_used_bytes": 0, "slots": 0, "producing": 0, "slot_wait_s": 0.0,
    }  # fmt: skip


def test_where_the_dashboard_is_is_told_or_how_to_have_one(answers: QueryResponder) -> None:
    none = answers.answer_query(AskMonitor(), session_count=0, is_draining=False)
    assert isinstance(none, Refused)
    assert "`monitor: 127.0.0.1:9191`" in none.text
    there = MonitorAt("http://127.0.0.1:9191", "secret")
    assert replace(answers, monitor=there).answer_query(AskMonitor(), session_count=0, is_draining=False) == there


def test_it_is_told_how_often_each_rule_of_the_window_was_checked(answers: QueryResponder) -> None:
    answers.scheduler.handle_events((TimePassed(),), 0.0)

    told = answers.answer_query(AskStats(), session_count=0, is_draining=False)

    assert isinstance(told, Stats)
    assert told.values["rules"] == answers.scheduler.checks_by_rule
    assert told.values["rules"]["memory_within_budget"] == 1


def test_the_status_says_whether_the_daemon_is_going_away(answers: QueryResponder) -> None:
    for draining in (False, True):
        told = answers.answer_query(AskStatus(), session_count=0, is_draining=draining)
        assert isinstance(told, StatusNow)
        assert told.status.draining == draining
        assert [stream.name for stream in told.status.streams] == ["train"]


def test_names_are_told_in_the_order_asked_or_refused(answers: QueryResponder) -> None:
    told = answers.answer_query(AskNames("train", (9, 0)), session_count=0, is_draining=False)
    assert told == Names(("cat/0009.jpg", "cat/0000.jpg"))
    assert isinstance(answers.answer_query(AskNames("train", (10,)), session_count=0, is_draining=False), Refused)
    assert isinstance(answers.answer_query(AskNames("other", ()), session_count=0, is_draining=False), Refused)
