"""What can still be seen of bad samples. Their files may crash a decoder: so it runs in a process that may end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.thumbnail_messages import LENGTH_PREFIX, ThumbnailRequest
from streamd.limits import MAX_THUMBNAILS, THUMBNAIL_S, WORKER_ENVIRONMENT

_COMMAND: Final = (sys.executable, "-P", "-m", "streamd.worker.thumbnail_process")


class _SampleList(NamedTuple):
    """What numbers mean: a list at its place may be another after a reload."""

    manifest_path: str
    content_id: str


class _ThumbnailKey(NamedTuple):
    sample_list: _SampleList
    sample_id: int


class _HangingProcessError(Exception):
    """A process does not end though it was killed: it waits for a disk or a server that is gone."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__(process.pid)
        self.process = process


class ThumbnailCache:
    """Draws those of a list one after the other, what is asked for meanwhile together, and keeps the last."""

    def __init__(self) -> None:
        self._pictures_by_key: dict[_ThumbnailKey, bytes] = {}
        self._requested_keys: defaultdict[_SampleList, list[_ThumbnailKey]] = defaultdict(list)
        self._locks: WeakValueDictionary[_SampleList, asyncio.Lock] = WeakValueDictionary()
        self._hanging_processes: dict[_SampleList, asyncio.subprocess.Process] = {}

    async def find_or_draw(self, stream: ServedStream, sample_id: int) -> bytes:
        """A JPEG; empty where nothing can be seen."""
        key = _ThumbnailKey(_SampleList(str(stream.manifest_path), stream.spec.content_id), sample_id)
        if key not in self._pictures_by_key:
            self._requested_keys[key.sample_list].append(key)
            turn = self._locks.setdefault(key.sample_list, asyncio.Lock())
            async with turn:
                # Its own besides: whoever took it along may have gone before it was drawn.
                keys = list(dict.fromkeys([*self._requested_keys.pop(key.sample_list, []), key]))
                if not self._is_hanging(key.sample_list):
                    await self._draw_thumbnails(stream, key.sample_list, keys)
        return self._pictures_by_key.get(key, b"")

    def _is_hanging(self, sample_list: _SampleList) -> bool:
        """Whether the last process still waits for its files: another one would as well."""
        if sample_list in self._hanging_processes and self._hanging_processes[sample_list].returncode is not None:
            del self._hanging_processes[sample_list]
        return sample_list in self._hanging_processes

    async def _draw_thumbnails(self, stream: ServedStream, sample_list: _SampleList, keys: list[_ThumbnailKey]) -> None:
        """A process for as many as it lives for; the one that it ends at has no picture, nor, if it hangs, the rest."""
        left = [key for key in keys if key not in self._pictures_by_key]
        while left and sample_list not in self._hanging_processes:
            drawn: list[bytes] = []
            try:
                async for picture in _receive_thumbnails(stream, [key.sample_id for key in left]):
                    drawn.append(picture)  # noqa: PERF401 - what came before an error is kept
                drawn += [b""] * (len(drawn) < len(left))
            except _HangingProcessError as error:
                self._hanging_processes[sample_list] = error.process
            self._pictures_by_key.update(zip(left, drawn, strict=False))
            left = left[len(drawn) :]
        for key in list(self._pictures_by_key)[:-MAX_THUMBNAILS]:
            del self._pictures_by_key[key]


async def _receive_thumbnails(stream: ServedStream, ids: list[int]) -> AsyncIterator[bytes]:
    """A picture a sample, as long as the process that draws them lives. Raises _HangsError."""
    process = await asyncio.create_subprocess_exec(
        *_COMMAND, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **WORKER_ENVIRONMENT},
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
    spec = replace(stream.spec, labels={}, normalize="none")  # which may be large, and no picture depends on them
    try:
        process.stdin.write(msgspec.json.encode(ThumbnailRequest(str(stream.manifest_path), spec, ids)))
        process.stdin.close()
        with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            for _ in ids:
                async with asyncio.timeout(THUMBNAIL_S):
                    length = LENGTH_PREFIX.unpack(await process.stdout.readexactly(LENGTH_PREFIX.size))[0]
                    picture = await process.stdout.readexactly(length)
                yield picture
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await _wait_for_exit(process)


async def _wait_for_exit(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(THUMBNAIL_S):
            await process.wait()
    except TimeoutError:
        raise _HangingProcessError(process) from None
