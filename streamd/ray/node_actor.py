"""The methods of the actor on a node. It needs no ray: its arguments and results are bytes, and arrays of rows.

Ray runs all methods on one event loop. They are called by a bridge of the same version, once `describe` has said so.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

import streamd
from streamd.core.host import make_temporary_folder
from streamd.core.spec import compute_identity
from streamd.dataset.cache.file import WriterLocks, lock_file_name
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.paths.root_proof import choose_expected_files, find_absence_reason
from streamd.dataset.transform_source import compute_source_digest
from streamd.errors import ConfigError, StreamdError
from streamd.ipc.worker_messages import (
    OpenStream,
    StreamOpenFailed,
    TransformPlace,
    decode_command,
    encode_report,
    format_error_reason,
)
from streamd.limits import MAX_REFUSAL_CHARS
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


# --- What a node keeps of the daemon's files: manifests and the modules of transforms, in a folder of its own.


_PREFIX: Final = "streamd-node-"
_LOCK: Final = "lock"


class NodeFiles:
    """A folder for as long as the actor lives. Names are digests, so nothing from outside chooses a path."""

    def __init__(self) -> None:
        # An actor that is killed leaves its folder; the lock in it goes with the process, so the next one removes it.
        _remove_abandoned_folders()
        self._folder = make_temporary_folder(_PREFIX)  # of mode 0700
        self._lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def find_manifest(self, key: str) -> Path | None:
        """Returns the manifest that was received under this key, if there is one."""
        path = self._manifest_path(key)
        return path if path.is_file() else None

    def _manifest_path(self, key: str) -> Path:
        return self._folder / f"{compute_identity('streamd node manifest 1', key)}.manifest"

    def write_manifest(self, key: str, data: memoryview) -> None:
        """Keeps a manifest, whole or not at all."""
        path = self._manifest_path(key)
        partial = path.with_suffix(".part")
        partial.write_bytes(data)
        partial.replace(path)

    def place_transform(self, place: TransformPlace, sources: Mapping[str, bytes]) -> TransformPlace:
        """Writes the modules of a transform, by path below their folder; returns the place where they lie here.

        Without sources the module is an installed one. Raises ConfigError if its source here is another version.
        """
        folder = self._folder / place.digest
        if sources and not folder.exists():
            partial = Path(tempfile.mkdtemp(dir=self._folder))
            for name, data in sources.items():
                path = (partial / name).resolve()
                if not path.is_relative_to(partial):
                    raise ConfigError(f"a module of transform {place.module!r} lies outside its folder: {name!r}")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            partial.rename(folder)
        folder.mkdir(exist_ok=True)
        if compute_source_digest(place.module, folder) != place.digest:
            raise ConfigError(
                f"transform {place.module!r} has another source on this node than on the daemon's host: install the "
                "same version on both"
            )
        return replace(place, folder=str(folder))

    def close(self) -> None:
        """Removes the folder. Processes that have a manifest open keep it."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._release_lock()

    def _release_lock(self) -> None:
        os.close(self._lock)


def _remove_abandoned_folders() -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # another user's, or just removed
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
        except BlockingIOError:  # its actor lives
            pass
        finally:
            os.close(descriptor)
