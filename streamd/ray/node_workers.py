"""The decode processes of one node: kept alive, given tasks, and what their ends say about a row."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from streamd.core import log
from streamd.core.slot_layout import SlotTensor, compute_layout
from streamd.core.spec import StreamSpec
from streamd.ipc.mapping import build_leased_array
from streamd.ipc.progress_page import RowProgress
from streamd.ipc.slots import SlotStore
from streamd.ipc.worker_messages import (
    CloseStream,
    FillRows,
    OpenStream,
    StreamOpenFailed,
    StreamReady,
    TaskDone,
    WorkerDied,
    WorkerReport,
)
from streamd.limits import NODE_TASKS_AHEAD, PAGE_BYTES, WORKER_RESPAWN_MAX_S, WORKER_RESPAWN_S
from streamd.supervisor.worker_process import WorkerProcess

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
        nbytes = _compute_rows_bytes(spec, task.rows.size)
        free = self._free_slots.setdefault(nbytes, [])
        slot = free.pop() if free else next(self._slot_numbers)
        outcome = asyncio.get_running_loop().create_future()
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
        return report, self._lend_rows(own, compute_layout(spec, task.rows.size).size_bytes)

    def _lend_rows(self, task: _NodeTask, nbytes: int) -> npt.NDArray[np.uint8]:
        loop = asyncio.get_running_loop()
        tensor = SlotTensor("rows", "uint8", (nbytes,), 0)
        free = self._free_slots[task.slot_bytes]

        def take_slot_back() -> None:
            # The array may die in any thread, in which Ray has stored the result.
            if not loop.is_closed():
                loop.call_soon_threadsafe(free.append, task.slot)

        return build_leased_array(self._slots.map_slot(task.slot), tensor, take_slot_back)

    def _assign_tasks(self) -> None:
        while self._suspects and (fresh := next((each for each in self._workers if each.is_fresh), None)):
            fresh.send_task(self._suspects.popleft(), self._slots)
        while self._queue:
            able = [each for each in self._workers if not each.has_suspect and len(each.tasks) < NODE_TASKS_AHEAD]
            if not able:
                return
            min(able, key=lambda each: len(each.tasks)).send_task(self._queue.popleft(), self._slots)

    # --- WorkerListener

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
                    _set_outcome(task, replace(report, number=task.origin))
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


def _compute_rows_bytes(spec: StreamSpec, rows: int) -> int:
    """Returns the bytes of a slot for so many rows, in whole pages."""
    return -(-compute_layout(spec, rows).size_bytes // PAGE_BYTES) * PAGE_BYTES
