"""The bridge: one worker of large capacity to the daemon, and the master of all nodes to the cluster.

Tasks come over the socket pair of a worker, with the descriptors of their slots. Nodes fill them in memory of their
own; the bridge copies the rows into the slots, once, and reports. When the daemon's end of the socket closes, it exits.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace as replace_fields

from streamd.core.cluster_settings import ClusterSettings
from streamd.core.slot_layout import compute_layout
from streamd.core.spec import PixelId, StreamSpec
from streamd.core.status import ClusterStatus, NodeStatus
from streamd.errors import ProtocolError
from streamd.ipc.messages import bundle_records
from streamd.ipc.slots import MappedSlots, RowProgress, receive_command_records
from streamd.ipc.worker_messages import (
    MAX_GROUP_RECORDS,
    MAX_RECORD_BYTES,
    CloseStream,
    ClusterChanged,
    FillRows,
    OpenStream,
    StreamReady,
    TaskDone,
    UnmapSlots,
    WorkerDied,
    WorkerReport,
    decode_command,
    decode_report,
    encode_command,
    encode_report,
)
from streamd.limits import (
    CLUSTER_ANSWER_S,
    MAX_NODES,
    MAX_TESTIMONIES,
    NODE_RATE_S,
    NODE_REPORT_S,
    NODE_RETRY_S,
    NODES_LOOK_S,
    WORKER_RESPAWN_MAX_S,
    WORKER_RESPAWN_S,
)
from streamd.ray.cluster import Cluster, ClusterError, NodeLostError
from streamd.ray.node_actor import NodeActor
from streamd.ray.node_keeper import NodeKeeper, OfferedStream
from streamd.ray.task_table import ClusterNode, NodeCall, TaskTable, choose_nodes
from streamd.supervisor.worker_process import WorkerProcess


@dataclass(frozen=True, slots=True)
class _BridgeTask:
    task: FillRows
    memory: memoryview  # of its slot


class Bridge:
    """Serves the daemon until its end of `link` closes. Lives on the event loop."""

    def __init__(self, link: socket.socket, settings: ClusterSettings, cluster: Cluster) -> None:
        self._link = link
        self._settings = settings
        self._cluster = cluster
        self._table = TaskTable()
        self._slots = MappedSlots()
        self._tasks: dict[int, _BridgeTask] = {}
        self._streams: dict[int, OfferedStream] = {}
        self._keepers: dict[str, NodeKeeper] = {}  # by node id
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._refused_until_s: dict[str, float] = {}  # by node id; others are taken in its place meanwhile
        self._calls: set[asyncio.Task[None]] = set()  # of nodes, and what else goes on beside them
        self._delivered: dict[str, deque[tuple[float, int]]] = {}  # by node: when, and how many samples
        self._testimonies: OrderedDict[tuple[int, int], set[str]] = OrderedDict()  # by stream and sample
        self._reference = ReferenceWorker(settings.row_deadline_s, self._on_reference_report)
        self._problem = "the cluster is being joined"
        self._reports: asyncio.Queue[WorkerReport] = asyncio.Queue()
        self._ended = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None
        self._status_timer: asyncio.TimerHandle | None = None
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Runs the bridge. All actors have been told to end when it returns."""
        loop = asyncio.get_running_loop()
        self._link.setblocking(False)
        loop.add_reader(self._link, self._receive_commands)
        async with asyncio.TaskGroup() as self._group:
            running = [
                self._group.create_task(self._reference.run(), name="reference worker"),
                self._group.create_task(self._send_reports(), name="reports"),
                self._group.create_task(self._keep_cluster(), name="cluster"),
            ]
            await self._ended.wait()
            for task in (*running, *self._keeping.values(), *self._calls):
                task.cancel()

    # --- the daemon

    def _receive_commands(self) -> None:
        """Receives one datagram and handles its commands; the event loop calls again while there are more."""
        received = receive_command_records(self._link)
        if received is None:
            return
        records, descriptors = received
        if not records:
            asyncio.get_running_loop().remove_reader(self._link)
            self._ended.set()
            return
        for record in records:
            match decode_command(record):
                case FillRows() as task:
                    memory = self._slots.map_slot(task.slot, task.slot_bytes, descriptors)
                    self._tasks[task.number] = _BridgeTask(task, memory)
                    self._table.add_task(task.number, task.stream, is_alone=task.is_suspect)
                case UnmapSlots(slots):
                    self._slots.unmap_slots(slots)
                case OpenStream() as command:
                    self._streams[command.number] = OfferedStream(command)
                    self._reference.open_stream(command)
                    for keeper in self._keepers.values():
                        keeper.update_streams()
                case CloseStream(number):
                    # No task of the stream is under way when this comes, but on a node that is silent there may be.
                    stream = self._streams.pop(number, None)
                    if stream is not None:
                        stream.withdraw()
                    self._reference.close_stream(number)
                    self._table.forget_stream(number)
                    for keeper in self._keepers.values():
                        if number in keeper.proven:
                            self._start_task(self._close_stream_on_node(keeper, number))
                        keeper.update_streams()
        self._assign_tasks()

    async def _close_stream_on_node(self, keeper: NodeKeeper, number: int) -> None:
        if keeper.actor is None:
            return
        try:
            await keeper.actor.call(NodeActor.close_stream, number)
        except NodeLostError as error:
            keeper.fail(error)

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        assert self._group is not None  # noqa: S101 - the bridge runs
        task = self._group.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def _on_reference_report(self, report: WorkerReport) -> None:
        if isinstance(report, StreamReady):
            stream = self._streams.get(report.stream)
            if stream is not None and not stream.pixel_id.done():
                stream.pixel_id.set_result(PixelId(report.pixel_id))
        self._reports.put_nowait(report)

    async def _send_reports(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            records = [encode_report(await self._reports.get())]
            size = len(records[0])
            while not self._reports.empty() and len(records) < MAX_GROUP_RECORDS and size < MAX_RECORD_BYTES // 4:
                records.append(encode_report(self._reports.get_nowait()))
                size += len(records[-1])
            try:
                await loop.sock_sendall(self._link, bundle_records(records))
            except (BrokenPipeError, ConnectionResetError):
                self._ended.set()
                return

    # --- the cluster

    async def _keep_cluster(self) -> None:
        """Joins the cluster, and follows its list of nodes."""
        while True:
            try:
                await asyncio.to_thread(self._cluster.join)
                # ray.init may have set its own handler, which would end this process before its daemon has drained.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                break
            except ClusterError as error:
                self._set_problem(str(error))
            await asyncio.sleep(NODE_RETRY_S)
        looking: asyncio.Future[list[ClusterNode]] | None = None
        while True:
            # A look that has not answered goes on: a second one would block another thread.
            looking = looking or asyncio.ensure_future(asyncio.to_thread(self._cluster.list_nodes))
            done, _ = await asyncio.wait({looking}, timeout=CLUSTER_ANSWER_S)
            if not done:
                self._set_problem(f"the head of the cluster at {self._cluster.address} does not answer")
                continue
            try:
                alive = looking.result()
                # A node that is refused, or was until a short while ago, is taken last.
                now_s, refused_until_s = time.monotonic(), self._refused_until_s
                self._refused_until_s = {node: until_s for node, until_s in refused_until_s.items() if until_s > now_s}
                for node_id, keeper in self._keepers.items():
                    if keeper.state == "refused":
                        self._refused_until_s[node_id] = now_s + NODE_RETRY_S
                found = choose_nodes(alive, self._settings, self._keepers.keys(), MAX_NODES, self._refused_until_s)
                chosen = {each.node_id: each for each in found}
                for node_id in self._keepers.keys() - chosen.keys():
                    self._keeping.pop(node_id).cancel()
                    del self._keepers[node_id]
                    self._report_status()
                for node_id, node in chosen.items():
                    if node_id not in self._keepers:
                        keeper = self._keepers[node_id] = NodeKeeper(
                            node, self._cluster, self._streams, self._table, self._assign_tasks, self._report_status
                        )
                        assert self._group is not None  # noqa: S101 - the bridge runs
                        self._keeping[node_id] = self._group.create_task(keeper.run(), name=f"node {node.name}")
                        self._report_status()
                self._set_problem("")
            except ClusterError as error:
                self._set_problem(str(error))
            looking = None
            await asyncio.sleep(NODES_LOOK_S)

    def _set_problem(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._report_status()

    # --- tasks

    def _assign_tasks(self) -> None:
        while call := self._table.take_next_call(time.monotonic()):
            # Encoded now: by the time the call begins, another node may have filled some of these tasks.
            records = [encode_command(self._tasks[number].task) for number in call.tasks]
            self._start_task(self._run_call(call, records))
        if self._deadline is not None:
            self._deadline.cancel()
        due_s, now_s = self._table.next_deadline_s, time.monotonic()
        loop = asyncio.get_running_loop()
        self._deadline = None if due_s is None else loop.call_later(max(0.0, due_s - now_s), self._on_deadline)

    def _on_deadline(self) -> None:
        self._deadline = None
        if self._table.mark_overdue_calls(time.monotonic()):
            self._report_status()
        self._assign_tasks()

    async def _run_call(self, call: NodeCall, records: list[bytes]) -> None:
        keeper = self._keepers.get(call.node)
        actor = keeper.actor if keeper is not None else None
        if keeper is None or actor is None:  # it went in this turn of the loop
            self._table.remove_node(call.node)
            self._assign_tasks()
            return
        try:
            filled = await actor.call(NodeActor.fill_rows, records)
        except NodeLostError as error:
            # The call of an actor that was given up long ago may fail now. Another one has taken its place since.
            if keeper.actor is actor:
                self._table.remove_node(call.node)
                keeper.fail(error)
            self._assign_tasks()
            return
        was_silent = self._table.is_silent(call.node)
        left = set(self._table.close_call(call, time.monotonic()))
        for record, rows in filled:
            report = decode_report(record)
            match report:
                case TaskDone(number) | WorkerDied(tasks=(number,)):
                    pass
                case _:
                    continue
            if number in left:
                left.discard(number)
                self._finish_task(number, report, rows, keeper)
        for number in left:  # a node that does not answer for a task has not filled it
            self._table.requeue(number, avoided={call.node})
        if was_silent:
            self._report_status()
        elif self._status_timer is None:
            self._status_timer = asyncio.get_running_loop().call_later(NODE_REPORT_S, self._report_status)
        self._assign_tasks()

    def _finish_task(
        self, number: int, report: WorkerReport, rows: npt.NDArray[np.uint8] | None, keeper: NodeKeeper
    ) -> None:
        known, node = self._tasks[number], keeper.node.node_id
        task = known.task
        if isinstance(report, TaskDone):
            away = next((each.reason for each in report.bad if each.away), "")
            if away:
                self._table.remove_stream(node, task.stream)
                keeper.refuse_stream(task.stream, away)
                self._table.requeue(number, avoided={node})
                return
            # The word of one node that a file cannot be read is not enough: a second node must say the same.
            bad, doubting = [], set[str]()
            for row in report.bad:
                if row.of_this_host and row.lasting:
                    witnesses = self._testimonies.setdefault((task.stream, row.sample_id), set())
                    self._testimonies.move_to_end((task.stream, row.sample_id))
                    witnesses.add(node)
                    if len(witnesses) == 1:
                        doubting |= witnesses
                        bad.append(replace(row, lasting=False))
                        continue
                bad.append(row)
            while len(self._testimonies) > MAX_TESTIMONIES:
                self._testimonies.popitem(last=False)
            if doubting and self._table.has_other_node(task.stream, doubting):
                self._table.requeue(number, avoided=doubting)
                return
            report = replace_fields(report, bad=tuple(bad))
            if rows is not None:
                write_rows(self._streams[task.stream].command.spec, task, rows, known.memory)
            self._delivered.setdefault(node, deque()).append((time.monotonic(), task.rows.size))
        self._table.take_out(number)
        del self._tasks[number]
        self._reports.put_nowait(report)

    # --- status

    def _report_status(self) -> None:
        if self._status_timer is not None:
            self._status_timer.cancel()
            self._status_timer = None
        nodes, now_s = [], time.monotonic()
        for node, keeper in self._keepers.items():
            delivered = self._delivered.setdefault(node, deque())
            while delivered and delivered[0][0] < now_s - NODE_RATE_S:
                delivered.popleft()
            is_silent = keeper.state == "serving" and self._table.is_silent(node)
            nodes.append(
                NodeStatus(
                    f"{keeper.node.name}/{node[:6]}",
                    "silent" if is_silent else keeper.state,
                    self._settings.workers_per_node,
                    self._table.count_node_tasks(node),
                    sum(samples for _, samples in delivered) / NODE_RATE_S,
                    "it has not answered in time" if is_silent else keeper.reason,
                )
            )
        self._reports.put_nowait(ClusterChanged(ClusterStatus(self._cluster.address, self._problem, tuple(nodes))))


# --- A worker on the daemon's host that gets no task: its pixels are those that every node has to make.
#
# It also tries transforms, so that one that crashes or never ends is found before a node imports it.


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

    def on_worker_reports(self, worker: object, reports: Sequence[WorkerReport]) -> None:
        """Hands on what the process says about streams."""
        del worker
        for report in reports:
            self._on_report(report)

    def on_worker_waiting(self, worker: object, progress: RowProgress) -> None:
        """Is never called: the process has no task."""


def write_rows(spec: StreamSpec, task: FillRows, rows: npt.NDArray[np.uint8], memory: memoryview) -> None:
    """Copies the rows of a result, which lie as a batch of their own, to their places in the task's slot.

    Raises ProtocolError if the result has not the size of these rows.
    """
    count = task.rows.size
    source, target = compute_layout(spec, count), compute_layout(spec, task.batch_rows)
    if rows.size != source.size_bytes:
        raise ProtocolError(f"a result of {count} rows has {rows.size} bytes, but they take {source.size_bytes}")
    view = rows.data
    first = int(task.rows[0])
    is_run = bool((task.rows == np.arange(first, first + count, dtype=task.rows.dtype)).all())
    places = slice(first, first + count) if is_run else task.rows
    for ours, theirs in zip(target.all_tensors, source.all_tensors, strict=True):
        ours.build_array_in_memory(memory)[places] = theirs.build_array_in_memory(view)
