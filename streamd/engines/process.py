"""One worker process as the engine sees it: its socket, its tasks, the slots it has mapped."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable
from typing import Self

from streamd.limits import WORKER_LEAVE_S
from streamd.slots import SlotStore
from streamd.tasks import MAX_RECORD_BYTES, Command, Done, Ready, Task, decode_report, encode_command

Heard = Callable[["WorkerProcess", "Ready | Done"], None]


class WorkerProcess:
    """A running worker. Its socket never fills: two small tasks at a time, and a word about slots that are over."""

    def __init__(self, process: asyncio.subprocess.Process, link: socket.socket, heard: Heard) -> None:
        self._process = process
        self._link = link
        self._heard = heard
        self._mapped: set[int] = set()
        self.tasks: list[int] = []
        self.completed = 0
        asyncio.get_running_loop().add_reader(link, self._read)

    @classmethod
    async def start(cls, place: int, heard: Heard) -> Self:
        """Starts `python -m streamd.worker` with its end of a new socket pair."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "streamd.worker", str(theirs.fileno()), str(place),
                stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno()],
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return cls(process, ours, heard)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: Command) -> None:
        """Says something; a worker that is dead already does not hear it, and `ended` tells."""
        try:
            self._link.send(encode_command(command))
        except (BrokenPipeError, ConnectionResetError):
            return

    def give(self, task: Task, slots: SlotStore) -> None:
        """Hands over a task, with its slot's descriptor when the slot is new to this worker."""
        self.tasks.append(task.number)
        descriptors = []
        if task.slot not in self._mapped:
            descriptors.append(slots.writable(task.slot, task.slot_bytes))
            self._mapped.add(task.slot)
        try:
            socket.send_fds(self._link, [encode_command(task)], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            return

    def finish(self, number: int) -> None:
        self.tasks.remove(number)
        self.completed += 1

    def forget(self, slots: tuple[int, ...]) -> bool:
        """Strikes slots off what this worker has mapped; whether it had any."""
        had = not self._mapped.isdisjoint(slots)
        self._mapped.difference_update(slots)
        return had

    async def ended(self) -> str:
        """Waits for the process's end; how it ended, in words."""
        code = await self._process.wait()
        while self._read():  # its last words may still lie in the socket
            pass
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"

    async def see_off(self) -> None:
        """Closes the socket and waits for the worker's end; one that does not hear of it is killed."""
        self.close()
        try:
            async with asyncio.timeout(WORKER_LEAVE_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def close(self) -> None:
        """Closes the socket, which ends the worker if it still lives."""
        asyncio.get_running_loop().remove_reader(self._link)
        self._link.close()

    def _read(self) -> bool:
        """Hears one report; the loop calls again as long as there is one. False when there was none."""
        try:
            data = self._link.recv(MAX_RECORD_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if data:
            self._heard(self, decode_report(data))
        else:
            asyncio.get_running_loop().remove_reader(self._link)
        return bool(data)
