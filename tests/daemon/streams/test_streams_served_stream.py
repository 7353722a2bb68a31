"""A served stream: its plan, its bad samples, when it stops, and the digests of its epochs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.daemon_process import write_images
from support.opened_streams import Serve
from support.served_folder import change_times, serve

from streamd.config.load import load_config
from streamd.core.sampler import MASKED, SUBSTITUTED, BadSample
from streamd.core.slot_layout import compute_slot_bytes
from streamd.core.spec import Cursor, Segment
from streamd.daemon.streams.catalog import open_streams, write_sample_manifests
from streamd.daemon.streams.served_stream import ServedStream, count_dropped_samples
from streamd.decode.decoders import BadImageError, decode_sample
from streamd.ipc.worker_messages import TRANSFORM_RAISED
from streamd.limits import TASK_ROWS
from streamd.worker.stream_reader import StreamReader


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


def test_eleven_damaged_files_of_399_do_not_stop_a_stream_and_as_many_of_200_do(tmp_path: Path) -> None:
    few, many = (
        serve(write_images(tmp_path / str(count), {"cat": count}, size=(8, 8)), tmp_path / f"state-{count}")
        for count in (200, 399)
    )
    for stream in (few, many):
        mark_bad(stream, *range(11))
    assert "11 of 200 samples are bad, more than bad_samples.max_fraction 0.01 allows; the last" in str(
        few.explain_too_many_bad_samples()
    )
    assert many.explain_too_many_bad_samples() is None
    mark_bad(many, *range(20))
    assert "20 of 399 samples are bad, more than bad_samples.max_fraction 0.01 allows, 19 in a set of this size" in str(
        many.explain_too_many_bad_samples()
    )


@pytest.mark.parametrize("seed", range(9))
def test_a_bad_file_counts_once_however_many_clips_masks_and_rows_show_it(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    photos, rows_each = int(rng.integers(4, 9)), int(rng.integers(1, 4))
    for name in (f"{kind}{number}.png" for kind in ("", "m") for number in range(photos)):
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / name)
    lines = [
        f"{number}.png,m{rng.integers(photos)}.png,{number // 5},{rows_each * number + again},{number}"
        for number in range(photos)
        for again in range(rows_each)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["photo,mask,drive,frame,n", *lines, ""]))
    offsets = list(range(-int(rng.integers(4)), 1))
    clip = {"from": "photo", "size": [8, 8], "frames": {"by": "drive", "order": "frame", "offsets": offsets}}
    photo, mask = {"from": "photo", "size": [8, 8]}, {"from": "mask", "size": [8, 8], "mode": "index"}
    images = ({"clip": clip}, {"photo": photo}, {"photo": photo, "mask": mask})[seed % 3]
    source = {"kind": "table", "path": str(tmp_path / "t.csv")}
    stream = open_one({"source": source, "labels": {"n": "int"}, "images": images, "batch_size": 4}, tmp_path)
    names = rng.permutation([f"{kind}{number}.png" for kind in ("", "m") for number in range(photos)])
    junk = set(names[: rng.integers(1, photos)].tolist())
    for name in sorted(junk):
        before = (tmp_path / name).stat()
        if rng.integers(2):
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_bytes(b"junk".ljust(before.st_size))
            change_times(tmp_path / name, before.st_mtime_ns)
    stream.quarantine.append_new_bad_samples(find_faults(stream))
    shown = [files & junk for files in list_shown_files(stream)]
    assert {each for each, files in enumerate(shown) if files} == set(stream.quarantine.reasons)
    seen: set[str] = set()

    def find_picture(sample_id: int, reason: str) -> bytes:
        found = stream.find_bad_picture(sample_id, reason)
        name = found.rsplit(b" ", 1)[-1].decode()
        assert name in shown[sample_id], reason
        seen.add(name)
        return found

    assert stream.quarantine.count_bad_pictures(find_picture) == len(seen)
    assert stream.manifest.count_pictures() == photos


def open_one(config: dict[str, object], state: Path) -> ServedStream:
    """The stream of this configuration, listed anew."""
    loaded = load_config({"streams": {"train": config}})
    write_sample_manifests(loaded, state, lambda *_: None)
    return open_streams(loaded, state)[0]


def list_shown_files(stream: ServedStream) -> list[set[str]]:
    """The files of each sample of a stream."""
    own = [{stream.format_file_name(each)} for each in range(stream.spec.samples)]
    for name, image in stream.manifest.images.items():
        for sample_id, files in enumerate(own):
            if image.frames is not None and name in stream.spec.images and len(stream.spec.images) == 1:
                files.clear()
            files |= {image.file_name(each).decode() for each in image.list_frame_files(sample_id)}
    return own


def find_faults(stream: ServedStream) -> list[BadSample]:
    """The verdicts that a worker would give."""
    reader, faults = StreamReader.open(stream.spec, stream.manifest_path), []
    rows = {name: np.empty(image.shape, image.dtype) for name, image in stream.spec.images.items()}
    for sample_id in range(stream.spec.samples):
        found = reader.read_sample(sample_id)
        if isinstance(found, BadSample):
            faults.append(BadSample(sample_id, found.reason))
            continue
        try:
            decode_sample(
                found if isinstance(found, tuple) else (found,), rows, stream.spec.images, dict.fromkeys(rows)
            )
        except BadImageError as error:
            faults.append(BadSample(sample_id, reader.format_bad_image(sample_id, error)))
    reader.close()
    return faults


def test_a_bad_row_of_an_array_counts_once_for_all_clips_that_show_it(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((40, 8, 8, 3), np.uint8))
    (tmp_path / "t.csv").write_text("\n".join(["drive,frame", *[f"a,{row}" for row in range(40)], ""]))
    source = {"kind": "npy", "path": str(tmp_path / "x.npy"), "table": str(tmp_path / "t.csv")}
    clip = {"frames": {"by": "drive", "order": "frame", "offsets": list(range(-15, 1))}, "size": [8, 8]}
    stream = open_one({"source": source, "images": {"clip": clip}, "batch_size": 4}, tmp_path)
    reason = f"clip {stream.manifest.format_row('clip', 20)}: a pixel is not a number (NaN)"
    stream.quarantine.append_new_bad_samples(BadSample(each, reason) for each in range(20, 36))
    assert stream.explain_too_many_bad_samples() is None
    assert stream.quarantine.count_bad_pictures(stream.find_bad_picture) == 1


@pytest.mark.parametrize(("lost", "stops"), [(500, False), (501, True)])
def test_a_file_that_most_samples_show_stops_the_stream(tmp_path: Path, lost: int, stops: bool) -> None:
    folder = write_images(tmp_path / "data", {"cat": 2}, size=(8, 8))
    rows = ["cat/0000.jpg,1"] * lost + ["cat/0001.jpg,2"] * (1000 - lost)
    (folder / "t.csv").write_text("\n".join(["file,n", *rows, ""]))
    source = {"kind": "table", "path": str(folder / "t.csv"), "image": "file"}
    image = {"size": [8, 8]}
    stream = open_one({"source": source, "labels": {"n": "int"}, "batch_size": 4, "image": image}, tmp_path)
    assert stream.manifest.count_pictures() == 2
    mark_bad(stream, *range(lost))
    assert (stream.explain_too_many_bad_samples() is not None) == stops
    if stops:
        assert f"through 1 file, {lost} of 1,000 samples are bad" in str(stream.explain_too_many_bad_samples())


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
