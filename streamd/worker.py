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
from pathlib import Path
from typing import Any, Final, NoReturn

import aiofiles.os

from streamd.decode.identity import pixel_id
from streamd.errors import ConfigError
from streamd.limits import WORKER_DATA_BYTES
from streamd.mapping import map_writable
from streamd.produce import Blob, Filling, ReadPace, Source
from streamd.tasks import (
    MAX_RECORD_BYTES,
    BadSample,
    CloseStream,
    Done,
    DropSlots,
    OpenStream,
    Ready,
    Report,
    Task,
    Unopened,
    decode_command,
    encode_report,
    short_reason,
)
from streamd.whereabouts import OUT_OF_MEMORY_STATUS, Phase, Track

# Rows decoded between two looks at the socket, so that the next task's files are read meanwhile.
_LOOK_UP_ROWS: Final = 16
_NICENESS: Final = 1  # trainers on the same host come first
_read_group = aiofiles.os.wrap(Source.read_timed)
_open_source = aiofiles.os.wrap(Source.open)  # in a thread: a mount that hangs must not keep other streams waiting

Reading = asyncio.Task[tuple[list[Blob], float]] | None  # None: to be read when its turn comes


class Worker:
    """Serves tasks in their order until the daemon's end of the socket closes."""

    def __init__(self, link: socket.socket, track: Track) -> None:
        self._link = link
        self._track = track
        self._sources: dict[int, Source] = {}
        self._unopened: dict[int, OpenStream] = {}  # to be tried again with each task
        self._openings: set[asyncio.Task[None]] = set()
        self._slots: dict[int, memoryview] = {}
        self._queue: deque[tuple[Task, memoryview, Reading]] = deque()
        self._pace = ReadPace()
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

    async def _produce(self, task: Task, memory: memoryview, reading: Reading, idle_ns: int) -> None:
        started = time.monotonic_ns()
        self._track.at(task.number, 0, Phase.READING)
        if task.stream in self._unopened and (why := await self._open(task.stream)):
            await self._report(Done(task.number, 0, 0, idle_ns, _unread(task, why)))
            return
        source = self._sources[task.stream]
        blobs, seconds = await reading if reading is not None else source.read_timed(task.ids)
        self._pace.note(len(blobs), seconds)
        read = time.monotonic_ns()
        filling = Filling(source, task, memory, self._track)
        for start in range(0, len(blobs), _LOOK_UP_ROWS):
            try:
                filling.decode(blobs, start, start + _LOOK_UP_ROWS)
            except MemoryError:
                leave_out_of_memory()
            if not self._queue:
                await asyncio.sleep(0)
        filling.write_labels()
        done = time.monotonic_ns()
        await self._report(Done(task.number, read - started, done - read, idle_ns, tuple(filling.bad)))

    async def _report(self, report: Done) -> None:
        if not self._send(report) and not self._ended:
            await asyncio.get_running_loop().sock_sendall(self._link, encode_report(report))

    def _send(self, report: Report) -> bool:
        """Whether the report is out; it is not when the socket is full, or the daemon gone, which ends the worker."""
        try:
            self._link.send(encode_report(report))
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self._end()
            return False
        return True

    def _receive(self) -> None:
        """Takes one datagram; the loop calls again as long as there is one."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._link, MAX_RECORD_BYTES, 1)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data, descriptors = b"", []
        if data:
            self._obey(data, descriptors)
        else:
            asyncio.get_running_loop().remove_reader(self._link)
            self._end()

    def _obey(self, data: bytes, descriptors: list[int]) -> None:
        match decode_command(data):
            case Task() as task:
                self._map(task, descriptors)
                self._queue.append((task, self._slots[task.slot], self._begin_reading(task)))
                self._arrived.set()
            case DropSlots(slots):
                for slot in slots:
                    self._slots.pop(slot, None)
            case CloseStream(number):
                self._unopened.pop(number, None)
                if number in self._sources:
                    self._sources.pop(number).close()
            case OpenStream() as command:
                self._unopened[command.number] = command
                opening = asyncio.ensure_future(self._introduce(command.number))
                self._openings.add(opening)
                opening.add_done_callback(self._openings.discard)

    async def _introduce(self, number: int) -> None:
        if number in self._unopened and (why := await self._open(number)):
            self._send(Unopened(number, why))

    async def _open(self, number: int) -> str:
        """Opens a stream that is not open; why it cannot be, or nothing: its folder may be gone, and come back."""
        command = self._unopened[number]
        try:
            source = await _open_source(command.spec, Path(command.manifest))
        except (ConfigError, OSError) as error:
            return short_reason(error)
        if number not in self._unopened:  # closed meanwhile, or opened for a task
            source.close()
            return ""
        self._sources[number] = source
        del self._unopened[number]
        self._send(Ready(number, pixel_id(command.spec.image)))  # short, into an empty socket: it has room
        return ""

    def _begin_reading(self, task: Task) -> Reading:
        if not self._pace.ahead or task.stream in self._unopened:
            return None
        return asyncio.ensure_future(_read_group(self._sources[task.stream], task.ids))

    def _map(self, task: Task, descriptors: list[int]) -> None:
        for descriptor in descriptors:
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


def _unread(task: Task, reason: str) -> tuple[BadSample, ...]:
    """What becomes of a task whose stream is out of reach: all of it may be there the next time."""
    return tuple(BadSample(sample_id, reason, lasting=False) for sample_id in task.ids.tolist())


def confine_process() -> None:
    """What every worker is, whatever it decodes: nice, bounded, without cores, deaf to the terminal's Ctrl-C."""
    os.nice(_NICENESS)
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
    confine_process()
    track = inherited_track(sys.argv[2])
    with socket.socket(fileno=int(sys.argv[1])) as link:
        asyncio.run(Worker(link, track).run())


if __name__ == "__main__":
    main()
