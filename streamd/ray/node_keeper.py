"""One node of the cluster, from its actor's start to its end: it proves itself for each stream before it gets work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

import streamd
from streamd.core.spec import PixelId
from streamd.core.status import NodeState
from streamd.errors import StreamdError
from streamd.ipc.worker_messages import OpenStream, StreamReady, decode_report, format_error_reason
from streamd.limits import NODE_RETRY_S, NODE_START_S
from streamd.ray.cluster import Cluster, NodeLostError, RayNode
from streamd.ray.node_actor import NodeActor, NodeDescription, StreamParcel, pack_stream
from streamd.ray.task_table import ClusterNode, TaskTable

# --- The streams that a bridge offers to nodes: what each needs to open one, and the pixels that it must make.


@dataclass(slots=True, eq=False)
class OfferedStream:
    """One stream version. `pixel_id` is known when this host's own worker has opened it."""

    command: OpenStream
    pixel_id: asyncio.Future[PixelId] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    _parcel: StreamParcel | None = None
    _manifest: Any = None  # its reference in the object store
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def withdraw(self) -> None:
        """Ends the wait of nodes for the pixels of a stream that is closed before anybody has opened it."""
        if not self.pixel_id.done():
            self.pixel_id.set_exception(StreamdError("the stream was closed"))
            self.pixel_id.exception()  # nobody needs to wait for it

    async def pack(self) -> StreamParcel:
        """Returns the parcel for a node. Raises ConfigError and OSError."""
        async with self._lock:
            if self._parcel is None:
                self._parcel = await asyncio.to_thread(pack_stream, self.command)
            return self._parcel

    async def put_manifest(self, put_bytes: Callable[[npt.NDArray[np.uint8]], Any]) -> Any:
        """Puts the manifest into the object store, once for all nodes; returns its reference."""
        async with self._lock:
            if self._manifest is None:
                path = Path(self.command.manifest)
                self._manifest = await asyncio.to_thread(lambda: put_bytes(np.memmap(path, np.uint8, "r")))
            return self._manifest


# --- One node of the cluster, from its actor's start to its end: it proves itself for each stream before it gets work.

_description_decoder: Final = msgspec.json.Decoder(NodeDescription)
_FAULTS: Final = (StreamdError, OSError, TimeoutError)


@dataclass(slots=True, eq=False)
class NodeKeeper:
    """Starts an actor on `node`, and another one after a while when it is refused or its actor ends.

    It enters into `table` what the node may have, and calls `assign_tasks` then; `report_status` is called when the
    node's state has changed. Lives on the event loop.
    """

    node: ClusterNode
    cluster: Cluster
    streams: Mapping[int, OfferedStream]  # the bridge's, which it changes
    table: TaskTable
    assign_tasks: Callable[[], None]
    report_status: Callable[[], None]
    state: NodeState = "starting"
    reason: str = ""
    actor: RayNode | None = None
    refusals: dict[int, str] = field(default_factory=dict)  # by stream: why the node may not have its tasks
    proven: set[int] = field(default_factory=set)
    _opened: set[int] = field(default_factory=set)  # streams that this actor has proven at some time
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _failure: NodeLostError | None = None

    async def run(self) -> None:
        """Keeps the node at work until cancelled. Its actor has been told to end when this returns."""
        while True:
            try:
                await self._run_actor()
            except NodeLostError as error:
                self._set_state("lost", format_error_reason(error))
            except _FAULTS as error:
                self._set_state("refused", format_error_reason(error))
            finally:
                actor, self.actor = self.actor, None
                self.proven.clear()
                self._opened.clear()
                self.refusals.clear()
                # The tasks of the node go to others.
                self.table.remove_node(self.node.node_id)
                self.assign_tasks()
                if actor is not None:
                    actor.end()
            await asyncio.sleep(NODE_RETRY_S)
            self._set_state("starting", "")

    async def _run_actor(self) -> None:
        self._failure = None
        self.actor = self.cluster.start_node(self.node)
        self._set_state("starting", self.node.describe_shortage(self.cluster.needed_resources))
        try:
            async with asyncio.timeout(NODE_START_S):
                description = _description_decoder.decode(await self.actor.call(NodeActor.describe))
        except TimeoutError as error:
            why = self.reason or "its processors or its environment were not ready"
            raise StreamdError(f"its actor did not start within {NODE_START_S:.0f} s: {why}") from error
        if description.version != streamd.__version__:
            raise StreamdError(
                f"it has streamd {description.version}, and the daemon {streamd.__version__}: install the same version"
            )
        self.table.add_node(self.node.node_id, self.cluster.workers_per_node)
        while self._failure is None:
            self._changed.clear()
            for number in [each for each in self.streams if each not in self.proven and each not in self.refusals]:
                await self._try_stream(self.actor, number)
            reasons = "; ".join(dict.fromkeys(self.refusals.values()))
            self._set_state("refused" if reasons and not self.proven else "serving", reasons)
            with suppress(TimeoutError):
                async with asyncio.timeout(NODE_RETRY_S if self.refusals else None):
                    await self._changed.wait()
                    continue
            self.refusals.clear()
        raise self._failure

    async def _try_stream(self, actor: RayNode, number: int) -> None:
        """Opens a stream on the node, which proves it there, or is refused its tasks."""
        stream, reason = self.streams[number], ""
        try:
            async with asyncio.timeout(NODE_START_S):
                wanted = await asyncio.shield(stream.pixel_id)
                parcel = await stream.pack()
                if not await actor.call(NodeActor.has_manifest, parcel.manifest_key):
                    reference = await stream.put_manifest(self.cluster.put_bytes)
                    await actor.call(NodeActor.receive_manifest, parcel.manifest_key, reference)
                report = decode_report(await actor.call(NodeActor.open_stream, msgspec.msgpack.encode(parcel)))
            if not isinstance(report, StreamReady):
                reason = getattr(report, "reason", "it gave no answer")
            elif PixelId(report.pixel_id) != wanted:
                reason = (
                    f"it makes other pixels ({report.pixel_id[:12]}) than the daemon's host ({wanted[:12]}): install "
                    "the same versions of streamd and its decoders there"
                )
        except NodeLostError:
            raise
        except _FAULTS as error:
            reason = format_error_reason(error)
        if number not in self.streams:  # closed meanwhile
            await actor.call(NodeActor.close_stream, number)
        elif reason:
            self.refusals[number] = reason
            if number not in self._opened:  # else the node may still have tasks of it
                await actor.call(NodeActor.close_stream, number)
        else:
            self.proven.add(number)
            self._opened.add(number)
            self.table.add_stream(self.node.node_id, number)
            self.assign_tasks()

    def fail(self, error: NodeLostError) -> None:
        """Ends the actor, since a call has failed: its other calls would fail much later."""
        self._failure = self._failure or error
        self._changed.set()

    def refuse_stream(self, number: int, reason: str) -> None:
        """Gives the node no more tasks of a stream until it proves it again."""
        self.proven.discard(number)
        self.refusals[number] = reason
        self._changed.set()

    def update_streams(self) -> None:
        """Opens the streams that were added. A stream that was closed is closed there."""
        closed = [number for number in (*self.proven, *self.refusals) if number not in self.streams]
        for number in closed:
            self.proven.discard(number)
            self.refusals.pop(number, None)
        self._changed.set()

    def _set_state(self, state: NodeState, reason: str) -> None:
        if (state, reason) != (self.state, self.reason):
            self.state, self.reason = state, reason
            self.report_status()
