"""The digests of epochs: equal to what a trainer tallies, computed once, in turns of the users that wait for them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from support.daemon_process import wait_until
from support.opened_streams import Serve
from support.rank_receipts import digest_of

from streamd.core.receipt import DigestPiece, EpochTally, split_into_pieces
from streamd.core.sampler import BadSample, SampleOrder
from streamd.core.spec import Cursor, OrderId, Segment, StreamSpec
from streamd.daemon.streams import expected_digests
from streamd.daemon.streams.expected_digests import DigestWorker, ExpectedDigests
from streamd.daemon.streams.served_stream import ServedStream

OWN = 0  # the daemon's user


@pytest.fixture
def stream(serve_images: Serve) -> ServedStream:
    """20 samples, batches of 8: the last one is short."""
    return serve_images({"cat": 9, "dog": 11})


def mark_bad(stream: ServedStream, *ids: int) -> None:
    stream.quarantine.append_new_bad_samples([BadSample(sample_id, f"reason {sample_id}") for sample_id in ids])


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Cursor]:
    """The cursors whose digest was worked out."""
    seen: list[Cursor] = []

    def watched(spec: StreamSpec, order: SampleOrder, cursor: Cursor, rows: int) -> Iterator[DigestPiece]:
        seen.append(cursor)  # at the first piece, when the job has its first turn
        yield from split_into_pieces(spec, order, cursor, rows)

    monkeypatch.setattr(expected_digests, "split_into_pieces", watched)
    return seen


@pytest.fixture(autouse=True)
def without_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computes the digests of other users here, too: test_streams_digest_worker starts real processes."""

    async def find_no_process(_worker: DigestWorker, _piece: DigestPiece) -> None: ...

    monkeypatch.setattr(DigestWorker, "compute_piece", find_no_process)


@contextlib.asynccontextmanager
async def computing() -> AsyncIterator[ExpectedDigests]:
    digests = ExpectedDigests(OWN)
    try:
        yield digests
    finally:
        await digests.close()


async def test_what_the_worker_computes_no_thread_of_the_daemon_computes(
    stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = expected_digests._compute_piece
    asked: list[DigestPiece] = []

    async def answer(_worker: DigestWorker, piece: DigestPiece) -> Any:
        asked.append(piece)
        return compute(piece)

    def refuse(_piece: DigestPiece) -> None:
        raise AssertionError("the daemon's own thread computes")

    monkeypatch.setattr(DigestWorker, "compute_piece", answer)
    monkeypatch.setattr(expected_digests, "_compute_piece", refuse)
    async with computing() as expected:
        assert await expected.compute_digest(stream, whole_epoch(0), user=1) == tallied(stream, 0)
    assert asked


@pytest.fixture
def expected() -> Iterator[ExpectedDigests]:
    digests = ExpectedDigests(OWN)
    yield digests
    asyncio.run(digests.close())  # no process was started, so that nothing belongs to the loop of the test


async def wait_until_idle(expected: ExpectedDigests) -> None:
    """Waits until nothing is computed any more, also nothing ahead."""
    await asyncio.to_thread(wait_until, lambda: expected.is_idle, "all digests are computed")


def whole_epoch(epoch: int) -> Cursor:
    return Cursor(epoch, (Segment(0, 3, 0, 1),))


def tallied(stream: ServedStream, epoch: int) -> str:
    tally = EpochTally("train", stream.spec.order_id, Cursor(epoch))
    for index in range(3):
        _, marks = stream.resolve_delivered_ids(epoch, index)
        tally.add_batch(index, stream.compute_planned_ids(epoch, index), marks, tally.cursor.after_step(0, 1))
    return digest_of(tally)


@pytest.mark.parametrize("chunks", [{}, {"shuffle": "chunk", "chunk": 3, "buffer": 2}], ids=["full", "chunks"])
async def test_the_daemons_digest_equals_the_trainers(
    expected: ExpectedDigests, stream: ServedStream, chunks: dict[str, Any]
) -> None:
    mark_bad(stream, 3)
    mixed = replace(stream, order=msgspec.structs.replace(stream.order, **chunks))
    assert await expected.compute_digest(mixed, whole_epoch(1)) == tallied(mixed, 1)
    assert (tallied(mixed, 1) == tallied(stream, 1)) == (not chunks)


async def test_epochs_and_parts_of_epochs_have_different_digests(
    expected: ExpectedDigests, stream: ServedStream
) -> None:
    cursors = [whole_epoch(0), whole_epoch(1), Cursor(0, (Segment(0, 2, 0, 1),)), Cursor(0)]
    assert len({await expected.compute_digest(stream, cursor) for cursor in cursors}) == 4


async def test_concurrent_requests_share_one_computation(
    expected: ExpectedDigests, stream: ServedStream, computed: list[Cursor]
) -> None:
    digests = await asyncio.gather(*(expected.compute_digest(stream, whole_epoch(0)) for _ in range(5)))
    assert len(set(digests)) == 1
    assert computed.count(whole_epoch(0)) == 1


@pytest.mark.parametrize(
    ("cursor", "ahead"), [(whole_epoch(4), [whole_epoch(5)]), (Cursor(4, (Segment(1, 2, 0, 1),)), [])]
)
async def test_the_digest_of_the_next_epoch_is_computed_ahead(
    expected: ExpectedDigests, stream: ServedStream, computed: list[Cursor], cursor: Cursor, ahead: list[Cursor]
) -> None:
    await expected.compute_digest(stream, cursor)
    await wait_until_idle(expected)
    assert computed == [cursor, *ahead]


async def test_a_cancelled_request_does_not_cancel_the_computation(
    expected: ExpectedDigests, stream: ServedStream, computed: list[Cursor]
) -> None:
    impatient = asyncio.ensure_future(expected.compute_digest(stream, whole_epoch(0)))
    patient = asyncio.ensure_future(expected.compute_digest(stream, whole_epoch(0)))
    await asyncio.sleep(0)
    impatient.cancel()
    assert await patient == tallied(stream, 0)
    assert computed.count(whole_epoch(0)) == 1


async def test_a_new_bad_sample_changes_no_digest(
    expected: ExpectedDigests, stream: ServedStream, computed: list[Cursor]
) -> None:
    before = await expected.compute_digest(stream, whole_epoch(0))
    mark_bad(stream, 3)
    assert await expected.compute_digest(stream, whole_epoch(0)) == before == tallied(stream, 0)
    assert computed.count(whole_epoch(0)) == 1


async def test_another_stream_of_the_same_name_has_its_own_digests(
    expected: ExpectedDigests, stream: ServedStream, computed: list[Cursor]
) -> None:
    other = replace(stream, spec=replace(stream.spec, order_id=OrderId("f" * 32)))
    digests = [await expected.compute_digest(each, whole_epoch(0)) for each in (stream, other, stream)]
    assert digests[0] == digests[2] != digests[1]
    assert computed.count(whole_epoch(0)) == 2


async def test_the_number_of_kept_digests_is_bounded(
    expected: ExpectedDigests, stream: ServedStream, computed: list[Cursor]
) -> None:
    for epoch in (*range(0, 2 * expected_digests._MAX_KEPT_DIGESTS + 1, 2), 0):
        await expected.compute_digest(stream, whole_epoch(epoch))
        await wait_until_idle(expected)
    assert [len(kept) for kept in expected._digests._by_user.values()] == [expected_digests._MAX_KEPT_DIGESTS]
    assert computed.count(whole_epoch(0)) == 2


async def test_another_users_digests_evict_none(
    expected: ExpectedDigests, stream: ServedStream, computed: list[Cursor]
) -> None:
    for user, epochs in ((1, [0]), (2, range(100, 100 + 2 * expected_digests._MAX_KEPT_DIGESTS, 2)), (1, [0])):
        for epoch in epochs:
            await expected.compute_digest(stream, whole_epoch(epoch), user=user)
    assert computed.count(whole_epoch(0)) == 1


async def test_a_digest_that_takes_many_turns_is_the_same(
    expected: ExpectedDigests, stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expected_digests, "DIGEST_TURN_ROWS", 1)
    assert await expected.compute_digest(stream, whole_epoch(0)) == tallied(stream, 0)


async def test_a_request_that_nobody_wants_any_more_is_dropped_before_it_is_computed(
    expected: ExpectedDigests, stream: ServedStream, computed: list[Cursor]
) -> None:
    first = asyncio.ensure_future(expected.compute_digest(stream, whole_epoch(0)))
    gone = [
        asyncio.ensure_future(expected.compute_digest(stream, whole_epoch(epoch), is_wanted=lambda: False))
        for epoch in range(10, 20)
    ]
    assert await asyncio.gather(*gone) == [None] * 10
    assert await first == tallied(stream, 0)
    await wait_until_idle(expected)
    assert {cursor.epoch for cursor in computed} == {0, 1}


async def test_a_failed_computation_fails_all_that_wait_for_it(
    expected: ExpectedDigests, stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(spec: StreamSpec, order: SampleOrder, cursor: Cursor, rows: int) -> Iterator[DigestPiece]:
        del order, rows
        yield from []
        raise RuntimeError(f"{spec.name} {cursor.epoch}")

    monkeypatch.setattr(expected_digests, "split_into_pieces", fail)
    waits = (expected.compute_digest(stream, whole_epoch(0)) for _ in range(2))
    errors = await asyncio.gather(*waits, return_exceptions=True)
    assert [str(each) for each in errors] == ["train 0"] * 2
    await wait_until_idle(expected)


async def test_an_honest_user_waits_for_one_turn_of_another_and_not_for_all_its_digests(
    expected: ExpectedDigests, stream: ServedStream, computed: list[Cursor]
) -> None:
    flood = [
        asyncio.ensure_future(expected.compute_digest(stream, whole_epoch(epoch), user=1))
        for epoch in range(100, 400, 2)
    ]
    await asyncio.sleep(0)
    await expected.compute_digest(stream, whole_epoch(0), user=2)
    assert computed.index(whole_epoch(0)) <= 2, "one of the flood was under way, and one had its turn"
    await asyncio.gather(*flood)


async def test_a_user_that_has_spent_its_share_waits_and_no_other_user_does(
    stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expected_digests, "DIGEST_BURST_S", 0.0)
    monkeypatch.setattr(expected_digests, "DIGEST_SHARE", 1e-6)  # a digest is paid for in minutes
    async with computing() as expected:
        await expected.compute_digest(stream, whole_epoch(0), user=1)
        late = asyncio.ensure_future(expected.compute_digest(stream, whole_epoch(10), user=1))
        await expected.compute_digest(stream, whole_epoch(20), user=2)
        for epoch in (30, 40):
            await expected.compute_digest(stream, whole_epoch(epoch), user=OWN)
        assert not late.done()
        late.cancel()


async def test_a_digest_that_waits_for_its_users_share_is_computed_in_the_end(
    stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expected_digests, "DIGEST_BURST_S", 0.0)
    monkeypatch.setattr(expected_digests, "DIGEST_SHARE", 0.2)
    async with computing() as expected:
        for epoch in (0, 10, 20):
            assert await expected.compute_digest(stream, whole_epoch(epoch), user=1) == tallied(stream, epoch)


async def test_an_epoch_ends_although_the_host_lets_no_thread_start(
    expected: ExpectedDigests, stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError(f"can't start new thread: {thread.name}")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert await expected.compute_digest(stream, whole_epoch(0)) == tallied(stream, 0)


async def test_the_own_users_digest_waits_for_no_turn_of_another_user(
    stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = asyncio.Event()

    async def wait(_worker: DigestWorker, _piece: DigestPiece) -> None:
        await asyncio.wait_for(is_over.wait(), 10)

    monkeypatch.setattr(DigestWorker, "compute_piece", wait)
    async with computing() as expected:
        other = asyncio.ensure_future(expected.compute_digest(stream, whole_epoch(10), user=1))
        assert await expected.compute_digest(stream, whole_epoch(0), user=OWN) == tallied(stream, 0)
        assert not other.done()
        is_over.set()
        assert await other == tallied(stream, 10)


async def test_closed_in_the_midst_of_a_digest_it_begins_no_other_turn(
    expected: ExpectedDigests, stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expected_digests, "DIGEST_TURN_ROWS", 1)
    waits = asyncio.ensure_future(expected.compute_digest(stream, whole_epoch(0)))
    await asyncio.sleep(0)
    await expected.close()
    assert expected._own_line._turn is None
    assert not waits.done()
    waits.cancel()
