"""What a worker reports in one word, the engine tells in one: what is produced next is then decided once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from daemons import write_images
from served_folders import serve

from streamd.core.counters import Stats
from streamd.core.spec import BatchKey
from streamd.daemon.engine.batch_job import Production, Reporter
from streamd.daemon.engine.engine import LocalEngine
from streamd.daemon.engine.worker_handle import WorkerProcess
from streamd.ipc.slots import SlotStore
from streamd.ipc.worker_messages import Done, Task


class Idler:
    """A worker that only takes tasks."""

    alone = fresh = False

    def __init__(self) -> None:
        self.tasks: list[int] = []

    def give(self, task: Task, _slots: SlotStore, *, alone: bool) -> None:
        assert not alone
        self.tasks.append(task.number)

    def finish(self, number: int) -> None:
        self.tasks.remove(number)


def test_batches_that_one_word_makes_whole_are_told_together_and_in_order(tmp_path: Path) -> None:
    stream = serve(write_images(tmp_path / "data", {"cat": 24}), tmp_path / "state")
    engine, worker, told = LocalEngine([stream], SlotStore(), Stats(), 1), Idler(), list[list[int]]()
    took: list[tuple[float, float, float]] = []

    def produced(productions: Sequence[Production]) -> None:
        told.append([production.slot for production in productions])
        took.extend((each.busy_s, each.waited_s, each.at_work) for each in productions)

    engine.report_to(Reporter(produced, lambda *_: None))
    engine._shifts.now.crew.workers.append(cast("WorkerProcess", worker))
    for slot in (1, 2, 3):
        engine.produce(BatchKey("train", 0, slot - 1), slot, 4096)

    engine._heard(cast("WorkerProcess", worker), [Done(number, 0, 0, 0) for number in (1, 2)])
    assert told == [[1, 2]]
    engine._heard(cast("WorkerProcess", worker), [Done(3, 3 * 10**9, 10**9, 0, waited_ns=2 * 10**9)])

    assert told == [[1, 2], [3]]
    assert took[2] == (4.0, 2.0, 1.0)
    assert not worker.tasks
    stream.manifest.close()
