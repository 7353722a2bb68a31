"""A lookup on a slow file system is bounded in time and runs in one thread at a time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from streamd.daemon import data_watch
from streamd.daemon.data_watch import SlowLookup

ANSWER_S = 20.0


async def test_a_pending_lookup_is_not_repeated_and_its_late_answer_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers, threads = threading.Event(), threading.active_count()
    lookup = SlowLookup(lambda: "there" if answers.wait(ANSWER_S) else "hung", "away")
    monkeypatch.setattr(data_watch, "PROOF_S", 0.001)
    for _ in range(3):
        assert await lookup.wait_for_answer() == "away"
        assert lookup.is_unanswered
    assert threading.active_count() == threads + 1
    answers.set()
    monkeypatch.setattr(data_watch, "PROOF_S", ANSWER_S)
    assert await lookup.wait_for_answer() == "there"
    assert not lookup.is_unanswered


def test_an_error_of_a_lookup_is_raised_to_its_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(SlowLookup(lambda: 1 / 0, 0.0).wait_for_answer())


async def test_a_thread_that_the_host_does_not_let_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = iter([RuntimeError("can't start new thread")])
    start = threading.Thread.start

    def start_later(thread: threading.Thread) -> None:
        if thread.name == "digests" and (error := next(refusals, None)) is not None:
            raise error
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    monkeypatch.setattr(data_watch, "THREAD_RETRY_S", 0.01)
    assert await asyncio.wait_for(data_watch.ask_in_thread(lambda: 7, "digests"), 10) == 7
    assert next(refusals, None) is None
