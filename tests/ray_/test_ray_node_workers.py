"""The decode processes of a node: rows, the reuse of their memory, and the judgement of a death."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest
from support.coroutine_tests import wait_for_condition
from support.local_engine import pixels

from streamd.core.slot_layout import compute_layout
from streamd.daemon.streams.served_stream import ServedStream
from streamd.decode.pixel_id import compute_pixel_id
from streamd.ipc.worker_messages import FillRows, OpenStream, StreamReady, TaskDone, WorkerDied
from streamd.ray.node_actor import NodeWorkers

DEADLINE_S = 20.0


@asynccontextmanager
async def opened(stream: ServedStream) -> AsyncIterator[NodeWorkers]:
    """One decode process that has opened the stream."""
    workers = NodeWorkers(1, DEADLINE_S)
    running = asyncio.ensure_future(workers.run())
    ready = await workers.open_stream(OpenStream(0, str(stream.manifest_path), stream.spec))
    assert ready == StreamReady(0, compute_pixel_id(stream.spec.image))
    yield workers
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


def task_of(number: int, rows: list[int], *, is_suspect: bool = False) -> FillRows:
    return FillRows(number, 0, 99, 4096, 8, np.array(rows, np.uint16), np.array(rows, np.int64), 0, is_suspect)


async def test_a_node_fills_rows_one_behind_the_other_and_uses_their_memory_again(stream: ServedStream) -> None:
    async with opened(stream) as workers:
        report, rows = await workers.fill_rows(task_of(70, [1, 5]))
        assert isinstance(report, TaskDone)
        assert report.number == 70
        assert rows is not None
        layout = compute_layout(stream.spec, 2)
        images = layout.images.build_array_in_memory(rows.data)
        np.testing.assert_array_equal(images, pixels(stream, np.array([1, 5])))
        assert layout.sample_ids.build_array_in_memory(rows.data).tolist() == [1, 5]
        del rows, images
        gc.collect()
        await wait_for_condition(lambda: any(workers._free_slots.values()), "the memory is free")
        await workers.fill_rows(task_of(71, [2, 3]))
        assert len(workers._slots) == 1
        workers.close_stream(0)


@pytest.mark.long
async def test_the_death_of_a_process_gives_its_tasks_back_and_another_fills_a_suspect(stream: ServedStream) -> None:
    async with opened(stream) as workers:
        os.kill(workers._workers[0].pid, signal.SIGSTOP)
        both = [asyncio.ensure_future(workers.fill_rows(task_of(number, [1, 2]))) for number in (70, 71)]
        await wait_for_condition(lambda: len(workers._workers[0].tasks) == 2, "it has both")
        os.kill(workers._workers[0].pid, signal.SIGKILL)
        outcomes = [(await each)[0] for each in both]
        assert outcomes == [
            WorkerDied("killed by SIGKILL", (70,), 70),
            WorkerDied("killed by SIGKILL", (71,)),
        ]
        report, _ = await workers.fill_rows(task_of(72, [4], is_suspect=True))
        assert isinstance(report, TaskDone)


async def test_a_suspect_whose_process_died_on_another_node_gets_a_fresh_one(stream: ServedStream) -> None:
    async with opened(stream) as workers:
        await workers.fill_rows(task_of(70, [1, 2]))
        used = workers._workers[0]
        others = [asyncio.ensure_future(workers.fill_rows(task_of(number, [4, 5]))) for number in (71, 72)]
        report, _ = await workers.fill_rows(task_of(73, [4], is_suspect=True))
        assert isinstance(report, TaskDone)
        assert workers._workers[0] is not used
        assert [type((await each)[0]) for each in others] == [TaskDone, TaskDone]
