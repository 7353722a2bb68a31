"""The watchdog of a worker: it reports overdue work, and nothing while the worker is idle."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from streamd.ipc.slots import PROGRESS_PAGE_BYTES, ProgressPage, RowProgress, TransformTrial, WorkerPhase, create_memfd
from streamd.supervisor import worker_process
from streamd.supervisor.worker_process import Watchdog, WorkerCondition

DEADLINE_S = 0.05
LIMIT_S = 20.0


@pytest.fixture
def track() -> Iterator[ProgressPage]:
    page = create_memfd("track", PROGRESS_PAGE_BYTES)
    track = ProgressPage(page)
    os.close(page)
    yield track
    track.close()


async def watched(
    read_progress: Callable[[], RowProgress | TransformTrial],
    begin: Callable[[Watchdog], object] = lambda guard: guard.note_work(1),
    *,
    pid: int | None = None,
    deadline_s: float = DEADLINE_S,
) -> list[WorkerCondition]:
    """What a watch has found when it has found something; `begin` sets it up."""
    found: asyncio.Queue[WorkerCondition] = asyncio.Queue()

    def tell(finding: WorkerCondition) -> None:
        found.put_nowait(finding)
        guard.close()  # a busy host would look once more before this is heard

    guard = Watchdog(pid or os.getpid(), read_progress, deadline_s, tell)
    begin(guard)
    first = await asyncio.wait_for(found.get(), LIMIT_S)
    return [first, *(found.get_nowait() for _ in range(found.qsize()))]


async def test_a_row_that_takes_too_long_is_found(track: ProgressPage) -> None:
    track.write_row_progress(1, 0, WorkerPhase.DECODING)
    assert await watched(track.read_row_progress) == [WorkerCondition.SLOW_ROW]


async def test_an_endless_transform_trial_is_found(track: ProgressPage) -> None:
    track.write_transform_trial(0, "module 'augment'", WorkerPhase.IMPORTING)
    assert await watched(track.read_transform_trial) == [WorkerCondition.ENDLESS_TRIAL]


async def test_each_row_gets_the_whole_deadline(track: ProgressPage) -> None:
    began_ns: list[int] = []

    def next_row() -> None:
        track.write_row_progress(1, 1, WorkerPhase.DECODING)
        began_ns.append(track.read_row_progress().began_ns)

    asyncio.get_running_loop().call_later(DEADLINE_S / 2, next_row)
    assert await watched(track.read_row_progress) == [WorkerCondition.SLOW_ROW]
    assert time.monotonic_ns() - began_ns[0] >= DEADLINE_S * 1e9


async def test_new_work_is_not_overdue(track: ProgressPage) -> None:
    track.write_row_progress(1, 0, WorkerPhase.DECODING)  # the last row of long ago
    given_ns: list[int] = []

    def work(guard: Watchdog) -> None:
        given_ns.append(time.monotonic_ns())
        guard.note_work(1)

    def begin(guard: Watchdog) -> None:
        guard.note_work(1)
        guard.note_work(0)
        asyncio.get_running_loop().call_later(1.5 * DEADLINE_S, work, guard)

    assert await watched(track.read_row_progress, begin) == [WorkerCondition.SLOW_ROW]
    assert time.monotonic_ns() - given_ns[0] >= DEADLINE_S * 1e9


async def test_a_worker_without_work_is_left_alone(track: ProgressPage) -> None:
    track.write_row_progress(1, 0, WorkerPhase.DECODING)
    found: list[WorkerCondition] = []
    guard = Watchdog(os.getpid(), track.read_row_progress, DEADLINE_S, found.append)
    guard.note_work(1)
    guard.note_work(0)
    rung = asyncio.Event()
    asyncio.get_running_loop().call_later(2 * DEADLINE_S, rung.set)
    await rung.wait()
    assert (found, guard._timer) == ([], None)


def test_a_stopped_process_is_found_long_before_a_rows_deadline(
    track: ProgressPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.supervisor.worker_process.STOPPED_S", DEADLINE_S)
    process = subprocess.Popen(["/bin/sh", "-c", "kill -STOP $$"])
    os.waitpid(process.pid, os.WUNTRACED)
    found = asyncio.run(watched(track.read_row_progress, pid=process.pid, deadline_s=10 * LIMIT_S))
    assert found[0] is WorkerCondition.STOPPED
    process.kill()
    process.wait()


def test_a_process_that_has_ended_raises_nothing(track: ProgressPage) -> None:
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    assert asyncio.run(watched(track.read_row_progress, pid=process.pid))[0] is WorkerCondition.WAITING


async def test_a_host_that_was_suspended_gets_another_deadline(
    track: ProgressPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "_LATE_S", DEADLINE_S)
    track.write_row_progress(1, 0, WorkerPhase.DECODING)
    looks: list[float] = []

    def begin(guard: Watchdog) -> None:
        guard.note_work(1)
        thawed_s = time.monotonic() + 3 * DEADLINE_S
        while time.monotonic() < thawed_s:  # the loop stands still
            pass
        looks.append(time.monotonic())

    assert await watched(track.read_row_progress, begin) == [WorkerCondition.SLOW_ROW]
    assert time.monotonic() - looks[0] >= DEADLINE_S * 0.9
