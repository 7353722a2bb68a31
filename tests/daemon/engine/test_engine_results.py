"""What a task leaves behind: verdicts on record, once each, and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.daemon_process import write_images
from support.served_folder import serve

from streamd.core.bad_samples import BadSample
from streamd.core.counters import ProcessStats
from streamd.core.spec import BatchKey
from streamd.daemon.engine.batch_job import BatchJob, Task
from streamd.daemon.engine.engine import record_bad_samples
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.worker_messages import CachePlace, TaskDone, UnfilledRow


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[ServedStream]:
    stream = serve(write_images(tmp_path / "data", {"cat": 24}, size=(8, 8)), tmp_path / "state")
    yield stream
    stream.manifest.close()


def test_a_verdict_is_counted_once_and_too_many_stop_the_stream(stream: ServedStream) -> None:
    stats = ProcessStats()
    for _ in range(2):
        assert record_bad_samples(stream, [BadSample(3, "damaged")], stats) is None
    assert stats.values_by_group()["stream.train"]["bad_samples"] == 1
    assert stream.quarantine.path.read_text().count("\n") == 1
    reason = record_bad_samples(stream, [BadSample(each, "damaged") for each in range(11)], stats)
    assert reason is not None
    assert "11 of 24 samples are bad" in reason


def test_a_verdict_that_cannot_be_kept_stops_the_stream(stream: ServedStream) -> None:
    stream.quarantine.path.mkdir()
    reason = record_bad_samples(stream, [BadSample(3, "damaged")], ProcessStats())
    assert reason is not None
    assert "the verdict on cat/0003.jpg (damaged) cannot be recorded: Is a directory" in reason


def task_of(job: BatchJob, rows: int) -> Task:
    """The first rows of a batch."""
    places, ids = np.arange(rows, dtype=np.uint16), np.arange(rows, dtype=np.int64)
    return Task(1, 0, 1, 4096, 32, places, ids, job=job, queued_s=0.0)


@pytest.mark.parametrize("cached", [False, True])
def test_what_a_cache_held_is_counted_where_there_is_one(stream: ServedStream, *, cached: bool) -> None:
    stats = ProcessStats()
    stream = replace(stream, cache=CachePlace("", None) if cached else None)
    job = BatchJob(BatchKey("train", 0, 0), stream, 0, 1, 4096)
    task = task_of(job, 5)
    task.add_times_to_stats(TaskDone(1, 10**9, 2 * 10**9, 0, gathered=3), stats)
    numbers = stats.values_by_group()["stream.train"]
    assert (numbers["read_count"], numbers["decode_count"]) == (5, 5)
    assert [numbers.get(f"cache_{each}") for each in ("hits", "misses")] == ([3, 2] if cached else [None, None])


MS = 10**6
AWAY = UnfilledRow(0, "gone", lasting=False, away=True)


@pytest.mark.parametrize(
    "report",
    [
        TaskDone(1, 0, 0, 0, bad=(AWAY,) * 32),
        TaskDone(1, 0, MS, 0, bad=(AWAY,)),
        TaskDone(1, 0, MS, 0, gathered=32),
        TaskDone(1, 0, 100 * MS, 0, gathered=31),
    ],
    ids=["unopened", "away", "held", "all but one held"],
)
def test_rows_that_were_not_decoded_make_no_row_of_a_stream_cheap(stream: ServedStream, report: TaskDone) -> None:
    job = BatchJob(BatchKey("train", 0, 0), stream, 0, 1, 4096)
    task = task_of(job, 32)
    job.row_cost.update_from_decoded_rows(2, 200 * MS)
    task.update_row_cost(report)
    assert job.row_cost.task_rows == 2
