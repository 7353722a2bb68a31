"""The methods of the actor on a node. It needs no ray: its arguments and results are bytes, and arrays of rows.

Ray runs all methods on one event loop. They are called by a bridge of the same version, once `describe` has said so.
"""

from __future__ import annotations

import asyncio
import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

import streamd
from streamd.dataset.cache.file import WriterLocks, lock_file_name
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.paths.root_proof import choose_expected_files, find_absence_reason
from streamd.errors import StreamdError
from streamd.ipc.worker_messages import (
    OpenStream,
    StreamOpenFailed,
    decode_command,
    encode_report,
    format_error_reason,
)
from streamd.limits import MAX_REFUSAL_CHARS
from streamd.ray.node_files import NodeFiles
from streamd.ray.node_workers import NodeWorkers
from streamd.ray.stream_parcel import StreamParcel, decode_parcel

FilledRows = list[tuple[bytes, npt.NDArray[np.uint8] | None]]


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A node as it describes itself: its host, and the version of streamd that is installed there."""

    version: str
    host: str
    pid: int


_describe_decoder: Final = msgspec.json.Decoder(NodeDescription)


def decode_description(data: bytes) -> NodeDescription:
    """Returns the description that an actor gave. Raises msgspec.MsgspecError."""
    return _describe_decoder.decode(data)


class NodeActor:
    """Runs the decode processes of one node. Ray creates it there, and ends it with the bridge."""

    def __init__(self, workers: int, row_deadline_s: float) -> None:
        self._workers = NodeWorkers(workers, row_deadline_s)
        self._files = NodeFiles()
        self._locks = WriterLocks()
        self._locked: dict[int, Path] = {}  # by stream: the lock of its cache on this node
        self._running: asyncio.Task[None] | None = None

    async def describe(self) -> bytes:
        """Starts the decode processes; returns this node's description."""
        if self._running is None:
            self._running = asyncio.create_task(self._workers.run(), name="workers")
        return msgspec.json.encode(NodeDescription(streamd.__version__, platform.node(), os.getpid()))

    async def has_manifest(self, key: str) -> bool:
        """Whether this node has the manifest of this key."""
        return self._files.find_manifest(key) is not None

    async def receive_manifest(self, key: str, data: npt.NDArray[np.uint8]) -> None:
        """Keeps a manifest under its key."""
        await asyncio.to_thread(self._files.write_manifest, key, data.data)

    async def open_stream(self, data: bytes) -> bytes:
        """Opens a stream whose manifest this node has, if its data are here; returns StreamReady or StreamOpenFailed.

        The data are proven by the sizes of files drawn by seed from the manifest.
        """
        parcel = decode_parcel(data)
        number = parcel.command.number
        try:
            command = await asyncio.to_thread(self._prepare_stream, parcel)
            return encode_report(await self._workers.open_stream(command))
        except (StreamdError, OSError) as error:
            return encode_report(StreamOpenFailed(number, format_error_reason(error, MAX_REFUSAL_CHARS)))

    def _prepare_stream(self, parcel: StreamParcel) -> OpenStream:
        """Returns the command that opens a stream here. Raises StreamdError if its data are missing."""
        command, path = parcel.command, self._files.find_manifest(parcel.manifest_key)
        assert path is not None  # noqa: S101 - it was received before
        manifest = Manifest.open(path)
        try:
            reason = find_absence_reason(choose_expected_files(manifest))
        finally:
            manifest.close()
        if reason:
            raise StreamdError(reason)
        transform = command.transform and self._files.place_transform(command.transform, parcel.sources)
        return replace(command, manifest=str(path), transform=transform, cache=self._place_cache(command), away=False)

    def _place_cache(self, command: OpenStream) -> Any:
        """Returns the place of a stream's cache on this node, writable if no other process here writes it."""
        if command.cache is None:
            return None
        lock = Path(command.cache.folder) / lock_file_name(command.spec)
        is_writable = command.number in self._locked or self._locks.acquire_lock(lock)
        if is_writable:
            self._locked[command.number] = lock
        return replace(command.cache, writable=is_writable)

    async def close_stream(self, number: int) -> None:
        """Closes a stream, of which no task is under way."""
        self._workers.close_stream(number)
        if (lock := self._locked.pop(number, None)) is not None:
            self._locks.release_lock(lock)

    async def fill_rows(self, records: list[bytes]) -> FilledRows:
        """Fills several tasks at a time; returns the report on each, and its rows unless the process has died."""
        tasks = [decode_command(record) for record in records]
        filled = await asyncio.gather(*(self._workers.fill_rows(task) for task in tasks))  # type: ignore[arg-type]  # a bridge sends nothing else
        return [(encode_report(report), rows) for report, rows in filled]
