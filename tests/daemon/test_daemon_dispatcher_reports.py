"""What a trainer reports of its batches, to a dispatcher over a real scheduler."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from support.dispatcher_rig import WISH, DispatcherRig, dispatching

from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.fd_passing import DescriptorServer
from streamd.ipc.messages import BatchReady, FrameHeader, Goodbye, Ping, Progress, ReceiptSeen
from streamd.limits import MAX_SLOTS


def subscribe_and_read(rig: DispatcherRig, batches: int) -> FrameHeader:
    """Returns the header of a session that was sent so many batches."""
    header = rig.subscribe(b"me", WISH)
    rig.send(b"me", Progress(batches, (), 0, 0), header)
    while rig.finish_batches():
        pass
    told = [message for _, message in rig.router.take_messages(b"me")]
    assert sum(isinstance(each, BatchReady) for each in told) == batches
    return header


def count_events(rig: DispatcherRig) -> int:
    return rig.scheduler.checks_by_rule["memory_within_budget"]


def held(rig: DispatcherRig) -> int:
    (session,) = rig.scheduler.sessions
    return session.held_count


@pytest.mark.parametrize(
    "progress",
    [
        Progress(9, (0, 1, 2), 2, 0),
        Progress(9, tuple(range(MAX_SLOTS)), 2, 0),
        Progress(9, (0,), 2, 0, (0, 1)),
    ],
    ids=["one more than held", "as many as fit", "more retired than released"],
)
async def test_a_report_of_more_batches_than_are_held_never_reaches_the_scheduler(
    stream: ServedStream, progress: Progress
) -> None:
    async with dispatching(stream) as rig:
        header = subscribe_and_read(rig, 2)
        before = count_events(rig)
        rig.send(b"me", progress, header)
        assert (count_events(rig), held(rig)) == (before, 2)
        assert rig.stats.values_by_group()["wire"]["malformed"] == 1


async def test_batches_can_be_released_once_and_no_more(stream: ServedStream) -> None:
    async with dispatching(stream) as rig:
        header = subscribe_and_read(rig, 2)
        rig.send(b"me", Progress(2, (0,), 1, 0), header)
        assert held(rig) == 1
        rig.send(b"me", Progress(2, (0, 1), 2, 0), header)
        assert held(rig) == 1
        rig.send(b"me", Progress(2, (1,), 2, 0), header)
        assert held(rig) == 0


async def test_only_a_report_that_releases_batches_counts_as_one(stream: ServedStream) -> None:
    async with dispatching(stream) as rig:
        header = subscribe_and_read(rig, 2)
        assert not rig.send(b"me", Progress(9, (0, 1, 2), 2, 0), header), "more than it holds"
        assert not rig.send(b"me", Progress(2, (), 1, 0), header)
        assert not rig.send(b"other", Progress(2, (0,), 1, 0), header), "not its session"
        assert rig.send(b"me", Progress(2, (0,), 1, 0), header)
        assert rig.send(b"me", Progress(2, (1,), 2, 0), header)
        assert not rig.send(b"me", Progress(2, (1,), 2, 0), header), "it holds none any more"
        assert not rig.send(b"me", Ping(), header)


async def test_a_lifelines_report_of_nothing_new_never_reaches_the_scheduler(
    stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DescriptorServer, "half_close_session", lambda *_: True)
    async with dispatching(stream) as rig:
        header = subscribe_and_read(rig, 2)
        rig.send(b"me", Goodbye((0, 1)), header)
        report = rig.dispatcher.descriptor_server._callbacks.on_dropped
        report(header.session, (0,), ())
        before = count_events(rig)
        report(header.session, (0, 5, 6), ())
        assert count_events(rig) == before
        report(header.session, (1,), ())
        assert header.session not in rig.scheduler.ended_sessions


async def test_a_report_that_releases_batches_is_due_also_where_as_many_are_sent_in_return(
    stream: ServedStream,
) -> None:
    async with dispatching(stream) as rig:
        header = subscribe_and_read(rig, 2)
        rig.send(b"me", Ping(), header)
        while rig.finish_batches():  # made ahead of the credit
            pass
        rig.router.take_messages(b"me")
        assert rig.send(b"me", Progress(3, (0,), 1, 0), header)
        assert [type(message) for _, message in rig.router.take_messages(b"me")] == [BatchReady]


async def test_one_confirmation_of_each_receipt_is_due_and_no_other(stream: ServedStream) -> None:
    batches = stream.spec.batches
    async with dispatching(stream) as rig:
        header = rig.subscribe(b"me", msgspec.structs.replace(WISH, epochs=2, credit=2 * batches))
        confirmation = ReceiptSeen(0, "0" * 32, ok=True)
        assert not rig.send(b"me", confirmation, header), "before its receipt"
        header = rig.subscribe(b"other", msgspec.structs.replace(WISH, epochs=2, credit=2 * batches))
        rig.send(b"other", Progress(batches, (), 0, 0), header)
        while rig.finish_batches():
            pass
        await asyncio.gather(*rig.tasks)
        assert [rig.send(b"other", confirmation, header) for _ in range(2)] == [True, False]


async def test_a_batch_that_is_ready_after_the_end_is_sent_to_nobody_and_starts_nothing(stream: ServedStream) -> None:
    async with dispatching(stream) as rig:
        header = rig.subscribe(b"me", WISH)
        rig.send(b"me", Progress(stream.spec.batches, (), 0, 0), header)
        rig.dispatcher.drain_sessions()
        rig.router.take_messages(b"me")
        await rig.dispatcher.close()

        assert rig.finish_batches()
        assert (rig.router.take_messages(b"me"), rig.tasks) == ([], [])
