"""The local engine with real workers: batches survive dead workers, and bad samples are recorded."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from support.local_engine import Rig, pixels, ready_engine, running, unreadable
from support.opened_streams import Serve
from support.served_folder import file_of, spoil
from support.worker_pool_fake import WorkerFake

from streamd.core.counters import ProcessStats
from streamd.core.sampler import BadSample
from streamd.daemon.engine import batch_job, engine, worker_pool
from streamd.daemon.engine.batch_job import BatchJob
from streamd.daemon.engine.engine import record_bad_samples
from streamd.daemon.engine.worker_pool import PoolWorker
from streamd.daemon.streams.served_stream import ServedStream
from streamd.decode.pixel_id import compute_pixel_id
from streamd.ipc.worker_messages import TaskDone
from streamd.limits import TASK_ROWS


@pytest.fixture
def served(serve_images: Serve) -> Serve:
    """Serves 24 images, or another number of them, as one batch of 8 rows after the other."""

    def make(count: int = 24, **changes: Any) -> ServedStream:
        return serve_images({"cat": count // 2, "dog": count - count // 2}, **changes)

    return make


# --- whole batches


async def test_batches_are_filled_with_the_planned_samples(served: Serve) -> None:
    stream = served(20)
    async with ready_engine(stream, workers=2) as rig:
        for index in range(3):
            rig.produce(1, index, slot=index + 1)
        for _ in range(3):
            production = await rig.filled()
            planned = stream.compute_planned_ids(1, production.key.index)
            assert production.delivered_ids.tolist() == planned.tolist()
            assert np.array_equal(rig.images(production.slot, planned.size), pixels(stream, planned))
            assert rig.weights(production.slot, planned.size) == [1.0] * planned.size


@pytest.mark.long
async def test_a_batch_of_several_tasks_is_reported_once(served: Serve) -> None:
    rows = 2 * TASK_ROWS + 6
    stream = served(rows, batch_size=rows)
    async with ready_engine(stream, workers=2) as rig:
        rig.produce()
        production = await rig.filled()
        assert np.array_equal(rig.images(rows=rows), pixels(stream, production.delivered_ids))
        assert rig.outcomes.empty()
        assert rig.stats.values_by_group()["stream.train"]["decode_count"] == rows


@pytest.mark.long
async def test_a_batch_of_expensive_rows_is_shared_by_the_workers(
    served: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_job, "_NS_A_BYTE", 1e6)
    stream = served(8)
    async with ready_engine(stream, workers=2) as rig:
        rig.produce()
        assert [len(worker.tasks) for worker in rig.engine._pool.workers] == [2, 2]
        production = await rig.filled()
        assert np.array_equal(rig.images(), pixels(stream, production.delivered_ids))


@pytest.mark.long
async def test_the_workers_report_their_pixel_id(served: Serve) -> None:
    stream = served(8)
    async with ready_engine(stream) as rig:
        assert await rig.engine.wait_for_pixel_ids() == {"train": compute_pixel_id(stream.spec.image)}


# --- streams that come and go


@pytest.mark.long
async def test_a_new_version_is_used_once_it_is_open_and_running_batches_keep_the_old_one(
    served: Serve,
) -> None:
    old, new = served(), served(shuffle="none")
    async with ready_engine(old) as rig:
        (pid,) = rig.worker_pids
        os.kill(pid, signal.SIGSTOP)
        rig.produce(0, 0, slot=1)
        opening = asyncio.create_task(rig.engine.open_stream(new))
        os.kill(pid, signal.SIGCONT)
        assert await opening == compute_pixel_id(new.spec.image)
        rig.produce(0, 0, slot=2)
        outcomes = [await rig.outcome() for _ in range(2)]
        found = {production.slot: production.delivered_ids.tolist() for production, _ in outcomes}
        assert found == {1: old.compute_planned_ids(0, 0).tolist(), 2: list(range(8))}
        assert np.array_equal(rig.images(2), pixels(new, new.compute_planned_ids(0, 0)))


@pytest.mark.long
async def test_workers_close_a_stream_after_its_last_batch(served: Serve) -> None:
    stream = served()

    def holds(pid: int) -> bool:
        return str(stream.manifest_path) in Path(f"/proc/{pid}/maps").read_text()

    async with ready_engine(stream) as rig:
        (pid,) = rig.worker_pids
        os.kill(pid, signal.SIGSTOP)
        rig.produce()
        rig.engine.close_stream("train")
        with pytest.raises(KeyError):
            rig.produce(0, 1, slot=2)
        os.kill(pid, signal.SIGCONT)
        production = await rig.filled()
        assert np.array_equal(rig.images(), pixels(stream, production.delivered_ids))
        await rig.until(lambda: not holds(pid))
        assert rig.engine.worker_death_count == 0


@pytest.mark.long
async def test_a_replaced_worker_knows_the_streams_that_were_opened_since(served: Serve) -> None:
    old, new = served(), served(shuffle="none")
    async with ready_engine(old) as rig:
        await rig.engine.open_stream(new)
        os.kill(rig.worker_pids[0], signal.SIGKILL)
        await rig.until(lambda: rig.engine.worker_death_count and rig.worker_pids)
        rig.produce()
        production, reason = await rig.outcome()
        assert (production.delivered_ids.tolist(), reason) == (list(range(8)), None)


# --- deaths


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
async def test_batches_survive_the_death_of_a_worker(served: Serve, workers: int) -> None:
    rows = 3 * TASK_ROWS
    stream = served(rows, batch_size=rows)
    async with ready_engine(stream, workers) as rig:
        victim, *others = rig.worker_pids
        for pid in (victim, *others):
            os.kill(pid, signal.SIGSTOP)
        rig.produce()
        assert all(worker.tasks for worker in rig.engine._pool.workers)
        os.kill(victim, signal.SIGKILL)
        for pid in others:
            os.kill(pid, signal.SIGCONT)
        production = await rig.filled()
        assert np.array_equal(rig.images(rows=rows), pixels(stream, production.delivered_ids))
        await rig.until(lambda: len(rig.worker_pids) == workers)
        assert victim not in rig.worker_pids
        assert rig.engine.worker_death_count == 1
        assert stream.quarantine.reasons == {}


async def test_a_task_that_kills_every_worker_fails_its_batch(
    served: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = served(8)
    deadly = tmp_path / "deadly"
    deadly.write_text(
        f"#!{sys.executable} -SE\n"
        "import os, signal, socket, sys\n"
        "link = socket.socket(fileno=int(sys.argv[4]))\n"
        "while data := link.recv(65536):\n"
        "    if data[0] in (2, 8):  # a task, or several records\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    deadly.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(deadly))
    monkeypatch.setattr(batch_job, "WORKER_RESPAWN_S", 0.001)
    monkeypatch.setattr(worker_pool, "WORKER_RESPAWN_S", 0.001)
    monkeypatch.setattr(batch_job, "TASK_ATTEMPTS", 4)
    monkeypatch.setattr(batch_job, "TASK_GIVE_UP_S", 0)
    async with running(stream) as rig:
        rig.produce()
        reason = await rig.failure()
        first = stream.format_file_name(int(stream.compute_planned_ids(0, 0)[0]))
        assert reason.startswith(
            f"4 workers died, the last killed by SIGKILL, on a group of files that starts with {first}, "
        )
        assert stream.quarantine.reasons == {}
        await rig.until(lambda: rig.worker_pids)


@pytest.mark.long
async def test_tasks_of_a_failed_batch_end_with_their_worker(served: Serve) -> None:
    async with ready_engine(served(8)) as rig:
        (victim,) = rig.worker_pids
        os.kill(victim, signal.SIGSTOP)
        rig.produce()
        (job,) = rig.engine._pool.find_stream_jobs(0)
        rig.engine._fail_batch(job, "for a reason")
        assert await rig.failure() == "for a reason"
        rig.slots.drop_slot(1)
        os.kill(victim, signal.SIGKILL)
        await rig.until(lambda: rig.engine.worker_death_count and rig.worker_pids)
        assert (len(rig.slots), rig.engine._pool.find_stream_jobs(0), rig.engine._pool.workers[0].tasks) == (0, [], {})


# --- bad samples


@pytest.mark.long
async def test_a_bad_sample_is_recorded_before_its_batch_is_reported(served: Serve) -> None:
    stream = served()
    bad = int(stream.compute_planned_ids(0, 0)[3])
    spoil(stream, bad)
    async with ready_engine(stream) as rig:
        rig.produce()
        production = await rig.filled()
        planned = stream.compute_planned_ids(0, 0)
        assert list(rig.recorded[0]) == [bad]
        assert "damaged JPEG" in rig.recorded[0][bad]
        assert production.row_status.tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
        assert production.delivered_ids.tolist() == [*planned[:3], planned[4], *planned[4:]]
        assert np.array_equal(rig.images(), pixels(stream, production.delivered_ids))
        assert rig.weights() == [1.0] * 8


@pytest.mark.long
async def test_a_masked_sample_is_a_black_row_without_weight(served: Serve) -> None:
    stream = served(bad_samples={"policy": "mask"})
    spoil(stream, int(stream.compute_planned_ids(0, 0)[3]))
    async with ready_engine(stream) as rig:
        rig.produce()
        production = await rig.filled()
        assert production.delivered_ids[3] == -1
        assert np.array_equal(rig.images(), pixels(stream, production.delivered_ids))
        assert rig.weights() == [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.long
async def test_a_batch_without_a_good_row_is_fully_masked(served: Serve) -> None:
    stream = served(16)
    for sample_id in stream.compute_planned_ids(0, 0).tolist():
        spoil(stream, sample_id)
    async with ready_engine(stream) as rig:
        rig.produce()
        production = await rig.filled()
        assert set(production.delivered_ids.tolist()) == {-1}
        assert not rig.images().any()
        assert rig.weights() == [0.0] * 8


@pytest.mark.long
async def test_the_policy_fail_stops_at_the_first_bad_sample_and_names_it(served: Serve) -> None:
    stream = served(bad_samples={"policy": "fail"})
    bad = int(stream.compute_planned_ids(0, 0)[3])
    spoil(stream, bad)
    async with ready_engine(stream) as rig:
        rig.produce()
        reason = await rig.failure()
        assert stream.format_file_name(bad) in reason
        assert "policy is fail" in reason
        assert rig.recorded == []


@pytest.mark.long
async def test_the_policy_fail_holds_after_a_restart(served: Serve) -> None:
    stream = served(bad_samples={"policy": "fail"})
    stream.quarantine.append_new_bad_samples([BadSample(3, "bad since yesterday")])
    async with ready_engine(stream) as rig:
        rig.produce()
        assert "bad since yesterday" in await rig.failure()


@pytest.mark.long
async def test_too_many_bad_samples_stop_the_stream_and_one_is_named(served: Serve) -> None:
    stream = served(24, batch_size=24)
    for sample_id in range(11):
        spoil(stream, sample_id)
    async with ready_engine(stream) as rig:
        rig.produce()
        reason = await rig.failure()
        assert "11 of 24 samples are bad" in reason
        assert any(stream.format_file_name(sample_id) in reason for sample_id in range(11))
        assert rig.outcomes.empty()


# --- errors that may pass


@pytest.mark.long
async def test_a_passing_read_error_leaves_no_trace(served: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = served()
    monkeypatch.setattr(engine, "_READ_RETRY_S", 0.05)
    async with ready_engine(stream) as rig:
        with unreadable(file_of(stream, int(stream.compute_planned_ids(0, 0)[3]))):
            rig.produce()
            await rig.until(lambda: rig.stats.values_by_group().get("stream.train", {}).get("read_count", 0) >= 9)
        production = await rig.filled()
        assert not production.row_status.any()
        assert np.array_equal(rig.images(), pixels(stream, stream.compute_planned_ids(0, 0)))
        assert stream.quarantine.reasons == {}


@pytest.mark.long
async def test_a_lasting_read_error_stops_the_stream_and_no_sample_is_bad(
    served: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = served()
    monkeypatch.setattr(engine, "_READ_RETRY_S", 0.001)
    ill = int(stream.compute_planned_ids(0, 0)[3])
    async with ready_engine(stream) as rig:
        with unreadable(file_of(stream, ill)):
            rig.produce()
            _, reason = await rig.outcome()
        assert reason == f"{stream.format_file_name(ill)} cannot be read: {os.strerror(6)}"
        assert stream.quarantine.reasons == {}
        assert rig.stats.values_by_group()["stream.train"]["read_count"] == 8 + engine._READ_RETRIES


# --- slots


@pytest.mark.long
async def test_dropped_slots_are_unmapped_by_every_worker(served: Serve) -> None:
    def mapped(pid: int) -> int:
        return Path(f"/proc/{pid}/maps").read_text().count("/memfd:streamd-")

    async with ready_engine(served(24), workers=2) as rig:
        for index in range(3):
            rig.produce(0, index, slot=index + 1)
        for _ in range(3):
            await rig.outcome()
        assert sum(map(mapped, rig.worker_pids)) >= 3
        rig.engine.unmap_slots_in_workers((1, 3))
        await rig.until(lambda: all(mapped(pid) <= 1 for pid in rig.worker_pids))
        assert sum(map(mapped, rig.worker_pids)) >= 1
        rig.engine.unmap_slots_in_workers((1, 3))


def test_a_bad_sample_is_recorded_and_counted_once(served: Serve) -> None:
    stream, stats = served(), ProcessStats()
    for _ in range(2):
        assert record_bad_samples(stream, [BadSample(3, "damaged")], stats) is None
    assert stats.values_by_group()["stream.train"]["bad_samples"] == 1
    assert stream.quarantine.path.read_text().count("\n") == 1


# --- what a worker reports in one message is reported at once: the scheduler then decides once


async def test_batches_finished_by_one_message_are_reported_together_and_in_order(
    served: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, worker, filled = Rig(served(), workers=1), cast("PoolWorker", WorkerFake()), list[Sequence[BatchJob]]()
    monkeypatch.setattr(rig, "on_batches_filled", filled.append)
    rig.engine._pool._generations[0].workers.append(worker)
    for slot in (1, 2, 3):
        rig.produce(0, slot - 1, slot=slot)

    rig.engine.on_worker_reports(worker, [TaskDone(number, 0, 0, 0) for number in (1, 2)])
    assert [[job.slot for job in jobs] for jobs in filled] == [[1, 2]]
    rig.engine.on_worker_reports(worker, [TaskDone(3, 3 * 10**9, 10**9, 0, waited_ns=2 * 10**9)])

    assert [[job.slot for job in jobs] for jobs in filled] == [[1, 2], [3]]
    last = filled[1][0]
    assert (last.busy_s, last.waited_s, last.busy_fraction) == (4.0, 2.0, 1.0)
    assert not worker.tasks
    assert rig.outcomes.empty()
    rig.slots.close()
