"""A worker process as the engine sees it: the slots it maps, how it ends, and commands after its death."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamd.core.slot_layout import compute_slot_bytes
from streamd.core.spec import BatchKey
from streamd.daemon.engine.batch_job import BatchJob, Task
from streamd.daemon.streams.served_stream import ServedStream
from streamd.decode.pixel_id import compute_pixel_id
from streamd.ipc.slots import RowProgress, SlotStore
from streamd.ipc.worker_messages import OpenStream, StreamReady, TaskDone, UnmapSlots, WorkerDied, WorkerReport
from streamd.supervisor.worker_process import WorkerProcess

ANSWER_S = 20.0
STREAMS = 1000
Reports = asyncio.Queue[WorkerReport]


class ReportRecorder:
    """A listener that keeps the reports of a worker."""

    def __init__(self) -> None:
        self.reports: Reports = asyncio.Queue()

    def on_worker_reports(self, _worker: WorkerProcess[Task], reports: Sequence[WorkerReport]) -> None:
        for report in reports:
            self.reports.put_nowait(report)

    def on_worker_started(self, worker: WorkerProcess[Task]) -> None: ...

    def on_worker_waiting(self, worker: WorkerProcess[Task], progress: RowProgress) -> None: ...

    def on_worker_died(self, worker: WorkerProcess[Task], death: WorkerDied) -> None: ...


async def start_worker(stream: ServedStream | None = None) -> tuple[WorkerProcess[Task], Reports]:
    """A worker, which has opened the stream if there is one, and what it says."""
    recorder = ReportRecorder()
    worker = await WorkerProcess[Task].start(0, recorder, ANSWER_S)
    if stream is not None:
        worker.send_command(OpenStream(0, str(stream.manifest_path), stream.spec))
        assert await recorder.reports.get() == StreamReady(0, compute_pixel_id(stream.spec.image))
    return worker, recorder.reports


@asynccontextmanager
async def started(stream: ServedStream | None = None) -> AsyncIterator[tuple[WorkerProcess[Task], Reports]]:
    """As `start_worker`; it is closed afterwards."""
    worker, reports = await start_worker(stream)
    yield worker, reports
    worker.close()
    await worker._process.wait()


@pytest.fixture
def slots() -> Iterator[SlotStore]:
    slots = SlotStore()
    yield slots
    slots.close()


def one_row(stream: ServedStream, number: int, slot: int = 1) -> Task:
    job = BatchJob(BatchKey("train", 0, 0), stream, 0, slot, compute_slot_bytes(stream.spec))
    rows, ids = np.array([0], np.uint16), np.array([0], np.int64)
    return Task(number, 0, slot, job.slot_bytes, 8, rows, ids, job=job, queued_s=0.0)


def mapped(pid: int) -> int:
    """How many slots a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("/memfd:streamd-")


async def test_a_worker_answers_and_its_slots_are_mapped_once(stream: ServedStream, slots: SlotStore) -> None:
    async with started(stream) as (worker, reports):
        for number in (1, 2):
            worker.send_task(one_row(stream, number), slots)
        assert repr(worker) == f"<WorkerProcess {worker.pid}, 2 tasks, 1 slot mapped>"
        for number in (1, 2):
            report = await reports.get()
            assert isinstance(report, TaskDone)
            assert report.number == number
            assert worker.remove_finished_task(number).number == number
        assert repr(worker) == f"<WorkerProcess {worker.pid}, 0 tasks, 1 slot mapped>"
        assert worker.completed_tasks == 2
        assert mapped(worker.pid) == 1
        assert worker.forget_mapped_slots((1, 5))
        assert not worker.forget_mapped_slots((1, 5))
        worker._link.shutdown(socket.SHUT_RDWR)
        assert (await worker.wait_for_exit()).description == "with exit status 0"


async def test_commands_to_a_dead_worker_are_lost_and_its_tasks_are_kept(
    stream: ServedStream, slots: SlotStore
) -> None:
    async with started() as (worker, _):
        os.kill(worker.pid, signal.SIGKILL)
        await worker.wait_for_exit()
        worker.send_command(UnmapSlots((1,)))
        worker.send_task(one_row(stream, 7), slots)
        assert list(worker.tasks) == [7]


@pytest.mark.long
async def test_the_last_reports_of_a_dead_worker_are_read(stream: ServedStream, slots: SlotStore) -> None:
    async with started(stream) as (worker, reports):
        asyncio.get_running_loop().remove_reader(worker._link)
        worker.send_task(one_row(stream, 7), slots)
        await asyncio.to_thread(select.select, [worker._link], [], [])
        os.kill(worker.pid, signal.SIGKILL)
        await worker.wait_for_exit()
        assert isinstance(reports.get_nowait(), TaskDone)


@pytest.mark.long
@pytest.mark.parametrize("is_stopped", [False, True], ids=["idle", "stopped"])
async def test_shut_down_waits_until_the_worker_has_ended(
    stream: ServedStream, monkeypatch: pytest.MonkeyPatch, *, is_stopped: bool
) -> None:
    worker, _ = await start_worker(stream)
    if is_stopped:
        os.kill(worker.pid, signal.SIGSTOP)
    else:
        monkeypatch.setattr("streamd.supervisor.worker_process.WORKER_LEAVE_S", ANSWER_S)
    await worker.shut_down()
    assert await worker._process.wait() == (-signal.SIGKILL if is_stopped else 0)


@pytest.mark.long
async def test_a_worker_opens_a_thousand_streams_whose_records_exceed_its_socket(stream: ServedStream) -> None:
    name, label = next(iter(stream.spec.labels.items()))
    long = replace(label, classes=tuple(f"class {number:04}" for number in range(300)))
    spec = replace(stream.spec, labels={name: long})
    async with started() as (worker, reports):
        # The worker is starting, and reads none of them yet: a socket holds some fifty.
        for number in range(STREAMS):
            worker.send_command(OpenStream(number, str(stream.manifest_path), spec))
        opened = [await reports.get() for _ in range(STREAMS)]
        assert {each.stream for each in opened if isinstance(each, StreamReady)} == set(range(STREAMS))
        assert worker._killed_for is None


async def test_a_worker_that_is_stopped_while_messages_wait_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamd.supervisor.worker_process.STOPPED_S", 0.1)
    async with started() as (worker, _):
        os.kill(worker.pid, signal.SIGSTOP)
        for slot in range(1000):
            worker.send_command(UnmapSlots((slot,) * 1000))
        assert (await worker.wait_for_exit()).description == "killed because it was stopped"


@pytest.mark.long
async def test_the_progress_of_a_dead_worker_is_known(stream: ServedStream, slots: SlotStore) -> None:
    async with started(stream) as (worker, reports):
        worker.send_task(one_row(stream, 7), slots)
        await reports.get()
        os.kill(worker.pid, signal.SIGSEGV)
        death = await worker.wait_for_exit()
        assert (death.tasks, death.blamed_task, death.sample_fault) == ((7,), 7, None)
        assert death.description == "killed by SIGSEGV"


async def test_a_missing_program_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        await WorkerProcess[Task].start(0, ReportRecorder(), ANSWER_S)
