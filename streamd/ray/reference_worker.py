"""A worker on the daemon's host that gets no task: its pixels are those that every node has to make.

It also tries transforms, so that one that crashes or never ends is found before a node imports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from streamd.ipc.progress_page import RowProgress
from streamd.ipc.worker_messages import (
    CloseStream,
    FillRows,
    OpenStream,
    WorkerDied,
    WorkerReport,
)
from streamd.limits import WORKER_RESPAWN_MAX_S, WORKER_RESPAWN_S
from streamd.supervisor.worker_process import WorkerProcess


class ReferenceWorker:
    """Keeps one decode process alive, and hands its reports on. Lives on the event loop."""

    def __init__(self, row_deadline_s: float, on_report: Callable[[WorkerReport], None]) -> None:
        self._row_deadline_s = row_deadline_s
        self._on_report = on_report
        self._commands: dict[int, OpenStream] = {}
        self._worker: WorkerProcess[FillRows] | None = None

    def open_stream(self, command: OpenStream) -> None:
        """Opens a stream, now and whenever the process starts anew."""
        self._commands[command.number] = replace(command, cache=None)
        if self._worker is not None:
            self._worker.send_command(self._commands[command.number])

    def close_stream(self, number: int) -> None:
        """Closes a stream."""
        if self._commands.pop(number, None) is not None and self._worker is not None:
            self._worker.send_command(CloseStream(number))

    async def run(self) -> None:
        """Keeps the process alive until cancelled; none is left when it returns."""
        pause_s = WORKER_RESPAWN_S
        while True:
            worker = self._worker = await WorkerProcess[FillRows].start(0, self, self._row_deadline_s)
            for command in self._commands.values():
                worker.send_command(command)
            try:
                death = await worker.wait_for_exit()
            except asyncio.CancelledError:
                await worker.shut_down()
                raise
            self._worker = None
            worker.close()
            self._on_report(WorkerDied(death.description, transform_fault=death.transform_fault))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, WORKER_RESPAWN_MAX_S)

    # --- WorkerListener

    def on_worker_started(self, worker: object) -> None:
        """Is never called: `run` starts the process itself."""

    def on_worker_reports(self, worker: object, reports: Sequence[WorkerReport]) -> None:
        """Hands on what the process says about streams."""
        del worker
        for report in reports:
            self._on_report(report)

    def on_worker_waiting(self, worker: object, progress: RowProgress) -> None:
        """Is never called: the process has no task."""

    def on_worker_died(self, worker: object, death: WorkerDied) -> None:
        """Is never called: `run` waits for the end itself."""
