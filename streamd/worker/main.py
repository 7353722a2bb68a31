"""A decode process: `python -m streamd.worker LINK TRACK`, descriptors of its end of a socket pair and of its page.

Tasks come in as datagrams and go out as reports; the page says at which row it is, should it die there. While one task
is decoded the next one's files are being read, unless they come from memory anyway. When the daemon is gone the socket
ends, and so does the worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NoReturn

import aiofiles.os

from streamd.core.spec import PixelId
from streamd.dataset.cache.store import DecodedCache, Saving
from streamd.errors import ConfigError, DataAwayError
from streamd.ipc.frames import bundle, parted
from streamd.ipc.mapping import map_writable
from streamd.ipc.parent_death import end_first
from streamd.ipc.progress_page import OUT_OF_MEMORY_STATUS, Phase, Track
from streamd.ipc.standard_files import fill_standard_files
from streamd.ipc.worker_messages import (
    MAX_GROUP,
    MAX_RECORD_BYTES,
    BadSample,
    CloseStream,
    Done,
    DropSlots,
    FillRows,
    OpenStream,
    Ready,
    Remark,
    Unopened,
    decode_command,
    encode_report,
    short_reason,
)
from streamd.limits import MAX_REFUSAL_CHARS, WORKER_DATA_BYTES
from streamd.worker.fill_rows import Filling
from streamd.worker.stream_reader import Blob, ReadPace, Source, Unread, foresee_pixels, opened
from streamd.worker.transforms.call import UnfitTransformError

# Rows decoded between two looks at the socket, so that the next task's files are read meanwhile.
_LOOK_UP_ROWS: Final = 16
_NICENESS: Final = 1  # trainers on the same host come first
_STDOUT, _STDERR = 1, 2
_read_group = aiofiles.os.wrap(Source.read_ahead)
_open_source = aiofiles.os.wrap(opened)  # in a thread: a mount that hangs must not keep other streams waiting
_foresee_pixels = aiofiles.os.wrap(foresee_pixels)
_close_source = aiofiles.os.wrap(Source.close)  # in a thread: what was kept may be on its way to a slow disk

Reading = asyncio.Task[tuple[list[Blob], float]] | None  # None: to be read when its turn comes


class Worker:
    """Serves tasks in their order until the daemon's end of the socket closes."""

    def __init__(self, link: socket.socket, track: Track) -> None:
        self._link = link
        self._track = track
        self._sources: dict[int, Source] = {}
        self._unopened: dict[int, OpenStream] = {}  # to be tried again with each task
        self._chores: set[asyncio.Future[None]] = set()
        self._slots: dict[int, memoryview] = {}
        self._queue: deque[tuple[FillRows, memoryview, Reading]] = deque()
        self._pace = ReadPace()
        self._saving = Saving()
        self._done: list[bytes] = []  # reports that wait for company
        self._arrived = asyncio.Event()
        self._ended = False
        self._failure: BaseException | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._fail)
        self._link.setblocking(False)
        loop.add_reader(self._link, self._receive)
        idle_since = time.monotonic_ns()
        while not self._ended:
            if not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            idle_ns = time.monotonic_ns() - idle_since
            await self._produce(*self._queue.popleft(), idle_ns)  # in no variable here: it would keep a dropped slot
            idle_since = time.monotonic_ns()
        if self._failure is not None:
            raise self._failure
        for source in self._sources.values():
            if source.cache is not None:
                source.cache.publish()
        if self._track.trial().phase is not Phase.ELSEWHERE:
            os._exit(0)  # a thread is waited for otherwise, and a transform may never return

    async def _produce(self, task: FillRows, memory: memoryview, reading: Reading, idle_ns: int) -> None:
        started, worked = time.monotonic_ns(), time.thread_time_ns()
        self._track.at(task.number, 0, Phase.READING)
        if task.stream in self._unopened and (unread := await self._open_for(task)):
            await self._report(Done(task.number, 0, 0, idle_ns, unread))
            return
        source = self._sources[task.stream]
        if reading is not None and not reading.done():
            await self._tell()  # a disk is waited for: what is done must not wait with it
        early = await reading if reading is not None else None
        filling = Filling(source, task, memory, self._track)
        blobs, seconds = ([], 0.0) if filling.gather() else early or source.read_timed(task.ids)
        self._pace.note(len(blobs) - blobs.count(Unread.LATER), seconds)
        read = time.monotonic_ns()
        waited_ns = max(0, read - started - (time.thread_time_ns() - worked))
        await self._step_by_step(partial(filling.decode, blobs), len(blobs))
        if source.cache is not None:
            self._add_to(source.cache, filling, task.stream)
        filling.write_labels()
        unfit = "" if source.transform is None else await self._transform(filling, task.rows.size)
        done = time.monotonic_ns()
        bad = tuple(filling.bad)
        times = read - started, done - read, idle_ns
        await self._report(Done(task.number, *times, bad, filling.gathered, unfit, waited_ns))

    async def _step_by_step(self, fill: Callable[[int, int], None], rows: int) -> None:
        """Fills rows, with a look at the socket now and then."""
        for start in range(0, rows, _LOOK_UP_ROWS):
            try:
                fill(start, start + _LOOK_UP_ROWS)
            except MemoryError:
                leave_out_of_memory()
            if not self._queue:
                await asyncio.sleep(0)

    async def _transform(self, filling: Filling, rows: int) -> str:
        """Why the stream cannot go on, or nothing."""
        try:
            await self._step_by_step(filling.transform, rows)
        except UnfitTransformError as error:
            return short_reason(error, MAX_REFUSAL_CHARS)
        return ""

    def _add_to(self, cache: DecodedCache, filling: Filling, stream: int) -> None:
        """Before the report: the slot is another's afterwards."""
        filling.keep(cache)
        self._saving.note(cache)
        while cache.remarks:
            self._done.append(encode_report(Remark(stream, cache.remarks.pop(0))))

    async def _report(self, report: Done) -> None:
        """Reports half of what the daemon has given at a time, so that it is not woken for each task."""
        self._done.append(encode_report(report))
        if self._has_done_half():
            self._receive()  # what came meanwhile counts, too
        if self._has_done_half() or report.bad or report.unfit:
            await self._tell()

    async def _tell(self) -> None:
        if not self._done:
            return
        records, self._done = bundle(self._done), []
        if not self._send(records) and not self._ended:
            await asyncio.get_running_loop().sock_sendall(self._link, records)

    def _has_done_half(self) -> bool:
        return len(self._done) >= min(len(self._queue), MAX_GROUP)

    def _send(self, data: bytes) -> bool:
        """Whether the records are out; not when the socket is full, or the daemon gone, which ends the worker."""
        try:
            self._link.send(data)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self._end()
            return False
        return True

    def _receive(self) -> None:
        """Takes one datagram; the loop calls again as long as there is one."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._link, MAX_RECORD_BYTES, MAX_GROUP)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data, descriptors = b"", []
        if data:
            for record in parted(data):
                self._obey(record, descriptors)
        else:
            asyncio.get_running_loop().remove_reader(self._link)
            self._end()

    def _obey(self, data: bytes, descriptors: list[int]) -> None:
        match decode_command(data):
            case FillRows() as task:
                self._map(task, descriptors)
                self._queue.append((task, self._slots[task.slot], self._begin_reading(task)))
                self._arrived.set()
            case DropSlots(slots):
                for slot in slots:
                    self._slots.pop(slot, None)
            case CloseStream(number):
                self._unopened.pop(number, None)
                if number in self._sources:
                    self._aside(_close_source(self._sources.pop(number)))
            case OpenStream() as command:
                self._unopened[command.number] = command
                self._aside(self._introduce(command.number))

    def _aside(self, chore: Awaitable[None]) -> None:
        """Does something beside the tasks."""
        doing = asyncio.ensure_future(chore)
        self._chores.add(doing)
        doing.add_done_callback(self._chores.discard)

    async def _introduce(self, number: int) -> None:
        """Opens a stream that is new. What its pipeline makes is known without its data, should those be away."""
        command = self._unopened.get(number)
        if command is None:
            return
        try:
            if command.away:
                self._tell_ready(number, *await _foresee_pixels(command, self._track))
            else:
                await self._open(command)
        except DataAwayError:
            if number in self._unopened:  # neither closed meanwhile, nor opened for a task
                self._unopened[number] = replace(command, away=True)
                await self._introduce(number)
        except (ConfigError, OSError) as error:
            self._send(encode_report(Unopened(number, short_reason(error, MAX_REFUSAL_CHARS))))

    async def _open_for(self, task: FillRows) -> tuple[BadSample, ...]:
        """Opens the stream of a task; what becomes of it otherwise: all of it may be there the next time."""
        try:
            await self._open(self._unopened[task.stream])
        except (ConfigError, OSError) as error:
            reason, away = short_reason(error, MAX_REFUSAL_CHARS), isinstance(error, DataAwayError)
            return tuple(BadSample(each, reason, lasting=False, away=away) for each in task.ids.tolist())
        return ()

    async def _open(self, command: OpenStream) -> None:
        """Opens a stream that is not open. Raises as Source.open."""
        number = command.number
        source, remark = await _open_source(command, self._track)
        if number not in self._unopened:  # closed meanwhile, or opened for a task
            source.close()
            return
        self._sources[number] = source
        del self._unopened[number]
        self._tell_ready(number, source.pixel_id, remark)

    def _tell_ready(self, number: int, pixel_id: PixelId, remark: str) -> None:
        self._send(encode_report(Ready(number, pixel_id)))  # short, into an empty socket: it has room
        if remark:
            self._send(encode_report(Remark(number, remark)))

    def _begin_reading(self, task: FillRows) -> Reading:
        if task.stream in self._unopened:
            return None
        source = self._sources[task.stream]
        source.expect(task.ids)
        if not self._pace.ahead or not source.has_files:
            return None
        return asyncio.ensure_future(_read_group(source, task.ids)) if source.lacking(task.ids).any() else None

    def _map(self, task: FillRows, descriptors: list[int]) -> None:
        """Maps a slot that is new here: the descriptors of a datagram are those of its new slots, in their order."""
        if task.slot not in self._slots:
            descriptor = descriptors.pop(0)
            self._slots[task.slot] = map_writable(descriptor, task.slot_bytes)
            os.close(descriptor)

    def _fail(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback raised and a command is lost: the worker dies of it, and the daemon gives its tasks to another."""
        del loop
        self._failure = self._failure or context.get("exception") or RuntimeError(str(context.get("message")))
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._arrived.set()


def confine_process() -> None:
    """What every worker is, whatever it decodes: nice, bounded, the first to go, without cores, deaf to Ctrl-C."""
    os.nice(_NICENESS)
    end_first()
    resource.setrlimit(resource.RLIMIT_DATA, (WORKER_DATA_BYTES, WORKER_DATA_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the daemon drains; its end ends us
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the daemon reloads
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # it would print what the verdict on a file says


def leave_out_of_memory() -> NoReturn:
    """Ends the process at once: to leave in order takes memory, and waits for files that are being read."""
    os._exit(OUT_OF_MEMORY_STATUS)


def inherited_track(descriptor: str) -> Track:
    """The page behind a descriptor that came as an argument."""
    track = Track(int(descriptor))
    os.close(int(descriptor))
    return track


def main() -> None:
    """Runs a worker on the socket and the page whose descriptors are the first arguments."""
    fill_standard_files()
    confine_process()
    os.dup2(_STDERR, _STDOUT)  # a transform may print; a command's standard output is for what it was asked
    track = inherited_track(sys.argv[2])
    with socket.socket(fileno=int(sys.argv[1])) as link:
        asyncio.run(Worker(link, track).run())
