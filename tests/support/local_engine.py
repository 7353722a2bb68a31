"""A local engine with real workers, on the test's own event loop."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streamd.core.counters import ProcessStats
from streamd.core.slot_layout import compute_layout, compute_slot_bytes
from streamd.core.spec import BatchKey
from streamd.core.status import ClusterStatus
from streamd.daemon.engine.batch_job import BatchJob
from streamd.daemon.engine.engine import BatchEngine
from streamd.daemon.engine.worker_pool import hire_local_workers
from streamd.daemon.streams.quarantine import Quarantine
from streamd.daemon.streams.served_stream import ServedStream
from streamd.decode.decoders import decode_image
from streamd.ipc.slots import SlotStore
from streamd.limits import ROW_DEADLINE_S
from support.served_folder import file_of

ANSWER_S = 40.0
PAUSE_S = 0.001  # between two looks at a condition

Outcome = tuple[BatchJob, str | None]


class Rig:
    """An engine with its slots, and what it has reported; the rig is its listener."""

    waits_for_data = False

    def __init__(self, stream: ServedStream, workers: int, row_deadline_s: float = ROW_DEADLINE_S) -> None:
        self.stream = stream
        self.slots = SlotStore()
        self.stats = ProcessStats()
        self.engine = BatchEngine([stream], self.slots, self.stats, hire_local_workers(workers, row_deadline_s))
        self.outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        self.recorded: list[dict[int, str]] = []
        self.missing: asyncio.Queue[tuple[str, str, Sequence[BatchJob]]] = asyncio.Queue()
        self.returned: asyncio.Queue[str] = asyncio.Queue()
        self.engine.set_listener(self)

    @property
    def worker_pids(self) -> list[int]:
        return [worker.pid for worker in self.engine._pool.workers]

    def on_batches_filled(self, jobs: Sequence[BatchJob]) -> None:
        on_disk = Quarantine(self.stream.quarantine.path, lambda: self.stream.manifest.list_id)
        on_disk.load_bad_samples()
        for job in jobs:
            self.recorded.append(on_disk.reasons)
            self.outcomes.put_nowait((job, None))

    def on_batch_failed(self, job: BatchJob, reason: str) -> None:
        self.outcomes.put_nowait((job, reason))

    def on_worker_lost(self) -> None:
        """The engine counts them."""

    def on_cluster_changed(self, cluster: ClusterStatus) -> None:
        """There is none."""

    def on_data_missing(self, stream: str, reason: str, jobs: Sequence[BatchJob]) -> None:
        self.missing.put_nowait((stream, reason, jobs))

    def on_data_returned(self, stream: str) -> None:
        self.returned.put_nowait(stream)

    def wait_for_data(self) -> None:
        """From now on batches whose data are missing do not fail."""
        self.waits_for_data = True
        self.engine.set_listener(self)

    def produce(self, epoch: int = 0, index: int = 0, slot: int = 1) -> None:
        self.engine.produce_batch(BatchKey("train", epoch, index), slot, compute_slot_bytes(self.stream.spec))

    async def outcome(self) -> Outcome:
        return await asyncio.wait_for(self.outcomes.get(), ANSWER_S)

    async def filled(self) -> BatchJob:
        """Returns the next outcome, which must be a batch."""
        job, reason = await self.outcome()
        assert reason is None
        return job

    async def failure(self) -> str:
        """Returns the reason of the next outcome, which must be a failure."""
        _, reason = await self.outcome()
        assert reason is not None
        return reason

    async def until(self, condition: Callable[[], object]) -> None:
        """Lets the loop run until the condition holds."""
        async with asyncio.timeout(ANSWER_S):
            while not condition():  # noqa: ASYNC110 - conditions of other processes, which set no event of ours
                await asyncio.sleep(PAUSE_S)

    def images(self, slot: int = 1, rows: int = 8) -> npt.NDArray[np.generic]:
        return compute_layout(self.stream.spec, rows).images.build_array_in_memory(self.slots.map_slot(slot)).copy()

    def weights(self, slot: int = 1, rows: int = 8) -> list[float]:
        weights: list[float] = (
            compute_layout(self.stream.spec, rows).weights.build_array_in_memory(self.slots.map_slot(slot)).tolist()
        )
        return weights


@asynccontextmanager
async def running(stream: ServedStream, workers: int = 1, row_deadline_s: float = ROW_DEADLINE_S) -> AsyncIterator[Rig]:
    """A running engine; errors of its callbacks fail the test."""
    rig, failures = Rig(stream, workers, row_deadline_s), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    task = asyncio.create_task(rig.engine.run())
    try:
        yield rig
    finally:
        processes = [worker._process for worker in rig.engine._pool.workers]
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        for process in processes:
            await asyncio.wait_for(process.wait(), ANSWER_S)
        rig.slots.close()
    assert failures == []


@asynccontextmanager
async def ready_engine(
    stream: ServedStream, workers: int = 1, row_deadline_s: float = ROW_DEADLINE_S
) -> AsyncIterator[Rig]:
    """A running engine whose workers have all started, and of which one has opened the stream."""
    async with running(stream, workers, row_deadline_s) as rig:
        await rig.engine.wait_for_pixel_ids()
        await rig.until(lambda: len(rig.worker_pids) == workers)
        yield rig


def pixels(stream: ServedStream, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """What the files of samples look like; zeros where there is none."""
    rows = np.zeros((ids.size, *stream.spec.image_shape), np.uint8)
    for row, sample_id in zip(rows, ids.tolist(), strict=True):
        if sample_id >= 0:
            decode_image(file_of(stream, sample_id).read_bytes(), row, stream.spec.image)
    return rows


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Puts a Unix socket in a file's place: opening it fails with ENXIO, which is none of the errors that last."""
    aside = path.with_name("aside")
    path.rename(aside)
    with tempfile.TemporaryDirectory(prefix="sd") as short, socket.socket(socket.AF_UNIX) as link:
        link.bind(f"{short}/s")
        shutil.move(f"{short}/s", path)
        yield
    aside.rename(path)
