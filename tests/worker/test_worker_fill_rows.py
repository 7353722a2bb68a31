"""One task: its rows hold the pixels and labels of its samples, and unfilled rows have a reason."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from filled_rows import TASK, Filled, Unfilled, opened
from support.daemon_process import write_images
from support.opened_streams import holding
from support.served_folder import file_of, spoil
from support.worker_driver import pixels

from streamd.core.sampler import PAD_ID, BadSample
from streamd.daemon.streams.served_stream import ServedStream
from streamd.decode.decoders import decode_image
from streamd.decode.geometry import compute_random_crop_draws
from streamd.decode.pixel_id import compute_pixel_id
from streamd.ipc.slots import RowProgress, WorkerPhase
from streamd.worker import fill_rows, stream_reader
from streamd.worker.stream_reader import SampleBytes, StreamReader, UnreadFile


def test_rows_hold_pixels_ids_weights_and_labels_of_their_samples(source: StreamReader, stream: ServedStream) -> None:
    rows, ids = [5, 0, 2, 7], [8, 3, 4, 3]
    batch = Filled(source, ids, rows)
    for row, sample_id in zip(rows, ids, strict=True):
        assert np.array_equal(batch.images[row], pixels(stream, sample_id))
    assert batch.sample_ids[rows].tolist() == ids
    assert batch.weights[rows].tolist() == [1.0] * 4
    assert batch.labels()[rows].tolist() == [0, 1, 0, 1]
    assert batch.bad == []


def test_a_random_crop_depends_on_seed_epoch_and_sample_and_not_on_the_task(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 4, "dog": 5})
    image = {"size": [20, 24], "resize": "random_crop"}
    expected = np.empty((8, 20, 24, 3), np.uint8)
    with opened(folder, tmp_path / "state", image=image, shuffle={"kind": "full", "seed": 5}) as source:
        drawn = compute_random_crop_draws(source.spec.image, 5, 7, np.arange(8))
        for sample_id, blob in enumerate(source.read_files(np.arange(8))):
            assert isinstance(blob, bytes)
            decode_image(blob, expected[sample_id], source.spec.image, drawn[sample_id])
        assert np.array_equal(Filled(source, list(range(8)), epoch=7).images, expected)
        assert np.array_equal(Filled(source, [6, 3], [2, 6], epoch=7).images[[2, 6]], expected[[6, 3]])
        assert not np.array_equal(Filled(source, [0], epoch=6).images[0], expected[0])


def test_a_task_does_not_write_rows_of_other_tasks(source: StreamReader) -> None:
    batch = Filled(source, [0, 1], [1, 3])
    others = [0, 2, 4, 5, 6, 7]
    for values in (batch.images, batch.sample_ids, batch.weights, batch.labels()):
        assert set(np.ascontiguousarray(values[others]).tobytes()) == {0xAA}


def test_a_padding_row_is_zero(source: StreamReader) -> None:
    batch = Filled(source, [4, PAD_ID, 5])
    assert not batch.images[1].any()
    assert (batch.sample_ids[1], batch.weights[1], batch.labels()[1]) == (PAD_ID, 0.0, 0)
    assert batch.weights[[0, 2]].tolist() == [1.0, 1.0]
    assert batch.bad == []


def test_a_row_has_the_weight_of_its_sample_and_padding_has_zero(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 2, "dog": 1})
    np.save(tmp_path / "w.npy", [0.5, 0, 3])
    with opened(folder, tmp_path / "state", weights=str(tmp_path / "w.npy")) as source:
        assert Filled(source, [2, 1, PAD_ID, 0]).weights[:4].tolist() == [3, 0, 0, 0.5]
        assert source.spec.weighted


def test_labels_of_every_kind_are_written_to_the_slot(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 3})
    rows = "cat/0000.jpg,1,2,a b,zwölf\ncat/0001.jpg,3,4,,\ncat/0002.jpg,5,6,b,x\n"
    (tmp_path / "all.csv").write_text(f"file,x,y,tags,text\n{rows}")
    table = {"kind": "table", "path": str(tmp_path / "all.csv"), "image": "file", "root": str(folder)}
    labels = {"pose": {"from": ["x", "y"], "type": "float"}, "tags": "tags", "text": "string"}
    with opened(folder, tmp_path / "state", source=table, labels=labels) as source:
        batch = Filled(source, [2, 0, PAD_ID, 1])
    tags = batch.labels("tags")[:4]
    assert batch.labels("pose")[:4].tolist() == [[5, 6], [1, 2], [0, 0], [3, 4]]
    assert (tags.tolist(), tags.dtype.name) == ([[0, 1], [1, 1], [0, 0], [0, 0]], "float32")
    assert batch.labels("text")[:4].tolist() == [b"x", "zwölf".encode(), b"", b""]
    assert set(batch.labels("text")[4:].tobytes()) == {0xAA}


def test_an_undecodable_file_is_lastingly_bad_and_its_neighbours_are_not(
    source: StreamReader, stream: ServedStream
) -> None:
    spoil(stream, 3)
    batch = Filled(source, [2, 3, 4, 5])
    (bad,) = batch.bad
    assert (bad.sample_id, bad.lasting) == (3, True)
    assert "damaged JPEG" in bad.reason
    assert batch.images[2].any()


def test_a_changed_file_is_lastingly_bad(source: StreamReader, stream: ServedStream) -> None:
    file_of(stream, 3).write_bytes(b"other")
    (bad,) = Filled(source, [3]).bad
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
def test_errors_of_the_system_are_lasting_or_temporary(
    source: StreamReader, monkeypatch: pytest.MonkeyPatch, code: int, *, lasting: bool
) -> None:
    def refuse(*_: object) -> bytes:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(stream_reader, "read_file", refuse)
    assert Filled(source, [3]).bad == [BadSample(3, os.strerror(code), lasting=lasting, of_this_host=lasting)]


def test_reading_ahead_is_bounded_and_other_files_are_read_before_their_row(
    source: StreamReader, stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [file_of(stream, sample_id).stat().st_size for sample_id in range(9)]
    monkeypatch.setattr(stream_reader, "READ_AHEAD_BYTES", sizes[4] + sizes[7])
    blobs = source.read_files(np.array([4, PAD_ID, 7, 2, PAD_ID, 3], np.int64))
    assert [blob if blob is None or isinstance(blob, UnreadFile) else type(blob) for blob in blobs] == [
        bytes, None, bytes, UnreadFile.LATER, None, UnreadFile.LATER,
    ]  # fmt: skip
    batch = Filled(source, [4, PAD_ID, 7, 2, PAD_ID, 3])
    for row, sample_id in ((0, 4), (2, 7), (3, 2), (5, 3)):
        assert np.array_equal(batch.images[row], pixels(stream, sample_id))
    assert batch.bad == []


def test_the_progress_page_names_the_row_of_a_task_until_it_ends(
    source: StreamReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, seen = Unfilled(source, [1, 2, PAD_ID, 3]), list[RowProgress]()
    monkeypatch.setattr(fill_rows, "decode_image", lambda *_: seen.append(task.track.read_row_progress()))
    monkeypatch.setattr(stream_reader, "READ_AHEAD_BYTES", int(source.manifest.sizes[[1, 2]].sum()))
    blobs = source.read_files(task.ids)
    read_one = StreamReader.read_sample

    def read_late(each: StreamReader, sample_id: int) -> bytes | SampleBytes | BadSample:
        seen.append(task.track.read_row_progress())
        return read_one(each, sample_id)

    monkeypatch.setattr(StreamReader, "read_sample", read_late)
    task.filling.decode_rows(blobs, 0, 32)
    decoding, reading = WorkerPhase.DECODING, WorkerPhase.READING
    assert [(each.task, each.place, each.phase) for each in seen] == [
        (TASK, 0, decoding), (TASK, 1, decoding), (TASK, 3, reading), (TASK, 3, decoding),
    ]  # fmt: skip
    assert task.track.read_row_progress().phase is WorkerPhase.IDLE


def test_a_memory_error_leaves_the_progress_page_at_its_row(
    source: StreamReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(fill_rows, "decode_image", refuse)
    task = Unfilled(source, [PAD_ID, 1])
    with pytest.raises(MemoryError):
        task.filling.decode_rows(source.read_files(task.ids), 0, 2)
    found = task.track.read_row_progress()
    assert (found.task, found.place, found.phase) == (TASK, 1, WorkerPhase.DECODING)


def test_rows_that_a_store_holds_are_gathered_together_without_reading_files(
    source: StreamReader, stream: ServedStream
) -> None:
    stocked, store = holding(source, 2, 3, 4)
    for sample_id in (2, 3, 4):
        file_of(stream, sample_id).unlink()
    batch = Filled(stocked, [3, 4, 2], [4, 5, 6])
    assert [int(row.min()) for row in batch.images[4:7]] == [int(row.max()) for row in batch.images[4:7]] == [3, 4, 2]
    assert store.asked == [[3, 4, 2]]
    assert batch.bad == []
    assert batch.sample_ids[4:7].tolist() == [3, 4, 2]
    assert batch.weights[4:7].tolist() == [1.0] * 3


def test_the_progress_page_says_reading_until_all_rows_are_gathered(source: StreamReader) -> None:
    stocked, _ = holding(source, 1, 2)
    for ids, phase in (([1, 3], WorkerPhase.READING), ([2, 1], WorkerPhase.IDLE)):
        task = Unfilled(stocked, ids)
        task.track.write_row_progress(TASK, 0, WorkerPhase.READING)
        whole = task.filling.gather_stored_rows()
        assert (whole, task.track.read_row_progress().phase) == (phase is WorkerPhase.IDLE, phase)


def test_rows_that_a_store_lacks_are_read_and_decoded(source: StreamReader, stream: ServedStream) -> None:
    stocked, _ = holding(source, 2, 4)
    file_of(stream, 4).unlink()
    file_of(stream, 5).unlink()
    batch = Filled(stocked, [4, 3, PAD_ID, 5])
    assert set(batch.images[0].flat) == {4}
    assert np.array_equal(batch.images[1], pixels(stream, 3))
    assert not batch.images[2].any()
    assert [bad.sample_id for bad in batch.bad] == [5]


def test_rows_that_are_not_contiguous_are_gathered_into_their_places(source: StreamReader) -> None:
    stocked, _ = holding(source, 1, 2, 3)
    batch = Filled(stocked, [1, 2, 3], [5, 0, 6])
    assert [set(batch.images[row].flat) for row in (5, 0, 6)] == [{1}, {2}, {3}]
    assert {value for row in (1, 2, 3, 4, 7) for value in batch.images[row].flat} == {0xAA}


# --- streams whose pixels are stored: they are gathered, or may come back, and are never bad


@pytest.fixture
def arrays(tmp_path: Path) -> Iterator[StreamReader]:
    """A stream over five stored images, each of one level."""
    np.save(tmp_path / "x.npy", np.repeat(np.arange(5, dtype=np.uint8), 4 * 4 * 3).reshape(5, 4, 4, 3))
    with opened(
        tmp_path, tmp_path / "state", source={"kind": "npy", "path": str(tmp_path / "x.npy")}, image={}
    ) as source:
        yield source


def test_stored_pixels_need_no_decoding_and_padding_is_zero(arrays: StreamReader) -> None:
    batch = Filled(arrays, [3, PAD_ID, 1])
    assert (batch.images[:3, 0, 0, 0].tolist(), batch.bad) == ([3, 0, 1], [])
    assert not arrays.find_samples_to_decode(batch.ids).any()


def test_changed_stored_pixels_are_temporarily_bad(arrays: StreamReader) -> None:
    path = arrays.manifest.root / "x.npy"
    path.write_bytes(path.read_bytes())
    reason = "its file has changed since it was listed; restart with --rescan to list it again"
    assert Filled(arrays, [3, PAD_ID]).bad == [BadSample(3, reason, lasting=False)]


def test_stored_pixels_are_away_while_their_file_is_missing(arrays: StreamReader) -> None:
    path = arrays.manifest.root / "x.npy"
    aside = path.rename(path.with_name("aside"))
    (bad,) = Filled(arrays, [3, PAD_ID]).bad
    assert bad == BadSample(3, f"'x.npy' is not in '{arrays.manifest.root}'", lasting=False, away=True)
    aside.rename(path)
    assert Filled(arrays, [3, PAD_ID]).bad == []


def test_the_pixel_id_of_stored_pixels_does_not_depend_on_the_decoders(arrays: StreamReader) -> None:
    assert arrays.pixel_id != compute_pixel_id(arrays.spec.image)
    wider = replace(arrays, spec=replace(arrays.spec, images={"image": replace(arrays.spec.image, width=9)}))
    assert arrays.pixel_id != wider.pixel_id


def test_a_stored_nan_makes_only_its_sample_lastingly_bad(tmp_path: Path) -> None:
    numbers = np.linspace(0, 1, 5 * 4 * 4 * 3).astype(np.float32).reshape(5, 4, 4, 3)
    numbers[3, 0, 0, 0] = np.nan
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = numbers
    kind = {"kind": "hdf5", "path": str(tmp_path / "x.h5"), "images": "/x", "range": [0, 1]}
    with opened(tmp_path, tmp_path / "state", source=kind, image={}, labels={}) as source:
        batch = Filled(source, [4, 3, 1])
    assert batch.bad == [BadSample(3, "a pixel is not a number (NaN)", lasting=True)]
    assert np.array_equal(batch.images[[0, 2]], np.rint(numbers[[4, 1]] * 255).astype(np.uint8))
