"""Threads that another one starts, where an interrupt may fall."""

from __future__ import annotations

import _thread
import itertools
import queue
import threading
from functools import partial
from typing import Final

import pytest
from support.keyboard_interrupts import Interrupter

from streamd.client.io_thread import join_started_thread, start_thread_in_helper

BEFORE_START: Final = 3


def test_a_thread_runs_though_an_interrupt_arrives_during_its_start() -> None:
    for moment in itertools.count(1):
        ran: queue.Queue[str] = queue.Queue()
        thread = threading.Thread(target=ran.put, args=("it ran",))
        interrupter = Interrupter(moment, ("/io_thread.py", "/threading.py"))
        try:
            interrupter.call(partial(start_thread_in_helper, thread, lambda _: None))
        except KeyboardInterrupt:
            if moment <= BEFORE_START:
                continue
        assert ran.get(timeout=20) == "it ran"
        if interrupter.passed < moment:
            break
    assert moment > BEFORE_START


def test_a_thread_that_cannot_be_started_is_reported() -> None:
    told: queue.Queue[RuntimeError] = queue.Queue()
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    start_thread_in_helper(thread, told.put)
    assert "threads can only be started once" in str(told.get(timeout=20))


def test_a_thread_limit_that_prevents_the_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    told = list[RuntimeError]()
    starting = start_thread_in_helper(threading.Thread(target=lambda: None), told.append)
    assert [str(each) for each in told] == ["can't start new thread"]
    assert not starting.locked()


def test_a_thread_that_has_not_begun_is_joined_too() -> None:
    ran = list[str]()
    thread = threading.Thread(target=lambda: ran.append("it ran"))
    join_started_thread(thread, start_thread_in_helper(thread, lambda error: pytest.fail(str(error))), 20)
    assert ran == ["it ran"]


def test_a_thread_whose_start_was_interrupted_is_not_joined() -> None:
    join_started_thread(threading.Thread(), None, 20)
