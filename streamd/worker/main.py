"""A decode process: `python -m streamd.worker LINK PAGE`, the descriptors of its socket and of its progress page.

Tasks arrive as datagrams on a socket pair, and reports leave on it. The page names the row at work, in case the process
dies there. While one task is decoded, a thread reads the files of the next tasks, unless files come from memory anyway.
When the daemon dies the socket ends; the worker publishes what it has cached, and exits.
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

from streamd.core.receipt import compute_piece_lanes
from streamd.core.sampler import BadSample
from streamd.core.spec import PixelId
from streamd.dataset.cache import CachePublisher
from streamd.decode.boxes import LabelFit
from streamd.errors import ConfigError, DataAwayError
from streamd.ipc.inherited_state import correct_inherited_state, die_with_parent, raise_oom_score
from streamd.ipc.messages import bundle_records
from streamd.ipc.slots import (
    OUT_OF_MEMORY_STATUS,
    DatagramSender,
    MappedSlots,
    ProgressPage,
    WorkerPhase,
    receive_command_records,
)
from streamd.ipc.worker_messages import (
    MAX_GROUP_RECORDS,
    AddUpDigest,
    CloseStream,
    DrawThumbnail,
    FillRows,
    InspectRows,
    OpenStream,
    SideTask,
    StreamOpenFailed,
    StreamReady,
    StreamRemark,
    TaskDone,
    UnmapSlots,
    decode_command,
    encode_report,
    format_error_reason,
    split_result,
)
from streamd.limits import DIGEST_NICENESS, HELPER_NICENESS, MAX_REFUSAL_CHARS, WORKER_DATA_BYTES, WORKER_ORPHAN_S
from streamd.worker.fill_rows import TaskRunner, format_label_fit
from streamd.worker.inspect_rows import draw_thumbnail, inspect_rows
from streamd.worker.stream_reader import Blob, ReadPace, StreamReader, UnreadFile, open_reader, predict_pixel_id
from streamd.worker.transforms import UnfitTransformError

# Rows decoded between two checks of the socket, so that reading the next task's files can begin meanwhile.
_LOOK_UP_ROWS: Final = 16
_STDOUT, _STDERR = 1, 2
_read_in_thread = aiofiles.os.wrap(StreamReader.read_files_timed)
_open_in_thread = aiofiles.os.wrap(open_reader)  # in a thread: a mount that hangs must not keep other streams waiting
_predict_in_thread = aiofiles.os.wrap(predict_pixel_id)
_close_in_thread = aiofiles.os.wrap(StreamReader.close)  # in a thread: a cache publishes its last rows to a slow disk

PendingRead = asyncio.Task[tuple[list[Blob], float]] | None  # None: the files are read when the task runs


class Worker:
    """Runs tasks in their order until the daemon's end of the socket closes."""

    def __init__(self, link: socket.socket, page: ProgressPage) -> None:
        # All of this belongs to the event loop's thread. Other threads only read files, publish caches, and open and
        # close streams. A thread that opens a stream may try its transform, and then writes the trial to the progress
        # page. Rows are decoded on the event loop's thread itself, one task at a time.
        self._link = link
        self._page = page
        # The daemon may be busy for a while, and needs every report. There are no more than streams and tasks.
        self._sender = DatagramSender(link, on_closed=self._request_stop)
        # A stream is pending from OpenStream until it has been opened, then it has a reader, until CloseStream. Opening
        # a pending stream is tried again with each of its tasks.
        self._readers: dict[int, StreamReader] = {}
        self._pending_streams: dict[int, OpenStream] = {}
        self._chores: set[asyncio.Future[None]] = set()
        self._slots = MappedSlots()
        self._queue: deque[tuple[FillRows, memoryview, PendingRead]] = deque()
        self._pace = ReadPace()
        self._cache_publisher = CachePublisher()
        self._pending_reports: list[bytes] = []  # encoded reports, sent together
        self._told_fits: set[tuple[int, str, LabelFit]] = set()
        # Relative to the daemon's: a fixed one may be above this process's own, and raising it takes a privilege.
        self._digest_niceness = os.getpriority(os.PRIO_PROCESS, 0) + DIGEST_NICENESS - HELPER_NICENESS
        self._arrived = asyncio.Event()
        self._ended = False
        self._failure: BaseException | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_callback_error)
        self._link.setblocking(False)
        loop.add_reader(self._link, self._receive_commands)
        idle_since = time.monotonic_ns()
        while not self._ended:
            if not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            idle_ns = time.monotonic_ns() - idle_since
            # The task is bound to no name here: while the worker is idle, the name would keep a dropped slot mapped.
            await self._run_task(*self._queue.popleft(), idle_ns)
            idle_since = time.monotonic_ns()
        # Tasks that are still queued are dropped: the daemon is gone, or gives them to another worker after a failure.
        if self._failure is not None:
            raise self._failure
        for source in self._readers.values():
            if source.cache is not None:
                source.cache.publish_rows()
        if self._page.read_transform_trial().phase is not WorkerPhase.IDLE:
            os._exit(0)  # a normal exit would join the thread that tries a transform, which may never return

    async def _run_task(self, task: FillRows, memory: memoryview, pending_read: PendingRead, idle_ns: int) -> None:
        started, worked = time.monotonic_ns(), time.thread_time_ns()
        self._page.write_row_progress(task.number, 0, WorkerPhase.READING)
        # A stream that could not be opened is opened now; where that fails, the task's rows are tried again.
        if task.stream in self._pending_streams:
            try:
                await self._open_pending_stream(self._pending_streams[task.stream])
            except (ConfigError, OSError) as error:
                reason, away = format_error_reason(error, MAX_REFUSAL_CHARS), isinstance(error, DataAwayError)
                unread = [BadSample(each, reason, lasting=False, away=away) for each in task.ids.tolist()]
                self._report_done(TaskDone(task.number, 0, 0, idle_ns, tuple(unread)))
                return
        source = self._readers[task.stream]
        if pending_read is not None and not pending_read.done():
            self._flush_reports()  # finished tasks must not wait for the disk with this one
        early = await pending_read if pending_read is not None else None
        filling = TaskRunner(source, task, memory, self._page)
        try:
            is_filled = filling.gather_stored_rows()
        except MemoryError:
            exit_out_of_memory()
        blobs, seconds = ([], 0.0) if is_filled else early or source.read_files_timed(task.ids)
        self._pace.record_group(len(blobs) - blobs.count(UnreadFile.LATER), seconds)
        read = time.monotonic_ns()
        # Time on the clock that this thread did not spend computing: it waited for a disk or for another thread.
        waited_ns = max(0, read - started - (time.thread_time_ns() - worked))
        # In this order: the cache keeps the pixels before a transform, and a transform changes labels in their place.
        await self._fill_rows_in_steps(partial(filling.decode_rows, blobs), len(blobs))
        # The cache copies decoded rows before the report: afterwards the slot may be rewritten.
        if source.cache is not None:
            filling.write_to_cache(source.cache)
            self._cache_publisher.schedule_publish(source.cache)
            while source.cache.remarks:
                self._pending_reports.append(encode_report(StreamRemark(task.stream, source.cache.remarks.pop(0))))
        # The operator is told once that labels were drawn on other sizes than pictures have.
        for name, fit in sorted(filling.label_fits) if filling.label_fits else ():
            said = (task.stream, name, fit)
            if fit != "same" and said not in self._told_fits:
                self._told_fits.add(said)
                self._pending_reports.append(encode_report(StreamRemark(task.stream, format_label_fit(name, fit))))
        filling.write_labels()
        unfit = ""
        if source.transform is not None:
            try:
                await self._fill_rows_in_steps(filling.transform_rows, task.rows.size)
            except UnfitTransformError as error:
                unfit = format_error_reason(error, MAX_REFUSAL_CHARS)
        done = time.monotonic_ns()
        bad = tuple(filling.unfilled_rows)
        times = read - started, done - read, idle_ns
        self._report_done(TaskDone(task.number, *times, bad, filling.count_of_gathered_rows, unfit, waited_ns))

    async def _fill_rows_in_steps(self, step: Callable[[int, int], None], rows: int) -> None:
        """Calls `step(start, stop)` for `rows` rows, and lets the event loop read the socket between two steps."""
        for start in range(0, rows, _LOOK_UP_ROWS):
            try:
                step(start, start + _LOOK_UP_ROWS)
            except MemoryError:
                # The page still names the row, and the exit status says why: the daemon suspects this sample.
                exit_out_of_memory()
            # The files of a queued task were requested when it arrived, so only an empty queue makes the socket urgent.
            if not self._queue:
                await asyncio.sleep(0)

    async def _run_side_task(self, task: SideTask) -> None:
        """Runs a task that fills no rows, opening its stream if that has failed before. It is the only one."""
        # The end of the socket is seen between two tasks only, and a user's transform may never return. Nothing is
        # lost: rows that are inspected are not cached.
        die_with_parent(os.getppid())
        result: Any
        match task:
            case AddUpDigest(piece):
                os.setpriority(os.PRIO_PROCESS, 0, self._digest_niceness)
                began_s = time.thread_time()
                result = compute_piece_lanes(piece), time.thread_time() - began_s
            case InspectRows() | DrawThumbnail():
                if task.stream in self._pending_streams:
                    try:
                        await self._open_pending_stream(self._pending_streams[task.stream])
                    except (ConfigError, OSError) as error:
                        reason = format_error_reason(error, MAX_REFUSAL_CHARS)
                        self._sender.send(encode_report(StreamOpenFailed(task.stream, reason)))
                        return
                reader = self._readers[task.stream]
                try:
                    result = (
                        inspect_rows(reader, task, self._page)
                        if isinstance(task, InspectRows)
                        else draw_thumbnail(reader, task.sample_id)
                    )
                except MemoryError:
                    exit_out_of_memory()
        for part in split_result(result):
            self._sender.send(encode_report(part))

    def _report_done(self, report: TaskDone) -> None:
        """Queues a report. Sends all when they are as many as the tasks left, so that the daemon wakes less often."""
        self._pending_reports.append(encode_report(report))
        if self._has_reports_for_half_of_queue():
            self._receive_commands()  # tasks that arrived meanwhile count, too
        # A fault is reported at once: the daemon must record it before the batch can go on.
        if self._has_reports_for_half_of_queue() or report.bad or report.unfit:
            self._flush_reports()

    def _flush_reports(self) -> None:
        if self._pending_reports:
            reports, self._pending_reports = self._pending_reports, []
            self._sender.send(bundle_records(reports))

    def _has_reports_for_half_of_queue(self) -> bool:
        return len(self._pending_reports) >= min(len(self._queue), MAX_GROUP_RECORDS)

    def _receive_commands(self) -> None:
        """Receives one datagram and handles its commands; the event loop calls again while there are more."""
        received = receive_command_records(self._link)
        if received is None:
            return
        records, descriptors = received
        for record in records:
            match decode_command(record):
                case FillRows() as task:
                    # The descriptors of a datagram belong to the slots that are new to this worker, in the order of
                    # their tasks.
                    memory = self._slots.map_slot(task.slot, task.slot_bytes, descriptors)
                    self._queue.append((task, memory, self._start_reading(task)))
                    self._arrived.set()
                case InspectRows() | AddUpDigest() | DrawThumbnail() as task:
                    self._start_chore(self._run_side_task(task))
                case UnmapSlots(slots):
                    self._slots.unmap_slots(slots)
                case CloseStream(number):
                    # The daemon sends this when none of the stream's tasks is under way, so no reader is closed in use.
                    self._pending_streams.pop(number, None)
                    if number in self._readers:
                        self._start_chore(_close_in_thread(self._readers.pop(number)))
                case OpenStream() as command:
                    self._pending_streams[command.number] = command
                    self._start_chore(self._open_new_stream(command.number))
        if not records:
            asyncio.get_running_loop().remove_reader(self._link)
            # The kernel ends this process if it does not end by itself: a transform may never return.
            signal.alarm(WORKER_ORPHAN_S)
            self._request_stop()

    def _start_chore(self, chore: Awaitable[None]) -> None:
        """Runs `chore` beside the tasks, and keeps a reference to it until it is done."""
        doing = asyncio.ensure_future(chore)
        self._chores.add(doing)
        doing.add_done_callback(self._chores.discard)

    async def _open_new_stream(self, number: int) -> None:
        """Opens a new stream and reports the outcome. If its data are away, computes its pixel id without them."""
        command = self._pending_streams.get(number)
        if command is None:
            return
        try:
            if command.away:
                self._send_stream_ready(number, *await _predict_in_thread(command, self._page))
            else:
                await self._open_pending_stream(command)
        except DataAwayError:
            # During the await the stream may have been closed, or opened by a task: then there is nothing to report.
            if number in self._pending_streams:
                self._pending_streams[number] = replace(command, away=True)
                await self._open_new_stream(number)
        except (ConfigError, OSError) as error:
            reason = format_error_reason(error, MAX_REFUSAL_CHARS)
            self._sender.send(encode_report(StreamOpenFailed(number, reason)))

    async def _open_pending_stream(self, command: OpenStream) -> None:
        """Opens a stream that is not open. Raises as `open_reader`."""
        number = command.number
        source, remark = await _open_in_thread(command, self._page)
        # During the await the stream may have been closed, or opened by a task: the first reader stays, this one goes.
        if number not in self._pending_streams:
            source.close()
            return
        self._readers[number] = source
        del self._pending_streams[number]
        self._send_stream_ready(number, source.pixel_id, remark)

    def _send_stream_ready(self, number: int, pixel_id: PixelId, remark: str) -> None:
        self._sender.send(encode_report(StreamReady(number, pixel_id)))
        if remark:
            self._sender.send(encode_report(StreamRemark(number, remark)))

    def _start_reading(self, task: FillRows) -> PendingRead:
        # Called when a task arrives, so that a thread reads its files while earlier tasks are decoded. A pending stream
        # has no reader yet; its files are read when the task runs.
        if task.stream in self._pending_streams:
            return None
        source = self._readers[task.stream]
        source.prefetch_rows(task.ids)
        if not self._pace.reads_ahead or not source.samples_are_files:
            return None
        return (
            asyncio.ensure_future(_read_in_thread(source, task.ids, is_ahead=True))
            if source.find_samples_to_decode(task.ids).any()
            else None
        )

    def _on_callback_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Stops the worker when a callback raised, since a command may be lost.

        The daemon gives the worker's tasks to another one.
        """
        del loop
        self._failure = self._failure or context.get("exception") or RuntimeError(str(context.get("message")))
        self._request_stop()

    def _request_stop(self) -> None:
        self._ended = True
        self._arrived.set()


def apply_worker_limits() -> None:
    """Applies the limits of every worker to this process.

    Lower priority, bounded memory, first choice of the kernel's out-of-memory killer, no core dumps, and signals that
    are meant for the daemon ignored.
    """
    os.nice(HELPER_NICENESS)
    raise_oom_score()
    resource.setrlimit(resource.RLIMIT_DATA, (WORKER_DATA_BYTES, WORKER_DATA_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the daemon drains; the worker ends when the daemon does
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the daemon reloads
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # its lines would repeat the verdict on a file


def exit_out_of_memory() -> NoReturn:
    """Ends the process at once; an orderly exit would take memory, and wait for files that are being read."""
    os._exit(OUT_OF_MEMORY_STATUS)


def main() -> None:
    """Runs a worker on the socket and the page whose descriptors are the first arguments."""
    # First: a file that is opened before could get the number of a closed standard descriptor.
    correct_inherited_state()
    apply_worker_limits()
    os.dup2(_STDERR, _STDOUT)  # a transform may print, and the standard output of a command is for its results
    link_descriptor, page_descriptor = map(int, sys.argv[1:3])
    page = ProgressPage(page_descriptor)
    os.close(page_descriptor)  # the page stays mapped
    with socket.socket(fileno=link_descriptor) as link:
        asyncio.run(Worker(link, page).run())
