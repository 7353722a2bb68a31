"""One worker process as the engine sees it: its socket, its progress page, its tasks, and the slots it has mapped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from typing import Final, Protocol, Self

from streamd.core.text import format_count
from streamd.daemon.engine.batch_job import Task
from streamd.daemon.engine.crashes import WorkerCondition, WorkerExit, diagnose_worker_exit
from streamd.daemon.engine.watchdog import Watchdog
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

_GROUPED_BYTES: Final = MAX_RECORD_BYTES // 2 // MAX_GROUP_RECORDS  # bytes; a larger record goes alone


class WorkerListener(Protocol):
    """Receives the events of workers. All calls come on the event loop's thread."""

    def on_worker_started(self, worker: WorkerProcess) -> None:
        """A worker has started and knows no stream yet."""

    def on_worker_reports(self, worker: WorkerProcess, reports: Sequence[WorkerReport]) -> None:
        """A worker has sent these reports in one datagram."""

    def on_worker_waiting(self, worker: WorkerProcess, progress: RowProgress) -> None:
        """A worker has waited for a file beyond the deadline. Called once for each place that it waits at."""

    def on_worker_died(self, worker: WorkerProcess, worker_exit: WorkerExit) -> None:
        """A worker has ended; `worker.tasks` are those that it has not finished."""


class WorkerProcess:
    """A running worker. Its socket never fills: it carries a few small tasks at a time, and commands about slots.

    Records of one turn of the event loop go in one datagram. `tasks` are its unfinished tasks by number, in the order
    in which they were sent; the engine takes them back when the worker dies. Lives on the event loop.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        link: socket.socket,
        page: ProgressPage,
        listener: WorkerListener,
        row_deadline_s: float,
    ) -> None:
        self._process = process
        self._link = link
        self._page = page
        self._listener = listener
        self._row_deadline_s = row_deadline_s
        self._row_watchdog = Watchdog(process.pid, page.read_row_progress, row_deadline_s, self._on_row_overdue)
        self._trial_watchdog = Watchdog(
            process.pid, page.read_transform_trial, row_deadline_s, self._on_transform_trial_overdue
        )
        self._untried_streams: set[int] = set()  # numbers of streams whose transforms it has yet to try
        self._killed_for: WorkerCondition | None = None
        self._last_waiting_progress: RowProgress | None = None
        self._mapped_slots: set[int] = set()
        self._pending_records: list[bytes] = []  # sent at the end of the loop's turn
        self._pending_descriptors: list[int] = []  # sent with them
        self._flush_handle: asyncio.Handle | None = None
        self.tasks: dict[int, Task] = {}
        self.is_fresh = True  # was never given a task
        self.has_suspect = False  # its task is a suspect; it gets no other beside it
        self.completed_tasks = 0
        asyncio.get_running_loop().add_reader(link, self._receive_reports)

    @classmethod
    async def start(cls, place: int, listener: WorkerListener, row_deadline_s: float) -> Self:
        """Starts `python -m streamd.worker` with a new socket pair and a new progress page. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        page = create_memfd("streamd.track", PROGRESS_PAGE_BYTES)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "streamd.worker", str(theirs.fileno()), str(page), str(place),
                stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno(), page],
                env={**os.environ, **WORKER_ENVIRONMENT},
                process_group=0,  # out of reach of the terminal's Ctrl-C, also before it can ignore it
            )  # fmt: skip
            track = ProgressPage(page)
        except BaseException:
            ours.close()
            raise
        finally:
            # The child has its own copies. With the worker's end open here too, its death would not end the socket.
            theirs.close()
            os.close(page)
        ours.setblocking(False)
        return cls(process, ours, track, listener, row_deadline_s)

    def __repr__(self) -> str:
        work = "a suspect" if self.has_suspect else format_count(len(self.tasks), "task")
        return f"<WorkerProcess {self.pid}, {work}, {format_count(len(self._mapped_slots), 'slot')} mapped>"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def row_progress(self) -> RowProgress:
        """The row that the worker is at, as it last wrote it to its progress page."""
        return self._page.read_row_progress()

    def send_command(self, command: WorkerCommand) -> None:
        """Queues a command. A worker that is already dead does not get it; `wait_for_exit` reports its end."""
        # The worker tries the transforms of new streams beside its rows, so they have a watchdog of their own. It runs
        # until each stream was opened or has failed.
        if isinstance(command, OpenStream) and command.transform is not None:
            if not self._untried_streams:
                self._trial_watchdog.mark_worker_busy()
            self._untried_streams.add(command.number)
        self._queue_command_record(command, [])

    def send_task(self, task: Task, slots: SlotStore) -> None:
        """Queues a task, with its slot's descriptor if this worker has not mapped it. A suspect must be alone there."""
        if not self.tasks:
            self._row_watchdog.mark_worker_busy()
        self.is_fresh, self.has_suspect = False, task.is_suspect
        self.tasks[task.number] = task
        # A worker keeps its mapping until `UnmapSlots`, so it needs each slot's descriptor once.
        descriptors = []
        if task.slot not in self._mapped_slots:
            descriptors.append(slots.ensure_slot(task.slot, task.slot_bytes))
            self._mapped_slots.add(task.slot)
        self._queue_command_record(task, descriptors)

    def _queue_command_record(self, command: WorkerCommand, descriptors: list[int]) -> None:
        # Records keep their order: if this one does not fit into the datagram, those queued before it are sent first.
        record = encode_command(command)
        if len(self._pending_records) == MAX_GROUP_RECORDS or (self._pending_records and len(record) > _GROUPED_BYTES):
            self._send_queued_records()
        self._pending_records.append(record)
        self._pending_descriptors += descriptors
        if len(record) > _GROUPED_BYTES:
            self._send_queued_records()
        elif self._flush_handle is None:
            self._flush_handle = asyncio.get_running_loop().call_soon(self._send_queued_records)

    def _send_queued_records(self) -> None:
        """Sends the queued records in one datagram. Kills a worker that does not read."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        records, self._pending_records = self._pending_records, []
        descriptors, self._pending_descriptors = self._pending_descriptors, []
        if not records:
            return
        try:
            if descriptors:
                socket.send_fds(self._link, [bundle_records(records)], descriptors)
            else:
                self._link.send(bundle_records(records))
        except BlockingIOError:  # hundreds of records lie unread
            self._kill_process(WorkerCondition.NOT_READING)
        except (BrokenPipeError, ConnectionResetError):
            # The worker has died. `on_worker_died` gives its tasks back to the engine, these included.
            return

    def remove_finished_task(self, number: int) -> Task:
        """Removes a task that the worker has finished, and returns it."""
        task = self.tasks.pop(number)
        self.completed_tasks += 1
        self.has_suspect = False
        if not self.tasks:
            self._row_watchdog.mark_worker_idle()
        return task

    def forget_mapped_slots(self, slots: tuple[int, ...]) -> bool:
        """Removes slots from those that this worker has mapped; returns whether it had mapped any of them."""
        had = not self._mapped_slots.isdisjoint(slots)
        self._mapped_slots.difference_update(slots)
        if had:
            # Queued tasks may carry descriptors of these slots, which the caller is about to close.
            self._send_queued_records()
        return had

    def kill_waiting_process(self) -> None:
        """Kills the worker, which waits for files that no batch needs now. No sample is blamed."""
        self._kill_process(WorkerCondition.WAITING)

    async def wait_for_exit(self) -> WorkerExit:
        """Waits until the process has ended; returns how it ended, and at which row."""
        code = await self._process.wait()
        # Its last reports may still lie in the socket. The tasks in them are done, and must not be queued again.
        while self._receive_reports():
            pass
        return diagnose_worker_exit(
            code,
            self._page.read_row_progress(),
            self._page.read_transform_trial(),
            self._killed_for,
            self._row_deadline_s,
        )

    def _on_row_overdue(self, condition: WorkerCondition) -> None:
        """Kills a worker past its deadline. One that waits for a file is reported first, and has as long again."""
        at = self._page.read_row_progress()
        if condition is not WorkerCondition.WAITING or at == self._last_waiting_progress:
            self._kill_process(condition)
        elif at != self._last_waiting_progress:
            self._last_waiting_progress = at
            self._listener.on_worker_waiting(self, at)

    def _on_transform_trial_overdue(self, condition: WorkerCondition) -> None:
        """Kills a worker that is stuck in a transform. WAITING is no fault: files of streams are opened before it."""
        if condition is not WorkerCondition.WAITING:
            self._kill_process(condition)

    def _kill_process(self, condition: WorkerCondition) -> None:
        self._killed_for = self._killed_for or condition
        with contextlib.suppress(ProcessLookupError):  # it has already ended
            self._process.kill()

    async def shut_down(self) -> None:
        """Closes the socket and waits until the worker has ended; kills it after WORKER_LEAVE_S."""
        self.close()
        try:
            async with asyncio.timeout(WORKER_LEAVE_S):
                await self._process.wait()
        except TimeoutError:
            self._kill_process(WorkerCondition.NOT_READING)
            await self._process.wait()

    def close(self) -> None:
        """Closes the socket, which ends the worker if it still lives."""
        self._row_watchdog.close()
        self._trial_watchdog.close()
        self._page.close()
        if self._flush_handle is not None:
            self._flush_handle.cancel()
        asyncio.get_running_loop().remove_reader(self._link)
        self._link.close()

    def _receive_reports(self) -> bool:
        """Receives one datagram; the loop calls this again while there are more. False when there was none."""
        try:
            data = self._link.recv(MAX_RECORD_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            # The worker died with commands unread, which is an end like any other.
            data = b""
        if data:
            reports = [decode_report(record) for record in split_records(data)]
            if self._untried_streams:
                self._remove_tried_streams(reports)
            self._listener.on_worker_reports(self, reports)
        else:
            # An ended socket stays readable, so the loop would call this without end. `wait_for_exit` does the rest.
            asyncio.get_running_loop().remove_reader(self._link)
        return bool(data)

    def _remove_tried_streams(self, reports: Sequence[WorkerReport]) -> None:
        self._untried_streams.difference_update(
            report.stream for report in reports if isinstance(report, StreamReady | StreamOpenFailed)
        )
        if not self._untried_streams:
            self._trial_watchdog.mark_worker_idle()
