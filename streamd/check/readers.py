"""The reading processes: as many as the daemon has workers, each given one group at a time, replaced when they die.

When one dies, the files of its group are read one by one: the one that ends a process by itself is the culprit.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from streamd.check.records import Fault, Group, Seen, Told
from streamd.errors import StreamdError

COMMAND: Final = (sys.executable, "-P", "-m", "streamd.check.reading")
_LINE_BYTES: Final = 1 << 20  # of an answer: 32 digests, sizes and reasons take a few hundredths of it
_MOST_CRASHES: Final = 100  # each costs a process; so many are no matter of single files


class Readers:
    """`count` processes that read `groups`. `heard` is called with each answer; `notes` say what remained unclear."""

    def __init__(
        self,
        streams: Sequence[Told],
        groups: Iterable[Group],
        heard: Callable[[Seen], None],
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._hello = msgspec.json.encode(streams) + b"\n"
        self._groups: Iterator[Group] = iter(groups)
        self._heard = heard
        self._command = command
        self._crashes = 0
        self.notes: list[str] = []

    async def run(self, count: int) -> None:
        """Returns when all groups are read. Raises StreamdError when no process can read at all."""
        try:
            async with asyncio.TaskGroup() as tenders:
                for _ in range(count):
                    tenders.create_task(self._tend())
        except* StreamdError as errors:
            raise errors.exceptions[0] from None

    async def _tend(self) -> None:
        """One process's place: takes groups until there are no more."""
        child = _Child(self._command, self._hello)
        try:
            for group in self._groups:
                for seen in await self._read(child, group):
                    self._heard(seen)
        finally:
            await child.end()

    async def _read(self, child: _Child, group: Group) -> list[Seen]:
        seen = await child.ask(group)
        if seen is not None:
            return [seen]
        how = await child.end()
        if len(group.ids) == 1:
            return [self._crashed(group, how)]
        singles = [each for one in group.ids for each in await self._read(child, Group(group.stream, [one]))]
        if not any(fault.effect == "crash" for each in singles for fault in each.faults):
            self.notes.append(
                f"a reading process ended, {how}, over {len(group.ids)} files of which each can be read by itself: "
                "is memory short?"
            )
        return singles

    def _crashed(self, group: Group, how: str) -> Seen:
        self._crashes += 1
        if self._crashes > _MOST_CRASHES:
            raise StreamdError(
                f"more than {_MOST_CRASHES} files crash the decoder, the last {how}: that is the installation's fault "
                "rather than the files'; install streamd[serve] anew"
            )
        fault = Fault(group.ids[0], f"crashes the decoder, {how}", "crash")
        return Seen(group.stream, group.ids, faults=[fault])


class _Child:
    """A reading process, started when it is first asked and again after its end."""

    def __init__(self, command: Sequence[str], hello: bytes) -> None:
        self._command = command
        self._hello = hello
        self._process: asyncio.subprocess.Process | None = None

    async def ask(self, group: Group) -> Seen | None:
        """The answer; None when the process has died over it."""
        answer = await self._exchange(await self._running(), msgspec.json.encode(group) + b"\n")
        return msgspec.json.decode(answer, type=Seen) if answer.endswith(b"\n") else None

    async def end(self) -> str:
        """Ends the process, if it has not ended; how it did, in words."""
        process, self._process = self._process, None
        if process is None:
            return "not started"
        with contextlib.suppress(ProcessLookupError):
            if process.returncode is None and not _at_end(process):
                process.kill()
        code = await process.wait()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_LINE_BYTES
            )
            if not await self._exchange(self._process, self._hello):
                how = await self.end()
                raise StreamdError(f"a reading process ended before it read anything, {how}; its message is above")
        return self._process

    @staticmethod
    async def _exchange(process: asyncio.subprocess.Process, line: bytes) -> bytes:
        """Says a line and hears one; an empty one when the process is dead."""
        assert process.stdin is not None  # noqa: S101 - a pipe was asked for
        assert process.stdout is not None  # noqa: S101 - as above
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(line)
            await process.stdin.drain()
        return await process.stdout.readline()


def _at_end(process: asyncio.subprocess.Process) -> bool:
    """Whether its output has ended: then it dies by itself, and a kill would hide of what."""
    return process.stdout is not None and process.stdout.at_eof()
