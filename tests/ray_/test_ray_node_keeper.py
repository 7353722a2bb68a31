"""A node proves itself before it gets work; one that cannot is refused by name and condemns nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from support.coroutine_tests import wait_for_condition

import streamd
from streamd.core.spec import PixelId
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.worker_messages import OpenStream, StreamOpenFailed, StreamReady, WorkerReport, encode_report
from streamd.ray import node_keeper
from streamd.ray.cluster import Cluster, NodeLostError, NodeUnfitError
from streamd.ray.node_actor import NodeDescription
from streamd.ray.node_keeper import NodeKeeper, OfferedStream
from streamd.ray.task_table import ClusterNode, TaskTable

PIXELS = PixelId("a" * 32)


class ActorFake:
    """An actor that answers as a test says, in place of one on a node."""

    def __init__(self, answer: WorkerReport, version: str = streamd.__version__) -> None:
        self.answer = answer
        self.version = version
        self.manifests: dict[str, int] = {}
        self.closed: list[int] = []
        self.has_ended = False

    async def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        return await getattr(self, method.__name__)(*arguments)

    async def describe(self) -> bytes:
        return msgspec.json.encode(NodeDescription(self.version, "host", 1))

    async def has_manifest(self, key: str) -> bool:
        return key in self.manifests

    async def receive_manifest(self, key: str, reference: npt.NDArray[np.uint8]) -> None:
        self.manifests[key] = reference.size

    async def open_stream(self, _data: bytes) -> bytes:
        return encode_report(self.answer)

    async def close_stream(self, number: int) -> None:
        self.closed.append(number)

    def end(self) -> None:
        self.has_ended = True


class RecordedTable(TaskTable):
    """A table that remembers which streams were proven, and how often a node that it had was gone."""

    def __init__(self) -> None:
        super().__init__()
        self.proven, self.gone = list[int](), 0

    def add_stream(self, name: str, stream: int) -> None:
        super().add_stream(name, stream)
        self.proven.append(stream)

    def remove_node(self, name: str) -> None:
        self.gone += name in self._nodes
        super().remove_node(name)


class KeeperRig:
    """A keeper of one node; the rig is its cluster."""

    workers_per_node = 1

    def __init__(self, actor: ActorFake, stream: ServedStream, free: float = 2.0) -> None:
        offered = OfferedStream(OpenStream(0, str(stream.manifest_path), stream.spec))
        offered.pixel_id.set_result(PIXELS)
        self.streams = {0: offered}
        self.actor, self.table = actor, RecordedTable()
        self.needed_resources = {"CPU": 1.0}
        node = ClusterNode("id", "host", {"CPU": 2.0}, {"CPU": free})
        self.keeper = NodeKeeper(node, cast("Cluster", self), self.streams, self.table, lambda: None, lambda: None)

    def start_node(self, _node: ClusterNode) -> Any:
        return self.actor

    def put_bytes(self, data: npt.NDArray[np.uint8]) -> Any:
        return data


@asynccontextmanager
async def kept(actor: ActorFake, stream: ServedStream, free: float = 2.0) -> AsyncIterator[KeeperRig]:
    """A keeper that runs until the end of the block, of a node with so many free processors."""
    rig = KeeperRig(actor, stream, free)
    running = asyncio.ensure_future(rig.keeper.run())
    try:
        yield rig
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert actor.has_ended


async def test_a_node_with_the_data_and_the_same_pixels_gets_work(stream: ServedStream) -> None:
    actor = ActorFake(StreamReady(0, PIXELS))
    async with kept(actor, stream) as rig:
        await wait_for_condition(lambda: rig.keeper.state == "serving", "the node is serving")
        assert rig.table.proven == [0]
        assert list(actor.manifests.values()) == [stream.manifest_path.stat().st_size]


@pytest.mark.parametrize(
    ("answer", "version", "reason"),
    [
        (StreamReady(0, "b" * 32), streamd.__version__, "it makes other pixels"),
        (StreamOpenFailed(0, "/data is empty"), streamd.__version__, "/data is empty"),
        (StreamReady(0, PIXELS), "0.0.1", "it has streamd 0.0.1"),
    ],
)
async def test_a_node_of_another_installation_or_without_the_data_is_refused_by_name(
    stream: ServedStream, answer: WorkerReport, version: str, reason: str
) -> None:
    async with kept(ActorFake(answer, version), stream) as rig:
        await wait_for_condition(lambda: rig.keeper.state == "refused", "the node is refused")
        assert reason in rig.keeper.reason
        assert rig.table.proven == []


async def test_a_node_that_cannot_run_an_actor_is_refused_with_the_reason(
    stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = ActorFake(StreamReady(0, PIXELS))

    async def fail() -> bytes:
        raise NodeUnfitError("streamd cannot start there: No module named 'streamd'")

    monkeypatch.setattr(actor, "describe", fail)
    async with kept(actor, stream) as rig:
        await wait_for_condition(lambda: rig.keeper.state == "refused", "the node is refused")
        assert rig.keeper.reason == "streamd cannot start there: No module named 'streamd'"


async def test_a_node_without_free_processors_says_what_it_waits_for(
    stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_keeper, "NODE_START_S", 0.2)
    actor = ActorFake(StreamReady(0, PIXELS))
    monkeypatch.setattr(actor, "describe", asyncio.Event().wait)
    async with kept(actor, stream, free=0.0) as rig:
        waits = "waits for 1 CPU, of which 0 are free"
        await wait_for_condition(lambda: rig.keeper.reason == waits, "it waits for a processor")
        assert rig.keeper.state == "starting"
        await wait_for_condition(lambda: rig.keeper.state == "refused", "the node is refused")
        assert rig.keeper.reason == f"its actor did not start within 0 s: {waits}"


async def test_a_refused_node_is_tried_again_and_a_lost_one_gets_a_new_actor(
    stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_keeper, "NODE_RETRY_S", 0.01)
    actor = ActorFake(StreamOpenFailed(0, "its mount is missing"))
    async with kept(actor, stream) as rig:
        await wait_for_condition(lambda: rig.keeper.state == "refused", "the node is refused")
        actor.answer = StreamReady(0, PIXELS)
        await wait_for_condition(lambda: rig.keeper.state == "serving", "the node is serving")
        rig.keeper.fail(NodeLostError("the actor died"))
        await wait_for_condition(lambda: rig.table.gone == 1, "its actor has ended")
        await wait_for_condition(lambda: rig.table.proven == [0, 0], "the stream is proven")


async def test_a_node_that_loses_the_data_of_a_stream_proves_it_again(
    stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_keeper, "NODE_RETRY_S", 0.01)
    async with kept(ActorFake(StreamReady(0, PIXELS)), stream) as rig:
        await wait_for_condition(lambda: rig.table.proven == [0], "the stream is proven")
        rig.keeper.refuse_stream(0, "its mount has gone")
        await wait_for_condition(lambda: rig.table.proven == [0, 0], "the stream is proven")
        del rig.streams[0]
        rig.keeper.update_streams()
        assert rig.keeper.proven == set()
