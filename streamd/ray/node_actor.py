"""The methods of the actor on a node. It needs no ray: its arguments and results are bytes, and arrays of rows.

Ray runs all methods on one event loop. They are called by a bridge of the same version, once `describe` has said so.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import platform
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec
import msgspec.structs
import numpy as np
import numpy.typing as npt

import streamd
from streamd.core import log
from streamd.core.host import make_temporary_folder, read_regular_file
from streamd.core.slot_layout import SlotTensor, compute_layout, compute_slot_bytes
from streamd.core.spec import compute_identity
from streamd.dataset.cache import WriterLocks, lock_file_name
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.paths.open_beneath import choose_expected_files, find_absence_reason
from streamd.dataset.transform_source import compute_source_digest, find_source_files
from streamd.errors import ConfigError, StreamdError
from streamd.ipc.mapping import build_leased_array
from streamd.ipc.slots import RowProgress, SlotStore
from streamd.ipc.worker_messages import (
    CloseStream,
    FillRows,
    OpenStream,
    StreamOpenFailed,
    StreamReady,
    TaskDone,
    TransformPlace,
    WorkerDied,
    WorkerReport,
    decode_command,
    encode_report,
    format_error_reason,
)
from streamd.limits import (
    MAX_REFUSAL_CHARS,
    MAX_TRANSFORM_SOURCES_BYTES,
    MIB,
    NODE_TASKS_AHEAD,
    WORKER_RESPAWN_MAX_S,
    WORKER_RESPAWN_S,
)
from streamd.supervisor.worker_process import WorkerProcess

FilledRows = list[tuple[bytes, npt.NDArray[np.uint8] | None]]


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A node as it describes itself: its host, and the version of streamd that is installed there."""

    version: str
    host: str
    pid: int


class NodeActor:
    """Runs the decode processes of one node. Ray creates it there, and ends it with the bridge."""

    def __init__(self, workers: int, row_deadline_s: float) -> None:
        self._workers = NodeWorkers(workers, row_deadline_s)
        self._files = NodeFiles()
        self._locks = WriterLocks()
        self._locked: dict[int, Path] = {}  # by stream: the lock of its cache on this node
        self._running: asyncio.Task[None] | None = None

    async def describe(self) -> bytes:
        """Starts the decode processes; returns this node's NodeDescription as JSON."""
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

        `data` are a StreamParcel as MessagePack. The stream's own data are proven by the sizes of files drawn by seed
        from the manifest.
        """
        parcel = _parcel_decoder.decode(data)
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
        # Its cache on this node is written if no other process here writes it.
        cache = command.cache
        if cache is not None:
            lock = Path(cache.folder) / lock_file_name(command.spec)
            is_writable = command.number in self._locked or self._locks.acquire_lock(lock)
            if is_writable:
                self._locked[command.number] = lock
            cache = replace(cache, writable=is_writable)
        return replace(command, manifest=str(path), transform=transform, cache=cache, away=False)

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
        os.close(self._lock)


# --- What a node needs to open a stream: the command, its manifest's key, and the modules of its transform.


@dataclass(frozen=True, slots=True)
class StreamParcel:
    """A stream to be opened on a node. `manifest_key` names its manifest; `sources` are its transform's modules.

    The modules are keyed by their paths below the transform's folder. There are none for an installed module.
    """

    command: OpenStream
    manifest_key: str
    sources: dict[str, bytes] = field(default_factory=dict)


_parcel_decoder: Final = msgspec.msgpack.Decoder(StreamParcel)


def pack_stream(command: OpenStream) -> StreamParcel:
    """Returns the parcel of a stream that this host has. Raises ConfigError, and OSError if a file cannot be read."""
    at = Path(command.manifest).stat()
    # A manifest with the same content may have been listed at another time or place, so both are part of its key.
    key = f"{command.spec.content_id} {command.manifest} {at.st_size} {at.st_mtime_ns}"
    if command.transform is None:
        return StreamParcel(command, key)
    folder = Path(command.transform.folder)
    files = find_source_files(command.transform.module, folder).values()
    sources = {path.relative_to(folder).as_posix(): read_regular_file(path) for path in files}
    size = sum(map(len, sources.values()))
    if size > MAX_TRANSFORM_SOURCES_BYTES:
        raise ConfigError(
            f"streams.{command.spec.name}.transform: its modules have {size // MIB} MiB, and at most "
            f"{MAX_TRANSFORM_SOURCES_BYTES // MIB} are sent to nodes; install them there instead"
        )
    return StreamParcel(command, key, sources)


# --- The decode processes of one node: kept alive, given tasks, and what their ends say about a row.


Filled = tuple[TaskDone | WorkerDied, npt.NDArray[np.uint8] | None]


class _NodeTask(FillRows, frozen=True, eq=False, kw_only=True):
    """A task in a slot of the node, whose rows lie there one behind the other; `origin` is its number elsewhere."""

    origin: int
    outcome: asyncio.Future[TaskDone | WorkerDied]


class NodeWorkers:
    """`count` decode processes with slots of their own. Lives on one event loop."""

    def __init__(self, count: int, row_deadline_s: float) -> None:
        self._count = count
        self._row_deadline_s = row_deadline_s
        self._workers: list[WorkerProcess[_NodeTask]] = []
        self._queue: deque[_NodeTask] = deque()
        self._suspects: deque[_NodeTask] = deque()
        self._commands: dict[int, OpenStream] = {}
        self._answers: dict[int, asyncio.Future[StreamReady | StreamOpenFailed]] = {}
        self._slots = SlotStore()
        self._free_slots: dict[int, list[int]] = {}  # by their bytes
        self._slot_numbers: Iterator[int] = itertools.count(1)
        self._task_numbers: Iterator[int] = itertools.count(1)

    async def run(self) -> None:
        """Keeps the processes alive until cancelled; none is left when it returns."""
        try:
            async with asyncio.TaskGroup() as group:
                for place in range(self._count):
                    group.create_task(self._keep_worker_running(place), name=f"worker-{place}")
        finally:
            workers, self._workers = self._workers, []
            await asyncio.gather(*(worker.shut_down() for worker in workers))
            self._slots.close()

    # --- streams

    async def open_stream(self, command: OpenStream) -> StreamReady | StreamOpenFailed:
        """Opens a stream in all processes; returns what the first one answers."""
        if command.number in self._commands:  # it proves its data once more; its processes open them again themselves
            return await asyncio.shield(self._answers[command.number])
        answer = self._answers[command.number] = asyncio.get_running_loop().create_future()
        self._commands[command.number] = command
        for worker in self._workers:
            worker.send_command(command)
        return await asyncio.shield(answer)

    def close_stream(self, number: int) -> None:
        """Closes a stream, of which no task is under way."""
        if self._commands.pop(number, None) is None:
            return
        if not (answer := self._answers.pop(number)).done():
            answer.set_result(StreamOpenFailed(number, "the stream was closed"))
        for worker in self._workers:
            worker.send_command(CloseStream(number))

    # --- tasks

    async def fill_rows(self, task: FillRows) -> Filled:
        """Fills the rows of a task; returns the report and the rows, whose memory is reused when nobody views it.

        The rows lie as a batch of their own, with their labels. There are none if the process has died.
        """
        spec = self._commands[task.stream].spec
        nbytes = compute_slot_bytes(spec, task.rows.size)
        free = self._free_slots.setdefault(nbytes, [])
        slot = free.pop() if free else next(self._slot_numbers)
        loop = asyncio.get_running_loop()
        outcome = loop.create_future()
        own = _NodeTask(
            next(self._task_numbers), task.stream, slot, nbytes, task.rows.size,
            np.arange(task.rows.size, dtype=np.uint16), task.ids, task.epoch, task.is_suspect,
            origin=task.number, outcome=outcome,
        )  # fmt: skip
        (self._suspects if task.is_suspect else self._queue).append(own)
        self._assign_tasks()
        report = await outcome
        if isinstance(report, WorkerDied):
            # Another process may have it mapped, but none writes to it: the one that had this task is gone.
            free.append(slot)
            return report, None
        # The rows are lent from the slot, which is free again when they are not needed any more.
        tensor = SlotTensor("rows", "uint8", (compute_layout(spec, task.rows.size).size_bytes,), 0)

        def take_slot_back() -> None:
            # The array may die in any thread, in which Ray has stored the result.
            if not loop.is_closed():
                loop.call_soon_threadsafe(free.append, slot)

        return report, build_leased_array(self._slots.map_slot(slot), tensor, take_slot_back)

    def _assign_tasks(self) -> None:
        while self._suspects and (fresh := next((each for each in self._workers if each.is_fresh), None)):
            fresh.send_task(self._suspects.popleft(), self._slots)
        # The process that died for a suspect may have been another node's, and one that started since may have a task
        # already. So a process without a task ends, to be replaced by a fresh one; other tasks wait until then.
        if self._suspects:
            idle = next((each for each in self._workers if not each.tasks), None)
            if idle is not None and len(self._workers) == self._count:
                idle.kill_waiting_process()
            return
        while self._queue:
            able = [each for each in self._workers if not each.has_suspect and len(each.tasks) < NODE_TASKS_AHEAD]
            if not able:
                return
            min(able, key=lambda each: len(each.tasks)).send_task(self._queue.popleft(), self._slots)

    # --- WorkerListener, and the beginning and end of a process

    def on_worker_started(self, worker: WorkerProcess[_NodeTask]) -> None:
        """Opens all streams in a new process, and gives it tasks."""
        for command in self._commands.values():
            worker.send_command(command)
        self._assign_tasks()

    def on_worker_reports(self, worker: WorkerProcess[_NodeTask], reports: Sequence[WorkerReport]) -> None:
        """Ends the tasks that are done, and answers those who open a stream."""
        for report in reports:
            match report:
                case TaskDone(number):
                    task = worker.remove_finished_task(number)
                    _set_outcome(task, msgspec.structs.replace(report, number=task.origin))
                case StreamReady(stream) | StreamOpenFailed(stream):
                    answer = self._answers.get(stream)
                    if answer is not None and not answer.done():
                        answer.set_result(report)
                case _:  # remarks are the same on the daemon's host
                    pass
        self._assign_tasks()

    def on_worker_waiting(self, worker: WorkerProcess[_NodeTask], progress: RowProgress) -> None:
        """Logs that a process waits for a file. It is killed when it waits for as long again."""
        del progress
        log.warning("worker.waiting", f"waits for a file for more than {self._row_deadline_s:g} s", pid=worker.pid)

    def on_worker_died(self, worker: WorkerProcess[_NodeTask], death: WorkerDied) -> None:
        """Gives back the tasks of a dead process. Only the one that it was at carries the judgement."""
        for task in worker.take_back_tasks(death.tasks):
            blamed = task.number == death.blamed_task
            _set_outcome(
                task,
                WorkerDied(
                    death.description,
                    (task.origin,),
                    task.origin if blamed else 0,
                    death.place if blamed else 0,
                    death.sample_fault if blamed else None,
                ),
            )
        self._assign_tasks()

    # --- processes

    async def _keep_worker_running(self, place: int) -> None:
        pause_s = WORKER_RESPAWN_S
        while True:
            try:
                worker = await WorkerProcess[_NodeTask].start(place, self, self._row_deadline_s)
            except OSError as error:
                log.warning("worker.denied", f"{error.strerror}; trying again in {WORKER_RESPAWN_MAX_S:g} s")
                await asyncio.sleep(WORKER_RESPAWN_MAX_S)
                continue
            self._workers.append(worker)
            self.on_worker_started(worker)
            death = await worker.wait_for_exit()
            self._workers.remove(worker)
            pause_s = WORKER_RESPAWN_S if worker.completed_tasks else min(pause_s * 2, WORKER_RESPAWN_MAX_S)
            self.on_worker_died(worker, death)
            worker.close()
            await asyncio.sleep(pause_s)


def _set_outcome(task: _NodeTask, outcome: TaskDone | WorkerDied) -> None:
    if not task.outcome.done():
        task.outcome.set_result(outcome)
