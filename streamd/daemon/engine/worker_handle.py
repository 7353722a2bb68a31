"""One worker process as the engine sees it: its socket, its page, its tasks, the slots it has mapped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from typing import Final, Protocol, Self

from streamd.daemon.engine.batch_job import Task
from streamd.daemon.engine.crashes import Death, Finding, death
from streamd.daemon.engine.watchdog import Watch
from streamd.ipc.frames import bundle_records, split_records
from streamd.ipc.progress_page import PROGRESS_PAGE_BYTES, ProgressPage, RowProgress
from streamd.ipc.slots import SlotStore, create_memfd
from streamd.ipc.worker_messages import (
    MAX_GROUP_RECORDS,
    MAX_RECORD_BYTES,
    OpenStream,
    StreamOpenFailed,
    StreamReady,
    WorkerCommand,
    WorkerReport,
    decode_report,
    encode_command,
)
from streamd.limits import WORKER_ENVIRONMENT, WORKER_LEAVE_S

_GROUPED_BYTES: Final = MAX_RECORD_BYTES // 2 // MAX_GROUP_RECORDS  # a larger record goes alone


class WorkerListener(Protocol):
    """Gets the events of workers. All calls come in the event loop's thread."""

    def on_worker_started(self, worker: WorkerProcess) -> None:
        """A worker has started and knows no stream yet."""

    def on_worker_reports(self, worker: WorkerProcess, reports: Sequence[WorkerReport]) -> None:
        """A worker has sent these reports in one datagram."""

    def on_worker_waiting(self, worker: WorkerProcess, at: RowProgress) -> None:
        """A worker has waited for a file beyond the deadline. This is said once of each place."""

    def on_worker_died(self, worker: WorkerProcess, death: Death) -> None:
        """A worker has ended; `worker.tasks` are those that it has not finished."""


class WorkerProcess:
    """A running worker. Its socket never fills: it gets a few small tasks at a time, and commands about slots.

    Records of one turn of the event loop go in one datagram. `tasks` are those that it has, by number, in the order in
    which they were given; the engine takes them back when it dies.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        link: socket.socket,
        track: ProgressPage,
        listener: WorkerListener,
        row_deadline_s: float,
    ) -> None:
        self._process = process
        self._link = link
        self._track = track
        self._listener = listener
        self._row_deadline_s = row_deadline_s
        self._watch = Watch(process.pid, track.read_row, row_deadline_s, self._found)
        self._trials = Watch(process.pid, track.read_trial, row_deadline_s, self._found_at_trial)
        self._trying: set[int] = set()  # streams whose transforms it has yet to try
        self._killed_for: Finding | None = None
        self._waited_at: RowProgress | None = None
        self._mapped: set[int] = set()
        self._records: list[bytes] = []  # to be sent with the turn's end
        self._descriptors: list[int] = []  # that go with them
        self._flushing: asyncio.Handle | None = None
        self.tasks: dict[int, Task] = {}
        self.fresh = True  # was never given a task
        self.alone = False  # gets nothing beside the task it has
        self.completed = 0
        asyncio.get_running_loop().add_reader(link, self._read)

    @classmethod
    async def start(cls, place: int, listener: WorkerListener, row_deadline_s: float) -> Self:
        """Starts `python -m streamd.worker` with its end of a new socket pair and a new page."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        page = create_memfd("streamd.track", PROGRESS_PAGE_BYTES)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "streamd.worker", str(theirs.fileno()), str(page), str(place),
                stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno(), page],
                env={**os.environ, **WORKER_ENVIRONMENT},
            )  # fmt: skip
            track = ProgressPage(page)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(page)
        ours.setblocking(False)
        return cls(process, ours, track, listener, row_deadline_s)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def at(self) -> RowProgress:
        """Where it is by its own word."""
        return self._track.read_row()

    def send(self, command: WorkerCommand) -> None:
        """Says something; a worker that is dead already does not hear it, and `ended` tells."""
        if isinstance(command, OpenStream) and command.transform is not None:
            if not self._trying:
                self._trials.begin()
            self._trying.add(command.number)
        self._say(command, [])

    def give_task(self, task: Task, slots: SlotStore) -> None:
        """Sends a task, with its slot's descriptor when the slot is new to this worker. A suspect is alone there."""
        if not self.tasks:
            self._watch.begin()
        self.fresh, self.alone = False, task.is_suspect
        self.tasks[task.number] = task
        descriptors = []
        if task.slot not in self._mapped:
            descriptors.append(slots.ensure_slot(task.slot, task.slot_bytes))
            self._mapped.add(task.slot)
        self._say(task, descriptors)

    def _say(self, command: WorkerCommand, descriptors: list[int]) -> None:
        record = encode_command(command)
        if len(self._records) == MAX_GROUP_RECORDS or (self._records and len(record) > _GROUPED_BYTES):
            self._flush()
        self._records.append(record)
        self._descriptors += descriptors
        if len(record) > _GROUPED_BYTES:
            self._flush()
        elif self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Sends what was said since the last time."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        records, self._records = self._records, []
        descriptors, self._descriptors = self._descriptors, []
        if not records:
            return
        try:
            if descriptors:
                socket.send_fds(self._link, [bundle_records(records)], descriptors)
            else:
                self._link.send(bundle_records(records))
        except BlockingIOError:  # hundreds of words lie unread
            self._kill(Finding.DEAF)
        except (BrokenPipeError, ConnectionResetError):
            return

    def finish_task(self, number: int) -> Task:
        """Notes that a task is done, and returns it."""
        task = self.tasks.pop(number)
        self.completed += 1
        self.alone = False
        if not self.tasks:
            self._watch.rest()
        return task

    def forget(self, slots: tuple[int, ...]) -> bool:
        """Strikes slots off what this worker has mapped; whether it had any."""
        had = not self._mapped.isdisjoint(slots)
        self._mapped.difference_update(slots)
        if had:
            self._flush()  # their descriptors are about to be closed
        return had

    def stop_waiting(self) -> None:
        """Ends it, since it waits for files that nobody wants any more. No sample is to blame."""
        self._kill(Finding.WAITING)

    async def ended(self) -> Death:
        """Waits for the process's end; how it ended, and where it was."""
        code = await self._process.wait()
        while self._read():  # its last words may still lie in the socket
            pass
        return death(code, self._track.read_row(), self._track.read_trial(), self._killed_for, self._row_deadline_s)

    def _found(self, finding: Finding) -> None:
        """It has been silent for too long; a disk may take twice as long, with a word about it, and no longer."""
        at = self._track.read_row()
        if finding is not Finding.WAITING or at == self._waited_at:
            self._kill(finding)
        elif at != self._waited_at:
            self._waited_at = at
            self._listener.on_worker_waiting(self, at)

    def _found_at_trial(self, finding: Finding) -> None:
        """It may be long before a stream's transform has its turn: its files are opened first, and other streams."""
        if finding is not Finding.WAITING:
            self._kill(finding)

    def _kill(self, finding: Finding) -> None:
        self._killed_for = self._killed_for or finding
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            self._process.kill()

    async def see_off(self) -> None:
        """Closes the socket and waits for the worker's end; one that does not hear of it is killed."""
        self.close()
        try:
            async with asyncio.timeout(WORKER_LEAVE_S):
                await self._process.wait()
        except TimeoutError:
            self._kill(Finding.DEAF)
            await self._process.wait()

    def close(self) -> None:
        """Closes the socket, which ends the worker if it still lives."""
        self._watch.close()
        self._trials.close()
        self._track.close()
        if self._flushing is not None:
            self._flushing.cancel()
        asyncio.get_running_loop().remove_reader(self._link)
        self._link.close()

    def _read(self) -> bool:
        """Hears one datagram; the loop calls again as long as there is one. False when there was none."""
        try:
            data = self._link.recv(MAX_RECORD_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if data:
            reports = [decode_report(record) for record in split_records(data)]
            if self._trying:
                self._note_opened(reports)
            self._listener.on_worker_reports(self, reports)
        else:
            asyncio.get_running_loop().remove_reader(self._link)
        return bool(data)

    def _note_opened(self, reports: Sequence[WorkerReport]) -> None:
        self._trying.difference_update(
            report.stream for report in reports if isinstance(report, StreamReady | StreamOpenFailed)
        )
        if not self._trying:
            self._trials.rest()
