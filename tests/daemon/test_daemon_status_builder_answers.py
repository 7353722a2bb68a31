"""What anyone may ask: the answers are of now, whatever has been reloaded since."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemons import write_images
from served_folders import serve

from streamd.core.counters import ProcessStats as Numbers
from streamd.daemon.status_builder import Answers, Overview
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
from streamd.scheduler import SchedulerLimits, Window
from streamd.scheduler.events import TimePassed

MIB = 1 << 20


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[dict[str, ServedStream]]:
    streams = {"train": serve(write_images(tmp_path / "data", {"cat": 10}, size=(8, 8)), tmp_path / "state")}
    yield streams
    streams.clear()


@pytest.fixture
def answers(streams: dict[str, ServedStream]) -> Answers:
    stats, window = Numbers(), Window([each.shape for each in streams.values()], SchedulerLimits(8 * MIB, workers=2))
    overview = Overview(streams, 2, 8 * MIB, "ipc:///s", stats, began_s=0.0)
    return Answers(streams, window, SlotStore(), stats, overview)


def test_streams_are_those_served_now(answers: Answers, streams: dict[str, ServedStream]) -> None:
    spec = streams["train"].spec
    assert answers.to(AskStreams(), sessions=0, draining=False) == Streams({"train": spec})
    del streams["train"]
    assert answers.to(AskStreams(), sessions=0, draining=False) == Streams({})


def test_numbers_are_read_when_they_are_asked_for(answers: Answers) -> None:
    told = answers.to(AskStats(), sessions=3, draining=False)
    assert isinstance(told, Stats)
    assert told.values["daemon"] == {
        "sessions": 3, "memory_used_bytes": 0, "slots": 0, "producing": 0, "slot_wait_s": 0.0,
    }  # fmt: skip


def test_where_the_dashboard_is_is_told_or_how_to_have_one(answers: Answers) -> None:
    none = answers.to(AskMonitor(), sessions=0, draining=False)
    assert isinstance(none, Refused)
    assert "`monitor: 127.0.0.1:9191`" in none.text
    there = MonitorAt("http://127.0.0.1:9191", "secret")
    assert replace(answers, monitor=there).to(AskMonitor(), sessions=0, draining=False) == there


def test_it_is_told_how_often_each_rule_of_the_window_was_checked(answers: Answers) -> None:
    answers.window.handle(TimePassed(), 0.0)

    told = answers.to(AskStats(), sessions=0, draining=False)

    assert isinstance(told, Stats)
    assert told.values["rules"] == answers.window.checks
    assert told.values["rules"]["memory_within_budget"] == 1


def test_the_status_says_whether_the_daemon_is_going_away(answers: Answers) -> None:
    for draining in (False, True):
        told = answers.to(AskStatus(), sessions=0, draining=draining)
        assert isinstance(told, StatusNow)
        assert told.status.draining == draining
        assert [stream.name for stream in told.status.streams] == ["train"]


def test_names_are_told_in_the_order_asked_or_refused(answers: Answers) -> None:
    told = answers.to(AskNames("train", (9, 0)), sessions=0, draining=False)
    assert told == Names(("cat/0009.jpg", "cat/0000.jpg"))
    assert isinstance(answers.to(AskNames("train", (10,)), sessions=0, draining=False), Refused)
    assert isinstance(answers.to(AskNames("other", ()), sessions=0, draining=False), Refused)
