"""Batches of one stream from the ordinary workers, in order, a bounded number at a time. No trainer, no socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from streamd.core.bad_samples import BadRow
from streamd.core.counters import ProcessStats
from streamd.core.sampler import Ids
from streamd.core.slot_layout import compute_layout, compute_slot_bytes
from streamd.core.spec import BatchKey, PixelId
from streamd.daemon.engine.batch_job import BatchJob
from streamd.daemon.engine.engine import LocalEngine
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.arrays.store import Pixels
from streamd.errors import PackError
from streamd.ipc.slots import SlotStore
from streamd.limits import MAX_TASKS_AHEAD, TASK_ROWS

_LEAST_SLOTS: Final = 2  # one being filled, one being written


@dataclass(frozen=True, slots=True)
class Decoded:
    """Batch `index`: the good rows, which lie in `slot` until that is released, and those that were left out."""

    index: int
    ids: Ids
    images: Pixels
    bad: tuple[BadRow, ...]
    slot: int


class Decoding:
    """Decodes batches from `first` on. Made by `decoding`; `next` and `release` in turn."""

    waits_for_data: Final = False  # a pack fails, and whoever starts it again goes on behind what is written

    def __init__(self, stream: ServedStream, engine: LocalEngine, slots: SlotStore, room: Room) -> None:
        self._stream, self._engine, self._slots, self._room = stream, engine, slots, room
        self._slot_bytes = compute_slot_bytes(stream.spec)
        self._free = list(range(room.slots))
        self._whole: dict[int, BatchJob] = {}
        self._asked = self._given = 0
        self._failure: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._came = asyncio.Event()
        engine.set_listener(self)
        asyncio.get_running_loop().set_exception_handler(self._raised)

    async def pixel_id(self) -> PixelId:
        """What the workers' pipeline makes of the stream, once the first of them is up."""
        asked = asyncio.ensure_future(self._engine.wait_for_pixel_ids())
        await self._unless_failed(asked)
        return asked.result()[self._stream.spec.name]

    def begin(self, index: int) -> None:
        """Begins with this batch."""
        self._asked = self._given = index
        self._produce()

    async def next(self) -> Decoded | None:
        """The next batch; None behind the last one. Raises PackError when the stream has to be given up."""
        if self._given == self._stream.spec.batches:
            return None
        while self._given not in self._whole:
            self._came.clear()
            await self._unless_failed(asyncio.ensure_future(self._came.wait()))
        job = self._whole.pop(self._given)
        self._given += 1
        return self._opened(job)

    def release(self, decoded: Decoded) -> None:
        """Its memory may be written again, and is next: the processor has it in its cache."""
        self._free.append(decoded.slot)
        self._produce()

    def _opened(self, job: BatchJob) -> Decoded:
        spec = self._stream.spec
        images = compute_layout(spec, job.delivered_ids.size).images.array_in(self._slots.map_slot(job.slot))
        good = job.row_status == 0
        whole = bool(good.all())
        return Decoded(
            job.key.index,
            job.delivered_ids if whole else job.delivered_ids[good],
            images if whole else images[good],
            self._stream.list_bad_rows(0, job.key.index, job.row_status),
            job.slot,
        )

    def _produce(self) -> None:
        """Begins as many batches as there is room for; more than keep the workers busy would only leave the cache."""
        while self._free and self._asked < self._stream.spec.batches:
            if self._asked - self._given - len(self._whole) >= self._room.at_once:
                return
            key = BatchKey(self._stream.spec.name, 0, self._asked)
            self._asked += 1
            self._engine.produce_batch(key, self._free.pop(), self._slot_bytes)

    # As the engine's listener: EngineListener says when each is called.

    def on_batches_filled(self, jobs: Sequence[BatchJob]) -> None:
        self._whole |= {job.key.index: job for job in jobs}
        self._came.set()
        self._produce()

    def on_batch_failed(self, job: BatchJob, reason: str) -> None:
        del job
        self._fail(PackError(f"{self._stream.spec.name}: {reason}"))

    def on_worker_lost(self) -> None:
        """Its tasks are done by others."""

    def on_data_missing(self, stream: str, reason: str, jobs: Sequence[BatchJob]) -> None:
        """Never called, since this waits for no data: such batches fail."""

    def on_data_returned(self, stream: str) -> None:
        """Never called, as above."""

    def _raised(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback raised: what is known of the workers is not to be trusted any more."""
        error = context.get("exception")
        if isinstance(error, Exception):
            self._fail(error)
        else:
            loop.default_exception_handler(context)

    def ended(self, running: asyncio.Task[None]) -> None:
        """The engine has ended by itself, which it never does while all is well."""
        error = running.exception()
        self._fail(error if isinstance(error, Exception) else PackError("the decode processes have ended"))

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    def forget(self) -> None:
        """Nobody asks any more what went wrong."""
        self._failure.cancel()
        if not self._failure.cancelled():
            self._failure.exception()

    async def _unless_failed(self, wanted: asyncio.Future[Any]) -> None:
        """Waits for it. Raises what went wrong meanwhile."""
        try:
            await asyncio.wait({wanted, self._failure}, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
        finally:
            wanted.cancel()


@dataclass(frozen=True, slots=True)
class Room:
    """`slots` for batches that are decoded or being written, `at_once` of them being decoded."""

    slots: int
    at_once: int

    @staticmethod
    def within(stream: ServedStream, workers: int, memory_bytes: int) -> Room:
        """As many as fit, of which every worker has as much to do as it may have."""
        spec = stream.spec
        tasks = -(-min(spec.batch_size, spec.samples) // TASK_ROWS)
        slots = max(_LEAST_SLOTS, memory_bytes // compute_slot_bytes(spec))
        return Room(slots, max(_LEAST_SLOTS, -(-workers * MAX_TASKS_AHEAD // tasks)))


@asynccontextmanager
async def decoding(stream: ServedStream, workers: int, memory_bytes: int) -> AsyncIterator[Decoding]:
    """Workers that decode `stream`; none is left, and no memory, when the context ends."""
    slots = SlotStore()
    engine = LocalEngine([stream], slots, ProcessStats(), workers)
    work = Decoding(stream, engine, slots, Room.within(stream, workers, memory_bytes))
    running = asyncio.create_task(engine.run(), name="engine")
    running.add_done_callback(work.ended)
    try:
        yield work
    finally:
        running.remove_done_callback(work.ended)
        running.cancel()
        await asyncio.wait({running})
        work.forget()
        slots.close()
