"""When a batch leaves: at once if it lay ready, in company if it was just decoded and the trainer can spare that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import pytest
from support.opened_streams import Serve

from streamd.core.counters import ProcessStats
from streamd.core.epoch_timing import BatchSupply
from streamd.core.spec import BatchKey
from streamd.daemon.batch_sender import BatchSender
from streamd.daemon.engine.batch_job import BatchJob
from streamd.daemon.monitor.batch_preview import BatchPreview
from streamd.daemon.router import Router
from streamd.daemon.sessions import Connection
from streamd.daemon.status_builder import StatusBuilder
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.frames import decode_daemon_frame, split_records
from streamd.ipc.messages import BatchReady
from streamd.ipc.slots import SlotStore

BOOT = 77


@dataclass
class Outbox:
    """A server that keeps what it is given."""

    sent: list[tuple[bytes, int, BatchReady]] = field(default_factory=list)
    messages: int = 0
    reachable: bool = True
    some: asyncio.Event = field(default_factory=asyncio.Event)

    def send_frame(self, identity: bytes, data: bytes, pixels: memoryview | None = None) -> bool:
        self.messages += 1
        for record in split_records(data):
            header, message = decode_daemon_frame(record)
            assert isinstance(message, BatchReady)
            assert (pixels is not None) == message.inline
            self.sent.append((identity, header.number, message))
        self.some.set()
        return self.reachable

    @property
    def numbers(self) -> list[int]:
        return [number for _, number, _ in self.sent]


@pytest.fixture
def stream(serve_images: Serve) -> ServedStream:
    return serve_images({"cat": 64})


@dataclass
class Desk:
    outbox: Outbox
    sender: BatchSender
    stream: ServedStream
    lost: list[int]

    def peer(self, *, credit: int = 8) -> Connection:
        return Connection(b"me", 1, self.stream, "shared", 0, 1, credit)

    def queue(
        self,
        connection: Connection,
        index: int = 0,
        *,
        is_awaited: bool = False,
        busy_s: float = 0.0,
        waited_s: float = 0.0,
        busy_fraction: float = 0.0,
    ) -> None:
        """Queues batch `index`, which was decoded into slot index + 1."""
        key = BatchKey("train", 0, index)
        took = {"busy_s": busy_s, "waited_s": waited_s, "busy_fraction": busy_fraction}
        self.sender.add_filled_batch(BatchJob(key, self.stream, 0, index + 1, 4096, **took))
        self.sender.queue_delivery(connection, index, index + 1, is_awaited=is_awaited)


@pytest.fixture
def desk(stream: ServedStream) -> Iterator[Desk]:
    outbox, lost, slots, stats = Outbox(), list[int](), SlotStore(), ProcessStats()
    overview = StatusBuilder({"train": stream}, 1, 1, "ipc:///s", stats, began_s=0.0)
    overview.on_session_began(1, ("train", 0, 1), 0.0)
    sender = BatchSender(cast("Router", outbox), slots, stats, overview, BatchPreview(slots), BOOT, lost.append)
    yield Desk(outbox, sender, stream, lost)
    sender.close()


@pytest.mark.parametrize(("credit", "is_fresh"), [(8, False), (7, True)], ids=["ready batch", "little credit"])
async def test_a_ready_batch_and_a_batch_for_little_credit_are_sent_at_once(
    desk: Desk, credit: int, *, is_fresh: bool
) -> None:
    desk.queue(desk.peer(credit=credit))
    desk.sender.send_queued_or_delay(is_fresh=is_fresh)
    assert desk.outbox.numbers == [0]


async def test_samples_are_counted_when_they_are_sent(desk: Desk) -> None:
    peer = desk.peer()
    for index in range(2):
        desk.queue(peer, index)
    assert desk.sender._stats.values_by_group() == {}
    desk.sender.send_queued_or_delay(is_fresh=False)
    counted = desk.sender._stats.values_by_group()["stream.train"]
    assert (counted["sent_samples"], counted["send_count"]) == (2 * desk.stream.spec.batch_size, 2)


async def test_a_fresh_batch_waits_for_three_others_and_all_are_sent_in_order(desk: Desk) -> None:
    peer = desk.peer()
    for index in range(3):
        desk.queue(peer, index)
        desk.sender.send_queued_or_delay(is_fresh=True)
        assert desk.outbox.numbers == []
    desk.queue(peer, 3)
    desk.sender.send_queued_or_delay(is_fresh=True)
    assert desk.outbox.numbers == [0, 1, 2, 3]
    assert desk.outbox.messages == 1


async def test_awaited_batches_count_their_times_and_ready_ones_only_their_number(desk: Desk) -> None:
    peer = desk.peer()
    for index in range(2):
        desk.queue(peer, index, is_awaited=True, busy_s=4.0, waited_s=3.0, busy_fraction=0.5)
    for index in (2, 3, 4):
        desk.queue(peer, index, busy_s=100.0, busy_fraction=1.0)
    desk.sender.send_queued_or_delay(is_fresh=False)
    assert peer.supply_counter.take_and_reset_supply() == BatchSupply(3, 2, 6.0, 2.0, 0.5)
    assert peer.supply_counter.take_and_reset_supply() == BatchSupply()


async def test_a_single_fresh_batch_is_sent_after_a_moment(desk: Desk) -> None:
    desk.queue(desk.peer())
    desk.sender.send_queued_or_delay(is_fresh=True)
    async with asyncio.timeout(10):
        await desk.outbox.some.wait()
    assert desk.outbox.numbers == [0]


async def test_a_ready_batch_is_sent_together_with_waiting_ones(desk: Desk) -> None:
    peer = desk.peer()
    desk.queue(peer)
    desk.sender.send_queued_or_delay(is_fresh=True)
    desk.sender.send_queued_or_delay(is_fresh=False)
    assert desk.outbox.numbers == [], "an event that sends nothing ends no wait"
    desk.queue(peer, 1)
    desk.sender.send_queued_or_delay(is_fresh=False)
    assert desk.outbox.numbers == [0, 1]


async def test_a_trainer_that_has_left_is_sent_nothing(desk: Desk) -> None:
    peer = desk.peer()
    desk.queue(peer)
    desk.sender.send_queued_or_delay(is_fresh=True)
    peer.is_gone = True
    desk.sender.remove_batches_in_slots((1,))
    desk.sender.send_queued_batches()
    assert desk.outbox.numbers == []


async def test_an_unreachable_trainer_is_reported(desk: Desk) -> None:
    desk.outbox.reachable = False
    desk.queue(desk.peer())
    desk.sender.send_queued_or_delay(is_fresh=False)
    assert desk.lost == [1]


@pytest.mark.parametrize("other", [None, 7])
async def test_a_session_that_returns_a_batch_before_it_was_sent_ends(desk: Desk, other: int | None) -> None:
    desk.queue(desk.peer())
    desk.sender.send_queued_or_delay(is_fresh=True)
    desk.sender.remove_batches_in_slots((1,))
    if other is not None:  # the slot holds another batch by now
        desk.sender.add_filled_batch(BatchJob(BatchKey("train", 0, other), desk.stream, 0, 1, 4096))
    desk.sender.send_queued_batches()
    assert (desk.outbox.numbers, desk.lost) == ([], [1])
