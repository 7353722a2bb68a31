"""Has workers inspect samples, as many as the daemon has. Each has one group at a time, and is replaced if it dies.

When a worker dies, or is killed because a file takes too long, the files of its group are inspected one by one. The
file that ends a worker again is the culprit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from streamd.core.text import format_count
from streamd.errors import ConfigError, ProtocolError, StreamdError, format_open_failure
from streamd.ipc.slots import RowProgress, SlotStore, WorkerPhase
from streamd.ipc.worker_messages import (
    GroupResult,
    InspectRows,
    OpenStream,
    RowsInspected,
    SampleFault,
    StreamOpenFailed,
    StreamReady,
    WorkerDied,
    WorkerReport,
    join_group_result,
)
from streamd.limits import ROW_DEADLINE_S
from streamd.supervisor.worker_process import WorkerCondition, WorkerProcess

_MAX_RESULT_PARTS: Final = 2048  # of 32 KiB, of one group; the class numbers of masks take some dozens
_MAX_CRASHES: Final = 100  # each costs a process; this many are not the fault of single files


class InspectionPool:
    """Inspects `groups` of `streams`, each of which has its place in the list as its number.

    `on_result` is called with each result, in the event loop. `notes` has a sentence for each finding that remained
    unclear.
    """

    def __init__(
        self,
        streams: Sequence[OpenStream],
        groups: Iterable[InspectRows],
        on_result: Callable[[GroupResult], None],
        deadline_s: float = ROW_DEADLINE_S,
    ) -> None:
        self._streams = streams
        # One iterator for all tasks of the pool: each takes the next group when its worker is free. Taking one does
        # not await, so no two tasks get the same group.
        self._groups: Iterator[InspectRows] = iter(groups)
        self._on_result = on_result
        self._deadline_s = deadline_s
        self._crashes = 0
        self.notes: list[str] = []

    async def inspect_all_groups(self, count: int) -> None:
        """Inspects all groups with `count` workers. Raises StreamdError when no worker can read at all."""
        try:
            async with asyncio.TaskGroup() as tenders:
                for _ in range(count):
                    tenders.create_task(self._run_worker())
        except* StreamdError as errors:
            raise errors.exceptions[0] from None

    async def _run_worker(self) -> None:
        """Inspects groups with one worker at a time until none is left."""
        worker = _RestartingWorker(self._streams, self._deadline_s)
        try:
            for group in self._groups:
                for result in await self._inspect_group(worker, group):
                    self._on_result(result)
        finally:
            await worker.stop_process()

    async def _inspect_group(self, worker: _RestartingWorker, group: InspectRows) -> list[GroupResult]:
        found = await worker.inspect_group(group)
        if isinstance(found, GroupResult):
            return [found]
        # The worker died over this one sample: it is at fault.
        if len(group.ids) == 1:
            self._crashes += 1
            if self._crashes > _MAX_CRASHES:
                cause = (
                    f"the transform, the last {found.description}: run it by itself to see why"
                    if worker.last_phase is WorkerPhase.TRANSFORMING
                    else f"the decoder, the last {found.description}: the installation is probably at fault, not the "
                    "files; run  pip install --force-reinstall simplejpeg pillow opencv-python-headless"
                )
                raise StreamdError(f"more than {_MAX_CRASHES} files crash {cause}")
            reason = found.sample_fault or f"ends the process that reads it, {found.description}"
            return [GroupResult(group.stream, group.ids, faults=[SampleFault(group.ids[0], reason, "crash")])]
        # It died over one of several. Inspecting them singly finds the one at fault; each that crashes costs another
        # worker.
        singles = [
            each for one in group.ids for each in await self._inspect_group(worker, InspectRows(group.stream, [one]))
        ]
        if not any(fault.effect == "crash" for each in singles for fault in each.faults):
            self.notes.append(
                f"a reading process ended, {found.description}, while it read {format_count(len(group.ids), 'file')}, "
                "each of which can be read by itself: is the machine short of memory?"
            )
        return singles


class _InspectingProcess(WorkerProcess[InspectRows]):
    """A worker that may wait for a slow disk for as long as it takes: there is nothing else that it could do."""

    def _on_row_overdue(self, condition: WorkerCondition) -> None:
        if condition is not WorkerCondition.WAITING:
            super()._on_row_overdue(condition)

    def _receive_reports(self) -> bool:
        """Kills a worker that reports what no sound one does, which counts as a crash over its files."""
        try:
            return super()._receive_reports()
        except ProtocolError:
            self.kill_waiting_process()
            return False


class _RestartingWorker:
    """A worker that is started by the first group, and again by the first group after its end.

    `last_phase` is the phase in which the last one ended. Is the WorkerListener of its process.
    """

    def __init__(self, streams: Sequence[OpenStream], deadline_s: float) -> None:
        self._streams = streams
        self._deadline_s = deadline_s
        self._slots = SlotStore()  # stays empty: what is inspected is written to no slot
        self._process: _InspectingProcess | None = None
        self._exit: asyncio.Task[WorkerDied] | None = None
        self._unopened: set[int] = set()
        self._parts: list[bytes] = []
        # Done when all streams are open, with None, or with the result whose last part has come.
        self._answer: asyncio.Future[GroupResult | None] | None = None
        self.last_phase = WorkerPhase.IDLE

    async def inspect_group(self, group: InspectRows) -> GroupResult | WorkerDied:
        """Sends a group and returns the result, or how the worker died over it.

        Raises ConfigError if the worker refuses a stream, StreamdError if it dies before it reads anything.
        """
        process = self._process
        if process is None:
            process = self._process = await _InspectingProcess.start(0, self, self._deadline_s)
            self._exit = asyncio.create_task(process.wait_for_exit())
            self._unopened = {stream.number for stream in self._streams}
            for stream in self._streams:
                process.send_command(stream)
            death = await self._wait_for_answer(process)
            if isinstance(death, WorkerDied) and death.transform_fault is not None:
                name = self._streams[death.transform_fault.stream_number].spec.name
                raise ConfigError(f"streams.{name}.transform: {death.transform_fault.reason}")
            if isinstance(death, WorkerDied):
                raise StreamdError(
                    f"a reading process ended before it read anything, {death.description}; its error message, if "
                    "there is one, is above"
                )
        self._parts = []
        process.send_task(group, self._slots)
        found = await self._wait_for_answer(process)
        assert found is not None  # noqa: S101 - all streams were open before the group was sent
        return found

    async def _wait_for_answer(self, process: _InspectingProcess) -> GroupResult | WorkerDied | None:
        """Waits for the answer to what was sent, and returns it, or how the process died if it gives none."""
        assert self._exit is not None  # noqa: S101 - the process was started
        self._answer = asyncio.get_running_loop().create_future()
        waiting: set[asyncio.Future[Any]] = {self._answer, self._exit}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._answer.done():
            return self._answer.result()
        self.last_phase = process.row_progress.phase
        self._process = None
        process.close()
        return self._exit.result()

    async def stop_process(self) -> None:
        """Ends the worker if one runs."""
        if self._process is not None and self._exit is not None:
            if self._answer is not None:
                self._answer.cancel()  # a refusal that arrives now would be an exception that nobody awaits
            self._process.kill_waiting_process()
            await asyncio.wait({self._exit})
            self._process.close()

    # --- the methods of WorkerListener

    def on_worker_started(self, worker: Any) -> None:
        """Is never called, since there is no WorkerPool."""

    def on_worker_died(self, worker: Any, death: WorkerDied) -> None:
        """Is never called, as above."""

    def on_worker_waiting(self, worker: Any, progress: RowProgress) -> None:
        """Is never called, since the worker may wait."""

    def on_worker_reports(self, worker: _InspectingProcess, reports: Sequence[WorkerReport]) -> None:
        """Completes the answer with the last of the reports that belong to it."""
        assert self._answer is not None  # noqa: S101 - something was sent
        for report in reports:
            match report:
                case StreamOpenFailed(number, reason) if not self._answer.done():
                    name = self._streams[number].spec.name
                    self._answer.set_exception(ConfigError(format_open_failure(name, reason)))
                # A stream whose data were away when it was opened is reported again by the group that has opened it.
                case StreamReady(number) if number in self._unopened:
                    self._unopened.remove(number)
                    if not self._unopened and not self._answer.done():
                        self._answer.set_result(None)
                case RowsInspected(part, is_last):
                    if len(self._parts) >= _MAX_RESULT_PARTS:
                        raise ProtocolError("a worker's result does not end")
                    self._parts.append(part)
                    if is_last:
                        result = join_group_result(self._parts)
                        worker.remove_finished_task(InspectRows.number)
                        if not self._answer.done():
                            self._answer.set_result(result)
