"""A link to any process that fills slots: its end, and tasks that are taken back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest

from streamd.ipc.messages import bundle_records
from streamd.ipc.slots import RowProgress, SlotStore
from streamd.ipc.worker_messages import FillRows, StreamRemark, UnmapSlots, WorkerDied, WorkerReport, encode_report
from streamd.limits import UNREAD_S
from streamd.supervisor.worker_process import WorkerLink

_READS_NOTHING = "import time; time.sleep(1000)"
_READS_UNTIL_THE_END = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.recv(1 << 16); sys.exit(3)"


class ReportList:
    """A listener that keeps reports."""

    def __init__(self) -> None:
        self.reports: list[WorkerReport] = []

    def on_worker_started(self, worker: object) -> None: ...

    def on_worker_reports(self, _worker: object, reports: Sequence[WorkerReport]) -> None:
        self.reports += reports

    def on_worker_waiting(self, worker: object, progress: RowProgress) -> None: ...

    def on_worker_died(self, worker: object, death: WorkerDied) -> None: ...


@asynccontextmanager
async def linked(
    listener: ReportList, program: str = _READS_UNTIL_THE_END, unread_s: float = UNREAD_S
) -> AsyncIterator[tuple[WorkerLink[FillRows], socket.socket]]:
    """A link to a process that ends when it is sent anything; and a copy of the process's end of the socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(theirs.fileno()), pass_fds=[theirs.fileno()]
    )
    ours.setblocking(False)
    link = WorkerLink[FillRows](process, ours, listener, unread_s)
    with theirs:
        yield link, theirs
    link.close()
    await process.wait()


@pytest.fixture
def task() -> FillRows:
    return FillRows(7, 0, 1, 4096, 1, np.zeros(1, np.uint16), np.zeros(1, np.int64))


async def test_the_end_of_a_linked_process_blames_no_task(task: FillRows) -> None:
    listener, slots = ReportList(), SlotStore()
    async with linked(listener) as (link, theirs):
        link.send_task(task, slots)
        theirs.send(bundle_records([encode_report(StreamRemark(0, "last words"))]))
        assert await link.wait_for_exit() == WorkerDied("with exit status 3", (7,))
        assert listener.reports == [StreamRemark(0, "last words")]
        assert link.take_back_tasks((7, 8)) == [task]
        assert not link.tasks
    slots.close()


async def test_a_link_takes_as_many_tasks_as_one_process_and_a_suspect_only_while_it_is_fresh() -> None:
    async with linked(ReportList()) as (link, _theirs):
        assert link.compute_capacity(2) == 2
        assert link.can_take_suspect
        link._process.kill()


@pytest.mark.long
async def test_a_process_that_reads_now_and_then_is_waited_for_and_one_that_reads_nothing_is_killed() -> None:
    async with linked(ReportList(), _READS_NOTHING, unread_s=2.0) as (link, theirs):
        for _ in range(400):
            link.send_command(UnmapSlots(tuple(range(1000))))
        ended, loop = asyncio.ensure_future(link.wait_for_exit()), asyncio.get_running_loop()
        theirs.setblocking(False)
        until_s = loop.time() + 4.0
        while loop.time() < until_s and not ended.done():
            with contextlib.suppress(BlockingIOError):
                while True:
                    theirs.recv(1 << 16)
            await asyncio.wait({ended}, timeout=0.5)
        assert not ended.done()
        assert (await asyncio.wait_for(ended, 10)).description == "with exit status -9"
