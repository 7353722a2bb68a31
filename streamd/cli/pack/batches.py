"""Lists one stream and decodes its batches with ordinary workers, in the pack's order, a bounded number at a time.

There is no trainer and no socket.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamd.config.load import add_error_locations
from streamd.config.locations import add_locations as placed
from streamd.config.rules import list_unserved_settings
from streamd.config.schema import Config
from streamd.core.counters import ProcessStats
from streamd.core.sampler import BadRow, Ids, SampleOrder, Words, mix64
from streamd.core.slot_layout import compute_layout, compute_slot_bytes
from streamd.core.spec import BatchKey, PixelId, StreamSpec
from streamd.core.text import escape_unprintable
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
from streamd.dataset.arrays.store import Mask, Pixels
from streamd.errors import ConfigError, PackError, suggest_name
from streamd.ipc.slots import SlotStore
from streamd.limits import MAX_BATCH_ROWS, MAX_TASKS_AHEAD, PACK_BATCH_BYTES, TASK_ROWS

# --- The rows of a pack: the images of some samples, with their boxes and points as they are delivered. Pure.

BoxRows = npt.NDArray[np.float32]  # (n, max, 5) or (n, max, 2)
_BOX_NUMBER_BYTES: Final = np.dtype(np.float32).itemsize


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """The samples `ids`: `images` has the rows of each image, and `boxes` those of each label of boxes or points.

    Both are in the order of the stream. The memory may be that of a slot.
    """

    ids: Ids
    images: Mapping[str, Pixels]
    boxes: Mapping[str, BoxRows] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.iterate_arrays())

    def iterate_arrays(self) -> Iterator[npt.NDArray[Any]]:
        """Yields all images, then all boxes and points."""
        yield from self.images.values()
        yield from self.boxes.values()

    def select_rows(self, kept: Mask) -> PackedRows:
        """Returns a copy of the rows where `kept` is true."""
        return PackedRows(
            self.ids[kept],
            {name: images[kept] for name, images in self.images.items()},
            {name: boxes[kept] for name, boxes in self.boxes.items()},
        )

    def compute_checksums(self) -> Words:
        """Returns a checksum of each row, over all of its arrays, (n,) uint64."""
        return combine_checksums([compute_row_checksums(array) for array in self.iterate_arrays()])


def compute_box_bytes(spec: StreamSpec) -> dict[str, int]:
    """Returns how many bytes the boxes or points of one sample take as they are delivered, by label."""
    return {
        name: label.rows * label.width * _BOX_NUMBER_BYTES for name, label in spec.labels.items() if label.is_ragged
    }


# --- Checksums that compare what was written with what is read back: one for each row, and one over all rows. Pure.
#
# They detect failures of a disk or of memory, and not deliberate changes.


_WORD_BYTES: Final = 8
_MIN_SUMMED_WORDS: Final = 2048  # of a blob: below, NumPy's call costs more than the CRC


def compute_row_checksums(rows: npt.NDArray[Any]) -> Words:
    """Returns a checksum of each row of an array (n, ...): a weighted sum of the words of its bytes, (n,) uint64.

    The weights are odd, so a change of any single word is detected, and all different, so swapped words are too. The
    sum costs a third of a CRC, which would cost an eighth of decoding a small JPEG.
    """
    flat = np.ascontiguousarray(rows).reshape(len(rows), prod(rows.shape[1:])).view(np.uint8)
    whole = flat.shape[1] // _WORD_BYTES * _WORD_BYTES
    weights = _compute_word_weights(whole // _WORD_BYTES + _WORD_BYTES)
    words = np.ascontiguousarray(flat[:, :whole]).view("<u8")
    rest = flat[:, whole:].astype(np.uint64)
    sums: Words = np.einsum("ij,j->i", words, weights[: words.shape[1]])
    sums += np.einsum("ij,j->i", rest, weights[words.shape[1] :][: rest.shape[1]])
    return sums


@lru_cache(maxsize=8)
def _compute_word_weights(count: int) -> Words:
    return mix64(np.arange(1, count + 1, dtype=np.uint64)) | np.uint64(1)


def combine_checksums(parts: Sequence[Words]) -> Words:
    """Returns a checksum of each row from those of its parts; that of the only part is the row's own."""
    combined = parts[0]
    for number, part in enumerate(parts[1:], 1):
        combined = combined + mix64(part + np.uint64(number))  # mixed: the parts of two rows must not be exchangeable
    return combined


def compute_blob_checksums(blobs: Iterable[bytes | memoryview]) -> Words:
    """Returns a checksum of each blob, of any length, (n,) uint64."""
    return np.fromiter(map(_compute_blob_checksum, blobs), np.uint64)


def _compute_blob_checksum(blob: bytes | memoryview) -> int:
    """Returns the CRC of a small blob; for a large one the weighted sum, with the CRC of an incomplete last word."""
    count = len(blob) // _WORD_BYTES
    if count < _MIN_SUMMED_WORDS:
        return zlib.crc32(blob)
    words = np.frombuffer(blob, "<u8", count)
    return int(np.einsum("i,i->", words, _compute_word_weights(count))) ^ zlib.crc32(blob[count * _WORD_BYTES :])


@dataclass(frozen=True, slots=True)
class PackChecksum:
    """The number of rows, and one number that depends on every row and on their order."""

    rows: int = 0
    digest: int = 0

    def with_added_rows(self, checksums: Words) -> PackChecksum:
        """Returns the checksum with more rows, given by their own checksums."""
        places = np.arange(self.rows, self.rows + checksums.size, dtype=np.uint64)
        mixed = mix64(checksums ^ mix64(places))
        return PackChecksum(self.rows + checksums.size, (self.digest + int(mixed.sum())) % (1 << 64))


# --- Lists one stream and decodes its batches with ordinary workers, in the pack's order, a bounded number at a time.

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

    waits_for_data: Final = False  # if data are missing the pack fails

    def __init__(
        self, stream: ServedStream, engine: BatchEngine, slots: SlotStore, slot_count: int, batches_at_once: int
    ) -> None:
        """`slot_count` is that of batches that are decoded or written, `batches_at_once` are decoded at a time."""
        self._stream, self._engine, self._slots, self._batches_at_once = stream, engine, slots, batches_at_once
        self._slot_bytes = compute_slot_bytes(stream.spec)
        self._free_slots = list(range(slot_count))
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
        good = job.row_status == 0
        rows = read_slot_rows(self._stream.spec, job.delivered_ids, self._slots.map_slot(job.slot))
        return DecodedBatch(
            job.key.index,
            rows if good.all() else rows.select_rows(good),
            self._stream.list_bad_rows(0, job.key.index, job.row_status),
            job.slot,
        )

    def release_batch(self, batch: DecodedBatch) -> None:
        """Frees a batch's slot, which is used next, since the processor has it in its cache."""
        self._free_slots.append(batch.slot)
        self._request_next_batches()

    def _request_next_batches(self) -> None:
        """Begins as many batches as there are free slots for, up to the number that keeps all workers busy.

        More batches at a time would only leave the processor's cache.
        """
        while self._free_slots and self._next_to_request < self._stream.spec.batches:
            if self._next_to_request - self._next_to_return - len(self._filled_jobs) >= self._batches_at_once:
                return
            key = BatchKey(self._stream.spec.name, 0, self._next_to_request)
            self._next_to_request += 1
            self._engine.produce_batch(key, self._free_slots.pop(), self._slot_bytes)

    # The methods of EngineListener, which documents when each is called.

    def _ignore_event(self, *_: object, **__: object) -> None:
        """Does nothing: other workers do the tasks of a lost one, no cluster decodes, and missing data fail batches."""

    on_worker_lost = on_cluster_changed = on_data_missing = on_data_returned = _ignore_event

    def on_batches_filled(self, jobs: Sequence[BatchJob]) -> None:
        self._filled_jobs |= {job.key.index: job for job in jobs}
        self._batch_filled.set()
        self._request_next_batches()

    def on_batch_failed(self, job: BatchJob, reason: str) -> None:
        del job
        self._record_first_failure(PackError(f"{self._stream.spec.name}: {reason}"))

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


def compute_decode_bounds(stream: ServedStream, workers: int, memory_bytes: int) -> tuple[int, int]:
    """Returns how many slots fit into memory, and how many batches give every worker all tasks that it may hold."""
    spec = stream.spec
    tasks = -(-min(spec.batch_size, spec.samples) // TASK_ROWS)
    slots = max(_MIN_SLOTS, memory_bytes // compute_slot_bytes(spec))
    return slots, max(_MIN_SLOTS, -(-workers * MAX_TASKS_AHEAD // tasks))


@asynccontextmanager
async def open_batch_decoder(stream: ServedStream, workers: int, memory_bytes: int) -> AsyncIterator[BatchDecoder]:
    """Starts workers that decode `stream`; at the end of the context all workers and their memory are gone."""
    slots = SlotStore()
    engine = BatchEngine([stream], slots, ProcessStats(), hire_local_workers(workers))
    work = BatchDecoder(stream, engine, slots, *compute_decode_bounds(stream, workers, memory_bytes))
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
    # The configuration less the streams that have nothing to do with this one, and less what is done in serving.
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


# --- The interface between a pack run and the formats.


_BLOCK_BATCHES: Final = 64  # batches whose ids are planned at a time
_FILE_MODE: Final = 0o644


@dataclass(frozen=True, slots=True)
class PackJob:
    """The stream to pack, whose batches are in the order of the pack, and the folder or file to write.

    `scratch_path` is a path for a temporary file; others may begin with its name. They last until the pack is in place.
    """

    stream: ServedStream
    product_path: Path
    scratch_path: Path

    def iterate_kept_rows(self, bad_ids: Ids) -> Iterator[tuple[slice, Ids]]:
        """Yields the rows of the pack and the ids of their samples in order, a block at a time."""
        batches, start = self.stream.spec.batches, 0
        for first in range(0, batches, _BLOCK_BATCHES):
            ids, _ = self.stream.compute_planned_ids_of_batches(0, range(first, min(first + _BLOCK_BATCHES, batches)))
            kept = ids[~np.isin(ids, bad_ids)] if bad_ids.size else ids
            yield slice(start, start + kept.size), kept
            start += kept.size


class WholeShards(NamedTuple):
    """The shards of a pack that are complete, and the rows in them."""

    rows: int = 0
    files: int = 0


class PackWriter(ABC):
    """Writes one format. Used by one thread at a time.

    `whole_shards` has the shards that are whole: all after `finish_pack`, and before it none where the format is one
    file. Everything raises OSError when the disk refuses.
    """

    def __init__(self, job: PackJob) -> None:
        self._job, self._spec, self._manifest = job, job.stream.spec, job.stream.manifest
        self._row_count = 0  # the rows that are written
        self._files: Sequence[NumberedFiles] = ()  # of a format that numbers its files
        self.whole_shards = WholeShards()

    def resume_after_shards(self, whole: WholeShards) -> None:
        """Continues after these shards, which are safe on the disk, and removes what lies beyond them.

        Must be called before anything else.
        """
        self.whole_shards, self._row_count = whole, whole.rows
        self._open_product()

    @abstractmethod
    def _open_product(self) -> None:
        """Prepares the folder or the file for rows behind `whole_shards`."""

    @abstractmethod
    def append_rows(self, rows: PackedRows) -> Words:
        """Writes more rows, and returns a checksum of each, (n,) uint64."""

    def sync_to_disk(self) -> None:
        """Syncs all rows to the disk, and drops them from the page cache, which other readers need, where it can."""
        for files in self._files:
            files.sync_to_disk()

    @abstractmethod
    def finish_pack(self, bad_ids: Ids) -> None:
        """Completes and closes the pack after the last row; the samples `bad_ids` were left out."""

    @abstractmethod
    def read_checksums(self, bad_ids: Ids) -> Iterator[Words]:
        """Yields the checksums of all rows, read back from the disk, a block at a time.

        Raises PackError if labels differ from those that were written.
        """

    @abstractmethod
    def estimate_bytes(self) -> int:
        """Returns about how many bytes the whole pack takes on the disk."""

    @abstractmethod
    def build_serving_settings(self, pack_path: Path) -> dict[str, object]:
        """Returns the keys of a stream's configuration that serve the pack at `pack_path`."""

    def close(self) -> None:
        """Closes all files."""
        for files in self._files:
            files.close()

    def _iterate_row_blocks(self, row_bytes: int) -> Iterator[slice]:
        """Yields the rows that are written, as many at a time as are decoded together."""
        together = max(1, PACK_BATCH_BYTES // row_bytes)
        for start in range(0, self._row_count, together):
            yield slice(start, min(start + together, self._row_count))


def build_read_mismatch_error(path: Path) -> PackError:
    """Builds the error for a pack whose content differs from what was written."""
    return PackError(
        f"{escape_unprintable(str(path))} does not read back from the disk as it was written: the disk or this "
        "machine's memory is failing. Nothing was put in place; check the disk, then pack again with --restart"
    )


def drop_from_page_cache(path: Path) -> None:
    """Drops a file from the page cache, so that the next read comes from the disk."""
    with path.open("rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class NumberedFiles:
    """The files `build_path(0)`, `build_path(1)`, ..., of which one at a time is open for writing."""

    def __init__(self, build_path: Callable[[int], Path]) -> None:
        self.build_path = build_path
        self._descriptor = self._open_number = -1

    def remove_from(self, number: int) -> None:
        """Removes the files from this number on."""
        while (path := self.build_path(number)).exists():
            path.unlink()
            number += 1

    def write_at(self, number: int, data: bytes | Pixels, offset: int) -> int:
        """Writes all bytes at an offset of a file, and returns the file's descriptor. The file before it is synced."""
        if number != self._open_number:
            self.sync_to_disk()
            self.close()
            self._descriptor = os.open(self.build_path(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
            self._open_number = number
        memory = memoryview(data.data if isinstance(data, np.ndarray) else data).cast("B")
        while memory:
            written = os.pwrite(self._descriptor, memory, offset)
            memory, offset = memory[written:], offset + written
        return self._descriptor

    def sync_to_disk(self) -> None:
        """Syncs the open file to the disk, and drops it from the page cache, which other readers need."""
        if self._descriptor >= 0:
            os.fdatasync(self._descriptor)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Closes the open file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = self._open_number = -1
