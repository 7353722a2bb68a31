"""Further images that are arrays, in a manifest: where each lies comes back, and counts in the identity of the list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamd.dataset.manifest.manifest import Manifest, compute_content_id, write_manifest
from streamd.dataset.manifest.types import ArrayFiles, ImageArrays, ScannedSamples, StorageFormat
from streamd.errors import ConfigError

FORMAT = StorageFormat("lmdb", "mask", "<i8")
MASKS = ImageArrays(
    ArrayFiles((4, 5, 1), (0, 4, 6), (128, 128), FORMAT),
    [b"masks/0.npy", b"masks/1.npy"],
    np.array([500, 300]),
    np.array([7, 8]),
    Path("/elsewhere"),
    {"offsets": np.arange(6) * 1000},
)


def scanned(**changes: Any) -> ScannedSamples:
    own = ScannedSamples(
        Path("/data"),
        [b"x.npy"],
        np.array([1000]),
        np.array([5]),
        {},
        {},
        arrays=ArrayFiles((8, 9, 3), (0, 6), (128,)),
        image_arrays={"mask": MASKS},
    )
    return replace(own, **changes)


def written(path: Path, samples: ScannedSamples) -> Manifest:
    write_manifest(path, samples, config_id="c")
    return Manifest.open(path)


def test_the_arrays_of_an_image_come_back_as_they_were_listed(tmp_path: Path) -> None:
    manifest = written(tmp_path / "m", scanned(rows=np.array([5, 0, 4])))
    found = manifest.image_arrays["mask"]
    assert (found.arrays, found.root, found.has_own_root) == (MASKS.arrays, Path("/elsewhere"), True)
    assert found.array_file_names() == MASKS.files
    assert (found.sizes.tolist(), found.mtimes_ns.tolist()) == ([500, 300], [7, 8])
    assert found.find_extra_column("offsets").tolist() == [0, 1000, 2000, 3000, 4000, 5000]
    assert found.lookup_rows(np.array([0, 2, -1])).tolist() == [5, 4, -1]
    assert [found.file_name(each) for each in (0, 1)] == [b"masks/1.npy[1]", b"masks/0.npy[0]"]
    assert manifest.lookup_sample_bytes(np.array([0])).tolist() == [8 * 9 * 3 + 4 * 5 * 8]
    manifest.close()


def test_an_image_without_a_root_lies_below_that_of_the_samples(tmp_path: Path) -> None:
    manifest = written(tmp_path / "m", scanned(image_arrays={"mask": replace(MASKS, root=None)}))
    assert manifest.image_arrays["mask"].root == Path("/data")
    assert not manifest.image_arrays["mask"].has_own_root
    manifest.close()


def test_the_identity_of_a_list_covers_the_arrays_of_its_images(tmp_path: Path) -> None:
    other = [
        scanned(),
        scanned(image_arrays={}),
        scanned(image_arrays={"masks": MASKS}),
        scanned(image_arrays={"mask": replace(MASKS, sizes=np.array([500, 301]))}),
        scanned(image_arrays={"mask": replace(MASKS, arrays=replace(MASKS.arrays, shape=(5, 4, 1)))}),
    ]
    assert len({compute_content_id(each) for each in other}) == len(other)
    moved = scanned(image_arrays={"mask": replace(MASKS, root=Path("/new"), mtimes_ns=np.array([7, 9]))})
    assert compute_content_id(moved) == compute_content_id(scanned())
    lists = [written(tmp_path / name, each) for name, each in (("a", scanned()), ("b", moved))]
    assert lists[0].list_id != lists[1].list_id
    for each in lists:
        each.close()


@pytest.mark.parametrize("rows", [(0, 4, 7), (0, 6)])
def test_a_header_whose_arrays_have_other_rows_than_the_samples_is_refused(
    tmp_path: Path, rows: tuple[int, ...]
) -> None:
    forged = replace(MASKS, arrays=ArrayFiles((4, 5, 1), rows, (128, 128), FORMAT))
    with pytest.raises(ConfigError, match=r"contradicts itself: 2 files of 'mask' begin at rows"):
        written(tmp_path / "m", scanned(image_arrays={"mask": forged}))


def test_a_header_with_rows_of_images_and_none_of_samples_is_refused(tmp_path: Path) -> None:
    bare = scanned(arrays=None, files=[b"a.jpg"])
    with pytest.raises(ConfigError, match="contradicts itself: 1 images are rows, and samples are not"):
        written(tmp_path / "m", bare)
