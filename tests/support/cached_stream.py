"""A stream with a cache in a folder, without daemon and worker, and rows to write into it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.arrays.store import Pixels
from streamd.dataset.cache import CacheLayout, DecodedCache
from streamd.ipc.worker_messages import CachePlace
from streamd.worker.stream_reader import StreamReader


def place(folder: Path, max_bytes: int | None = None, *, writable: bool = True) -> CachePlace:
    folder.mkdir(exist_ok=True)
    return CachePlace(str(folder), max_bytes, writable)


def open_cache(source: StreamReader, where: CachePlace) -> DecodedCache:
    return DecodedCache.open(where, source.spec, source.manifest, source.pixel_id)


def row_of(source: StreamReader, sample_id: int) -> Pixels:
    """Something that tells a sample from all others."""
    rng = np.random.default_rng(sample_id)
    return rng.integers(0, 256, source.spec.image_shape, dtype=np.uint8)


def rows_of(source: StreamReader, ids: list[int]) -> Pixels:
    return np.stack([row_of(source, sample_id) for sample_id in ids])


def fill(cache: DecodedCache, source: StreamReader, ids: list[int]) -> None:
    """Keeps and publishes."""
    for sample_id in ids:
        cache.write_sample(sample_id, {"image": row_of(source, sample_id)}, {})
    cache.publish_rows()


def gathered(cache: DecodedCache, source: StreamReader, ids: list[int]) -> tuple[list[bool], Pixels]:
    """What a task of these samples gets of the cache; memory that nobody wrote is 0xAA."""
    images = np.full((len(ids), *source.spec.image_shape), 0xAA, np.uint8)
    mask, _ = cache.gather(np.array(ids, np.int64), {"image": images})
    return mask.tolist(), images


def held(cache: DecodedCache, ids: list[int]) -> list[bool]:
    mask: list[bool] = cache.find_gatherable(np.array(ids, np.int64)).tolist()
    return mask


def shape_of(source: StreamReader) -> CacheLayout:
    return CacheLayout.from_stream_spec(source.spec, source.pixel_id)


def file_in(folder: Path, stream: StreamReader | ServedStream) -> Path:
    """The cache's file, which must be the only one."""
    (path,) = folder.glob("*.cache")
    assert path.name.startswith(stream.spec.content_id[:16])
    return path


def spoil_row(path: Path, shape: CacheLayout, sample_id: int) -> None:
    """Flips one bit in the middle of a sample's pixels."""
    with path.open("r+b") as file:
        file.seek(shape.file_bytes(sample_id) + shape.row_bytes // 2)
        (was,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([was ^ 0x10]))
