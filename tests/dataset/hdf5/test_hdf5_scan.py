"""Listing images in an array of an HDF5 file: their order, every kind of storage, arrays of labels beside them."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from support.source_configs import Hdf5, Label, assert_refused, refusal, scanned

from streamd.dataset.hdf5 import arrays, chunk_grid
from streamd.dataset.hdf5 import scan as hdf5
from streamd.dataset.hdf5.chunk_grid import CHUNK_OFFSETS, CHUNK_SHAPE, LIBRARY_STORE
from streamd.dataset.manifest.types import ScannedSamples
from streamd.errors import ConfigError

RNG = np.random.default_rng(0)
SIX = RNG.integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)
LABELS: dict[str, Any] = {
    "angle": np.linspace(-1, 1, 6, dtype=np.float32).reshape(6, 1),
    "kind": np.eye(3)[[0, 1, 2, 0, 1, 2]],
}


def written(path: Path, images: Any = SIX, **settings: Any) -> Path:
    """A file with the array /x, made as `settings` say, and with labels."""
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=images, **settings)
        for name, values in LABELS.items():
            file.create_dataset(f"labels/{name}", data=values)
    return path


def bytes_at(path: Path, offset: int, count: int) -> bytes:
    return path.read_bytes()[offset : offset + count]


def store_of(found: ScannedSamples) -> str:
    """The store that reads what was found."""
    assert found.arrays is not None
    return "npy" if found.arrays.stored is None else found.arrays.stored.store


def test_an_array_in_one_piece_is_served_as_an_npy_file_is(tmp_path: Path) -> None:
    path = written(tmp_path / "x.h5")
    found = scanned(Hdf5(path))
    assert found.arrays is not None
    assert (found.samples, found.arrays.shape, found.arrays.stored, found.extra) == (6, (4, 5, 3), None, {})
    assert bytes_at(path, found.arrays.offsets[0], SIX.nbytes) == SIX.tobytes()
    assert list(found.sample_names()) == [b"x.h5[%d]" % row for row in range(6)]
    assert (found.sizes[0], found.mtimes_ns[0]) == (path.stat().st_size, path.stat().st_mtime_ns)


def test_the_offsets_of_uncompressed_chunks_are_listed(tmp_path: Path) -> None:
    path = written(tmp_path / "x.h5", chunks=(4, 4, 2, 3), maxshape=(None, 4, 5, 3))
    found = scanned(Hdf5(path))
    assert store_of(found) == hdf5.CHUNK_STORE
    assert found.extra[CHUNK_SHAPE].tolist() == [4, 4, 2, 3]
    offsets = found.extra[CHUNK_OFFSETS]
    assert offsets.shape == (6,)  # two by three
    assert bytes_at(path, int(offsets[1]), 4 * 4 * 2 * 3) == SIX[:4, :, 2:4].tobytes()


@pytest.mark.parametrize(
    "settings",
    [
        {"compression": "gzip", "chunks": (2, 4, 5, 3)},
        {"compression": "lzf", "shuffle": True, "chunks": (1, 4, 5, 3)},
        {"fletcher32": True, "chunks": (2, 4, 5, 3)},
    ],
    ids=str,
)
def test_compressed_and_checksummed_chunks_need_the_library(tmp_path: Path, settings: dict[str, Any]) -> None:
    found = scanned(Hdf5(written(tmp_path / "x.h5", **settings)))
    assert store_of(found) == LIBRARY_STORE
    assert list(found.extra) == [CHUNK_SHAPE]


def test_a_file_with_a_user_block_and_a_partly_written_array_need_the_library(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "before.h5", "w", userblock_size=512) as file:
        file["x"] = SIX
    with h5py.File(tmp_path / "half.h5", "w") as file:
        file.create_dataset("x", SIX.shape, np.uint8, chunks=(2, 4, 5, 3))[:2] = SIX[:2]
    for name in ("before.h5", "half.h5"):
        assert store_of(scanned(Hdf5(tmp_path / name))) == LIBRARY_STORE


def test_booleans_of_pytables_and_of_numpy_are_mapped(tmp_path: Path) -> None:
    truths = SIX > 100
    with h5py.File(tmp_path / "x.h5", "w") as file:
        space = h5py.h5s.create_simple(truths.shape)
        dataset = h5py.h5d.create(file.id, b"x", h5py.h5t.STD_B8LE, space)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, truths.astype(np.uint8), mtype=h5py.h5t.NATIVE_B8)
        file["numpys"] = truths
    for name in ("/x", "/numpys"):
        found = scanned(Hdf5(tmp_path / "x.h5", images=name, range=(0, 1)))
        assert store_of(found) == hdf5.CHUNK_STORE
        assert bytes_at(tmp_path / "x.h5", int(found.extra[CHUNK_OFFSETS][0]), truths.size) == truths.tobytes()


def test_compressed_chunks_of_several_images_are_reported_with_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.WARNING, "streamd.sources"):
        scanned(Hdf5(written(tmp_path / "few.h5", compression="gzip", chunks=(2, 4, 5, 3))))
        monkeypatch.setattr(chunk_grid, "CHUNKS_KEPT_BYTES", 2 * 2 * 60)
        scanned(Hdf5(written(tmp_path / "one.h5", compression="gzip", chunks=(1, 4, 5, 3))))
        assert not caplog.messages
        scanned(Hdf5(written(tmp_path / "x.h5", compression="gzip", chunks=(2, 4, 5, 3))))
    assert "/x of" in caplog.text
    assert "chunks of 2 images, and a whole chunk is read and decompressed to get a single image" in caplog.text
    assert "; with shuffle: {kind: chunk, chunk: 2, buffer: 2}, which is the default here, this" in caplog.text


def test_labels_are_arrays_of_the_file_or_files_beside_it(tmp_path: Path) -> None:
    path = written(tmp_path / "x.h5")
    with h5py.File(path, "a") as file:
        file["name"] = np.array(["a", "b", "", "ü", "a", "b"], dtype=h5py.string_dtype())
    np.save(tmp_path / "speed.npy", np.arange(6))
    labels = {
        "angle": Label("float", "/labels/angle"),
        "kind": Label("category", "labels/kind"),
        "name": Label("string"),
        "speed": Label("int", tmp_path / "speed.npy"),
    }
    found = scanned(Hdf5(path), **labels)
    assert found.labels["angle"].tolist() == LABELS["angle"][:, 0].tolist()
    assert found.labels["kind"].tolist() == [0, 1, 2, 0, 1, 2]
    assert found.labels["name"].tolist() == [b"a", b"b", b"", "ü".encode(), b"a", b"b"]
    assert found.labels["speed"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("chunks", [None, (2, 4, 5, 3)], ids=["one piece", "chunks"])
def test_numbers_other_than_uint8_need_a_range(tmp_path: Path, chunks: Any) -> None:
    path = written(tmp_path / "x.h5", (SIX / 255).astype(">f4"), chunks=chunks)
    least, most = (f"{each / 255:g}" for each in (SIX.min(), SIX.max()))
    said = refusal(Hdf5(path))
    assert f"holds >f4 (6, 4, 5, 3); found values from {least} to {most} in the first 6 images" in said
    assert "write range: [0, 1]" in said
    found = scanned(Hdf5(path, range=(0, 1)))
    assert found.arrays is not None
    assert found.arrays.stored is not None
    assert (found.arrays.stored.dtype, found.arrays.stored.range, store_of(found)) == (">f4", (0, 1), hdf5.CHUNK_STORE)


def test_labels_in_the_place_of_images_are_refused_with_the_arrays_of_the_file(tmp_path: Path) -> None:
    said = refusal(Hdf5(written(tmp_path / "x.h5"), "/labels/kind"))
    assert "holds float64 (6, 3); it looks like labels" in said
    assert said.endswith(
        "it has /x (uint8 (6, 4, 5, 3)), /labels/angle (float32 (6, 1)), /labels/kind (float64 (6, 3))"
    )


def test_an_array_that_reaches_beyond_its_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "x.h5")
    beyond = np.array([path.stat().st_size - SIX.nbytes + 1])
    monkeypatch.setattr(hdf5, "_find_chunk_offsets", lambda *_: beyond)
    assert "is damaged: it reaches beyond the end of the file" in refusal(Hdf5(path))


@pytest.mark.parametrize(
    ("label", "told"),
    [
        (Label("float", "/labels/angel"), "labels.y.from: there is no array '/labels/angel'"),
        (Label("float"), "labels.y.from: there is no array '/y'"),
        (Label("float", "/short"), "/short of '…/x.h5' has 5 rows, but there are 6 images"),
        (Label("float", "/x"), "/x of '…/x.h5' holds uint8 (6, 4, 5, 3); labels must be numbers or text"),
    ],
    ids=["near", "own name", "short", "rank"],
)
def test_labels_that_do_not_fit_are_refused(tmp_path: Path, label: Label, told: str) -> None:
    path = written(tmp_path / "x.h5")
    with h5py.File(path, "a") as file:
        file["short"] = np.zeros(5)
    said = refusal(Hdf5(path), y=label).replace(str(tmp_path), "…")
    assert told in said


def test_a_truncated_file_and_one_of_another_kind_are_refused_by_name(tmp_path: Path) -> None:
    path = written(tmp_path / "x.h5", chunks=(2, 4, 5, 3))
    os.truncate(path, path.stat().st_size // 2)
    assert f"{path}': it is truncated; copy it again" in refusal(Hdf5(path))
    np.save(tmp_path / "x.npy", SIX)
    assert "x.npy': it is not an HDF5 file" in refusal(Hdf5(tmp_path / "x.npy"))
    assert "there is no" in refusal(Hdf5(tmp_path / "y.h5"))


def test_a_file_that_is_being_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "x.h5")
    with path.open("r+b") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert "another process has it open for writing" in refusal(Hdf5(path))
    find = arrays.find_array

    def append(*found: Any) -> Any:
        with path.open("ab") as file:
            file.write(b"x")
        return find(*found)

    monkeypatch.setattr(arrays, "find_array", append)
    assert "is still being written; list it once it is complete" in refusal(Hdf5(path))


def test_chunks_larger_than_a_worker_may_hold_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5, "MAX_CHUNK_BYTES", 100)
    path = written(tmp_path / "x.h5", compression="gzip", chunks=(2, 4, 5, 3))
    assert "is stored in chunks of 2 images" in refusal(Hdf5(path))


def test_a_folder_is_refused_with_the_files_that_may_be_meant(tmp_path: Path) -> None:
    said = refusal(Hdf5(tmp_path))
    assert said == (
        f"streams.train.source.path: '{tmp_path}' is a folder, but an HDF5 file is needed, and the folder holds none; "
        "correct the path"
    )
    written(tmp_path / "b.h5")
    written(tmp_path / "a.hdf5")
    (tmp_path / "notes.txt").touch()
    assert refusal(Hdf5(tmp_path)).endswith("; give the path of one of those in it, such as 'a.hdf5', 'b.h5'")


def test_nan_in_a_category_is_refused_by_its_row(tmp_path: Path) -> None:
    path = written(tmp_path / "x.h5")
    with h5py.File(path, "a") as file:
        file["nan"] = [0.0, 1.0, np.nan, np.nan, 1.0, 1.0]
    said = refusal(Hdf5(path), nan=Label("category"))
    assert (
        "x.h5:nan[2]: the array holds NaN, which is not a number (also x.h5:nan[3]); correct the values"
        in said.replace("/", "")
    )


def test_a_label_may_be_a_column_of_a_table_but_not_a_whole_table(tmp_path: Path) -> None:
    path = written(tmp_path / "x.h5")
    rows = [(number % 3, b"abc"[number % 3 : number % 3 + 1], (number, 0)) for number in range(6)]
    with h5py.File(path, "a") as file:
        file["tab"] = np.array(rows, [("cls", "i4"), ("name", "S3"), ("box", "f4", (2,))])
    found = scanned(
        Hdf5(path),
        cls=Label("category", source="/tab/cls"),
        name=Label("category", source="tab/name"),
        box=Label("float", source="/tab/box"),
    )
    assert found.specs["cls"].classes == (0, 1, 2)
    assert found.specs["name"].classes == ("a", "b", "c")
    assert found.labels["cls"].tolist() == found.labels["name"].tolist() == [0, 1, 2, 0, 1, 2]
    assert found.labels["box"].tolist() == [[number, 0] for number in range(6)]
    said = refusal(Hdf5(path), tab=Label("category"))
    assert said.endswith("is a table; name one of its columns: /tab/cls, /tab/name, /tab/box")


def test_a_missing_label_is_refused_with_arrays_of_the_same_length_first(tmp_path: Path) -> None:
    path = written(tmp_path / "x.h5")
    with h5py.File(path, "a") as file:
        file["a"] = np.zeros(5)
        file["tab"] = np.zeros(6, [("cls", "i4")])
    assert (
        "it has /labels/angle (float32 (6, 1)), /labels/kind (float64 (6, 3)), /tab/cls (int32 (6,)), "
        "/x (uint8 (6, 4, 5, 3)), /a (float64 (5,))" in refusal(Hdf5(path), **{"class": Label("category")})
    )


def test_a_range_that_does_not_fit_is_reported_and_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "streamd.sources"):
        scanned(Hdf5(written(tmp_path / "x.h5"), range=(0, 255)))
        assert not caplog.messages
        scanned(Hdf5(written(tmp_path / "x.h5"), range=(0, 1)))
    assert "x.h5': found values from 0 to 25" in caplog.text
    assert (
        "lie beyond range [0, 1] and become black or white; unless this is intended, remove the key range"
        in caplog.text
    )


def test_the_array_under_names_gives_the_images_their_display_names(tmp_path: Path) -> None:
    path = written(tmp_path / "x.h5")
    with h5py.File(path, "a") as file:
        file["files"] = [f"ä{row}.jpg" for row in range(6)]
        file["ids"] = np.arange(6)
        file["short"] = np.array([b"a", b"b"])
    found = scanned(Hdf5(path, names="files"))
    assert found.display_names == [f"ä{row}.jpg".encode() for row in range(6)]
    assert scanned(Hdf5(path)).display_names is None
    assert_refused(Hdf5(path, names="ids"), "holds int64, but names must be text")
    assert_refused(Hdf5(path, names="short"), "has 2 rows, but there are 6 images")


def test_damage_anywhere_is_refused_in_words_or_listed(tmp_path: Path) -> None:
    path = written(tmp_path / "x.h5", chunks=(2, 4, 5, 3))
    whole, said = path.read_bytes(), list[str]()
    for place in range(100, min(len(whole), 5000), 41):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            scanned(Hdf5(path), angle=Label("float", "/labels/angle"))
        except ConfigError as error:
            said.append(str(error))
    assert len(said) > 5
    assert [reason for reason in said if "x.h5" not in reason] == []
