"""The local engine when a row kills or blocks workers: which sample is suspected, and when it counts as bad."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import crashing_decoders
from support.crashing_decoders import Broken, mark
from support.daemon_process import write_images
from support.local_engine import pixels, ready_engine
from support.served_folder import serve, spoil

from streamd.core.spec import BatchKey
from streamd.daemon.engine import batch_job, worker_pool
from streamd.daemon.engine.batch_job import Task
from streamd.daemon.engine.worker_pool import hire_local_workers
from streamd.daemon.streams.quarantine import Quarantine
from streamd.daemon.streams.served_stream import ServedStream
from streamd.limits import TASK_ROWS
from streamd.supervisor.worker_process import WorkerProcess

DEADLINE_S = 2.0
Serve = Callable[..., ServedStream]
CRASHES = "crashes its decoder: SIGSEGV"


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Broken:
    faults = Broken(tmp_path / "faults")
    monkeypatch.setenv("PYTHONPATH", faults.environment["PYTHONPATH"])
    monkeypatch.setattr(batch_job, "WORKER_RESPAWN_S", 0.001)
    monkeypatch.setattr(worker_pool, "WORKER_RESPAWN_S", 0.001)
    return faults


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Serve]:
    """Serves a folder of images in stored order, of which some are marked."""
    streams: list[ServedStream] = []

    def make(marked: dict[int, bytes], count: int = 16, **changes: Any) -> ServedStream:
        folder = write_images(tmp_path / "data", {"cat": count})
        for number, what in marked.items():
            mark(folder / f"cat/{number:04}.jpg", what)
        streams.append(serve(folder, tmp_path / "state", shuffle="none", **changes))
        return streams[-1]

    yield make
    for stream in streams:
        stream.manifest.close()


@pytest.mark.usefixtures("faults")
@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_sample_that_crashes_two_workers_is_bad_and_its_row_is_substituted(served: Serve, workers: int) -> None:
    stream = served({3: crashing_decoders.SEGV}, bad_samples={"policy": "substitute"})
    async with ready_engine(stream, workers) as rig:
        rig.produce()
        production = await rig.filled()
        assert production.delivered_ids.tolist() == [0, 1, 2, 4, 4, 5, 6, 7]
        assert np.array_equal(rig.images(), pixels(stream, production.delivered_ids))
        assert rig.recorded == [{3: CRASHES}]
        assert rig.engine.worker_death_count == 2


@pytest.mark.long
@pytest.mark.usefixtures("faults")
async def test_a_suspect_is_tried_alone_by_a_worker_that_has_done_nothing_else(
    served: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 2 * TASK_ROWS
    stream = served({3: crashing_decoders.SEGV}, rows, batch_size=rows)
    given: list[tuple[bool, list[int]]] = []
    give_task = WorkerProcess.send_task

    def noted(worker: WorkerProcess[Task], task: Task, *rest: Any) -> None:
        if task.ids.tolist() == [3]:
            given.append((worker.is_fresh, list(worker.tasks)))
        assert not worker.has_suspect
        give_task(worker, task, *rest)

    monkeypatch.setattr(WorkerProcess, "send_task", noted)
    async with ready_engine(stream, workers=2) as rig:
        rig.produce()
        production, reason = await rig.outcome()
        assert (reason, given) == (None, [(True, [])])
        assert np.array_equal(rig.images(rows=rows), pixels(stream, production.delivered_ids))


@pytest.mark.long
async def test_a_crash_that_does_not_repeat_makes_no_sample_bad(served: Serve, faults: Broken) -> None:
    stream = served({3: crashing_decoders.KILLED})
    faults.kill(signal.SIGSEGV)
    async with ready_engine(stream) as rig:
        rig.produce()
        production, reason = await rig.outcome()
        assert (reason, production.delivered_ids.tolist()) == (None, list(range(8)))
        assert np.array_equal(rig.images(), pixels(stream, production.delivered_ids))
        assert (stream.quarantine.reasons, rig.engine.worker_death_count) == ({}, 1)


@pytest.mark.long
async def test_a_suspect_that_is_killed_from_outside_is_tried_again_and_cleared(served: Serve, faults: Broken) -> None:
    stream = served({3: crashing_decoders.KILLED})
    faults.kill(signal.SIGSEGV, signal.SIGKILL, signal.SIGKILL)
    async with ready_engine(stream) as rig:
        rig.produce()
        await rig.filled()
        assert (stream.quarantine.reasons, rig.engine.worker_death_count, faults.kills_left) == ({}, 3, 0)


@pytest.mark.long
@pytest.mark.usefixtures("faults")
async def test_a_suspect_of_a_failed_batch_is_dropped(served: Serve) -> None:
    stream = served({3: crashing_decoders.SEGV}, bad_samples={"policy": "fail"})
    spoil(stream, 9)
    async with ready_engine(stream) as rig:
        rig.produce(0, 0, slot=1)
        rig.produce(0, 1, slot=2)
        reasons = [(await rig.outcome())[1] for _ in range(2)]
        assert all(reason and "policy is fail" in reason for reason in reasons)
        await rig.until(lambda: not rig.engine._pool.find_stream_jobs(0) and rig.worker_pids)
        assert not rig.engine._pool._generations[0].suspects
        rig.engine.close_stream("train")
        await rig.until(lambda: not rig.engine._streams.make_open_commands())


@pytest.mark.long
@pytest.mark.usefixtures("faults")
async def test_the_policy_fail_stops_at_a_sample_that_crashes(served: Serve) -> None:
    stream = served({3: crashing_decoders.SEGV}, bad_samples={"policy": "fail"})
    async with ready_engine(stream) as rig:
        rig.produce()
        _, reason = await rig.outcome()
        assert reason == f"sample 3, cat/0003.jpg, is bad ({CRASHES}), and bad_samples.policy is fail"


@pytest.mark.long
async def test_a_worker_that_waits_for_a_file_is_logged_then_replaced_and_no_sample_is_bad(
    served: Serve, faults: Broken, caplog: pytest.LogCaptureFixture
) -> None:
    stream = served({})
    async with ready_engine(stream, row_deadline_s=DEADLINE_S) as rig:
        faults.hang_reads()
        rig.engine._pool._hired = hire_local_workers(1)  # the next one may take long to start
        rig.produce()
        await rig.until(lambda: rig.engine.worker_death_count)
        faults.let_reads_go()
        _, reason = await rig.outcome()
        assert (reason, stream.quarantine.reasons) == (None, {})
        told = [each for each in caplog.records if "has waited" in each.getMessage()]
        assert any("cat/0000.jpg, cat/0001.jpg, cat/0002.jpg" in str(each.__dict__) for each in told)


@pytest.mark.long
async def test_a_bad_sample_that_cannot_be_recorded_stops_the_stream(
    served: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = served({})
    spoil(stream, 3)

    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    async with ready_engine(stream) as rig:
        monkeypatch.setattr(os, "fdatasync", full)
        rig.produce()
        _, reason = await rig.outcome()
        monkeypatch.undo()
        assert reason is not None
        assert reason.startswith("the verdict on cat/0003.jpg (a damaged JPEG")
        assert "cannot be recorded: No space left on device; make room in the state directory" in reason
        assert stream.quarantine.reasons == {}
        on_disk = Quarantine(stream.quarantine.path, lambda: stream.manifest.list_id)
        on_disk.load_bad_samples()
        assert on_disk.reasons == {}
        rig.produce(0, 0, slot=2)
        production, reason = await rig.outcome()
        assert (reason, production.key) == (None, BatchKey("train", 0, 0))
