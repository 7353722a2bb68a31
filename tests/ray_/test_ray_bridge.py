"""The bridge: a missing file is never a bad sample on one node's word, and a node without its data gets no work."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import numpy as np
from support.coroutine_tests import wait_for_condition

from streamd.core.cluster_settings import ClusterSettings
from streamd.core.sampler import BadSample
from streamd.core.slot_layout import compute_layout, compute_slot_bytes
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.messages import bundle_records, split_records
from streamd.ipc.slots import SlotStore
from streamd.ipc.worker_messages import (
    FillRows,
    OpenStream,
    TaskDone,
    WorkerReport,
    decode_command,
    decode_report,
    encode_command,
    encode_report,
)
from streamd.ray.bridge import Bridge
from streamd.ray.cluster import Cluster
from streamd.ray.node_actor import FilledRows
from streamd.ray.node_keeper import NodeKeeper
from streamd.ray.task_table import ClusterNode

GONE = BadSample(5, "No such file or directory", lasting=True, of_this_host=True)


class NodeFake:
    """A node's actor that gives back one report for each task it gets."""

    def __init__(self, *bad: BadSample) -> None:
        self.bad = bad
        self.calls = 0

    async def call(self, _method: Callable[..., Any], records: list[bytes]) -> FilledRows:
        return await self.fill_rows(records)

    async def fill_rows(self, records: list[bytes]) -> FilledRows:
        self.calls += 1
        tasks = [cast("FillRows", decode_command(record)) for record in records]
        size = compute_layout(self.spec, 1).size_bytes
        return [(encode_report(TaskDone(task.number, 1, 2, 3, self.bad)), np.full(size, 7, np.uint8)) for task in tasks]

    spec: Any = None


class BridgeRig:
    """A bridge whose nodes are fakes, and the daemon's end of its socket."""

    def __init__(self, bridge: Bridge, end: socket.socket, slots: SlotStore, stream: ServedStream) -> None:
        self.bridge, self.end, self.slots, self.stream = bridge, end, slots, stream

    def add_node(self, name: str, node: NodeFake) -> NodeKeeper:
        node.spec = self.stream.spec
        bridge = self.bridge
        keeper = NodeKeeper(
            ClusterNode(name, name), cast("Cluster", None), bridge._streams, bridge._table, bridge._assign_tasks,
            bridge._report_status,
        )  # fmt: skip
        keeper.actor, keeper.state = cast("Any", node), "serving"
        keeper.proven.add(0)
        bridge._keepers[name] = keeper
        bridge._table.add_node(name, 1)
        bridge._table.add_stream(name, 0)
        bridge._assign_tasks()
        return keeper

    def send_task(self, number: int) -> None:
        nbytes = compute_slot_bytes(self.stream.spec)
        task = FillRows(number, 0, 1, nbytes, 8, np.array([5], np.uint16), np.array([5], np.int64))
        socket.send_fds(self.end, [bundle_records([encode_command(task)])], [self.slots.ensure_slot(1, nbytes)])

    async def next_done(self) -> TaskDone:
        """The next report on a task."""
        while True:
            data = await asyncio.get_running_loop().sock_recv(self.end, 1 << 16)
            reports: list[WorkerReport] = [decode_report(record) for record in split_records(data)]
            for report in reports:
                if isinstance(report, TaskDone):
                    return report


@asynccontextmanager
async def bridged(stream: ServedStream) -> AsyncIterator[BridgeRig]:
    """A bridge that runs its commands and reports, without a cluster and without a worker of its own."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    slots = SlotStore()
    bridge = Bridge(theirs, ClusterSettings(), cast("Cluster", type("Away", (), {"address": "head:1"})()))
    async with asyncio.TaskGroup() as bridge._group:
        sending = bridge._group.create_task(bridge._send_reports())
        asyncio.get_running_loop().add_reader(theirs, bridge._receive_commands)
        ours.send(bundle_records([encode_command(OpenStream(0, str(stream.manifest_path), stream.spec))]))
        bridge._receive_commands()
        yield BridgeRig(bridge, ours, slots, stream)
        sending.cancel()
        asyncio.get_running_loop().remove_reader(theirs)
        if bridge._status_timer is not None:
            bridge._status_timer.cancel()
        if bridge._deadline is not None:
            bridge._deadline.cancel()
    ours.close()
    theirs.close()
    slots.close()


async def test_a_file_that_one_node_misses_is_read_on_another(stream: ServedStream) -> None:
    async with bridged(stream) as rig:
        poor, rich = NodeFake(GONE), NodeFake()
        rig.add_node("a", poor)
        rig.add_node("b", rich)
        rig.send_task(1)
        assert (await rig.next_done()).bad == ()
        assert (poor.calls, rich.calls) == (1, 1)
        images = compute_layout(stream.spec, 8).images.build_array_in_memory(rig.slots.map_slot(1))
        assert images[:, 0, 0, 0].tolist() == [0, 0, 0, 0, 0, 7, 0, 0]


async def test_a_file_that_the_only_node_misses_is_not_a_bad_sample(stream: ServedStream) -> None:
    async with bridged(stream) as rig:
        rig.add_node("a", NodeFake(GONE))
        rig.send_task(1)
        (row,) = (await rig.next_done()).bad
        assert (row.sample_id, row.lasting) == (5, False)


async def test_a_file_that_two_nodes_miss_is_a_bad_sample(stream: ServedStream) -> None:
    async with bridged(stream) as rig:
        rig.add_node("a", NodeFake(GONE))
        rig.add_node("b", NodeFake(GONE))
        rig.send_task(1)
        assert (await rig.next_done()).bad == (GONE,)


async def test_a_damaged_file_is_bad_on_one_nodes_word(stream: ServedStream) -> None:
    async with bridged(stream) as rig:
        rig.add_node("a", NodeFake(damaged := BadSample(5, "cut short", lasting=True)))
        rig.send_task(1)
        assert (await rig.next_done()).bad == (damaged,)


async def test_a_node_that_has_lost_its_data_gets_no_more_work_and_judges_no_sample(stream: ServedStream) -> None:
    async with bridged(stream) as rig:
        away = BadSample(5, "its mount is gone", lasting=False, away=True)
        keeper = rig.add_node("a", NodeFake(away))
        rig.send_task(1)
        await wait_for_condition(lambda: keeper.refusals == {0: "its mount is gone"}, "the node is refused")
        rig.add_node("b", NodeFake())
        assert (await rig.next_done()).bad == ()
