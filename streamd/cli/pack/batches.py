"""Lists one stream and decodes its batches with ordinary workers, in the pack's order, a bounded number at a time.

There is no trainer and no socket.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from streamd.cli.pack.packed_rows import PackedRows
from streamd.config.load import add_error_locations
from streamd.config.locations import add_locations as placed
from streamd.config.rules import list_unserved_settings
from streamd.config.schema import Config
from streamd.core.bad_samples import BadRow
from streamd.core.counters import ProcessStats
from streamd.core.sampler import Ids, SampleOrder
from streamd.core.slot_layout import compute_layout, compute_slot_bytes
from streamd.core.spec import BatchKey, PixelId, StreamSpec
from streamd.core.status import ClusterStatus
from streamd.daemon.engine.batch_job import BatchJob
from streamd.daemon.engine.engine import BatchEngine
from streamd.daemon.engine.worker_pool import hire_local_workers
from streamd.daemon.streams.catalog import (
    ListingProgress,
    group_streams_by_family,
    open_streams,
    write_sample_manifests,
)
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import ConfigError, PackError, suggest_name
from streamd.ipc.slots import SlotStore
from streamd.limits import MAX_BATCH_ROWS, MAX_TASKS_AHEAD, PACK_BATCH_BYTES, TASK_ROWS

_MIN_SLOTS: Final = 2  # one being filled, one being written
_BATCHES_PER_MEMORY: Final = 8  # that a batch may take


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """Batch `index`: the good rows, whose memory is `slot` until `release_batch`, and the rows that were left out."""

    index: int
    rows: PackedRows
    bad_rows: tuple[BadRow, ...]
    slot: int

    @property
    def done_samples(self) -> int:
        """The samples of the batch that are written, or were left out."""
        return self.rows.ids.size + len(self.bad_rows)


class BatchDecoder:
    """Decodes batches in order, from the one given to `request_batches_from`. Made by `open_batch_decoder`.

    Each batch from `wait_for_next_batch` must be given back with `release_batch`. Everything here, with the engine's
    callbacks, runs in one event loop.
    """

    waits_for_data: Final = False  # if data are missing the pack fails; the next run continues after what is written

    def __init__(self, stream: ServedStream, engine: BatchEngine, slots: SlotStore, budget: DecodeBudget) -> None:
        self._stream, self._engine, self._slots, self._budget = stream, engine, slots, budget
        self._slot_bytes = compute_slot_bytes(stream.spec)
        self._free_slots = list(range(budget.slot_count))
        self._filled_jobs: dict[int, BatchJob] = {}
        self._next_to_request = self._next_to_return = 0
        self._failure: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._batch_filled = asyncio.Event()
        engine.set_listener(self)
        asyncio.get_running_loop().set_exception_handler(self._on_callback_error)

    async def wait_for_pixel_id(self) -> PixelId:
        """Waits for the first worker and returns the identity of the pixels that the workers produce."""
        asked = asyncio.ensure_future(self._engine.wait_for_pixel_ids())
        await self._wait_for_future_or_failure(asked)
        return asked.result()[self._stream.spec.name]

    def request_batches_from(self, index: int) -> None:
        """Begins the production of batches, from this one on."""
        self._next_to_request = self._next_to_return = index
        self._request_next_batches()

    async def wait_for_next_batch(self) -> DecodedBatch | None:
        """Waits for the next batch and returns it; None after the last. Raises PackError when decoding has failed."""
        if self._next_to_return == self._stream.spec.batches:
            return None
        while self._next_to_return not in self._filled_jobs:
            self._batch_filled.clear()
            await self._wait_for_future_or_failure(asyncio.ensure_future(self._batch_filled.wait()))
        job = self._filled_jobs.pop(self._next_to_return)
        self._next_to_return += 1
        return self._build_decoded_batch(job)

    def release_batch(self, batch: DecodedBatch) -> None:
        """Frees a batch's slot, which is used next, since the processor has it in its cache."""
        self._free_slots.append(batch.slot)
        self._request_next_batches()

    def _build_decoded_batch(self, job: BatchJob) -> DecodedBatch:
        good = job.row_status == 0
        rows = read_slot_rows(self._stream.spec, job.delivered_ids, self._slots.map_slot(job.slot))
        return DecodedBatch(
            job.key.index,
            rows if good.all() else rows.select_rows(good),
            self._stream.list_bad_rows(0, job.key.index, job.row_status),
            job.slot,
        )

    def _request_next_batches(self) -> None:
        """Begins as many batches as there are free slots for, up to the number that keeps all workers busy.

        More batches at a time would only leave the processor's cache.
        """
        while self._free_slots and self._next_to_request < self._stream.spec.batches:
            if self._next_to_request - self._next_to_return - len(self._filled_jobs) >= self._budget.batches_at_once:
                return
            key = BatchKey(self._stream.spec.name, 0, self._next_to_request)
            self._next_to_request += 1
            self._engine.produce_batch(key, self._free_slots.pop(), self._slot_bytes)

    # The methods of EngineListener, which documents when each is called.

    def on_batches_filled(self, jobs: Sequence[BatchJob]) -> None:
        self._filled_jobs |= {job.key.index: job for job in jobs}
        self._batch_filled.set()
        self._request_next_batches()

    def on_batch_failed(self, job: BatchJob, reason: str) -> None:
        del job
        self._record_first_failure(PackError(f"{self._stream.spec.name}: {reason}"))

    def on_worker_lost(self) -> None:
        """Does nothing: other workers do the tasks of a lost one."""

    def on_cluster_changed(self, cluster: ClusterStatus) -> None:
        """Is never called: packing is done on this host."""

    def on_data_missing(self, stream: str, reason: str, jobs: Sequence[BatchJob]) -> None:
        """Is never called, since `waits_for_data` is false: batches without their data fail."""

    def on_data_returned(self, stream: str) -> None:
        """Is never called, since `waits_for_data` is false."""

    def _on_callback_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Fails the pack when a callback has raised: the state of the workers can no longer be trusted."""
        error = context.get("exception")
        if isinstance(error, Exception):
            self._record_first_failure(error)
        else:
            loop.default_exception_handler(context)

    def on_engine_ended(self, running: asyncio.Task[None]) -> None:
        """Fails the pack when the engine has ended by itself, which it does only after an error."""
        error = running.exception()
        self._record_first_failure(
            error if isinstance(error, Exception) else PackError("the decode processes have ended")
        )

    def _record_first_failure(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    def discard_unread_failure(self) -> None:
        """Drops a failure that no caller will wait for."""
        # Reading the exception keeps asyncio from logging it as never retrieved.
        self._failure.cancel()
        if not self._failure.cancelled():
            self._failure.exception()

    async def _wait_for_future_or_failure(self, future: asyncio.Future[Any]) -> None:
        """Waits for `future`. Raises the failure if one is recorded first; cancels `future` in any case."""
        # `asyncio.wait` neither cancels nor raises: `_failure` stays usable for the next wait.
        try:
            await asyncio.wait({future, self._failure}, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
        finally:
            future.cancel()


def read_slot_rows(spec: StreamSpec, ids: Ids, memory: memoryview) -> PackedRows:
    """Returns the images, boxes and points of a batch of the samples `ids` in the memory of its slot."""
    layout = compute_layout(spec, ids.size)
    return PackedRows(
        ids,
        {name: tensor.build_array_in_memory(memory) for name, tensor in layout.arrays.items()},
        {
            name: tensor.build_array_in_memory(memory)
            for name, tensor in layout.labels.items()
            if spec.labels[name].is_ragged
        },
    )


@dataclass(frozen=True, slots=True)
class DecodeBudget:
    """Bounds of a pack: `slots` for batches that are decoded or written, `batches_at_once` decoded at a time."""

    slot_count: int
    batches_at_once: int

    @staticmethod
    def from_memory(stream: ServedStream, workers: int, memory_bytes: int) -> DecodeBudget:
        """Computes the largest budget that fits into memory and gives every worker as many tasks as it may hold."""
        spec = stream.spec
        tasks = -(-min(spec.batch_size, spec.samples) // TASK_ROWS)
        slots = max(_MIN_SLOTS, memory_bytes // compute_slot_bytes(spec))
        return DecodeBudget(slots, max(_MIN_SLOTS, -(-workers * MAX_TASKS_AHEAD // tasks)))


@asynccontextmanager
async def open_batch_decoder(stream: ServedStream, workers: int, memory_bytes: int) -> AsyncIterator[BatchDecoder]:
    """Starts workers that decode `stream`; at the end of the context all workers and their memory are gone."""
    slots = SlotStore()
    engine = BatchEngine([stream], slots, ProcessStats(), hire_local_workers(workers))
    work = BatchDecoder(stream, engine, slots, DecodeBudget.from_memory(stream, workers, memory_bytes))
    running = asyncio.create_task(engine.run(), name="engine")
    running.add_done_callback(work.on_engine_ended)
    try:
        yield work
    finally:
        running.remove_done_callback(work.on_engine_ended)
        running.cancel()
        await asyncio.wait({running})
        work.discard_unread_failure()
        slots.close()


# --- the stream whose batches these are: listed, in the order of the pack


@contextmanager
def list_and_open_stream(config: Config, name: str, folder: Path, progress: ListingProgress) -> Iterator[ServedStream]:
    """Lists the samples of stream `name`, as they are now, into `folder`, which is emptied. Raises ConfigError.

    Streams that share classes with it are listed, too: the classes shall have the numbers that trainers know.
    """
    part = _select_family_config(config, name)
    shutil.rmtree(folder, ignore_errors=True)
    with add_error_locations(part):
        write_sample_manifests(part, folder, progress)
        streams = open_streams(part, folder)
    try:
        stream = next(stream for stream in streams if stream.spec.name == name)
        yield stream
    finally:
        for stream in streams:
            stream.manifest.close()
        shutil.rmtree(folder, ignore_errors=True)


def _select_family_config(config: Config, name: str) -> Config:
    """The configuration less the streams that have nothing to do with this one, and less what is done in serving."""
    if name not in config.streams:
        known = ", ".join(config.streams)
        raise ConfigError(
            f"there is no stream {name!r}; the configuration has: {known}{suggest_name(name, config.streams)}"
        )
    family = next(family for family in group_streams_by_family(config) if name in family)
    kept = {
        each: config.streams[each].model_copy(update={"transform": None}) for each in config.streams if each in family
    }
    part = config.model_copy(update={"streams": kept})
    unserved = [text for text in list_unserved_settings(part) if text.startswith("streams.")]
    if unserved:
        raise ConfigError("\n".join(placed(text, config.key_locations) for text in unserved))
    return part


def build_packing_stream(stream: ServedStream, *, shuffled: bool, batch_rows: int) -> ServedStream:
    """The stream as it is packed: every sample once, by id or in one global order; a bad one leaves its row empty."""
    spec = stream.spec
    packed = replace(
        spec,
        batch_size=batch_rows,
        batches=-(-spec.samples // batch_rows),
        shuffle="full" if shuffled else "none",
        chunk=0,
        buffer=0,
        remainder="keep",
        bad_policy="fail" if spec.bad_policy == "fail" else "mask",
    )
    return replace(stream, spec=packed, order=SampleOrder.from_spec(packed))


def compute_pack_batch_rows(stream: ServedStream, memory_bytes: int) -> int:
    """How many samples are decoded and written together: whole tasks, where one fits."""
    rows = min(PACK_BATCH_BYTES, memory_bytes // _BATCHES_PER_MEMORY) // stream.spec.sample_bytes
    return min(max(1, rows if rows < TASK_ROWS else rows // TASK_ROWS * TASK_ROWS), MAX_BATCH_ROWS)
