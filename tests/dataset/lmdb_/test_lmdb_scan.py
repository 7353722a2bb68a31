"""Listing samples of an LMDB file: their order, other arrays as labels, display names, and refusals."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.lmdb_files import put, value_of, write_lmdb
from support.source_configs import Label, Lmdb, refusal, scanned

from streamd.dataset.lmdb.pyxis_layout import COMMIT_COLUMN, OFFSETS_COLUMN
from streamd.dataset.manifest.types import ScannedSamples

PIXELS = np.random.default_rng(0).integers(0, 256, (9, 30, 50, 3), dtype=np.uint8)


def samples(pixels: Any = PIXELS, **labels: Iterable[Any]) -> list[dict[str, Any]]:
    columns = zip(*labels.values(), strict=True) if labels else [()] * len(pixels)
    return [
        {"X": image, **dict(zip(labels, values, strict=True))} for image, values in zip(pixels, columns, strict=True)
    ]


def images_at(found: ScannedSamples, path: Path) -> list[bytes]:
    """What lies in the file where the images should."""
    data = path.read_bytes()
    assert found.arrays is not None
    return [data[each : each + found.arrays.row_bytes] for each in found.extra[OFFSETS_COLUMN].tolist()]


@pytest.mark.parametrize("subdir", [True, False], ids=["folder", "file"])
def test_samples_are_listed_by_number_with_their_offsets(tmp_path: Path, *, subdir: bool) -> None:
    path = write_lmdb(tmp_path / "x.lmdb", samples(), subdir=subdir)
    file = path / "data.mdb" if subdir else path
    found = scanned(Lmdb(path))
    assert (found.samples, found.labels, found.rows, found.files) == (9, {}, None, [file.name.encode()])
    assert [name.decode() for name in found.sample_names()] == [f"{file.name}[{row}]" for row in range(9)]
    assert (found.root, found.sizes.tolist(), found.mtimes_ns.tolist()) == (
        file.parent, [file.stat().st_size], [file.stat().st_mtime_ns],
    )  # fmt: skip
    assert found.arrays is not None
    assert (found.arrays.shape, found.arrays.starts) == ((30, 50, 3), (0, 9))
    assert images_at(found, file) == [image.tobytes() for image in PIXELS]


def test_a_write_to_the_file_changes_its_commit_number(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "d", samples())
    before = scanned(Lmdb(path)).extra[COMMIT_COLUMN].tolist()
    put(path, {b"nb_samples": b"9"}, b"meta_db")
    assert scanned(Lmdb(path)).extra[COMMIT_COLUMN].tolist() == [before[0] + 1]


def test_images_that_come_after_labels_of_changing_length_are_found(tmp_path: Path) -> None:
    names = ["a", "bc", "bc", "a", "def", "a", "bc", "a", "ghijk"]
    mixed = [{"name": name, "X": image} for name, image in zip(names, PIXELS, strict=True)]
    path = write_lmdb(tmp_path / "d", mixed)
    found = scanned(Lmdb(path), name=Label())
    assert images_at(found, path / "data.mdb") == [image.tobytes() for image in PIXELS]
    classes = found.specs["name"].classes
    assert [classes[each] for each in found.labels["name"].tolist()] == names


def test_arrays_become_labels_by_name_shape_and_type(tmp_path: Path) -> None:
    count = np.arange(9)
    path = write_lmdb(
        tmp_path / "d",
        samples(y=count[:, None] * 3, angle=count / 4, box=np.stack([count, count + 1], 1).astype(np.float32),
                hot=np.eye(3, dtype=np.uint8)[count % 3]),
    )  # fmt: skip
    np.save(tmp_path / "beside.npy", count * 2)
    found = scanned(
        Lmdb(path),
        y=Label("int"), steer=Label("float", "angle"), box=Label("float"), kind=Label("category", "hot"),
        both=Label("float", ("angle", "y")), other=Label("int", tmp_path / "beside.npy"),
    )  # fmt: skip
    assert found.labels["y"].tolist() == (count * 3).tolist()
    assert np.allclose(found.labels["steer"], count / 4)
    assert found.labels["box"].tolist() == [[each, each + 1] for each in range(9)]
    assert found.labels["kind"].tolist() == (count % 3).tolist()
    assert found.labels["both"].tolist() == [[each / 4, each * 3] for each in range(9)]
    assert found.labels["other"].tolist() == (count * 2).tolist()


def test_labels_of_different_integer_types_take_the_widest(tmp_path: Path) -> None:
    values = [np.int16(each) if each < 4 else np.int64(each * 10**12) for each in range(9)]
    found = scanned(Lmdb(write_lmdb(tmp_path / "d", samples(y=values))), y=Label("int"))
    assert found.labels["y"].tolist() == [int(each) for each in values]


def test_fractions_without_a_range_are_refused_with_what_to_write(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "d", samples(PIXELS / np.float32(255)))
    told = refusal(Lmdb(path))
    assert told.startswith(f"streams.train.source.images: 'X' of '{path}/data.mdb' holds float32 (9, 30, 50, 3); ")
    assert "range: [0, 1]" in told


@pytest.mark.parametrize(
    ("images", "labels", "told"),
    [
        ("x", {}, "source.images: '…[0]' has no array 'x'; its arrays are: 'X' (uint8 (30, 50, 3)), 'y' (int64 ())"),
        ("x", {}, "; did you mean 'X'?"),
        ("y", {}, "source.images: 'y' of '…' holds int64 (9,); it looks like labels"),
        ("X", {"angle": Label("float")}, "labels.angle.from: '…[0]' has no array 'angle'; its arrays are: 'X'"),
        (
            "X",
            {"z": Label("int", "X")},
            "labels.z.from: '…' holds uint8 (9, 30, 50, 3); labels must be numbers or text",
        ),
    ],
)
def test_a_missing_or_unfit_array_is_refused_with_the_arrays_of_a_sample(
    tmp_path: Path, images: str, labels: dict[str, Label], told: str
) -> None:
    path = write_lmdb(tmp_path / "d", samples(y=range(9)))
    assert told.replace("…", f"{path}/data.mdb") in refusal(Lmdb(path, images), **labels)


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ({"X": PIXELS[0, :20], "y": 1}, "source.images: 'X' is uint8 (20, 50, 3) in '…[5]', and uint8 (30, 50, 3) in"),
        ({"X": PIXELS[0].astype(np.int16), "y": 1}, "source.images: 'X' is int16 (30, 50, 3) in '…[5]', and uint8"),
        ({"X": PIXELS[0], "y": [1, 2]}, "labels.y.from: 'y' is int64 (2,) in '…[5]', and int64 () in '…[0]'"),
        ({"X": PIXELS[0], "y": "one"}, "labels.y.from: 'y' is <U3 () in '…[5]', and int64 () in '…[0]'"),
        ({"X": PIXELS[0]}, "labels.y.from: '…[5]' has no array 'y'; its arrays are: 'X'"),
        ({"X": PIXELS[0, :0], "y": 1}, "source.images: 'X' is uint8 (0, 50, 3) in '…[5]', which is empty"),
    ],
)
def test_a_sample_unlike_the_first_is_refused_by_its_number(tmp_path: Path, odd: dict[str, Any], told: str) -> None:
    several = samples(y=range(9))
    several[5] = odd
    path = write_lmdb(tmp_path / "d", several)
    assert told.replace("…", f"{path}/data.mdb") in refusal(Lmdb(path), y=Label("int"))


def test_a_malformed_sample_is_refused_by_its_number(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "d", samples())
    put(path, {b"0000000003": b"\xff\xd8\xff\xe0 a JPEG"})
    assert "data.mdb[3]' is not as ml-pyxis writes it: it is not a msgpack map" in refusal(Lmdb(path))
    broken = value_of({"X": PIXELS[0]}).replace(b"\x93\x1e\x32\x03", b"\x93\x1e\x32\x04")
    put(path, {b"0000000003": broken})
    assert "its 'X' claims to be uint8 (30, 50, 4) and has 4500 bytes" in refusal(Lmdb(path))


@pytest.mark.parametrize("path", ["nothing", "empty"])
def test_a_path_without_a_data_file_is_reported(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    said = {
        "nothing": f"there is no '{tmp_path}/nothing'; ",
        "empty": f"the folder '{tmp_path}/empty' holds no data.mdb, as LMDB's do; correct the path",
    }
    assert refusal(Lmdb(tmp_path / path)).startswith(f"streams.train.source.path: {said[path]}")


def test_a_range_that_does_not_fit_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "streamd.sources"):
        scanned(Lmdb(write_lmdb(tmp_path / "d", samples(PIXELS)), range=(0, 1)))
    assert (
        "lie beyond range [0, 1] and become black or white; unless this is intended, remove the key range"
        in caplog.text
    )


def test_the_array_under_names_gives_the_images_their_display_names(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "d", samples(file=[f"ä{'b' * (row % 3)}.jpg" for row in range(9)], number=range(9)))
    found = scanned(Lmdb(path, names="file"))
    assert found.display_names == [f"ä{'b' * (row % 3)}.jpg".encode() for row in range(9)]
    assert images_at(found, path / "data.mdb") == [image.tobytes() for image in PIXELS]
    assert scanned(Lmdb(path)).display_names is None
    assert "source.names: 'number' is int64 () in" in refusal(Lmdb(path, names="number"))
    assert "did you mean 'file'?" in refusal(Lmdb(path, names="files"))
