"""Expected digests: equal to what a trainer tallies, worked out once, whatever turns bad."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from support.daemon_process import write_images
from support.served_folder import serve

from streamd.core.bad_samples import BadSample
from streamd.core.receipt import EpochTally
from streamd.core.spec import Cursor, OrderId, Segment
from streamd.daemon.streams import served_stream
from streamd.daemon.streams.served_stream import ExpectedDigests, ServedStream, count_dropped_samples


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[ServedStream]:
    """20 samples, batches of 8."""
    stream = serve(write_images(tmp_path / "data", {"cat": 9, "dog": 11}, size=(8, 8)), tmp_path / "state")
    yield stream
    stream.manifest.close()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Cursor]:
    """The cursors whose digest was worked out."""
    seen: list[Cursor] = []
    compute = served_stream._compute_digest

    def watched(stream: ServedStream, cursor: Cursor) -> str:
        seen.append(cursor)
        return compute(stream, cursor)

    monkeypatch.setattr(served_stream, "_compute_digest", watched)
    return seen


def whole_epoch(epoch: int) -> Cursor:
    return Cursor(epoch, (Segment(0, 3, 0, 1),))


def tallied(stream: ServedStream, epoch: int) -> str:
    tally = EpochTally("train", stream.spec.order_id, Cursor(epoch))
    for index in range(3):
        _, marks = stream.resolve_delivered_ids(epoch, index)
        tally.add_batch(index, stream.compute_planned_ids(epoch, index), marks, tally.cursor.after_step(0, 1))
    return tally.order_digest


def test_the_daemons_word_is_what_a_trainer_tallies(stream: ServedStream) -> None:
    stream.quarantine.append_new_bad_samples([BadSample(3, "bad")])
    assert asyncio.run(ExpectedDigests().compute_digest(stream, whole_epoch(1))) == tallied(stream, 1)


def test_so_it_is_where_chunks_are_mixed(stream: ServedStream) -> None:
    chunks = msgspec.structs.replace(stream.order, shuffle="chunk", chunk=3, buffer=2)
    mixed = replace(stream, order=chunks)
    assert (
        asyncio.run(ExpectedDigests().compute_digest(mixed, whole_epoch(1))) == tallied(mixed, 1) != tallied(stream, 1)
    )


def test_epochs_and_parts_of_epochs_differ(stream: ServedStream) -> None:
    async def digests() -> set[str]:
        book = ExpectedDigests()
        cursors = [whole_epoch(0), whole_epoch(1), Cursor(0, (Segment(0, 2, 0, 1),)), Cursor(0)]
        return {await book.compute_digest(stream, cursor) for cursor in cursors}

    assert len(asyncio.run(digests())) == 4


def test_many_who_ask_at_once_cost_one_computation(stream: ServedStream, computed: list[Cursor]) -> None:
    async def ask() -> set[str]:
        book = ExpectedDigests()
        return set(await asyncio.gather(*(book.compute_digest(stream, whole_epoch(0)) for _ in range(5))))

    assert len(asyncio.run(ask())) == 1
    assert computed.count(whole_epoch(0)) == 1


@pytest.mark.parametrize(
    ("cursor", "ahead"), [(whole_epoch(4), [whole_epoch(5)]), (Cursor(4, (Segment(1, 2, 0, 1),)), [])]
)
async def test_who_read_a_whole_epoch_finds_the_next_ones_digest_ready(
    stream: ServedStream, computed: list[Cursor], cursor: Cursor, ahead: list[Cursor]
) -> None:
    book = ExpectedDigests()
    await book.compute_digest(stream, cursor)
    await asyncio.gather(*book._digests.values())
    assert computed == [cursor, *ahead]


def test_one_who_leaves_takes_nothing_from_the_others(stream: ServedStream, computed: list[Cursor]) -> None:
    async def ask() -> str:
        book = ExpectedDigests()
        impatient = asyncio.ensure_future(book.compute_digest(stream, whole_epoch(0)))
        patient = asyncio.ensure_future(book.compute_digest(stream, whole_epoch(0)))
        await asyncio.sleep(0)
        impatient.cancel()
        return await patient

    assert asyncio.run(ask()) == tallied(stream, 0)
    assert computed.count(whole_epoch(0)) == 1


def test_a_new_verdict_changes_no_account(stream: ServedStream, computed: list[Cursor]) -> None:
    async def ask() -> tuple[str, str]:
        book = ExpectedDigests()
        before = await book.compute_digest(stream, whole_epoch(0))
        stream.quarantine.append_new_bad_samples([BadSample(3, "bad")])
        return before, await book.compute_digest(stream, whole_epoch(0))

    before, after = asyncio.run(ask())
    assert before == after == tallied(stream, 0)
    assert computed.count(whole_epoch(0)) == 1


def test_another_stream_of_the_same_name_has_accounts_of_its_own(stream: ServedStream, computed: list[Cursor]) -> None:
    other = replace(stream, spec=replace(stream.spec, order_id=OrderId("f" * 32)))

    async def ask() -> list[str]:
        book = ExpectedDigests()
        return [await book.compute_digest(each, whole_epoch(0)) for each in (stream, other, stream)]

    digests = asyncio.run(ask())
    assert digests[0] == digests[2] != digests[1]
    assert computed.count(whole_epoch(0)) == 2


def test_the_book_has_an_end(stream: ServedStream, computed: list[Cursor]) -> None:
    async def ask() -> int:
        book = ExpectedDigests()
        for epoch in (*range(0, 2 * served_stream._MAX_KEPT_DIGESTS + 1, 2), 0):
            await book.compute_digest(stream, whole_epoch(epoch))
        return len(book._digests)

    assert asyncio.run(ask()) == served_stream._MAX_KEPT_DIGESTS
    assert computed.count(whole_epoch(0)) == 2


@pytest.mark.parametrize(("steps", "world", "dropped"), [(3, 1, 0), (2, 1, 4), (1, 2, 4), (0, 1, 20)])
def test_samples_behind_the_last_step_are_counted(stream: ServedStream, steps: int, world: int, dropped: int) -> None:
    assert count_dropped_samples(stream, Cursor(0, (Segment(0, steps, 0, world),))) == dropped


def test_a_padded_step_beyond_the_last_batch_hides_no_dropped_remainder(stream: ServedStream) -> None:
    short = replace(stream, spec=replace(stream.spec, batches=2, remainder="drop"))
    assert count_dropped_samples(short, Cursor(0, (Segment(0, 1, 0, 4),))) == 4
    assert count_dropped_samples(stream, Cursor(0, (Segment(0, 1, 0, 4),))) == 0
