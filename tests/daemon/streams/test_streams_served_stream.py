"""A served stream: its plan, its bad samples, when it stops, and the digests of its epochs."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.daemon_process import write_images
from support.opened_streams import Serve
from support.served_folder import serve

from streamd.core.bad_samples import MASKED, SUBSTITUTED, BadSample
from streamd.core.receipt import EpochTally
from streamd.core.slot_layout import compute_slot_bytes
from streamd.core.spec import Cursor, OrderId, Segment
from streamd.daemon.streams import served_stream
from streamd.daemon.streams.served_stream import ExpectedDigests, ServedStream, count_dropped_samples
from streamd.ipc.worker_messages import TRANSFORM_RAISED
from streamd.limits import TASK_ROWS


@pytest.fixture
def stream(serve_images: Serve) -> ServedStream:
    """20 samples, batches of 8: the last one is short."""
    return serve_images({"cat": 9, "dog": 11})


def with_policy(stream: ServedStream, policy: str) -> ServedStream:
    return replace(stream, spec=replace(stream.spec, bad_policy=policy))  # type: ignore[arg-type]  # one of its words


def mark_bad(stream: ServedStream, *ids: int) -> None:
    stream.quarantine.append_new_bad_samples([BadSample(sample_id, f"reason {sample_id}") for sample_id in ids])


def test_an_epoch_holds_every_sample_once(stream: ServedStream) -> None:
    batches = [stream.compute_planned_ids(2, index) for index in range(stream.spec.batches)]
    assert [batch.size for batch in batches] == [8, 8, 4]
    assert sorted(np.concatenate(batches).tolist()) == list(range(20))


def test_without_bad_samples_the_planned_samples_are_delivered(stream: ServedStream) -> None:
    delivered, marks = stream.resolve_delivered_ids(0, 1)
    assert np.array_equal(delivered, stream.compute_planned_ids(0, 1))
    assert not marks.any()
    assert stream.list_bad_rows(0, 1, marks) == ()


def test_a_substitute_is_named_with_row_sample_file_and_reason(stream: ServedStream) -> None:
    planned = stream.compute_planned_ids(0, 0)
    bad = int(planned[3])
    mark_bad(stream, bad)
    delivered, marks = stream.resolve_delivered_ids(0, 0)
    assert delivered[3] == planned[4]
    assert marks.tolist() == [0, 0, 0, SUBSTITUTED, 0, 0, 0, 0]
    (row,) = stream.list_bad_rows(0, 0, marks)
    assert (row.row, row.sample_id, row.file) == (3, bad, stream.format_file_name(bad))
    assert (row.reason, row.action) == (f"reason {bad}", "substituted")


def test_a_masked_row_is_called_masked(stream: ServedStream) -> None:
    masking = with_policy(stream, "mask")
    bad = int(stream.compute_planned_ids(0, 0)[0])
    mark_bad(masking, bad)
    delivered, marks = masking.resolve_delivered_ids(0, 0)
    assert (delivered[0], marks[0]) == (-1, MASKED)
    assert [row.action for row in masking.list_bad_rows(0, 0, marks)] == ["masked"]


def test_more_than_ten_bad_samples_stop_a_stream(stream: ServedStream) -> None:
    mark_bad(stream, *range(10))
    assert stream.explain_too_many_bad_samples() is None
    mark_bad(stream, 10)
    reason = stream.explain_too_many_bad_samples()
    assert reason is not None
    assert "11 of 20 samples are bad, more than bad_samples.max_fraction 0.01 allows" in reason
    assert f"{stream.format_file_name(10)}: reason 10; fix or remove them" in reason
    stream.quarantine.append_new_bad_samples([BadSample(11, f"{TRANSFORM_RAISED} ValueError")])
    assert "raised ValueError; fix the transform, which must never raise: a sample is bad after one failure," in str(
        stream.explain_too_many_bad_samples()
    )


def test_an_unreadable_sample_is_named_unless_the_transform_is_at_fault(stream: ServedStream) -> None:
    assert (
        stream.format_unreadable_reason(3, "Input/output error")
        == f"{stream.format_file_name(3)} cannot be read: Input/output error"
    )
    assert (
        stream.format_unreadable_reason(3, "streams.train.transform: it was edited")
        == "streams.train.transform: it was edited"
    )


def test_an_allowed_fraction_of_bad_samples_does_not_stop_a_stream(stream: ServedStream) -> None:
    lenient = replace(stream, max_bad_fraction=0.55)
    mark_bad(lenient, *range(11))
    assert lenient.explain_too_many_bad_samples() is None
    mark_bad(lenient, 11)
    assert lenient.explain_too_many_bad_samples() is not None


def test_one_bad_sample_is_too_many_under_fail(stream: ServedStream) -> None:
    failing = with_policy(stream, "fail")
    assert failing.explain_too_many_bad_samples() is None
    mark_bad(failing, 4)
    assert failing.explain_too_many_bad_samples() == (
        f"sample 4, {stream.format_file_name(4)}, is bad (reason 4), and bad_samples.policy is fail"
    )


def test_names_of_any_bytes_can_be_shown(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 2}, size=(8, 8))
    (folder / "cat/0000.jpg").rename(folder / "cat" / os.fsdecode(b"\xff.jpg"))
    stream = serve(folder, tmp_path / "state")
    assert sorted(stream.format_file_name(each) for each in range(2)) == ["cat/0001.jpg", r"cat/\xff.jpg"]


@pytest.mark.parametrize(("batch_size", "tasks"), [(8, 1), (32, 1), (33, 2), (1000, 4)])
def test_the_stream_shape_has_batches_slot_bytes_and_tasks(stream: ServedStream, batch_size: int, tasks: int) -> None:
    assert TASK_ROWS == 32
    spec = replace(stream.spec, batch_size=batch_size, samples=100)
    shape = replace(stream, spec=spec).stream_shape
    assert (shape.name, shape.batches, shape.slot_bytes) == ("train", spec.batches, compute_slot_bytes(spec))
    assert shape.tasks == tasks


# --- expected digests: equal to what a trainer tallies, and computed once


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


@pytest.mark.parametrize("chunks", [{}, {"shuffle": "chunk", "chunk": 3, "buffer": 2}], ids=["full", "chunks"])
async def test_the_daemons_digest_equals_the_trainers(stream: ServedStream, chunks: dict[str, Any]) -> None:
    mark_bad(stream, 3)
    mixed = replace(stream, order=msgspec.structs.replace(stream.order, **chunks))
    assert await ExpectedDigests().compute_digest(mixed, whole_epoch(1)) == tallied(mixed, 1)
    assert (tallied(mixed, 1) == tallied(stream, 1)) == (not chunks)


async def test_epochs_and_parts_of_epochs_have_different_digests(stream: ServedStream) -> None:
    expected = ExpectedDigests()
    cursors = [whole_epoch(0), whole_epoch(1), Cursor(0, (Segment(0, 2, 0, 1),)), Cursor(0)]
    assert len({await expected.compute_digest(stream, cursor) for cursor in cursors}) == 4


async def test_concurrent_requests_share_one_computation(stream: ServedStream, computed: list[Cursor]) -> None:
    expected = ExpectedDigests()
    digests = await asyncio.gather(*(expected.compute_digest(stream, whole_epoch(0)) for _ in range(5)))
    assert len(set(digests)) == 1
    assert computed.count(whole_epoch(0)) == 1


@pytest.mark.parametrize(
    ("cursor", "ahead"), [(whole_epoch(4), [whole_epoch(5)]), (Cursor(4, (Segment(1, 2, 0, 1),)), [])]
)
async def test_the_digest_of_the_next_epoch_is_computed_ahead(
    stream: ServedStream, computed: list[Cursor], cursor: Cursor, ahead: list[Cursor]
) -> None:
    expected = ExpectedDigests()
    await expected.compute_digest(stream, cursor)
    await asyncio.gather(*expected._digests.values())
    assert computed == [cursor, *ahead]


async def test_a_cancelled_request_does_not_cancel_the_computation(
    stream: ServedStream, computed: list[Cursor]
) -> None:
    expected = ExpectedDigests()
    impatient = asyncio.ensure_future(expected.compute_digest(stream, whole_epoch(0)))
    patient = asyncio.ensure_future(expected.compute_digest(stream, whole_epoch(0)))
    await asyncio.sleep(0)
    impatient.cancel()
    assert await patient == tallied(stream, 0)
    assert computed.count(whole_epoch(0)) == 1


async def test_a_new_bad_sample_changes_no_digest(stream: ServedStream, computed: list[Cursor]) -> None:
    expected = ExpectedDigests()
    before = await expected.compute_digest(stream, whole_epoch(0))
    mark_bad(stream, 3)
    assert await expected.compute_digest(stream, whole_epoch(0)) == before == tallied(stream, 0)
    assert computed.count(whole_epoch(0)) == 1


async def test_another_stream_of_the_same_name_has_its_own_digests(
    stream: ServedStream, computed: list[Cursor]
) -> None:
    expected, other = ExpectedDigests(), replace(stream, spec=replace(stream.spec, order_id=OrderId("f" * 32)))
    digests = [await expected.compute_digest(each, whole_epoch(0)) for each in (stream, other, stream)]
    assert digests[0] == digests[2] != digests[1]
    assert computed.count(whole_epoch(0)) == 2


async def test_the_number_of_kept_digests_is_bounded(stream: ServedStream, computed: list[Cursor]) -> None:
    expected = ExpectedDigests()
    for epoch in (*range(0, 2 * served_stream._MAX_KEPT_DIGESTS + 1, 2), 0):
        await expected.compute_digest(stream, whole_epoch(epoch))
    assert len(expected._digests) == served_stream._MAX_KEPT_DIGESTS
    assert computed.count(whole_epoch(0)) == 2


@pytest.mark.parametrize(("steps", "world", "dropped"), [(3, 1, 0), (2, 1, 4), (1, 2, 4), (0, 1, 20)])
def test_samples_after_the_last_step_are_counted(stream: ServedStream, steps: int, world: int, dropped: int) -> None:
    assert count_dropped_samples(stream, Cursor(0, (Segment(0, steps, 0, world),))) == dropped


def test_a_padded_last_step_does_not_hide_a_dropped_remainder(stream: ServedStream) -> None:
    short = replace(stream, spec=replace(stream.spec, batches=2, remainder="drop"))
    assert count_dropped_samples(short, Cursor(0, (Segment(0, 1, 0, 4),))) == 4
    assert count_dropped_samples(stream, Cursor(0, (Segment(0, 1, 0, 4),))) == 0
