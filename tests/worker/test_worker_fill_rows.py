"""One task: its rows hold what its files and labels say, and what could not be filled is told with its reason."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from support.daemon_process import write_images
from support.opened_streams import holding
from support.served_folder import file_of, serve, spoil

from streamd.core.sampler import PAD_ID
from streamd.core.slot_layout import SlotLayout, compute_layout
from streamd.daemon.streams.served_stream import ServedStream
from streamd.decode.decoders import decode_image
from streamd.decode.random_crop import compute_random_crop_draws
from streamd.ipc.progress_page import PROGRESS_PAGE_BYTES, ProgressPage, RowProgress, WorkerPhase
from streamd.ipc.slots import create_memfd
from streamd.ipc.worker_messages import FillRows, UnfilledRow
from streamd.worker import fill_rows, stream_reader
from streamd.worker.fill_rows import TaskRunner
from streamd.worker.stream_reader import StreamReader, UnreadFile

ROWS = 8


def new_track() -> ProgressPage:
    page = create_memfd("track", PROGRESS_PAGE_BYTES)
    try:
        return ProgressPage(page)
    finally:
        os.close(page)


class Filled:
    """A batch of 8 rows, of which a task has filled some; memory that nobody wrote is 0xAA."""

    def __init__(self, source: StreamReader, rows: list[int], ids: list[int], epoch: int = 0) -> None:
        self.layout: SlotLayout = compute_layout(source.spec, ROWS)
        self.memory = memoryview(bytearray(b"\xaa" * self.layout.size_bytes))
        task = FillRows(
            1, 0, 1, self.layout.size_bytes, ROWS, np.array(rows, np.uint16), np.array(ids, np.int64), epoch
        )
        filling = TaskRunner(source, task, self.memory, new_track())
        blobs = [] if filling.gather_stored_rows() else source.read_files(task.ids)
        for start in range(0, len(blobs), 3):
            filling.decode_rows(blobs, start, start + 3)
        filling.write_labels()
        self.bad = filling.unfilled_rows
        self.images = self.layout.images.build_array_in_memory(self.memory)
        self.sample_ids = self.layout.sample_ids.build_array_in_memory(self.memory)
        self.weights = self.layout.weights.build_array_in_memory(self.memory)
        self.labels = self.layout.labels["label"].build_array_in_memory(self.memory)


def test_rows_hold_pixels_ids_weights_and_labels_of_their_samples(source: StreamReader, stream: ServedStream) -> None:
    rows, ids = [5, 0, 2, 7], [8, 3, 4, 3]
    batch = Filled(source, rows, ids)
    expected = np.empty(source.spec.image_shape, np.uint8)
    for row, sample_id in zip(rows, ids, strict=True):
        decode_image(file_of(stream, sample_id).read_bytes(), expected, source.spec.image)
        assert np.array_equal(batch.images[row], expected)
    assert batch.sample_ids[rows].tolist() == ids
    assert batch.weights[rows].tolist() == [1.0] * 4
    assert batch.labels[rows].tolist() == [0, 1, 0, 1]
    assert batch.bad == []


def test_a_random_crop_is_that_of_its_seed_epoch_and_sample_in_whichever_task(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 4, "dog": 5})
    image = {"size": [20, 24], "resize": "random_crop"}
    stream = serve(folder, tmp_path / "state", image=image, shuffle={"kind": "full", "seed": 5})
    source = StreamReader.open(stream.spec, stream.manifest_path)
    expected, drawn = (
        np.empty((8, 20, 24, 3), np.uint8),
        compute_random_crop_draws(stream.spec.image, 5, 7, np.arange(8)),
    )
    for sample_id in range(8):
        blob = file_of(stream, sample_id).read_bytes()
        decode_image(blob, expected[sample_id], stream.spec.image, drawn[sample_id])
    batch, other_epoch = Filled(source, list(range(8)), list(range(8)), 7), Filled(source, [0], [0], 6)
    assert np.array_equal(batch.images, expected)
    assert np.array_equal(Filled(source, [2, 6], [6, 3], 7).images[[2, 6]], expected[[6, 3]])
    assert not np.array_equal(other_epoch.images[0], expected[0])
    source.close()
    stream.manifest.close()


def test_rows_of_other_tasks_are_left_alone(source: StreamReader) -> None:
    batch = Filled(source, [1, 3], [0, 1])
    others = [0, 2, 4, 5, 6, 7]
    for values in (batch.images, batch.sample_ids, batch.weights, batch.labels):
        assert set(np.ascontiguousarray(values[others]).tobytes()) == {0xAA}


def test_a_row_without_a_sample_is_zero_throughout(source: StreamReader) -> None:
    batch = Filled(source, [0, 1, 2], [4, PAD_ID, 5])
    assert not batch.images[1].any()
    assert (batch.sample_ids[1], batch.weights[1], batch.labels[1]) == (PAD_ID, 0.0, 0)
    assert batch.weights[[0, 2]].tolist() == [1.0, 1.0]
    assert batch.bad == []


def test_a_row_weighs_what_its_sample_does_and_nothing_without_one(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 2, "dog": 1})
    np.save(tmp_path / "w.npy", [0.5, 0, 3])
    stream = serve(folder, tmp_path / "state", weights=str(tmp_path / "w.npy"))
    source = StreamReader.open(stream.spec, stream.manifest_path)
    assert Filled(source, [4, 0, 1, 6], [2, 1, PAD_ID, 0]).weights[[4, 0, 1, 6]].tolist() == [3, 0, 0, 0.5]
    assert stream.spec.weighted
    source.close()
    stream.manifest.close()


def test_labels_of_every_kind_lie_in_the_slot_as_the_batch_carries_them(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 3})
    rows = "cat/0000.jpg,1,2,a b,zwölf\ncat/0001.jpg,3,4,,\ncat/0002.jpg,5,6,b,x\n"
    (tmp_path / "all.csv").write_text(f"file,x,y,tags,text\n{rows}")
    stream = serve(
        folder,
        tmp_path / "state",
        source={"kind": "table", "path": str(tmp_path / "all.csv"), "image": "file", "root": str(folder)},
        labels={"pose": {"from": ["x", "y"], "type": "float"}, "tags": "tags", "text": "string"},
    )
    source = StreamReader.open(stream.spec, stream.manifest_path)
    place = compute_layout(stream.spec, ROWS)
    memory = memoryview(bytearray(b"\xaa" * place.size_bytes))
    ids = np.array([2, 0, PAD_ID, 1], np.int64)
    task = FillRows(1, 0, 1, place.size_bytes, ROWS, np.arange(4, dtype=np.uint16), ids)
    TaskRunner(source, task, memory, new_track()).write_labels()
    found = {name: tensor.build_array_in_memory(memory)[:4] for name, tensor in place.labels.items()}
    assert found["pose"].tolist() == [[5, 6], [1, 2], [0, 0], [3, 4]]
    assert (found["tags"].tolist(), found["tags"].dtype.name) == ([[0, 1], [1, 1], [0, 0], [0, 0]], "float32")
    assert found["text"].tolist() == [b"x", "zwölf".encode(), b"", b""]
    assert set(place.labels["text"].build_array_in_memory(memory)[4:].tobytes()) == {0xAA}
    source.close()
    stream.manifest.close()


def test_an_undecodable_file_is_bad_for_good_and_its_neighbours_are_not(
    source: StreamReader, stream: ServedStream
) -> None:
    spoil(stream, 3)
    batch = Filled(source, [0, 1, 2, 3], [2, 3, 4, 5])
    (bad,) = batch.bad
    assert (bad.sample_id, bad.lasting) == (3, True)
    assert "damaged JPEG" in bad.reason
    assert batch.images[2].any()


def test_a_missing_file_is_bad_for_good(source: StreamReader, stream: ServedStream) -> None:
    file_of(stream, 3).unlink()
    assert Filled(source, [0], [3]).bad == [UnfilledRow(3, "No such file or directory", lasting=True)]


def test_a_changed_file_is_bad_for_good(source: StreamReader, stream: ServedStream) -> None:
    file_of(stream, 3).write_bytes(b"other")
    (bad,) = Filled(source, [0], [3]).bad
    assert bad.lasting
    assert bad.reason.startswith("stale")


@pytest.mark.parametrize(
    ("code", "lasting"),
    [
        (errno.ENOENT, True),
        (errno.EACCES, True),
        (errno.ELOOP, True),
        (errno.EIO, False),
        (errno.ESTALE, False),
        (errno.EMFILE, False),
        (errno.EAGAIN, False),
    ],
    ids=lambda value: errno.errorcode.get(value) if not isinstance(value, bool) else None,
)
def test_errors_that_may_pass_are_told_from_those_that_stay(
    source: StreamReader, monkeypatch: pytest.MonkeyPatch, code: int, *, lasting: bool
) -> None:
    def refuse(*_: object) -> bytes:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(stream_reader, "read_file", refuse)
    assert Filled(source, [0], [3]).bad == [UnfilledRow(3, os.strerror(code), lasting=lasting)]


def test_only_so_much_is_read_ahead_and_the_rest_right_before_its_row(
    source: StreamReader, stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [file_of(stream, sample_id).stat().st_size for sample_id in range(9)]
    monkeypatch.setattr(stream_reader, "READ_AHEAD_BYTES", sizes[4] + sizes[7])
    blobs = source.read_files(np.array([4, PAD_ID, 7, 2, PAD_ID, 3], np.int64))
    assert [blob if blob is None or isinstance(blob, UnreadFile) else type(blob) for blob in blobs] == [
        bytes, None, bytes, UnreadFile.LATER, None, UnreadFile.LATER,
    ]  # fmt: skip
    batch = Filled(source, list(range(6)), [4, PAD_ID, 7, 2, PAD_ID, 3])
    expected = np.empty(source.spec.image_shape, np.uint8)
    for row, sample_id in ((0, 4), (2, 7), (3, 2), (5, 3)):
        decode_image(file_of(stream, sample_id).read_bytes(), expected, source.spec.image)
        assert np.array_equal(batch.images[row], expected)
    assert batch.bad == []


def test_the_track_says_at_which_row_a_task_is_and_at_none_afterwards(
    source: StreamReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    track, seen = new_track(), list[RowProgress]()
    monkeypatch.setattr(fill_rows, "decode_image", lambda *_: seen.append(track.read_row_progress()))
    monkeypatch.setattr(stream_reader, "READ_AHEAD_BYTES", int(source.manifest.sizes[[1, 2]].sum()))
    place = compute_layout(source.spec, ROWS)
    task = FillRows(
        77, 0, 1, place.size_bytes, ROWS, np.arange(4, dtype=np.uint16), np.array([1, 2, PAD_ID, 3], np.int64)
    )
    blobs = source.read_files(task.ids)
    read_one = StreamReader.read_sample

    def read_late(each: StreamReader, sample_id: int) -> bytes | UnfilledRow:
        seen.append(track.read_row_progress())
        return read_one(each, sample_id)

    monkeypatch.setattr(StreamReader, "read_sample", read_late)
    TaskRunner(source, task, memoryview(bytearray(place.size_bytes)), track).decode_rows(blobs, 0, 32)
    decoding, reading = WorkerPhase.DECODING, WorkerPhase.READING
    assert [(each.task, each.place, each.phase) for each in seen] == [
        (77, 0, decoding), (77, 1, decoding), (77, 3, reading), (77, 3, decoding),
    ]  # fmt: skip
    assert track.read_row_progress().phase is WorkerPhase.IDLE


def test_memory_that_a_row_cannot_get_leaves_the_track_at_it(
    source: StreamReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(fill_rows, "decode_image", refuse)
    track, place = new_track(), compute_layout(source.spec, ROWS)
    task = FillRows(5, 0, 1, place.size_bytes, ROWS, np.arange(2, dtype=np.uint16), np.array([PAD_ID, 1], np.int64))
    with pytest.raises(MemoryError):
        TaskRunner(source, task, memoryview(bytearray(place.size_bytes)), track).decode_rows(
            source.read_files(task.ids), 0, 2
        )
    found = track.read_row_progress()
    assert (found.task, found.place, found.phase) == (5, 1, WorkerPhase.DECODING)


def test_rows_that_a_store_holds_are_gathered_at_once_and_their_files_left_alone(
    source: StreamReader, stream: ServedStream
) -> None:
    stocked, store = holding(source, 2, 3, 4)
    for sample_id in (2, 3, 4):
        file_of(stream, sample_id).unlink()
    batch = Filled(stocked, [4, 5, 6], [3, 4, 2])
    assert [int(row.min()) for row in batch.images[4:7]] == [int(row.max()) for row in batch.images[4:7]] == [3, 4, 2]
    assert store.asked == [[3, 4, 2]]
    assert batch.bad == []
    assert batch.sample_ids[4:7].tolist() == [3, 4, 2]
    assert batch.weights[4:7].tolist() == [1.0] * 3


def test_the_track_stays_at_reading_until_all_is_there(source: StreamReader) -> None:
    stocked, _ = holding(source, 1, 2)
    place, track = compute_layout(source.spec, ROWS), new_track()
    for ids, phase in (([1, 3], WorkerPhase.READING), ([2, 1], WorkerPhase.IDLE)):
        track.write_row_progress(9, 0, WorkerPhase.READING)
        task = FillRows(9, 0, 1, place.size_bytes, ROWS, np.arange(2, dtype=np.uint16), np.array(ids, np.int64))
        whole = TaskRunner(stocked, task, memoryview(bytearray(place.size_bytes)), track).gather_stored_rows()
        assert (whole, track.read_row_progress().phase) == (phase is WorkerPhase.IDLE, phase)


def test_what_a_store_lacks_is_read_and_decoded_into_its_row(source: StreamReader, stream: ServedStream) -> None:
    stocked, _ = holding(source, 2, 4)
    file_of(stream, 4).unlink()
    file_of(stream, 5).unlink()
    batch = Filled(stocked, [0, 1, 2, 3], [4, 3, PAD_ID, 5])
    expected = np.empty(source.spec.image_shape, np.uint8)
    decode_image(file_of(stream, 3).read_bytes(), expected, source.spec.image)
    assert set(batch.images[0].flat) == {4}
    assert np.array_equal(batch.images[1], expected)
    assert not batch.images[2].any()
    assert [bad.sample_id for bad in batch.bad] == [5]


def test_rows_that_do_not_follow_each_other_are_gathered_into_their_own(source: StreamReader) -> None:
    stocked, _ = holding(source, 1, 2, 3)
    batch = Filled(stocked, [5, 0, 6], [1, 2, 3])
    assert [set(batch.images[row].flat) for row in (5, 0, 6)] == [{1}, {2}, {3}]
    assert {value for row in (1, 2, 3, 4, 7) for value in batch.images[row].flat} == {0xAA}
