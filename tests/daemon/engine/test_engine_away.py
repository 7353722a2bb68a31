"""The local engine when the data of a stream is missing: its batches are returned, and no sample is bad."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from support.crashing_decoders import Broken
from support.local_engine import pixels, ready_engine
from support.opened_streams import Serve

from streamd.daemon import data_watch
from streamd.daemon.data_watch import check_data_present
from streamd.daemon.engine.batch_job import Task
from streamd.daemon.streams.served_stream import ServedStream
from streamd.supervisor.worker_process import WorkerProcess

QUICK_S = 0.001


@pytest.fixture
def stream(serve_images: Serve, monkeypatch: pytest.MonkeyPatch) -> ServedStream:
    monkeypatch.setattr(data_watch, "RETURN_MIN_S", QUICK_S)
    return serve_images({"cat": 24})


def empty(folder: Path) -> Path:
    """Empties a folder; returns where its files are now."""
    aside = folder.with_name("aside")
    aside.mkdir()
    for each in folder.iterdir():
        each.rename(aside / each.name)
    return aside


@pytest.mark.long
async def test_batches_of_missing_data_are_returned_and_made_when_the_data_is_back(
    stream: ServedStream,
) -> None:
    folder = stream.manifest.root
    async with ready_engine(stream) as rig:
        rig.wait_for_data()
        aside = empty(folder)
        for index in range(2):
            rig.produce(index=index, slot=index + 1)
        name, why, jobs = await rig.missing.get()
        assert (name, {each.slot for each in jobs}) == ("train", {1, 2})
        assert why.startswith("it waits for its data: ")
        await rig.until(lambda: not rig.engine._pool.find_stream_jobs(0))
        folder.rmdir()
        aside.rename(folder)
        assert await rig.returned.get() == "train"
        rig.produce(slot=3)
        production = await rig.filled()
        assert not production.row_status.any()
        assert np.array_equal(rig.images(3), pixels(stream, stream.compute_planned_ids(0, 0)))
        assert stream.quarantine.reasons == {}
        assert rig.missing.empty()


@pytest.mark.long
async def test_without_a_waiting_listener_a_batch_of_missing_data_fails_and_no_sample_is_bad(
    stream: ServedStream,
) -> None:
    async with ready_engine(stream) as rig:
        empty(stream.manifest.root)
        rig.produce()
        assert "is empty, or not the folder that was listed" in await rig.failure()
        assert stream.quarantine.reasons == {}


@pytest.mark.long
async def test_a_new_version_with_its_data_does_not_wait_for_the_old_one(
    stream: ServedStream, serve_images: Serve
) -> None:
    elsewhere = serve_images({"cat": 24})
    async with ready_engine(stream) as rig:
        rig.wait_for_data()
        empty(stream.manifest.root)
        rig.produce()
        await rig.missing.get()
        await check_data_present(elsewhere)
        await rig.engine.open_stream(elsewhere)
        assert await rig.returned.get() == "train"
        rig.produce(slot=2)
        await rig.filled()
        rig.engine.close_stream("train")


@pytest.mark.long
async def test_missing_data_of_an_old_version_does_not_pause_the_new_one(stream: ServedStream) -> None:
    async with ready_engine(stream) as rig:
        engine = rig.engine
        rig.wait_for_data()
        rig.produce()
        number = engine._streams.add_stream(replace(stream, max_bad_fraction=0.5))
        engine._pool.send_to_newest_workers(engine._streams.make_open_command(number))
        engine._make_stream_version_current(number)
        engine._pause_stream_without_data(0, "gone")
        (old,) = rig.missing.get_nowait()[2]
        assert (old.stream_number, rig.returned.get_nowait()) == (0, "train")
        rig.produce(slot=2)
        production, reason = await rig.outcome()
        assert (production.stream_number, reason, rig.missing.empty()) == (number, None, True)


@pytest.mark.long
async def test_data_missing_before_the_start_is_reported_to_the_listener(stream: ServedStream) -> None:
    async with ready_engine(stream) as rig:
        aside = empty(stream.manifest.root)
        await rig.engine.find_missing_data()
        rig.wait_for_data()
        assert (await rig.missing.get())[2] == ()
        stream.manifest.root.rmdir()
        aside.rename(stream.manifest.root)
        assert await rig.returned.get() == "train"


@pytest.mark.long
@pytest.mark.parametrize("is_early", [True, False])
async def test_workers_that_wait_for_missing_data_are_replaced_and_no_sample_is_bad(
    stream: ServedStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_early: bool
) -> None:
    faults = Broken(tmp_path / "faults")
    monkeypatch.setenv("PYTHONPATH", faults.environment["PYTHONPATH"])
    async with ready_engine(stream) as rig:
        engine = rig.engine
        rig.wait_for_data()
        faults.hang_reads()
        rig.produce()
        worker = cast("WorkerProcess[Task]", engine._pool.workers[0])
        await rig.until(lambda: worker.row_progress.task in worker.tasks)
        if is_early:
            engine._missing_data.on_missing(0, "its mount hangs")
        else:  # another worker reported it first
            engine._pause_stream_without_data(0, "its mount hangs")
            engine.on_worker_waiting(worker, worker.row_progress)
        assert (await rig.missing.get())[0] == "train"
        await rig.until(lambda: engine.worker_death_count == 1 and not engine._pool.find_stream_jobs(0))
        faults.let_reads_go()
        assert await rig.returned.get() == "train"
        rig.produce(slot=2)
        await rig.filled()
        assert stream.quarantine.reasons == {}
