"""When a batch is sent: at once if it was ready, with others if it was just decoded and credit allows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from support.opened_streams import Serve

from streamd.core.counters import ProcessStats
from streamd.core.epoch_timing import BatchSupply
from streamd.core.spec import BatchKey
from streamd.daemon.batch_sender import BatchSender
from streamd.daemon.engine.batch_job import BatchJob
from streamd.daemon.sessions import Connection
from streamd.daemon.status_builder import StatusBuilder
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.messages import BatchReady, decode_daemon_frame, split_records
from streamd.ipc.slots import SlotStore

BOOT = 77


@dataclass
class RouterFake:
    """A router that keeps the frames it is given."""

    sent: list[tuple[bytes, int, BatchReady]] = field(default_factory=list)
    messages: int = 0
    reachable: bool = True
    has_sent: asyncio.Event = field(default_factory=asyncio.Event)

    def send_frame(self, identity: bytes, data: bytes, pixels: memoryview | None = None) -> bool:
        self.messages += 1
        for record in split_records(data):
            header, message = decode_daemon_frame(record)
            assert isinstance(message, BatchReady)
            assert (pixels is not None) == message.inline
            self.sent.append((identity, header.number, message))
        self.has_sent.set()
        return self.reachable

    @property
    def numbers(self) -> list[int]:
        return [number for _, number, _ in self.sent]


@pytest.fixture
def stream(serve_images: Serve) -> ServedStream:
    return serve_images({"cat": 64})


@dataclass
class SenderRig:
    router: RouterFake
    sender: BatchSender
    stream: ServedStream
    lost: list[int]

    def connection(self, *, credit: int = 8) -> Connection:
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
        job = BatchJob(
            key, self.stream, 0, index + 1, 4096, busy_s=busy_s, waited_s=waited_s, busy_fraction=busy_fraction
        )
        self.sender.add_filled_batch(job)
        self.sender.queue_delivery(connection, index, index + 1, is_awaited=is_awaited)


@pytest.fixture
def rig(stream: ServedStream) -> Iterator[SenderRig]:
    router, lost, slots, stats = RouterFake(), list[int](), SlotStore(), ProcessStats()
    overview = StatusBuilder({"train": stream}, 1, 1, "ipc:///s", stats, began_s=0.0)
    overview.on_session_began(1, ("train", 0, 1), 0.0)
    sender = BatchSender(router, slots, stats, overview, BOOT, lost.append)
    yield SenderRig(router, sender, stream, lost)
    sender.close()


@pytest.mark.parametrize(("credit", "is_fresh"), [(8, False), (7, True)], ids=["ready batch", "little credit"])
async def test_a_ready_batch_and_a_batch_for_little_credit_are_sent_at_once(
    rig: SenderRig, credit: int, *, is_fresh: bool
) -> None:
    rig.queue(rig.connection(credit=credit))
    rig.sender.send_queued_or_delay(is_fresh=is_fresh)
    assert rig.router.numbers == [0]


async def test_samples_are_counted_when_they_are_sent(rig: SenderRig) -> None:
    connection = rig.connection()
    for index in range(2):
        rig.queue(connection, index)
    assert rig.sender._stats.values_by_group() == {}
    rig.sender.send_queued_or_delay(is_fresh=False)
    counted = rig.sender._stats.values_by_group()["stream.train"]
    assert (counted["sent_samples"], counted["send_count"]) == (2 * rig.stream.spec.batch_size, 2)


async def test_a_fresh_batch_waits_for_three_others_and_all_are_sent_in_order(rig: SenderRig) -> None:
    connection = rig.connection()
    for index in range(3):
        rig.queue(connection, index)
        rig.sender.send_queued_or_delay(is_fresh=True)
        assert rig.router.numbers == []
    rig.queue(connection, 3)
    rig.sender.send_queued_or_delay(is_fresh=True)
    assert rig.router.numbers == [0, 1, 2, 3]
    assert rig.router.messages == 1


async def test_awaited_batches_count_their_times_and_ready_ones_only_their_number(rig: SenderRig) -> None:
    connection = rig.connection()
    for index in range(2):
        rig.queue(connection, index, is_awaited=True, busy_s=4.0, waited_s=3.0, busy_fraction=0.5)
    for index in (2, 3, 4):
        rig.queue(connection, index, busy_s=100.0, busy_fraction=1.0)
    rig.sender.send_queued_or_delay(is_fresh=False)
    assert connection.supply_counter.take_and_reset_supply() == BatchSupply(3, 2, 6.0, 2.0, 0.5)
    assert connection.supply_counter.take_and_reset_supply() == BatchSupply()


async def test_a_single_fresh_batch_is_sent_after_a_moment(rig: SenderRig) -> None:
    rig.queue(rig.connection())
    rig.sender.send_queued_or_delay(is_fresh=True)
    async with asyncio.timeout(10):
        await rig.router.has_sent.wait()
    assert rig.router.numbers == [0]


async def test_a_ready_batch_is_sent_together_with_waiting_ones(rig: SenderRig) -> None:
    connection = rig.connection()
    rig.queue(connection)
    rig.sender.send_queued_or_delay(is_fresh=True)
    rig.sender.send_queued_or_delay(is_fresh=False)
    assert rig.router.numbers == [], "an event that sends nothing ends no wait"
    rig.queue(connection, 1)
    rig.sender.send_queued_or_delay(is_fresh=False)
    assert rig.router.numbers == [0, 1]


async def test_a_trainer_that_has_left_is_sent_nothing(rig: SenderRig) -> None:
    connection = rig.connection()
    rig.queue(connection)
    rig.sender.send_queued_or_delay(is_fresh=True)
    connection.is_gone = True
    rig.sender.remove_batches_in_slots((1,))
    rig.sender.send_queued_batches()
    assert rig.router.numbers == []


async def test_an_unreachable_trainer_is_reported(rig: SenderRig) -> None:
    rig.router.reachable = False
    rig.queue(rig.connection())
    rig.sender.send_queued_or_delay(is_fresh=False)
    assert rig.lost == [1]


@pytest.mark.parametrize("other", [None, 7])
async def test_a_session_that_returns_a_batch_before_it_was_sent_ends(rig: SenderRig, other: int | None) -> None:
    rig.queue(rig.connection())
    rig.sender.send_queued_or_delay(is_fresh=True)
    rig.sender.remove_batches_in_slots((1,))
    if other is not None:  # the slot holds another batch by now
        rig.sender.add_filled_batch(BatchJob(BatchKey("train", 0, other), rig.stream, 0, 1, 4096))
    rig.sender.send_queued_batches()
    assert (rig.router.numbers, rig.lost) == ([], [1])
