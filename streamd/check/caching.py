"""What a stream's cache will take of the disk, and how much of the stream will be in it."""

from __future__ import annotations

import os
from pathlib import Path

from streamd.check.findings import Cache
from streamd.decode.identity import pixel_id
from streamd.served import ServedStream
from streamd.stores.cachefile import CacheShape


def caching(stream: ServedStream) -> Cache | None:
    """The arithmetic of a cache, nothing of which is made; None for a stream without."""
    if stream.cache is None:
        return None
    folder, shape = Path(stream.cache.folder), CacheShape.of(stream.spec, pixel_id(stream.spec.image))
    kept = shape.kept(stream.cache.max_bytes)
    file = folder / shape.name
    allocated_bytes = file.stat().st_blocks * 512 if file.is_file() else 0
    return Cache(
        folder=os.fsencode(folder).decode(errors="backslashreplace"),
        samples=kept,
        bytes=shape.file_bytes(kept),
        all_bytes=shape.file_bytes(shape.samples),
        free_bytes=_free_bytes(folder) + allocated_bytes,
    )


def _free_bytes(folder: Path) -> int:
    """Of the disk that the folder lies on, or will."""
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    system = os.statvfs(there)
    return system.f_bavail * system.f_frsize
