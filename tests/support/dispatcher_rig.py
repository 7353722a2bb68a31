"""A dispatcher over a real scheduler, with a router that keeps frames and an engine that decodes at once."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

from streamd.core.counters import ProcessStats
from streamd.core.spec import BatchKey, Cursor
from streamd.daemon.descriptor_allowance import AMPLE_ALLOWANCE, DescriptorAllowance
from streamd.daemon.dispatcher import Dispatcher
from streamd.daemon.engine.batch_job import BatchJob
from streamd.daemon.engine.engine import BatchEngine
from streamd.daemon.status_builder import StatusBuilder
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.messages import (
    EMPTY_HEADER,
    ClientMessage,
    DaemonMessage,
    FrameHeader,
    Subscribe,
    Welcome,
    decode_daemon_frame,
    encode_frame,
    split_records,
)
from streamd.ipc.router import FrameSender
from streamd.ipc.slots import SlotStore
from streamd.scheduler.admission import SchedulerLimits
from streamd.scheduler.scheduler import Scheduler

MIB = 1 << 20
WISH = Subscribe("train", 0, 1, None, Cursor(), "drop", 4, "shared", None, resuming=False)


class KeepingRouter:
    """A router that keeps the frames it is given, by identity."""

    def __init__(self) -> None:
        self.sent: defaultdict[bytes, list[bytes]] = defaultdict(list)
        self.has_sent = asyncio.Event()

    def send_frame(self, identity: bytes, data: bytes, pixels: memoryview | None = None) -> bool:
        del pixels
        self.sent[identity].append(data)
        self.has_sent.set()
        return True

    def take_messages(self, identity: bytes) -> list[tuple[FrameHeader, DaemonMessage]]:
        """Returns what a client was sent since the last call."""
        records = [record for data in self.sent.pop(identity, []) for record in split_records(data)]
        return [decode_daemon_frame(record) for record in records]


class InstantEngine:
    """An engine that has decoded each batch when `finish_batches` is called."""

    worker_death_count = 0

    def __init__(self) -> None:
        self.wanted: list[tuple[BatchKey, int, int]] = []

    def set_listener(self, listener: object) -> None:
        del listener

    def produce_batch(self, key: BatchKey, slot: int, slot_bytes: int) -> None:
        self.wanted.append((key, slot, slot_bytes))

    def unmap_slots_in_workers(self, slots: tuple[int, ...]) -> None:
        del slots


class DispatcherRig:
    """A dispatcher, its fakes, and the tasks that it has spawned."""

    def __init__(self, stream: ServedStream, allowance: DescriptorAllowance, memory_bytes: int) -> None:
        self.streams = {"train": stream}
        self.stats, self.slots = ProcessStats(), SlotStore()
        self.router, self.engine = KeepingRouter(), InstantEngine()
        self.scheduler = Scheduler([stream.stream_shape], SchedulerLimits(memory_bytes, workers=2))
        self.builder = StatusBuilder(self.streams, 2, memory_bytes, "ipc:///s", self.stats, began_s=0.0)
        self.tasks: list[asyncio.Task[None]] = []
        self.dispatcher = Dispatcher(
            self.streams,
            scheduler=self.scheduler,
            engine=cast("BatchEngine", self.engine),
            slots=self.slots,
            router=cast("FrameSender", self.router),
            stats=self.stats,
            status_builder=self.builder,
            spawn=self._spawn_task,
            allowance=allowance,
        )

    def _spawn_task(self, coroutine: Coroutine[Any, Any, None]) -> object:
        self.tasks.append(asyncio.ensure_future(coroutine))
        return self.tasks[-1]

    def send(self, identity: bytes, message: ClientMessage, header: FrameHeader = EMPTY_HEADER, **options: Any) -> bool:
        """Returns whether the frame was due: whether it released batches or confirmed a receipt."""
        return self.dispatcher.handle_frame(identity, encode_frame(header, message), **options)

    def ask(self, identity: bytes, message: ClientMessage, **options: Any) -> DaemonMessage:
        """Sends a message without a session, and returns the last answer."""
        self.send(identity, message, **options)
        return self.router.take_messages(identity)[-1][1]

    def subscribe(self, identity: bytes, wish: Subscribe = WISH, **options: Any) -> FrameHeader:
        """Returns the header of a new session."""
        self.send(identity, wish, **options)
        ((header, welcome),) = self.router.take_messages(identity)
        assert isinstance(welcome, Welcome), welcome
        return header

    def finish_batches(self) -> int:
        """Decodes all batches that are wanted now; returns their number."""
        wanted, self.engine.wanted = self.engine.wanted, []
        jobs = [BatchJob(key, self.streams[key.stream], 0, slot, slot_bytes) for key, slot, slot_bytes in wanted]
        if jobs:
            self.dispatcher.on_batches_filled(jobs)
        return len(jobs)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.dispatcher.close()
        self.slots.close()
        failures = [each for each in results if isinstance(each, Exception)]
        assert not failures, failures


@asynccontextmanager
async def dispatching(
    stream: ServedStream, *, allowance: DescriptorAllowance = AMPLE_ALLOWANCE, memory_bytes: int = 64 * MIB
) -> AsyncIterator[DispatcherRig]:
    """A dispatcher that serves one stream; a task that failed fails the test."""
    rig = DispatcherRig(stream, allowance, memory_bytes)
    try:
        yield rig
    finally:
        await rig.close()
