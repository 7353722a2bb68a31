"""One decode process: its socket, its progress page, its deadlines, the judgement of its end, and its replacement."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import msgspec

from streamd.core.text import format_count
from streamd.errors import ConfigError, ProtocolError, StreamdError, format_open_failure
from streamd.ipc.child import kill_child, start_linked_child
from streamd.ipc.messages import bundle_records, split_records
from streamd.ipc.slots import (
    OUT_OF_MEMORY_STATUS,
    PROGRESS_PAGE_BYTES,
    DatagramSender,
    ProgressPage,
    RowProgress,
    SlotStore,
    TransformTrial,
    WorkerPhase,
    create_memfd,
)
from streamd.ipc.worker_messages import (
    MAX_GROUP_RECORDS,
    MAX_RECORD_BYTES,
    AddUpDigest,
    FillRows,
    OpenStream,
    ResultT,
    SideTask,
    StreamOpenFailed,
    StreamReady,
    TaskResult,
    TransformFault,
    WorkerCommand,
    WorkerDied,
    WorkerReport,
    decode_report,
    encode_command,
    join_result,
)
from streamd.limits import (
    GIB,
    ROW_DEADLINE_S,
    STOPPED_S,
    UNREAD_S,
    WORKER_DATA_BYTES,
    WORKER_ENVIRONMENT,
    WORKER_LEAVE_S,
)

# --- Judges a worker's exit against the sample or transform that it was at, and how long a worker may be silent. Pure.

# Phases in which a worker handles a row's pixels: the verb for messages, and the name of what runs.
_PIXEL_PHASES: Final = {
    WorkerPhase.DECODING: ("decode", "its decoder"),
    WorkerPhase.TRANSFORMING: ("transform", "the transform"),
}
# Phases in which a worker tries a transform: words for one that takes too long, and for one that ends its process.
_TRIAL_PHASES: Final = {
    WorkerPhase.IMPORTING: ("to import", "when it is imported"),
    WorkerPhase.TRYING: ("on a built-in image", "on a built-in image"),
}
# SIGBUS is left out: it means a file that was cut off, or a lack of memory, and no fault of a sample.
_CRASH_SIGNALS: Final = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE})


class WorkerCondition(Enum):
    """The condition in which a check finds a silent worker."""

    AT_WORK = "at work"
    WAITING = "not at a row's pixels: it starts, or waits for a file"
    SLOW_ROW = "working on one row for too long"
    ENDLESS_TRIAL = "trying a transform for too long"
    STOPPED = "stopped"
    NOT_READING = "not reading its messages"


def diagnose_silent_worker(
    progress: RowProgress | TransformTrial, silent_s: float, deadline_s: float, process_state: str
) -> WorkerCondition:
    """Returns the condition of a worker from its progress page and the state of its process.

    `silent_s` are the seconds since it last wrote its progress, or was given work. `process_state` is the letter of
    /proc/PID/stat.
    """
    # A stopped process makes no progress at any row, so it is reported long before the deadline of a row.
    if silent_s >= min(STOPPED_S, deadline_s) and process_state in {"T", "t"}:
        return WorkerCondition.STOPPED
    if silent_s < deadline_s:
        return WorkerCondition.AT_WORK
    if progress.phase in _TRIAL_PHASES:
        return WorkerCondition.ENDLESS_TRIAL
    return WorkerCondition.SLOW_ROW if progress.phase in _PIXEL_PHASES else WorkerCondition.WAITING


def is_waiting_for_file(progress: RowProgress) -> bool:
    """Whether a worker that has a task waits for files: its progress page shows it at no row's pixels."""
    return progress.phase not in _PIXEL_PHASES


def diagnose_worker_exit(
    return_code: int,
    progress: RowProgress,
    trial: TransformTrial,
    killed_for: WorkerCondition | None,
    deadline_s: float,
) -> WorkerDied:
    """Judges a worker's exit by its return code, negative for a signal. It is blamed on the row of `progress`.

    `killed_for` is the condition for which the daemon killed it, None if it did not. A sample is blamed only for what
    its pixels can cause: never for what comes from outside, such as SIGKILL, nor for anything that happens while a file
    is read. A transform that was being tried is blamed when it exceeds the deadline, crashes, or exits the process.
    """
    fault = None
    if killed_for is not None:
        words = f"killed because it was {killed_for.value}"
    elif return_code == OUT_OF_MEMORY_STATUS:
        words = "out of memory"
    elif return_code < 0:
        words = f"killed by {signal.Signals(-return_code).name}"
    else:
        words = f"with exit status {return_code}"
    # It was at no row's pixels: only a transform that it was trying can be at fault.
    if progress.phase not in _PIXEL_PHASES or killed_for is WorkerCondition.ENDLESS_TRIAL:
        tried = None
        if trial.phase in _TRIAL_PHASES:
            takes, ends = _TRIAL_PHASES[trial.phase]
            own = -return_code in _CRASH_SIGNALS if return_code < 0 else return_code != OUT_OF_MEMORY_STATUS
            if killed_for is WorkerCondition.ENDLESS_TRIAL:
                why = "is there an endless loop, or does it wait for something?"
                text = f"{trial.subject} takes more than {deadline_s:g} s {takes}: {why}"
                tried = TransformFault(trial.stream, text, is_certain=True)
            elif killed_for is None and own:
                # Not certain, since the trial runs in a thread beside the worker's other work, which may have ended the
                # process.
                text = f"{trial.subject} ends its process {ends}, {words}: run it by itself to see why"
                tried = TransformFault(trial.stream, text, is_certain=False)
        return WorkerDied(words, (), progress.task, progress.place, transform_fault=tried)
    # Standard case: it was at a row's pixels, which may be at fault.
    verb, means = _PIXEL_PHASES[progress.phase]
    if killed_for is WorkerCondition.SLOW_ROW:
        fault = f"takes more than {deadline_s:g} s to {verb}"
    elif killed_for is None and return_code == OUT_OF_MEMORY_STATUS:
        fault = f"needs more memory to {verb} than a worker has, {WORKER_DATA_BYTES // GIB} GiB"
    elif killed_for is None and -return_code in _CRASH_SIGNALS:
        fault = f"crashes {means}: {signal.Signals(-return_code).name}"
    return WorkerDied(words, (), progress.task, progress.place, fault)


# --- The timer of a busy worker, which finds one that was stopped or has exceeded its deadline.


_LATE_S: Final = 1.0  # a timer this late means that the whole host stood still, the workers with it


class Watchdog:
    """Checks a busy worker that has been silent for a while, and reports its condition unless it is at work.

    `read_progress` reads the worker's progress page. `on_overdue` is called again at each check while the condition
    lasts. Lives on the event loop.
    """

    def __init__(
        self,
        pid: int,
        read_progress: Callable[[], RowProgress | TransformTrial],
        deadline_s: float,
        on_overdue: Callable[[WorkerCondition], None],
    ) -> None:
        self._pid = pid
        self._read_progress = read_progress
        self._deadline_s = deadline_s
        self._first_check_s = min(STOPPED_S, deadline_s)
        self._on_overdue = on_overdue
        self._busy_since_ns = 0
        self._is_busy = False
        self._timer: asyncio.TimerHandle | None = None

    def note_work(self, count: int) -> None:
        """Notes how much work the worker has from now on. With none there is no deadline."""
        self._is_busy = count > 0
        # The timer of an idle worker is kept, since work comes faster than timers are set.
        if count:
            self._busy_since_ns = time.monotonic_ns()
            if self._timer is None:
                self._schedule_check(self._first_check_s)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule_check(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + delay_s
        self._timer = loop.call_at(due_s, self._check_worker_progress, due_s)

    def _check_worker_progress(self, due_s: float) -> None:
        self._timer = None
        # Without work there is no deadline. `note_work` starts the timer again.
        if not self._is_busy:
            return
        # After a pause of the whole host the worker gets the time of a first check again.
        if asyncio.get_running_loop().time() - due_s > _LATE_S:
            self._schedule_check(self._first_check_s)
            return
        # An idle worker writes no progress, so silence cannot begin before it last got work.
        silent_s = (time.monotonic_ns() - max(self._busy_since_ns, self._read_progress().began_ns)) / 1e9
        # The next check is at STOPPED_S of silence, then every STOPPED_S, and at the deadline.
        if silent_s >= self._deadline_s:
            self._schedule_check(self._deadline_s)
        elif silent_s < self._first_check_s:
            self._schedule_check(self._first_check_s - silent_s)
        else:
            self._schedule_check(min(self._first_check_s, self._deadline_s - silent_s))
        # The letter of its process's state; X (dead) when there is no such process.
        state = ""
        if silent_s >= self._first_check_s:
            try:
                facts = Path(f"/proc/{self._pid}/stat").read_text(encoding="ascii", errors="replace")
                state = facts.rpartition(")")[2].split()[0]
            except (OSError, IndexError):
                state = "X"
        found = diagnose_silent_worker(self._read_progress(), silent_s, self._deadline_s, state)
        if found is not WorkerCondition.AT_WORK:
            self._on_overdue(found)


# --- One process that fills slots, behind a socket pair: the commands sent, the tasks it has, the slots it has mapped.

_GROUPED_BYTES: Final = MAX_RECORD_BYTES // 2 // MAX_GROUP_RECORDS  # bytes; a larger record goes alone

TaskT = TypeVar("TaskT", bound=FillRows | SideTask)


class WorkerListener(Protocol):
    """Receives what a running worker says. All calls come on the event loop's thread."""

    def on_worker_reports(self, worker: Any, reports: Sequence[WorkerReport]) -> None:
        """A worker has sent these reports in one datagram."""

    def on_worker_waiting(self, worker: Any, progress: RowProgress) -> None:
        """A worker has waited for a file beyond the deadline. Called once for each place that it waits at."""


class WorkerLink(Generic[TaskT]):
    """A running process that fills slots. What its socket has no room for waits, such as the streams of a new process.

    A process that has read nothing of it for `unread_s`, and made no progress at a row, is killed. Records of one turn
    of the event loop go in one datagram. `tasks` are its unfinished tasks by number, in the order
    in which they were sent; the listener takes them back when the worker dies. Lives on the event loop.
    """

    leave_s: float = WORKER_LEAVE_S  # from the end of the socket to the end of the process

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        link: socket.socket,
        listener: WorkerListener,
        unread_s: float = UNREAD_S,
    ) -> None:
        self._process = process
        self._link = link
        self._listener = listener
        self._mapped_slots: set[int] = set()
        self._pending_records: list[bytes] = []  # sent at the end of the loop's turn
        self._pending_descriptors: list[int] = []  # sent with them
        self._flush_handle: asyncio.Handle | None = None
        # A process for which datagrams wait is watched: from the first one on, and again when it has read one. Its end
        # is reported by `wait_for_exit`, and its tasks, these included, go back to the listener.
        self._unread_watchdog = Watchdog(process.pid, lambda: self.row_progress, unread_s, self._on_unread_records)
        self._sender = DatagramSender(link, on_closed=lambda: None, on_waiting=self._unread_watchdog.note_work)
        self._killed_for: WorkerCondition | None = None
        self.tasks: dict[int, TaskT] = {}
        self.is_fresh = True  # was never given a task
        self.has_suspect = False  # its task is a suspect; it gets no other beside it
        self.completed_tasks = 0
        self.busy_since_s = 0.0  # when it began the first of its tasks, by the monotonic clock
        asyncio.get_running_loop().add_reader(link, self._receive_reports)

    def __repr__(self) -> str:
        work = "a suspect" if self.has_suspect else format_count(len(self.tasks), "task")
        return f"<{type(self).__name__} {self.pid}, {work}, {format_count(len(self._mapped_slots), 'slot')} mapped>"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def row_progress(self) -> RowProgress:
        """The row that the process is at. One without a progress page shows that it lives by reading."""
        return RowProgress(0, 0, WorkerPhase.IDLE, 0)

    @property
    def can_take_suspect(self) -> bool:
        """Whether a suspect sent now is filled by a process that was never given a task."""
        return self.is_fresh

    def compute_capacity(self, tasks_ahead: int) -> int:
        """Returns how many tasks this worker may have, if one decode process may have `tasks_ahead`."""
        return tasks_ahead

    def send_command(self, command: WorkerCommand) -> None:
        """Queues a command. A worker that is already dead does not get it; `wait_for_exit` reports its end."""
        self._queue_command_record(command, [])

    def send_task(self, task: TaskT, slots: SlotStore) -> None:
        """Queues a task, with its slot's descriptor if it has one that this worker has not mapped."""
        if not self.tasks:
            self.busy_since_s = time.monotonic()
        self.tasks[task.number] = task
        # A worker keeps its mapping until `UnmapSlots`, so it needs each slot's descriptor once.
        descriptors = []
        if isinstance(task, FillRows) and task.slot not in self._mapped_slots:
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
        """Sends the queued records in one datagram."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        records, self._pending_records = self._pending_records, []
        descriptors, self._pending_descriptors = self._pending_descriptors, []
        if records:
            self._sender.send(bundle_records(records), descriptors)

    def _on_unread_records(self, condition: WorkerCondition) -> None:
        is_stopped = condition is WorkerCondition.STOPPED
        self._kill_for(condition if is_stopped else WorkerCondition.NOT_READING)

    def _kill_for(self, condition: WorkerCondition) -> None:
        self._killed_for = self._killed_for or condition
        kill_child(self._process)

    def remove_finished_task(self, number: int) -> TaskT:
        """Removes a task that the worker has finished, and returns it."""
        task = self.tasks.pop(number)
        self.completed_tasks += 1
        self.busy_since_s = time.monotonic()
        self.has_suspect = False
        return task

    def take_back_tasks(self, numbers: Iterable[int]) -> list[TaskT]:
        """Removes tasks that the worker will not finish, and returns them in the order of `numbers`."""
        return [self.tasks.pop(number) for number in numbers if number in self.tasks]

    def forget_mapped_slots(self, slots: tuple[int, ...]) -> bool:
        """Removes slots from those that this worker has mapped; returns whether it had mapped any of them."""
        had = not self._mapped_slots.isdisjoint(slots)
        self._mapped_slots.difference_update(slots)
        if had:
            # Queued tasks may carry descriptors of these slots, which the caller is about to close.
            self._send_queued_records()
            self._sender.copy_descriptors()
        return had

    def kill_if_waiting_for_stream(self, stream_number: int) -> None:
        """Kills a worker that waits for files of this stream's number. One that waits elsewhere is left alone."""

    async def wait_for_exit(self) -> WorkerDied:
        """Waits until the process has ended; returns how it ended. No sample is blamed."""
        code = await self._process.wait()
        # The tasks in reports that still lie in the socket are done, and must not be queued again.
        while self._receive_reports():
            pass
        return WorkerDied(f"with exit status {code}", tuple(self.tasks))

    async def shut_down(self) -> None:
        """Closes the socket and waits until the worker has ended; kills it after a while."""
        self.close()
        try:
            async with asyncio.timeout(self.leave_s):
                await self._process.wait()
        except TimeoutError:
            kill_child(self._process)
            await self._process.wait()

    def close(self) -> None:
        """Closes the socket, which ends the worker if it still lives."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
        self._unread_watchdog.close()
        self._sender.close()
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
            self._handle_own_reports(reports)
            self._listener.on_worker_reports(self, reports)
        else:
            # An ended socket stays readable, so the loop would call this without end. `wait_for_exit` does the rest.
            asyncio.get_running_loop().remove_reader(self._link)
        return bool(data)

    def _handle_own_reports(self, reports: Sequence[WorkerReport]) -> None:
        """Acts on what concerns the link itself, before the listener receives the reports."""


# --- One decode process: its socket, its progress page, its deadlines, and the judgement of its end.


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
        self._last_waiting_progress: RowProgress | None = None

    @classmethod
    async def start(cls, place: int, listener: WorkerListener, row_deadline_s: float) -> Self:
        """Starts `python -m streamd.worker` with a new socket pair and a new progress page. Raises OSError."""
        page = create_memfd("streamd.track", PROGRESS_PAGE_BYTES)
        try:
            track = ProgressPage(page)
            process, link = await start_linked_child(
                "streamd.worker", page, place, passed=[page], environment=WORKER_ENVIRONMENT
            )
        finally:
            os.close(page)
        return cls(process, link, track, listener, row_deadline_s)

    @property
    def row_progress(self) -> RowProgress:
        """The row that the worker is at, as it last wrote it to its progress page: a slow one has its own deadline."""
        return self._page.read_row_progress()

    def send_command(self, command: WorkerCommand) -> None:
        """See WorkerLink."""
        # The worker tries the transforms of new streams beside its rows, so they have a watchdog of their own. It runs
        # until each stream was opened or has failed.
        if isinstance(command, OpenStream) and command.transform is not None:
            if not self._untried_streams:
                self._trial_watchdog.note_work(1)
            self._untried_streams.add(command.number)
        super().send_command(command)

    def send_task(self, task: TaskT, slots: SlotStore) -> None:
        """See WorkerLink. A suspect must be alone in its process."""
        if not self.tasks:
            self._row_watchdog.note_work(1)
        self.is_fresh, self.has_suspect = False, task.is_suspect
        super().send_task(task, slots)

    def remove_finished_task(self, number: int) -> TaskT:
        """See WorkerLink."""
        task = super().remove_finished_task(number)
        if not self.tasks:
            self._row_watchdog.note_work(0)
        return task

    def kill_waiting_process(self) -> None:
        """Kills the worker, which does or waits for what nobody needs now. No sample is blamed."""
        self._kill_for(WorkerCondition.WAITING)

    def kill_if_waiting_for_stream(self, stream_number: int) -> None:
        """See WorkerLink."""
        at = self._page.read_row_progress()
        task = self.tasks.get(at.task)
        if isinstance(task, FillRows) and task.stream == stream_number and is_waiting_for_file(at):
            self.kill_waiting_process()

    async def wait_for_exit(self) -> WorkerDied:
        """Waits until the process has ended; returns how it ended, and at which row."""
        await super().wait_for_exit()
        code, page, deadline_s = await self._process.wait(), self._page, self.row_deadline_s
        found = diagnose_worker_exit(
            code, page.read_row_progress(), page.read_transform_trial(), self._killed_for, deadline_s
        )
        # A worker between two rows may name no task that it still has. The death then counts for its oldest task.
        if found.blamed_task not in self.tasks:
            found = replace(found, blamed_task=next(iter(self.tasks), 0), sample_fault=None)
        return replace(found, tasks=tuple(self.tasks))

    def _on_row_overdue(self, condition: WorkerCondition) -> None:
        """Kills a worker past its deadline. One that waits for a file is reported first, and has as long again."""
        at = self._page.read_row_progress()
        if condition is not WorkerCondition.WAITING or at == self._last_waiting_progress:
            self._kill_for(condition)
        else:
            self._last_waiting_progress = at
            self._listener.on_worker_waiting(self, at)

    def _on_transform_trial_overdue(self, condition: WorkerCondition) -> None:
        """Kills a worker that is stuck in a transform. WAITING is no fault: files of streams are opened before it."""
        if condition is not WorkerCondition.WAITING:
            self._kill_for(condition)

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
            self._trial_watchdog.note_work(0)


# --- One worker beside a pool, which is started again by the first task after its end.

_MAX_RESULT_PARTS: Final = 2048  # of 32 KiB, of one task; the class numbers of masks take some dozens


class _SideProcess(WorkerProcess[SideTask]):
    """A worker that may wait for a slow disk for as long as it takes: there is nothing else that it could do."""

    def _on_row_overdue(self, condition: WorkerCondition) -> None:
        if condition is not WorkerCondition.WAITING:
            super()._on_row_overdue(condition)

    def _receive_reports(self) -> bool:
        """Kills a worker that reports what no sound one does, which counts as a death over its task."""
        try:
            return super()._receive_reports()
        except (ProtocolError, LookupError):  # damage, or a number of nothing that it was sent
            self.kill_waiting_process()
            return False


class RestartingWorker(Generic[ResultT]):
    """A worker that is started by the first task, and again by the first task after its end. It has one at a time.

    `streams`, each of which has its place in the list as its number, are opened before its first task. `decoder` is
    that of the results of all its tasks, and `last_phase` the phase in which the last process ended. Is the
    WorkerListener of its process. Lives on the event loop.
    """

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[ResultT],
        streams: Sequence[OpenStream] = (),
        deadline_s: float = ROW_DEADLINE_S,
    ) -> None:
        self._decoder = decoder
        self._streams = streams
        self._deadline_s = deadline_s
        self._slots = SlotStore()  # stays empty: these tasks fill no slot
        self._process: _SideProcess | None = None
        self._exit: asyncio.Task[WorkerDied] | None = None
        self._unopened: set[int] = set()
        self._parts: list[bytes] = []
        # Done when all streams are open, with None, or with the result whose last part has come.
        self._answer: asyncio.Future[ResultT | None] | None = None
        self.last_phase = WorkerPhase.IDLE

    async def run_task(self, task: SideTask) -> ResultT | WorkerDied:
        """Sends a task and returns its result, or how the worker died over it. After a cancellation, `stop` it.

        Raises ConfigError if the worker refuses a stream, StreamdError if it dies before it has opened them, OSError if
        it cannot start.
        """
        process = self._process
        if process is None:
            process = self._process = await _SideProcess.start(0, self, self._deadline_s)
            self._exit = asyncio.create_task(process.wait_for_exit())
            self._unopened = {stream.number for stream in self._streams}
            for stream in self._streams:
                process.send_command(stream)
            death = await self._wait_for_answer(process) if self._streams else None
            if isinstance(death, WorkerDied) and death.transform_fault is not None:
                name = self._streams[death.transform_fault.stream_number].spec.name
                raise ConfigError(f"streams.{name}.transform: {death.transform_fault.reason}")
            if isinstance(death, WorkerDied):
                raise StreamdError(
                    f"a reading process ended before it read anything, {death.description}; its error message, if "
                    "there is one, is above"
                )
        self._parts = []
        process.send_task(task, self._slots)
        found = await self._wait_for_answer(process)
        assert found is not None  # noqa: S101 - all streams were open before the task was sent
        return found

    async def _wait_for_answer(self, process: _SideProcess) -> ResultT | WorkerDied | None:
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

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended: one that was killed may still wait for a disk that is gone."""
        return self._exit is not None and not self._exit.done()

    async def stop(self) -> None:
        """Ends the worker if one runs. A later task may start it again.

        After a cancellation the process was killed, and its end can be awaited by another call.
        """
        if self._process is not None and self._exit is not None:
            if self._answer is not None:
                self._answer.cancel()  # a refusal that arrives now would be an exception that nobody awaits
            self._process.kill_waiting_process()
            await asyncio.wait({self._exit})
            self._process.close()
            self._process = None

    # --- the methods of WorkerListener

    def on_worker_waiting(self, worker: Any, progress: RowProgress) -> None:
        """Is never called, since the worker may wait."""

    def on_worker_reports(self, worker: _SideProcess, reports: Sequence[WorkerReport]) -> None:
        """Completes the answer with the last of the reports that belong to it."""
        assert self._answer is not None  # noqa: S101 - something was sent
        for report in reports:
            match report:
                case StreamOpenFailed(number, reason) if not self._answer.done():
                    name = self._streams[number].spec.name
                    self._unopened.discard(number)  # a later task may open it, and its result is the answer then
                    self._answer.set_exception(ConfigError(format_open_failure(name, reason)))
                # A stream whose data were away when it was opened is reported again by the task that has opened it.
                case StreamReady(number) if number in self._unopened:
                    self._unopened.remove(number)
                    if not self._unopened and not self._answer.done():
                        self._answer.set_result(None)
                case TaskResult(part, is_last):
                    if len(self._parts) >= _MAX_RESULT_PARTS:
                        raise ProtocolError("a worker's result does not end")
                    self._parts.append(part)
                    if is_last:
                        result = join_result(self._parts, self._decoder)
                        worker.remove_finished_task(AddUpDigest.number)  # which is that of every such task
                        if not self._answer.done():
                            self._answer.set_result(result)
