"""What a stream's cache will take of the disk, and how much of the stream will be in it.

How often the order of an epoch has chunks of an array decompressed: counted as workers would do it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import numpy as np

from streamd.cli.check.findings import CacheEstimate, UnpackingEstimate
from streamd.core.sampler import PAD_ID, Ids, SampleOrder, compute_ids_of_batches
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.cache.file import CacheLayout
from streamd.dataset.hdf5.chunk_cache import ChunkCache
from streamd.dataset.hdf5.chunk_cost import CompressedArray
from streamd.dataset.manifest.types import Int64s
from streamd.decode.pixel_id import compute_pixel_id
from streamd.limits import CHUNKS_KEPT_BYTES, TASK_ROWS, UNPACKING_ROWS


def estimate_cache(stream: ServedStream) -> CacheEstimate | None:
    """The arithmetic of a cache, nothing of which is made; None for a stream without."""
    if stream.cache is None:
        return None
    folder, shape = Path(stream.cache.folder), CacheLayout.for_stream(stream.spec, compute_pixel_id(stream.spec.image))
    kept = shape.count_kept_rows(stream.cache.max_bytes)
    file = folder / shape.cache_file_name
    allocated_bytes = file.stat().st_blocks * 512 if file.is_file() else 0
    return CacheEstimate(
        folder=os.fsencode(folder).decode(errors="backslashreplace"),
        samples=kept,
        bytes=shape.file_bytes(kept),
        all_bytes=shape.file_bytes(shape.samples),
        free_bytes=_measure_free_bytes(folder) + allocated_bytes,
    )


def _measure_free_bytes(folder: Path) -> int:
    """Of the disk that the folder lies on, or will."""
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    system = os.statvfs(there)
    return system.f_bavail * system.f_frsize


def estimate_unpacking(stream: ServedStream, workers: int) -> UnpackingEstimate | None:
    """What is counted over the first batches of a stream; None where it costs the same in any order."""
    packed = CompressedArray.from_manifest(stream.manifest.arrays, stream.manifest.extra_column)
    if packed is None:
        return None
    order, rows = stream.order, stream.manifest.lookup_rows(np.arange(stream.spec.samples, dtype=np.int64))
    chunk = packed.compute_fast_chunk(rows.size)
    fast = _with_chunk_shuffle(order, chunk, packed.compute_fast_buffer(rows, chunk))
    return UnpackingEstimate(
        packed.chunk_rows,
        packed.chunk_bytes,
        _count_chunks_per_sample(packed, order, rows, workers),
        chunk,
        fast.buffer,
        _count_chunks_per_sample(packed, fast, rows, workers),
    )


def _with_chunk_shuffle(order: SampleOrder, chunk: int, buffer: int) -> SampleOrder:
    """The same in chunks."""
    return SampleOrder(order.samples, order.batch_size, order.batches, "chunk", order.seed, chunk, buffer)


def _count_chunks_per_sample(array: CompressedArray, order: SampleOrder, rows: Int64s, workers: int) -> float:
    """Chunks for each sample, decompressed by workers that take tasks in turn."""
    turns = cycle([ChunkCache(CHUNKS_KEPT_BYTES) for _ in range(workers)])
    unpacked = samples = 0
    for task in _iterate_tasks(order):
        unpacked += _count_unpacked_chunks(array, rows[task] // array.chunk_rows, next(turns))
        samples += task.size
    return unpacked / samples


def _iterate_tasks(order: SampleOrder) -> Iterator[Ids]:
    count = min(order.batches, max(1, UNPACKING_ROWS // order.batch_size))
    indices = np.arange(count, dtype=np.int64)
    ids = compute_ids_of_batches(order, 0, indices, np.full(count, order.batch_size, dtype=np.int64))
    for batch in ids.reshape(count, -1):
        for start in range(0, order.batch_size, TASK_ROWS):
            task = batch[start : start + TASK_ROWS]
            if (there := task[task != PAD_ID]).size:
                yield there


def _count_unpacked_chunks(array: CompressedArray, numbers: Int64s, cache: ChunkCache) -> int:
    """How many chunks a worker decompresses for a task that wants those of these `numbers`."""
    chunk = np.broadcast_to(np.uint8(0), array.chunk_bytes)  # as large, and takes no memory
    wanted, unpacked = np.unique(numbers).tolist(), 0
    for place in cache.order_kept_first((), wanted):
        if cache.get_chunk((), wanted[place]) is None:
            cache.add_chunk((), wanted[place], chunk)
            unpacked += 1
    return unpacked
