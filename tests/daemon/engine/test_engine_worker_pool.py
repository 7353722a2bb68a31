"""The crew: who gets work, and that a place is filled again whoever dies there."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from streamd.core.counters import Stats
from streamd.daemon.engine import worker_pool as crew
from streamd.daemon.engine.crashes import Death
from streamd.daemon.engine.worker_handle import Listener, WorkerProcess
from streamd.daemon.engine.worker_pool import Crew, Employer
from streamd.limits import MAX_TASKS_AHEAD, ROW_DEADLINE_S

LIMIT_S = 20.0


def nobody(*_: object) -> None:
    """Hears nothing."""


def of(*workers: Any) -> Crew:
    """A crew of workers that are none."""
    crew = Crew(0, ROW_DEADLINE_S, Stats(), Employer(nobody, Listener(nobody, nobody), nobody))
    crew.workers = list(workers)
    return crew


def worker(tasks: int, *, fresh: bool = False, alone: bool = False) -> Any:
    return SimpleNamespace(tasks=list(range(tasks)), fresh=fresh, alone=alone)


def test_the_worker_with_the_fewest_tasks_gets_the_next() -> None:
    idle = worker(0)
    assert of(worker(1), idle, worker(1)).free(MAX_TASKS_AHEAD) is idle


def test_nobody_gets_more_tasks_than_the_window_may_have_meant_for_him() -> None:
    assert of(worker(MAX_TASKS_AHEAD), worker(MAX_TASKS_AHEAD)).free(MAX_TASKS_AHEAD) is None


def test_nobody_gets_more_dear_tasks_than_one_ahead() -> None:
    other = worker(1)
    assert of(worker(2), other).free(2) is other
    assert of(worker(2), worker(3)).free(2) is None


def test_who_has_a_suspect_gets_nothing_beside_it() -> None:
    other = worker(1)
    assert of(worker(1, alone=True), other).free(MAX_TASKS_AHEAD) is other
    assert of(worker(1, alone=True)).free(MAX_TASKS_AHEAD) is None


def test_who_has_a_task_or_has_just_had_one_is_at_work() -> None:
    speaker = worker(0)
    crew = of(worker(2), worker(0), worker(1), speaker)
    assert [crew.at_work(speaker), crew.at_work(None)] == [0.75, 0.5]
    assert of().at_work(None) == 0


def test_a_suspect_gets_a_worker_that_was_never_given_anything() -> None:
    fresh = worker(0, fresh=True)
    assert of(worker(0), fresh).fresh() is fresh
    assert of(worker(0)).fresh() is None


def test_a_place_is_filled_again_and_the_death_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "WORKER_RESPAWN_S", 0.001)

    async def scene() -> None:
        came: asyncio.Queue[WorkerProcess] = asyncio.Queue()
        died: list[tuple[WorkerProcess, Death]] = []
        employer = Employer(came.put_nowait, Listener(nobody, nobody), lambda *each: died.append(each))
        stats = Stats()
        crew = Crew(1, ROW_DEADLINE_S, stats, employer)
        running = asyncio.create_task(crew.run())
        first = await asyncio.wait_for(came.get(), LIMIT_S)
        os.kill(first.pid, signal.SIGKILL)
        second = await asyncio.wait_for(came.get(), LIMIT_S)
        assert [(each is first, death.words) for each, death in died] == [(True, "killed by SIGKILL")]
        assert (crew.workers, crew.deaths) == ([second], 1)
        assert stats.read()["engine"]["worker_deaths"] == 1
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert crew.workers == []  # that no process is left, conftest sees to

    asyncio.run(scene())


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EMFILE])
def test_a_worker_that_cannot_be_started_now_is_started_later(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(crew, "WORKER_RESPAWN_MAX_S", 0.001)
    start, refusals = WorkerProcess.start, [OSError(code, os.strerror(code))] * 2

    async def refused(*wish: Any) -> WorkerProcess:
        if refusals:
            raise refusals.pop()
        return await start(*wish)

    monkeypatch.setattr(WorkerProcess, "start", refused)

    async def scene() -> None:
        came: asyncio.Queue[WorkerProcess] = asyncio.Queue()
        running = asyncio.create_task(
            Crew(1, ROW_DEADLINE_S, Stats(), Employer(came.put_nowait, Listener(nobody, nobody), nobody)).run()
        )
        await asyncio.wait_for(came.get(), LIMIT_S)
        assert refusals == []
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(scene())
