"""What a worker reports in one word, the engine tells in one: what is produced next is then decided once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from support.daemon_process import write_images
from support.served_folder import serve

from streamd.core.counters import ProcessStats
from streamd.core.spec import BatchKey
from streamd.daemon.engine.batch_job import BatchJob, Task
from streamd.daemon.engine.engine import LocalEngine
from streamd.daemon.engine.worker_handle import WorkerProcess
from streamd.ipc.slots import SlotStore
from streamd.ipc.worker_messages import TaskDone


class Idler:
    """A worker that only takes tasks."""

    has_suspect = is_fresh = False

    def __init__(self) -> None:
        self.tasks: dict[int, Task] = {}

    def send_task(self, task: Task, _slots: SlotStore) -> None:
        assert not task.is_suspect
        self.tasks[task.number] = task

    def remove_finished_task(self, number: int) -> Task:
        return self.tasks.pop(number)


class Notes:
    """A listener that notes which batches come together, and what they took."""

    waits_for_data = False

    def __init__(self) -> None:
        self.told: list[list[int]] = []
        self.took: list[tuple[float, float, float]] = []

    def on_batches_filled(self, jobs: Sequence[BatchJob]) -> None:
        self.told.append([job.slot for job in jobs])
        self.took.extend((job.busy_s, job.waited_s, job.busy_fraction) for job in jobs)

    def on_batch_failed(self, job: BatchJob, reason: str) -> None:
        raise AssertionError(job, reason)

    def on_worker_lost(self) -> None:
        raise AssertionError

    def on_data_missing(self, stream: str, reason: str, jobs: Sequence[BatchJob]) -> None:
        raise AssertionError(stream, reason, jobs)

    def on_data_returned(self, stream: str) -> None:
        raise AssertionError(stream)


def test_batches_that_one_word_makes_whole_are_told_together_and_in_order(tmp_path: Path) -> None:
    stream = serve(write_images(tmp_path / "data", {"cat": 24}), tmp_path / "state")
    engine, worker, notes = LocalEngine([stream], SlotStore(), ProcessStats(), 1), Idler(), Notes()
    engine.set_listener(notes)
    engine._pool._generations[0].workers.append(cast("WorkerProcess", worker))
    for slot in (1, 2, 3):
        engine.produce_batch(BatchKey("train", 0, slot - 1), slot, 4096)

    engine.on_worker_reports(cast("WorkerProcess", worker), [TaskDone(number, 0, 0, 0) for number in (1, 2)])
    assert notes.told == [[1, 2]]
    engine.on_worker_reports(cast("WorkerProcess", worker), [TaskDone(3, 3 * 10**9, 10**9, 0, waited_ns=2 * 10**9)])

    assert notes.told == [[1, 2], [3]]
    assert notes.took[2] == (4.0, 2.0, 1.0)
    assert not worker.tasks
    stream.manifest.close()
