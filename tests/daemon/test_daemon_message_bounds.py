"""Every number, text and tuple of every client message at its extremes: a daemon drops it, refuses it or takes it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pytest
from support.dispatcher_rig import WISH, DispatcherRig, dispatching

from streamd.core.epoch_timing import BatchSupply, EpochTiming
from streamd.core.spec import Cursor, OrderFacts, Segment
from streamd.daemon.monitor.http_server import LiveFeed
from streamd.daemon.monitor.metrics import MetricsExposition
from streamd.daemon.monitor.snapshot import take_snapshot
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.messages import (
    EMPTY_HEADER,
    AskMonitor,
    AskNames,
    AskStats,
    AskStatus,
    AskStreams,
    ClientMessage,
    FrameHeader,
    Goodbye,
    Ping,
    Progress,
    ReceiptSeen,
    Stats,
    StatusNow,
    Subscribe,
    build_frame,
    decode_client_frame,
    encode_message,
)
from streamd.limits import MAX_COUNT, MAX_NAME_CHARS, MAX_SESSIONS, MAX_SLOTS

WHOLE: Final = msgspec.structs.replace(
    WISH,
    epochs=3,
    cursor=Cursor(1, (Segment(0, 1, 0, 1),)),
    order=OrderFacts(9, "c" * 32, 8, "keep", "full", 0),
    earlier=((1, 2),),
    name="lr-0.01",
    pid=7,
    batch_size=8,
    steps=2,
)
FURTHER: Final = msgspec.structs.replace(WISH, cursor=Cursor(3))  # a live session begins in epoch 3 beside this one
SESSIONLESS: Final = (
    pytest.param(WHOLE, marks=pytest.mark.long),
    pytest.param(msgspec.structs.replace(WHOLE, live=True, cursor=Cursor()), marks=pytest.mark.long),
    pytest.param(
        msgspec.structs.replace(WHOLE, uneven="pad", world=3, rank=2, cursor=Cursor()), marks=pytest.mark.long
    ),
    AskNames("train", (0, 1)),
    AskStatus(),
    AskStats(),
    AskStreams(),
    AskMonitor(),
)
OF_A_SESSION: Final = (
    Progress(4, (0, 1), 2, 5, (0,)),
    ReceiptSeen(0, "d" * 32, ok=True, timing=EpochTiming(0, 1.5, 0.5, "disk", BatchSupply(1, 1, 0.5, 0.5, 0.5))),
    Ping(),
    Goodbye((0, 1)),
)
EDGES: Final[dict[type, list[Any]]] = {
    int: [
        *(0, 1, -1, 1 << 31, 1 << 32, (1 << 40) - 1, 1 << 40, MAX_COUNT, MAX_COUNT + 1, -MAX_COUNT, 1 << 62),
        *((1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63)),
    ],
    float: [0.0, -1.0, 1e9, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf],
    str: ["", "x" * MAX_NAME_CHARS, "x" * 60_000, "\0\n\x1b[2J", "\ud7ff\U0010ffff" * 100],
    list: [[], [0] * 60_000, [(1 << 64) - 1] * 7000, [[0, 0]] * 20_000, [[0, 1, 0, 1]] * 12_000],
    dict: [{}],
}


def vary(value: Any) -> Iterator[Any]:
    """Yields a plain value with one leaf after the other at each of its extremes."""
    if not isinstance(value, bool):
        yield from EDGES.get(type(value), [])
    if isinstance(value, list):
        for place, each in enumerate(value):
            yield from ([*value[:place], other, *value[place + 1 :]] for other in vary(each))
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from ({**value, key: other} for other in vary(each))


def extremes(message: ClientMessage) -> Iterator[bytes]:
    """Yields the message, then with each field at its extremes, as bytes."""
    tag, *plain = msgspec.msgpack.decode(encode_message(message))
    yield encode_message(message)
    for other in vary(plain):
        if isinstance(other, list):
            yield msgspec.msgpack.encode([tag, *other])


def is_valid(data: bytes) -> bool:
    try:
        decode_client_frame(data)
    except Exception:  # noqa: BLE001 - whatever it is, the dispatcher gets the same
        return False
    return True


async def look_at_everything(rig: DispatcherRig) -> None:
    """Asks and shows all that a daemon tells of its sessions."""
    assert isinstance(rig.ask(b"asker", AskStatus()), StatusNow)
    assert isinstance(rig.ask(b"asker", AskStats()), Stats)
    feed = LiveFeed("token")
    feed.daemon = rig.dispatcher
    assert feed.encode_current_event(is_full=True).startswith(b"data: {")
    assert await MetricsExposition(lambda: take_snapshot(rig.dispatcher)).encode_metrics()


@pytest.mark.parametrize("message", SESSIONLESS, ids=lambda each: type(each).__name__)
async def test_no_extreme_request_breaks_what_the_daemon_tells(stream: ServedStream, message: ClientMessage) -> None:
    accepted = 0
    for encoded in extremes(message):
        async with dispatching(stream) as rig:
            rig.subscribe(b"honest", FURTHER)
            rig.dispatcher.handle_frame(b"evil", build_frame(EMPTY_HEADER, encoded))
            accepted += rig.dispatcher.session_count == 2
            rig.finish_batches()
            await look_at_everything(rig)
    assert accepted > 1 if isinstance(message, Subscribe) else accepted == 0


@pytest.mark.parametrize("message", OF_A_SESSION, ids=lambda each: type(each).__name__)
async def test_no_extreme_report_of_a_session_breaks_what_the_daemon_tells(
    stream: ServedStream, message: ClientMessage
) -> None:
    for encoded in extremes(message):
        async with dispatching(stream) as rig:
            rig.subscribe(b"honest", FURTHER)
            header = rig.subscribe(b"evil")
            rig.send(b"evil", Progress(3, (), 0, 0), header)
            rig.finish_batches()
            rig.dispatcher.handle_frame(b"evil", build_frame(header, encoded))
            await look_at_everything(rig)


@pytest.mark.parametrize(
    "message",
    [
        msgspec.structs.replace(WHOLE, epochs=(1 << 64) - 1),
        msgspec.structs.replace(WHOLE, steps=MAX_COUNT + 1),
        msgspec.structs.replace(WHOLE, earlier=((1, 1),) * (MAX_SESSIONS + 1)),
        msgspec.structs.replace(WHOLE, name="x" * (MAX_NAME_CHARS + 1)),
        Progress(-1, (), 0, 0),
        Progress(0, (0,) * (MAX_SLOTS + 1), 0, 0),
        Progress(0, (), 0, 0, (0,) * (MAX_SLOTS + 1)),
        Goodbye((0,) * (MAX_SLOTS + 1)),
        ReceiptSeen(0, "d" * 65, ok=True),
        ReceiptSeen(0, "", ok=True, timing=EpochTiming(0, math.nan, 0.0, "disk", BatchSupply())),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_message_beyond_its_bounds_is_malformed(message: ClientMessage) -> None:
    assert not is_valid(build_frame(FrameHeader(1, 1, 0), encode_message(message)))


async def test_endless_live_epochs_do_not_end_the_daemon_at_the_next_status(stream: ServedStream) -> None:
    async with dispatching(stream) as rig:
        rig.subscribe(b"honest", FURTHER)
        rig.send(b"evil", msgspec.structs.replace(WISH, live=True, epochs=(1 << 64) - 1))
        assert isinstance(rig.ask(b"asker", AskStatus()), StatusNow)
        assert rig.dispatcher.session_count == 1
