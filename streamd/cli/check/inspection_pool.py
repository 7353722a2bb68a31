"""Has workers inspect samples, as many as the daemon has. Each has one group at a time, and is replaced if it dies.

When a worker dies, or is killed because a file takes too long, the files of its group are inspected one by one. The
file that ends a worker again is the culprit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from streamd.core.text import format_count
from streamd.errors import StreamdError
from streamd.ipc.slots import WorkerPhase
from streamd.ipc.worker_messages import GROUP_RESULT, GroupResult, InspectRows, OpenStream, SampleFault
from streamd.limits import ROW_DEADLINE_S
from streamd.supervisor.worker_process import RestartingWorker

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
        worker = RestartingWorker(GROUP_RESULT, self._streams, self._deadline_s)
        try:
            for group in self._groups:
                for result in await self._inspect_group(worker, group):
                    self._on_result(result)
        finally:
            await worker.stop()

    async def _inspect_group(self, worker: RestartingWorker[GroupResult], group: InspectRows) -> list[GroupResult]:
        found = await worker.run_task(group)
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
