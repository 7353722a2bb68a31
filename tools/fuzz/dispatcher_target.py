"""A client's frames through the dispatcher, the sessions and the scheduler, to a router that only takes frames.

A case is a sequence of frames from a few clients. The first byte of each names the client in its lowest bits; the
others say what the host does after the frame: whether the router reaches the client, whether batches are filled or
fail, and whether the event loop gets on with its other work. Each case has a dispatcher of its own, so it repeats.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVarTuple, Unpack, cast
from unittest import mock

from fuzz.message_targets import HEADER_BYTES, list_client_messages, replace_message
from fuzz.mutations import mutate
from fuzz.structures import build_msgpack_edit, edit_record_of
from fuzz.target import FuzzTarget, RunCase
from streamd.config.load import load_config
from streamd.core.counters import ProcessStats
from streamd.core.spec import BatchKey
from streamd.daemon.descriptor_allowance import AMPLE_ALLOWANCE
from streamd.daemon.dispatcher import Dispatcher
from streamd.daemon.engine.batch_job import BatchJob
from streamd.daemon.engine.engine import BatchEngine, EngineListener
from streamd.daemon.status_builder import StatusBuilder
from streamd.daemon.streams.catalog import open_streams, write_sample_manifests
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.messages import (
    ClientMessage,
    FrameHeader,
    MonitorAt,
    Progress,
    Refused,
    Subscribe,
    decode_daemon_frame,
    encode_frame,
    split_records,
)
from streamd.ipc.router import FrameSender
from streamd.ipc.slots import SlotStore
from streamd.limits import MIB
from streamd.scheduler.admission import SchedulerLimits
from streamd.scheduler.scheduler import Scheduler

_Arguments = TypeVarTuple("_Arguments")

_SAMPLES: Final = 40
_MEMORY_BYTES: Final = 2 * MIB  # a few dozen slots, so that sessions compete for them
_MAX_FRAMES: Final = 200  # of a case: mutations repeat records
_LENGTH_BYTES: Final = 4
_CLIENT_MASK: Final = 0x07
_UNREACHABLE, _FAILING, _PENDING, _TURN = 0x10, 0x20, 0x40, 0x80  # what the host does after a frame
_BOOT_BYTES: Final = 7
_BOOT: Final = 1  # what the dispatcher makes of random bytes that are zero


def split_case(data: bytes) -> list[bytes]:
    """Returns the records of a case, each a byte for the client and the host, then a frame. A rest is the last one."""
    records, at = list[bytes](), 0
    while at < len(data) and len(records) < _MAX_FRAMES:
        start = at + _LENGTH_BYTES
        at = start + int.from_bytes(data[at:start], "little")
        records.append(data[start:at])
    return records


def join_case(records: Sequence[bytes]) -> bytes:
    """Returns the case of these records."""
    return b"".join(len(each).to_bytes(_LENGTH_BYTES, "little") + each for each in records)


_edit_message: Final = build_msgpack_edit(1 + HEADER_BYTES)


def _edit_record(rng: Random, record: bytes) -> bytes:
    """Changes a message, the bytes of its frame, or what the host does after it."""
    match rng.randrange(6):
        case 0:
            return mutate(rng, record, record)
        case 1:
            return bytes([rng.randrange(256)]) + record[1:]
        case 2:  # the session of the header
            return record[:13] + bytes([rng.randrange(6)]) + record[14:]
        case _:
            return _edit_message(rng, record)


def _make_seeds() -> list[bytes]:
    """Returns each message alone, and a few trainings: one trainer, two in step, and some that come and go."""
    sent = list_client_messages()
    first = cast("Subscribe", sent[5])

    def record(message: ClientMessage, client: int = 0, session: int = 0, host: int = 0) -> bytes:
        return bytes([client | host]) + encode_frame(FrameHeader(_BOOT, session, 0), message)

    def train(client: int, session: int) -> list[bytes]:
        reports = [Progress(2 + step, tuple(range(max(0, step - 1), step)), step, 10) for step in range(8)]
        return [record(each, client, session, _TURN if each.taken % 3 == 0 else 0) for each in reports]

    both = [each for pair in zip(train(0, 1), train(1, 2), strict=True) for each in pair]
    return [
        *(join_case([record(first), record(each, session=1, host=_TURN)]) for each in sent),
        join_case([record(first), *train(0, 1), *(record(each, session=1, host=_TURN) for each in sent[9:])]),
        join_case([record(first), record(replace_message(first, live=True), 1), *both]),
        join_case([record(replace_message(first, epochs=1, world=2, rank=each), each) for each in (0, 1)] + both),
        join_case([record(replace_message(first, transport="inline"), 2, host=_PENDING), *train(2, 1)]),
        join_case([record(each, number % 5, 1 + number % 5) for number, each in enumerate(sent * 2)]),
    ]


@dataclass
class _RouterStub:
    """Takes every frame, which must decode as a client would; a client may be unreachable for a while."""

    is_reachable: bool = True
    sent_kinds: set[str] = field(default_factory=set)

    def send_frame(self, identity: bytes, data: bytes, pixels: memoryview | None = None) -> bool:
        del identity, pixels
        for record in split_records(data):
            message = decode_daemon_frame(record)[1]
            self.sent_kinds.add(message.text if isinstance(message, Refused) else type(message).__name__)
        return self.is_reachable


@dataclass
class _EngineStub:
    """Keeps the batches that it is given, until the case says what becomes of them."""

    stream: ServedStream
    worker_death_count: int = 0
    jobs: list[BatchJob] = field(default_factory=list)
    _listener: EngineListener | None = None

    def set_listener(self, listener: EngineListener) -> None:
        self._listener = listener

    def produce_batch(self, key: BatchKey, slot: int, slot_bytes: int) -> None:
        self.jobs.append(BatchJob(key, self.stream, 0, slot, slot_bytes))

    def unmap_slots_in_workers(self, slots: tuple[int, ...]) -> None:
        """No worker has mapped any."""

    def report_batches(self, *, fail: bool) -> None:
        """Reports all batches as filled, or the first of them as failed."""
        jobs, self.jobs = self.jobs, []
        if self._listener is None or not jobs:
            return
        if fail:
            self._listener.on_batch_failed(jobs[0], "a disk is broken")
            jobs = jobs[1:]
        self._listener.on_batches_filled(jobs)


class _DispatcherRig:
    """A dispatcher over one stream, for one case. Errors of its callbacks and of its tasks are kept."""

    def __init__(self, stream: ServedStream) -> None:
        self.router, self.engine, self._slots = _RouterStub(), _EngineStub(stream), SlotStore()
        self._tasks: list[asyncio.Task[None]] = []
        self._errors: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(self._on_callback_error)
        stats, streams = ProcessStats(), {stream.spec.name: stream}
        with mock.patch("os.urandom", return_value=bytes(_BOOT_BYTES)):
            self.dispatcher = Dispatcher(
                streams,
                scheduler=Scheduler([stream.stream_shape], SchedulerLimits(_MEMORY_BYTES, 1)),
                engine=cast("BatchEngine", self.engine),
                slots=self._slots,
                router=cast("FrameSender", self.router),
                stats=stats,
                status_builder=StatusBuilder(streams, 1, _MEMORY_BYTES, "ipc:///s", stats, time.monotonic()),
                spawn=self._spawn_task,
                allowance=AMPLE_ALLOWANCE,
                monitor=MonitorAt("http://127.0.0.1:1/", "token"),
            )

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> object:
        self._tasks.append(asyncio.create_task(work))
        return self._tasks[-1]

    def _on_callback_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._errors.append(context.get("exception") or RuntimeError(str(context.get("message"))))

    async def handle_record(self, record: bytes) -> None:
        """Hands one record's frame to the dispatcher, and does what its first byte says."""
        host = record[0] if record else 0
        self.router.is_reachable = not host & _UNREACHABLE
        self.dispatcher.handle_frame(bytes([host & _CLIENT_MASK]), record[1:])
        if not host & _PENDING:
            self.engine.report_batches(fail=bool(host & _FAILING))
        if host & _TURN:
            await self.run_tasks()

    async def run_tasks(self) -> None:
        """Lets callbacks and tasks run; raises the first error of any."""
        await asyncio.sleep(0)
        if self._tasks:
            tasks, self._tasks = self._tasks, []
            await asyncio.gather(*tasks)
        if self._errors:
            raise self._errors[0]

    async def close(self) -> None:
        await self.dispatcher.close()
        self._slots.close()


class _TimerLoop(asyncio.SelectorEventLoop):
    """An event loop that knows its timers, so that a case can end them, or let their time pass at once."""

    def __init__(self) -> None:
        super().__init__()
        self._timers: list[tuple[asyncio.TimerHandle, Callable[[], object]]] = []

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Arguments]], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = super().call_later(delay, callback, *args, context=context)
        self._timers.append((handle, partial(callback, *args)))
        return handle

    def end_timers(self, *, call: bool) -> None:
        """Cancels all timers; calls those first that were not cancelled yet, if `call`."""
        timers, self._timers = self._timers, []
        for handle, callback in timers:
            if call and not handle.cancelled():
                callback()
            handle.cancel()


async def _run_frames(stream: ServedStream, loop: _TimerLoop, data: bytes) -> tuple[int, str]:
    records = split_case(data)
    rig = _DispatcherRig(stream)
    try:
        for record in records:
            await rig.handle_record(record)
        await rig.run_tasks()
        loop.end_timers(call=len(data) % 2 == 0)
        json.dumps(rig.dispatcher.collect_stats_values())
        rig.dispatcher.build_status()
        rig.dispatcher.drain_sessions()
        await rig.run_tasks()
    finally:
        await rig.close()
        loop.end_timers(call=False)
    return len(records), " ".join(sorted(rig.router.sent_kinds))


@contextmanager
def _open_dispatcher() -> Iterator[RunCase]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, asyncio.Runner(loop_factory=_TimerLoop) as runner:
        place = Path(folder)
        for number in range(_SAMPLES):
            file = place / "data" / ("cat", "dog")[number % 2] / f"{number}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"never decoded")
        source = {"kind": "folder", "path": str(place / "data")}
        config = load_config({"streams": {"train": {"source": source, "image": {"size": [8, 8]}, "batch_size": 8}}})
        write_sample_manifests(config, place / "state", lambda *_: None)
        (stream,) = open_streams(config, place / "state")
        stream.measure_mixing()
        loop = cast("_TimerLoop", runner.get_loop())
        yield lambda data: runner.run(_run_frames(stream, loop, data))


TARGETS: Final = {
    "dispatcher": FuzzTarget(
        "dispatcher",
        "sequences of clients' frames, through dispatcher and scheduler",
        _make_seeds,
        _open_dispatcher,
        edit=edit_record_of(split_case, join_case, _edit_record),
        edit_share=1,
        unit="frames",
    )
}
