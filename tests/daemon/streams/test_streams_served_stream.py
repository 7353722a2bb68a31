"""A served stream: its plan, its bad samples, when it stops, and the digests of its epochs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.daemon_process import write_images
from support.opened_streams import Serve
from support.served_folder import serve

from streamd.core.bad_samples import MASKED, SUBSTITUTED, BadSample
from streamd.core.slot_layout import compute_slot_bytes
from streamd.core.spec import Cursor, Segment
from streamd.daemon.streams.served_stream import ServedStream, count_dropped_samples
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


@pytest.mark.parametrize(("steps", "world", "dropped"), [(3, 1, 0), (2, 1, 4), (1, 2, 4), (0, 1, 20)])
def test_samples_after_the_last_step_are_counted(stream: ServedStream, steps: int, world: int, dropped: int) -> None:
    assert count_dropped_samples(stream, Cursor(0, (Segment(0, steps, 0, world),))) == dropped


def test_a_padded_last_step_does_not_hide_a_dropped_remainder(stream: ServedStream) -> None:
    short = replace(stream, spec=replace(stream.spec, batches=2, remainder="drop"))
    assert count_dropped_samples(short, Cursor(0, (Segment(0, 1, 0, 4),))) == 4
    assert count_dropped_samples(stream, Cursor(0, (Segment(0, 1, 0, 4),))) == 0
