"""One decode process: its socket, its progress page, its deadlines, and the judgement of its end."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from typing import Self

from streamd.core.stderr_guard import child_stderr
from streamd.ipc.progress_page import PROGRESS_PAGE_BYTES, ProgressPage, RowProgress
from streamd.ipc.slots import SlotStore, create_memfd
from streamd.ipc.worker_messages import (
    OpenStream,
    StreamOpenFailed,
    StreamReady,
    WorkerCommand,
    WorkerDied,
    WorkerReport,
)
from streamd.limits import WORKER_ENVIRONMENT
from streamd.supervisor.crashes import Watchdog, WorkerCondition, diagnose_worker_exit, is_waiting_for_file
from streamd.supervisor.worker_link import TaskT, WorkerLink, WorkerListener


class WorkerProcess(WorkerLink[TaskT]):
    """A running decode process, which is killed when it is silent for longer than `row_deadline_s` at one row."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        link: socket.socket,
        page: ProgressPage,
        listener: WorkerListener,
        row_deadline_s: float,
    ) -> None:
        super().__init__(process, link, listener)
        self._page = page
        self.row_deadline_s = row_deadline_s
        self._row_watchdog = Watchdog(process.pid, page.read_row_progress, row_deadline_s, self._on_row_overdue)
        self._trial_watchdog = Watchdog(
            process.pid, page.read_transform_trial, row_deadline_s, self._on_transform_trial_overdue
        )
        self._untried_streams: set[int] = set()  # numbers of streams whose transforms it has yet to try
        self._killed_for: WorkerCondition | None = None
        self._last_waiting_progress: RowProgress | None = None

    @classmethod
    async def start(cls, place: int, listener: WorkerListener, row_deadline_s: float) -> Self:
        """Starts `python -m streamd.worker` with a new socket pair and a new progress page. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        page = create_memfd("streamd.track", PROGRESS_PAGE_BYTES)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "streamd.worker", str(theirs.fileno()), str(page), str(place),
                stdin=asyncio.subprocess.DEVNULL, stderr=child_stderr(), pass_fds=[theirs.fileno(), page],
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

    @property
    def row_progress(self) -> RowProgress:
        """The row that the worker is at, as it last wrote it to its progress page."""
        return self._page.read_row_progress()

    def send_command(self, command: WorkerCommand) -> None:
        """See WorkerLink."""
        # The worker tries the transforms of new streams beside its rows, so they have a watchdog of their own. It runs
        # until each stream was opened or has failed.
        if isinstance(command, OpenStream) and command.transform is not None:
            if not self._untried_streams:
                self._trial_watchdog.mark_worker_busy()
            self._untried_streams.add(command.number)
        super().send_command(command)

    def send_task(self, task: TaskT, slots: SlotStore) -> None:
        """See WorkerLink. A suspect must be alone in its process."""
        if not self.tasks:
            self._row_watchdog.mark_worker_busy()
        self.is_fresh, self.has_suspect = False, task.is_suspect
        super().send_task(task, slots)

    def remove_finished_task(self, number: int) -> TaskT:
        """See WorkerLink."""
        task = super().remove_finished_task(number)
        if not self.tasks:
            self._row_watchdog.mark_worker_idle()
        return task

    def kill_waiting_process(self) -> None:
        """Kills the worker, which waits for files that no batch needs now. No sample is blamed."""
        self._kill_for(WorkerCondition.WAITING)

    def kill_if_waiting_for_stream(self, stream_number: int) -> None:
        """See WorkerLink."""
        at = self._page.read_row_progress()
        task = self.tasks.get(at.task)
        if task is not None and task.stream == stream_number and is_waiting_for_file(at):
            self.kill_waiting_process()

    async def wait_for_exit(self) -> WorkerDied:
        """Waits until the process has ended; returns how it ended, and at which row."""
        code = await self._process.wait()
        self._receive_last_reports()
        page, deadline_s = self._page, self.row_deadline_s
        found = diagnose_worker_exit(
            code, page.read_row_progress(), page.read_transform_trial(), self._killed_for, deadline_s
        )
        # A worker between two rows may name no task that it still has. The death then counts for its oldest task.
        at, is_known = found.progress, found.progress.task in self.tasks
        blamed = at.task if is_known else next(iter(self.tasks), 0)
        fault = found.sample_fault if is_known else None
        return WorkerDied(found.description, tuple(self.tasks), blamed, at.place, fault, found.transform_fault)

    def _on_row_overdue(self, condition: WorkerCondition) -> None:
        """Kills a worker past its deadline. One that waits for a file is reported first, and has as long again."""
        at = self._page.read_row_progress()
        if condition is not WorkerCondition.WAITING or at == self._last_waiting_progress:
            self._kill_for(condition)
        elif at != self._last_waiting_progress:
            self._last_waiting_progress = at
            self._listener.on_worker_waiting(self, at)

    def _on_transform_trial_overdue(self, condition: WorkerCondition) -> None:
        """Kills a worker that is stuck in a transform. WAITING is no fault: files of streams are opened before it."""
        if condition is not WorkerCondition.WAITING:
            self._kill_for(condition)

    def _read_progress(self) -> RowProgress:
        """See WorkerLink. A slow row of a task is judged by its own deadline."""
        return self._page.read_row_progress()

    def _kill_for(self, condition: WorkerCondition) -> None:
        """See WorkerLink."""
        self._killed_for = self._killed_for or condition
        self._kill_process()

    def close(self) -> None:
        """See WorkerLink."""
        self._row_watchdog.close()
        self._trial_watchdog.close()
        self._page.close()
        super().close()

    def _handle_own_reports(self, reports: Sequence[WorkerReport]) -> None:
        if not self._untried_streams:
            return
        self._untried_streams.difference_update(
            report.stream for report in reports if isinstance(report, StreamReady | StreamOpenFailed)
        )
        if not self._untried_streams:
            self._trial_watchdog.mark_worker_idle()
