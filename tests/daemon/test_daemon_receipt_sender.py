"""Receipts through a dispatcher: in order, one digest at a time for a session, none for a session that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from support.dispatcher_rig import WISH, DispatcherRig, dispatching
from support.opened_streams import Serve

from streamd.core.receipt import DigestPiece, split_into_pieces
from streamd.core.sampler import SampleOrder
from streamd.core.spec import Cursor, Segment, StreamSpec
from streamd.daemon.sessions import OWN_USER
from streamd.daemon.streams import expected_digests
from streamd.daemon.streams.expected_digests import DigestWorker
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.messages import Goodbye, Progress, ReceiptDue
from streamd.limits import MAX_OPEN_EPOCHS

EVIL, HONEST = OWN_USER + 1, OWN_USER + 2


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The epochs whose digest was begun, in order."""
    epochs = list[int]()

    def watched(spec: StreamSpec, order: SampleOrder, cursor: Cursor, rows: int) -> Iterator[DigestPiece]:
        epochs.append(cursor.epoch)
        yield from split_into_pieces(spec, order, cursor, rows)

    monkeypatch.setattr(expected_digests, "split_into_pieces", watched)
    return epochs


@pytest.fixture(autouse=True)
def without_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computes all digests here: sessions without a lifeline end before a process has started on a busy host."""

    async def find_no_process(_worker: DigestWorker, _piece: DigestPiece) -> None: ...

    monkeypatch.setattr(DigestWorker, "compute_piece", find_no_process)


def at_epoch_end(epoch: int, steps: int) -> Any:
    """A subscription whose first message is the receipt of a whole epoch."""
    return msgspec.structs.replace(WISH, cursor=Cursor(epoch, (Segment(0, steps, 0, 1),)), epochs=epoch + 2)


async def wait_for_receipts(rig: DispatcherRig, identity: bytes, count: int) -> list[int]:
    """Returns the epochs of the receipts that a client was sent, once there are so many."""
    epochs: list[int] = []
    async with asyncio.timeout(10):
        while True:
            rig.router.has_sent.clear()
            messages = (message for _, message in rig.router.take_messages(identity))
            epochs += [message.epoch for message in messages if isinstance(message, ReceiptDue)]
            if len(epochs) >= count:
                return epochs
            await rig.router.has_sent.wait()


async def test_a_sessions_receipts_come_in_the_order_of_its_epochs(stream: ServedStream) -> None:
    async with dispatching(stream) as rig:
        header = rig.subscribe(b"me", msgspec.structs.replace(WISH, epochs=3))
        for taken in range(3 * stream.spec.batches):
            rig.send(b"me", Progress(taken + 1, (taken - 1,) if taken else (), taken, 0), header)
            while rig.finish_batches():
                pass
        assert await wait_for_receipts(rig, b"me", 3) == [0, 1, 2]


async def test_a_flood_of_epoch_ends_delays_no_other_users_receipt_by_more_than_a_turn(
    stream: ServedStream, computed: list[int]
) -> None:
    async with dispatching(stream) as rig:
        for number in range(60):
            rig.send(b"evil%d" % number, at_epoch_end(1000 + 2 * number, stream.spec.batches), user=EVIL)
        rig.send(b"honest", at_epoch_end(0, stream.spec.batches), user=HONEST)
        assert await wait_for_receipts(rig, b"honest", 1) == [0]
        assert computed.index(0) <= 2


async def test_sessions_that_have_ended_get_no_receipt_and_cost_no_digest(
    stream: ServedStream, computed: list[int]
) -> None:
    async with dispatching(stream) as rig:
        for number in range(20):
            identity = b"evil%d" % number
            header = rig.subscribe(identity, at_epoch_end(1000 + 2 * number, stream.spec.batches), user=EVIL)
            rig.send(identity, Goodbye(), header)
        rig.send(b"honest", at_epoch_end(0, stream.spec.batches), user=HONEST)
        assert await wait_for_receipts(rig, b"honest", 1) == [0]
        await asyncio.wait_for(asyncio.gather(*rig.tasks), 10)
        assert len([epoch for epoch in computed if epoch >= 1000]) <= 1
        assert await wait_for_receipts(rig, b"evil7", 0) == []


async def test_a_session_that_runs_ahead_of_all_its_receipts_ends(serve_images: Serve) -> None:
    """It takes epochs of one batch without a turn of the event loop, in which a receipt could be sent."""
    async with dispatching(serve_images({"cat": 4})) as rig:
        header = rig.subscribe(b"evil", WISH, user=EVIL)
        for taken in range(MAX_OPEN_EPOCHS + 2):
            rig.send(b"evil", Progress(taken + 1, (taken - 1,) if taken else (), taken, 0), header)
            rig.finish_batches()
        assert rig.dispatcher.session_count == 0
