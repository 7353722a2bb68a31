"""The reading processes: as many as the daemon has workers. Each reads one group at a time, and is replaced if it dies.

When a process dies, or is killed because a file takes too long, the files of its group are read one by one. The file
that ends a process again is the culprit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Self

import msgspec

from streamd.cli.check.reader_messages import GroupResult, SampleFault, SampleGroup, StreamToRead
from streamd.core.stderr_guard import child_stderr
from streamd.core.text import format_count
from streamd.errors import ConfigError, StreamdError
from streamd.ipc.progress_page import PROGRESS_PAGE_BYTES, ProgressPage, RowProgress, WorkerPhase
from streamd.ipc.slots import create_memfd
from streamd.limits import ROW_DEADLINE_S, WORKER_ENVIRONMENT
from streamd.supervisor.crashes import Watchdog, WorkerCondition, WorkerExit, diagnose_worker_exit

READER_COMMAND: Final = (sys.executable, "-P", "-m", "streamd.cli.check.reader_process")
_MAX_LINE_BYTES: Final = 1 << 20  # limit of an answer; 32 digests, sizes and reasons take a few hundredths of it
_NOT_STARTED: Final = WorkerExit("not started", RowProgress(0, 0, WorkerPhase.IDLE, 0))
_MAX_CRASHES: Final = 100  # each costs a process; this many are not the fault of single files
_result_decoder: Final = msgspec.json.Decoder(GroupResult)


class ReaderPool:
    """Reads `groups` with several processes.

    `on_result` is called with each result, in the event loop. `notes` has a sentence for each finding that remained
    unclear.
    """

    def __init__(
        self,
        streams: Sequence[StreamToRead],
        groups: Iterable[SampleGroup],
        on_result: Callable[[GroupResult], None],
        command: Sequence[str] = READER_COMMAND,
        deadline_s: float = ROW_DEADLINE_S,
    ) -> None:
        self._streams = streams
        # One iterator for all tasks of the pool: each takes the next group when its process is free. Taking one does
        # not await, so no two tasks get the same group.
        self._groups: Iterator[SampleGroup] = iter(groups)
        self._on_result = on_result
        self._command = command
        self._deadline_s = deadline_s
        self._crashes = 0
        self.notes: list[str] = []

    async def read_all_groups(self, count: int) -> None:
        """Reads all groups with `count` processes. Raises StreamdError when no process can read at all."""
        try:
            async with asyncio.TaskGroup() as tenders:
                for _ in range(count):
                    tenders.create_task(self._run_reader())
        except* StreamdError as errors:
            raise errors.exceptions[0] from None

    async def _run_reader(self) -> None:
        """Reads groups with one process at a time until none is left."""
        child = _RestartingReader(self._command, self._streams, self._deadline_s)
        try:
            for group in self._groups:
                for seen in await self._read_group(child, group):
                    self._on_result(seen)
        finally:
            await child.stop_process()

    async def _read_group(self, child: _RestartingReader, group: SampleGroup) -> list[GroupResult]:
        seen = await child.request_group(group)
        if seen is not None:
            return [seen]
        # The process died over this group. Reading its files singly finds the one at fault; each of them that crashes
        # costs another process.
        death = await child.stop_process()
        if len(group.ids) == 1:
            return [self._build_crash_result(group, death)]
        singles = [
            each for one in group.ids for each in await self._read_group(child, SampleGroup(group.stream, [one]))
        ]
        if not any(fault.effect == "crash" for each in singles for fault in each.faults):
            self.notes.append(
                f"a reading process ended, {death.description}, while it read {format_count(len(group.ids), 'file')}, "
                "each of which can be read by itself: is the machine short of memory?"
            )
        return singles

    def _build_crash_result(self, group: SampleGroup, death: WorkerExit) -> GroupResult:
        self._crashes += 1
        if self._crashes > _MAX_CRASHES:
            raise StreamdError(f"more than {_MAX_CRASHES} files crash {_explain_reader_crashes(death)}")
        fault = SampleFault(
            group.ids[0], death.sample_fault or f"ends the process that reads it, {death.description}", "crash"
        )
        return GroupResult(group.stream, group.ids, faults=[fault])


def _explain_reader_crashes(death: WorkerExit) -> str:
    """Explains the probable cause of so many crashes, and what to do."""
    if death.progress.phase is WorkerPhase.TRANSFORMING:
        return f"the transform, the last {death.description}: run it by itself to see why"
    return (
        f"the decoder, the last {death.description}: the installation is probably at fault, not the files; run  pip "
        "install --force-reinstall simplejpeg pillow opencv-python-headless"
    )


class _RestartingReader:
    """A reading process that is started by the first request, and again by the first request after its end."""

    def __init__(self, command: Sequence[str], streams: Sequence[StreamToRead], deadline_s: float) -> None:
        self._command = command
        self._streams = streams
        self._deadline_s = deadline_s
        self._process: _ReaderProcess | None = None

    async def request_group(self, group: SampleGroup) -> GroupResult | None:
        """Sends a group and returns the result; None if the process died over it.

        Raises ConfigError if the process refuses the streams, StreamdError if it dies before it reads anything.
        """
        running = self._process
        if running is None:
            running = await self._start_process()
            answer = await running.send_and_receive_line(msgspec.json.encode(self._streams) + b"\n")
            if not answer:
                raise self._build_start_error(await self.stop_process())
            if isinstance(refusal := msgspec.json.decode(answer), str):
                raise ConfigError(refusal)
        answer = await running.send_and_receive_line(msgspec.json.encode(group) + b"\n")
        return _result_decoder.decode(answer) if answer.endswith(b"\n") else None

    async def _start_process(self) -> _ReaderProcess:
        """Starts a process and stores it, even if this task is cancelled meanwhile."""
        # A cancellation in the middle of the start would leave a process that nobody waits for. The start is shielded
        # and awaited again, so that `stop_process` in the caller's `finally` finds it.
        starting = asyncio.ensure_future(_ReaderProcess.start(self._command, self._deadline_s))
        try:
            self._process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._process = await starting
            raise
        return self._process

    def _build_start_error(self, death: WorkerExit) -> StreamdError:
        """Builds the error for a process that ended before it read anything."""
        if death.transform_fault is not None:
            name = self._streams[death.transform_fault.stream_number].spec.name
            return ConfigError(f"streams.{name}.transform: {death.transform_fault.reason}")
        return StreamdError(
            f"a reading process ended before it read anything, {death.description}; its error message, if there is "
            "one, is above"
        )

    async def stop_process(self) -> WorkerExit:
        """Ends the process if it still runs, and returns how it ended."""
        running, self._process = self._process, None
        return _NOT_STARTED if running is None else await running.stop()


class _ReaderProcess:
    """A process, and the shared progress page on which it records the row at which it works."""

    def __init__(self, process: asyncio.subprocess.Process, page: ProgressPage, deadline_s: float) -> None:
        self._process = process
        self._page = page
        self._deadline_s = deadline_s
        self._watches = [
            Watchdog(process.pid, where, deadline_s, self._kill_on_condition)
            for where in (page.read_row_progress, page.read_transform_trial)
        ]
        self._killed_for: WorkerCondition | None = None

    @classmethod
    async def start(cls, command: Sequence[str], deadline_s: float) -> Self:
        page = create_memfd("streamd.track", PROGRESS_PAGE_BYTES)
        try:
            process = await asyncio.create_subprocess_exec(
                *command, str(page), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=child_stderr(), limit=_MAX_LINE_BYTES, pass_fds=[page], env={**os.environ, **WORKER_ENVIRONMENT},
                process_group=0,  # the terminal's Ctrl-C does not reach it; the parent process ends it
            )  # fmt: skip
            return cls(process, ProgressPage(page), deadline_s)
        finally:
            os.close(page)

    async def send_and_receive_line(self, line: bytes) -> bytes:
        """Sends a line and returns the answer, which is incomplete or empty if the process died."""
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        assert self._process.stdout is not None  # noqa: S101 - as above
        for watch in self._watches:
            watch.mark_worker_busy()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._process.stdin.write(line)
            await self._process.stdin.drain()
        answer = await self._process.stdout.readline()
        for watch in self._watches:
            watch.mark_worker_idle()
        return answer

    async def stop(self) -> WorkerExit:
        """Ends the process and returns how it ended.

        A process whose output has ended is dying by itself and is not killed, since a kill would hide the cause.
        """
        for watch in self._watches:
            watch.close()
        if self._process.stdout is not None and not self._process.stdout.at_eof():
            self._kill_process()
        code = await self._process.wait()
        found = diagnose_worker_exit(
            code, self._page.read_row_progress(), self._page.read_transform_trial(), self._killed_for, self._deadline_s
        )
        self._page.close()
        return found

    def _kill_on_condition(self, finding: WorkerCondition) -> None:
        if finding is not WorkerCondition.WAITING:  # a process that waits for a slow disk is not killed
            self._killed_for = finding
            self._kill_process()

    def _kill_process(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
