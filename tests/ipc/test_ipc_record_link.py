"""Links between the daemon and its gates: records in their order, in turns, and what happens at an end."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.ipc.record_link import LinkCallbacks, RecordKind, RecordLink, split_client_frame
from streamd.limits import MAX_GATE_RECORD_BYTES

LIMIT_S = 10.0


class Receiver:
    """What one end of a link has received, and a way to wait for it."""

    def __init__(self, pauses_s: list[float] | None = None) -> None:
        self.records: list[tuple[RecordKind, bytes]] = []
        self.fullness: list[bool] = []
        self.took_s: list[float] = []
        self.is_closed = False
        self._pauses_s = pauses_s or []
        self._more = asyncio.Event()

    @property
    def callbacks(self) -> LinkCallbacks:
        return LinkCallbacks(self._add_record, self._close, self._measure_pause_s, self.fullness.append)

    def _add_record(self, kind: RecordKind, body: bytes) -> None:
        self.records.append((kind, body))
        self._more.set()

    def _close(self) -> None:
        self.is_closed = True
        self._more.set()

    def _measure_pause_s(self, took_s: float) -> float:
        self.took_s.append(took_s)
        # A link may wake before the first record is there: a pause belongs to a turn that brought something.
        return self._pauses_s.pop(0) if self._pauses_s and self.records else 0.0

    async def wait_for(self, count: int) -> list[tuple[RecordKind, bytes]]:
        async with asyncio.timeout(LIMIT_S):
            while len(self.records) < count and not self.is_closed:
                self._more.clear()
                await self._more.wait()
        return self.records

    async def wait_for_end(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not self.is_closed:
                self._more.clear()
                await self._more.wait()


@asynccontextmanager
async def linked(
    near: Receiver, far: Receiver, *, is_far_end_a_gate: bool = False
) -> AsyncIterator[tuple[RecordLink, RecordLink]]:
    near_end, far_end = socket.socketpair()
    ends = [
        await RecordLink.open(near_end, near.callbacks, is_of_gate=is_far_end_a_gate),
        await RecordLink.open(far_end, far.callbacks),
    ]
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            end.close()


def send_raw(link: RecordLink, data: bytes) -> None:
    """Sends bytes that are no record of ours."""
    assert link._transport is not None
    link._transport.write(data)


async def test_records_arrive_in_their_order_whatever_their_size() -> None:
    near, far = Receiver(), Receiver()
    sent = [(RecordKind.FRAME, bytes([size % 251]) * size) for size in (0, 1, 70_000, 3, 1_000_000, 5)]
    async with linked(near, far) as (link, _):
        for kind, body in sent:
            link.send_record(kind, body)
        assert await far.wait_for(len(sent)) == sent


@settings(deadline=None)
@given(st.binary(max_size=255), st.binary(max_size=500))
def test_a_clients_frame_is_told_from_its_identity(identity: bytes, frame: bytes) -> None:
    assert split_client_frame(bytes((len(identity),)) + identity + frame) == (identity, frame)


async def test_a_flood_is_handled_in_turns_between_which_the_loop_serves_others() -> None:
    near, far = Receiver(), Receiver()
    count = 20_000
    async with linked(near, far) as (link, _):
        for _ in range(count):
            link.send_record(RecordKind.LOG, b"x")
        seen = set()
        async with asyncio.timeout(LIMIT_S):
            while len(far.records) < count:
                seen.add(len(far.records))
                await asyncio.sleep(0)
    assert len(seen) > 10


async def test_records_wait_as_long_as_they_are_paused_and_none_is_lost() -> None:
    near, far = Receiver(), Receiver([0.05, 0.05])
    loop = asyncio.get_running_loop()
    async with linked(near, far) as (link, _):
        began_s = loop.time()
        link.send_record(RecordKind.LOG, b"first")
        await far.wait_for(1)
        link.send_record(RecordKind.LOG, b"second")
        await far.wait_for(2)
        assert loop.time() - began_s >= 0.05
        link.send_record(RecordKind.LOG, b"third")
        assert [body for _, body in await far.wait_for(3)] == [b"first", b"second", b"third"]
    assert len(far.took_s) >= 3


async def test_an_end_that_does_not_read_is_reported_as_full_and_later_as_free() -> None:
    near, far = Receiver(), Receiver([LIMIT_S])
    async with linked(near, far) as (link, _):
        link.send_record(RecordKind.LOG, b"the other end pauses after this")
        await far.wait_for(1)
        taken = link.taken_bytes
        sent = 0
        while not near.fullness:
            link.send_record(RecordKind.LOG, bytes(100_000))
            sent += 100_000
            await asyncio.sleep(0)
        assert near.fullness == [True]
        assert link.taken_bytes - taken < sent


async def test_no_more_is_read_of_a_gate_that_does_not_read_until_it_does() -> None:
    near, far = Receiver(), Receiver([0.3])
    async with linked(near, far, is_far_end_a_gate=True) as (link, gate):
        link.send_record(RecordKind.LOG, b"the gate pauses after this")
        await far.wait_for(1)
        while not near.fullness:
            link.send_record(RecordKind.LOG, bytes(100_000))
            await asyncio.sleep(0)
        taken = link.taken_bytes
        gate.send_frame(b"client", b"asks for more")
        # It is handled once the gate, which pauses, has taken what waits for it.
        await near.wait_for(1)
        assert near.fullness == [True, False]
        assert link.taken_bytes > taken


async def test_the_end_of_one_side_is_seen_by_the_other() -> None:
    near, far = Receiver(), Receiver()
    async with linked(near, far) as (link, other):
        link.send_record(RecordKind.LOG, b"last words")
        await far.wait_for(1)
        link.close()
        await far.wait_for_end()
        assert other.is_closed
        other.send_record(RecordKind.LOG, b"to nobody")
    assert far.records == [(RecordKind.LOG, b"last words")]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (0, b""),
        (99, b""),
        (RecordKind.SETTINGS, b"{}"),
        (RecordKind.FRAME, b""),
        (RecordKind.FRAME, b"\x00frame"),
        (RecordKind.FRAME, b"\x09short"),
        (RecordKind.UNREACHABLE, b""),
        (RecordKind.READY, b"[1]"),
        (RecordKind.READY, b'{"port": "1", "has_bbr": true}'),
        (RecordKind.WANTED, b"abc"),
        (RecordKind.LOG, b"\xff"),
        (RecordKind.LOG, b"[" * 100_000),
        (RecordKind.LOG, b"{}"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_a_record_that_no_gate_sends_closes_the_link_of_the_gate(kind: int, body: bytes) -> None:
    near, far = Receiver(), Receiver()
    async with linked(near, far, is_far_end_a_gate=True) as (link, gate):
        gate.send_record(RecordKind.UNREACHABLE, b"id")
        send_raw(gate, struct.pack("<IB", len(body), kind) + body)
        await near.wait_for_end()
        assert link.is_closed
    assert near.records == [(RecordKind.UNREACHABLE, b"id")]


async def test_an_endless_record_of_a_gate_closes_the_link_at_its_first_bytes() -> None:
    near, far = Receiver(), Receiver()
    async with linked(near, far, is_far_end_a_gate=True) as (link, gate):
        send_raw(gate, struct.pack("<IB", MAX_GATE_RECORD_BYTES + 1, RecordKind.FRAME))
        await near.wait_for_end()
        assert link.is_closed


async def test_records_of_a_sound_gate_pass() -> None:
    near, far = Receiver(), Receiver()
    sent = [
        (RecordKind.FRAME, b"\x02idframe"),
        (RecordKind.FRAME, b"\x02id"),
        (RecordKind.UNREACHABLE, b"id"),
        (RecordKind.READY, b""),
        (RecordKind.READY, b'{"port": 1, "has_bbr": false}'),
        (RecordKind.WANTED, b"abcd"),
        (RecordKind.LOG, b'"words"'),
        (RecordKind.FAILED, b'"words"'),
    ]
    async with linked(near, far, is_far_end_a_gate=True) as (_, gate):
        for kind, body in sent:
            gate.send_record(kind, body)
        assert await near.wait_for(len(sent)) == sent
