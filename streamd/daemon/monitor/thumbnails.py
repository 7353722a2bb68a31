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


class _List(NamedTuple):
    """What numbers mean: a list at its place may be another after a reload."""

    manifest: str
    content_id: str


class _Key(NamedTuple):
    of: _List
    sample_id: int


class _HangsError(Exception):
    """A process does not end though it was killed: it waits for a disk or a server that is gone."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__(process.pid)
        self.process = process


class Thumbnails:
    """Draws those of a list one after the other, what is asked for meanwhile together, and keeps the last."""

    def __init__(self) -> None:
        self._drawn: dict[_Key, bytes] = {}
        self._wanted: defaultdict[_List, list[_Key]] = defaultdict(list)
        self._turns: WeakValueDictionary[_List, asyncio.Lock] = WeakValueDictionary()
        self._hanging: dict[_List, asyncio.subprocess.Process] = {}

    async def of(self, stream: ServedStream, sample_id: int) -> bytes:
        """A JPEG; empty where nothing can be seen."""
        key = _Key(_List(str(stream.manifest_path), stream.spec.content_id), sample_id)
        if key not in self._drawn:
            self._wanted[key.of].append(key)
            turn = self._turns.setdefault(key.of, asyncio.Lock())
            async with turn:
                # Its own besides: whoever took it along may have gone before it was drawn.
                keys = list(dict.fromkeys([*self._wanted.pop(key.of, []), key]))
                if not self._hangs(key.of):
                    await self._draw(stream, key.of, keys)
        return self._drawn.get(key, b"")

    def _hangs(self, of: _List) -> bool:
        """Whether the last process still waits for its files: another one would as well."""
        if of in self._hanging and self._hanging[of].returncode is not None:
            del self._hanging[of]
        return of in self._hanging

    async def _draw(self, stream: ServedStream, of: _List, keys: list[_Key]) -> None:
        """A process for as many as it lives for; the one that it ends at has no picture, nor, if it hangs, the rest."""
        left = [key for key in keys if key not in self._drawn]
        while left and of not in self._hanging:
            drawn: list[bytes] = []
            try:
                async for picture in _pictures(stream, [key.sample_id for key in left]):
                    drawn.append(picture)  # noqa: PERF401 - what came before an error is kept
                drawn += [b""] * (len(drawn) < len(left))
            except _HangsError as error:
                self._hanging[of] = error.process
            self._drawn.update(zip(left, drawn, strict=False))
            left = left[len(drawn) :]
        for key in list(self._drawn)[:-MAX_THUMBNAILS]:
            del self._drawn[key]


async def _pictures(stream: ServedStream, ids: list[int]) -> AsyncIterator[bytes]:
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
        await _end_of(process)


async def _end_of(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(THUMBNAIL_S):
            await process.wait()
    except TimeoutError:
        raise _HangsError(process) from None
