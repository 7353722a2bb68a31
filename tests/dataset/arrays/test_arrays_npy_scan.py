"""Listing images in rows of .npy files: their order, labels from tables and arrays, conditions and splits."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.source_configs import Label, Npy, Split, assert_refused, part_of, refusal, scanned

from streamd.dataset.manifest.types import ScannedSamples, StorageFormat

RNG = np.random.default_rng(0)
SIX = RNG.integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)


def images(folder: Path, **arrays: Any) -> str:
    """The path of a folder that holds these arrays."""
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return str(folder)


def names(scanned: ScannedSamples) -> list[str]:
    return [name.decode() for name in scanned.sample_names()]


def test_samples_are_the_rows_of_all_files_in_order(tmp_path: Path) -> None:
    found = scanned(Npy(images(tmp_path / "x", b=SIX[:2], a=SIX[2:], c=SIX[:1])))
    assert (found.samples, found.labels, found.rows) == (7, {}, None)
    assert names(found) == [
        "a.npy[0]", "a.npy[1]", "a.npy[2]", "a.npy[3]", "b.npy[0]", "b.npy[1]", "c.npy[0]",
    ]  # fmt: skip
    assert found.arrays is not None
    assert (found.arrays.shape, found.arrays.starts) == ((4, 5, 3), (0, 4, 6, 7))
    assert found.arrays.row_bytes == 60
    assert [found.arrays.locate_row(row) for row in (0, 3, 4, 6)] == [(0, 0), (0, 3), (1, 0), (2, 0)]
    assert found.files == [b"a.npy", b"b.npy", b"c.npy"]
    path = tmp_path / "x/a.npy"
    assert (found.sizes[0], found.mtimes_ns[0]) == (path.stat().st_size, path.stat().st_mtime_ns)
    assert path.read_bytes()[found.arrays.offsets[0] :] == SIX[2:].tobytes()


def test_an_array_that_holds_no_images_is_refused_with_its_dtype_and_shape(tmp_path: Path) -> None:
    source = Npy(images(tmp_path / "x", a=np.zeros((2, 60), np.uint8)))
    says = (
        f"^streams.train.source.path: '{tmp_path}/x/a.npy' holds uint8 .2, 60.; it looks like labels; an array of "
        "images has"
    )
    assert_refused(source, says)


def test_files_of_different_shapes_are_refused_by_name(tmp_path: Path) -> None:
    message = refusal(Npy(images(tmp_path / "x", a=SIX, b=SIX[:, :3], c=SIX)))
    assert message == (
        "streams.train.source.path: 'b.npy' holds images of 3x5x3, and 'a.npy' of 4x5x3; all images of a stream must "
        "have the same layout: name only files that belong together, such as images-*.npy"
    )
    mixed = Npy(images(tmp_path / "y", a=SIX, b=SIX.astype(np.float32)), range=(0, 255))
    assert "'b.npy' holds images of 4x5x3 float32, and 'a.npy' of 4x5x3;" in refusal(mixed)


def test_other_dtypes_and_channels_first_are_recorded_in_the_storage_format(tmp_path: Path) -> None:
    turned = images(tmp_path / "x", a=np.ascontiguousarray(SIX.repeat(2, 2).transpose(0, 3, 1, 2)).astype(">u2"))
    found = scanned(Npy(turned, range=(0, 255)))
    assert found.arrays is not None
    assert found.arrays.shape == (4, 10, 3)
    assert found.arrays.stored == StorageFormat("npy", "", ">u2", (0, 255), channels_first=True)


def test_labels_come_from_a_table_and_from_arrays_row_by_row(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("kind,fold\ncat,1\ndog,1\ncat,2\ncat,2\ndog,3\ncat,3\n")
    np.save(tmp_path / "y.npy", np.linspace(0, 1, 6))
    found = scanned(
        Npy(images(tmp_path / "x", a=SIX[:4], b=SIX[4:]), tmp_path / "t.csv"),
        kind=Label(),
        y=Label("float", tmp_path / "y.npy"),
    )
    assert found.labels["kind"].tolist() == [0, 1, 0, 0, 1, 0]
    assert found.specs["kind"].classes == ("cat", "dog")
    assert np.allclose(found.labels["y"], np.linspace(0, 1, 6))


def test_conditions_keep_rows_of_images_and_labels_alike(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("kind,fold\ncat,1\ndog,1\ncat,2\ncat,2\ndog,3\ncat,2\n")
    np.save(tmp_path / "y.npy", np.arange(6))
    source = Npy(images(tmp_path / "x", a=SIX[:4], b=SIX[4:]), tmp_path / "t.csv", {"fold": 2})
    found = scanned(source, kind=Label(), y=Label("int", tmp_path / "y.npy"))
    assert found.rows is not None
    assert (found.samples, found.rows.tolist(), found.labels["y"].tolist()) == (3, [2, 3, 5], [2, 3, 5])
    assert names(found) == ["a.npy[2]", "a.npy[3]", "b.npy[1]"]
    assert found.specs["kind"].classes == ("cat",)


def test_a_split_by_name_splits_the_rows_and_added_files_change_no_part(tmp_path: Path) -> None:
    many = np.zeros((300, 1, 1), np.uint8)
    np.save(tmp_path / "y.npy", np.arange(300))
    source, label = Npy(images(tmp_path / "x", a=many), part="validation"), Label("int", tmp_path / "y.npy")
    held_out = part_of(source, Split(0.2), y=label)
    kept = part_of(Npy(source.path, part="train"), Split(0.2), y=label)
    assert held_out.rows is not None
    assert kept.rows is not None
    assert sorted([*held_out.rows.tolist(), *kept.rows.tolist()]) == list(range(300))
    assert 30 < held_out.samples < 90
    assert held_out.labels["y"].tolist() == held_out.rows.tolist()
    assert held_out.specs["y"].mean == pytest.approx(held_out.rows.mean())
    images(tmp_path / "x", b=many)
    later = part_of(source, Split(0.2))
    assert later.rows is not None
    assert [row for row in later.rows.tolist() if row < 300] == held_out.rows.tolist()


def test_a_split_by_a_column_keeps_its_rows_together(tmp_path: Path) -> None:
    many = np.zeros((60, 1, 1), np.uint8)
    drives = [f"drive{row // 6}" for row in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["drive", *drives]))
    source = Npy(images(tmp_path / "x", a=many), tmp_path / "t.csv", part="validation")
    held_out = part_of(source, Split(0.3, seed=1, by="drive"))
    assert held_out.rows is not None
    assert 0 < held_out.samples < 60
    assert held_out.samples % 6 == 0
    assert len({drives[row] for row in held_out.rows.tolist()}) == held_out.samples // 6


def test_a_range_that_does_not_fit_causes_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "streamd.sources"):
        scanned(Npy(images(tmp_path / "y", a=SIX), range=(0, 1)))
    assert (
        "lie beyond range [0, 1] and become black or white; unless this is intended, remove the key range"
        in caplog.text
    )
