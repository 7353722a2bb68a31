"""Further images in a manifest: their names, sizes and times come back, and count in the identity of the list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamd.dataset.manifest.manifest import Manifest, compute_content_id, write_manifest
from streamd.dataset.manifest.types import ImageFiles, ScannedSamples
from streamd.errors import ConfigError

NUMBERS = np.array([3, 4, 5], np.int64)
MASKS = ImageFiles([b"m/a.png", b"m/b.png", b"c.png"], NUMBERS * 100, NUMBERS * 7, Path("/elsewhere"))
PHOTOS = ScannedSamples(Path("/data"), [b"a.jpg", b"b.jpg", b"c.jpg"], NUMBERS, NUMBERS, {}, {})
BOTH = replace(PHOTOS, images={"mask": MASKS})


def reopened(folder: Path, scanned: ScannedSamples) -> Manifest:
    path = folder / "x.manifest"
    write_manifest(path, scanned, config_id="")
    return Manifest.open(path)


def test_the_files_of_further_images_come_back(tmp_path: Path) -> None:
    found = reopened(tmp_path, BOTH)
    mask = found.images["mask"]
    assert [mask.file_name(sample) for sample in range(3)] == MASKS.files
    assert (mask.sizes.tolist(), mask.mtimes_ns.tolist(), mask.root) == ([300, 400, 500], [21, 28, 35], MASKS.root)
    assert found.lookup_sample_bytes(np.array([2, 0])).tolist() == [505, 303]
    found.close()
    assert reopened(tmp_path, PHOTOS).images == {}


def test_names_sizes_and_images_count_in_the_identity_and_roots_do_not() -> None:
    def identity(**changes: object) -> str:
        return compute_content_id(replace(PHOTOS, images={"mask": replace(MASKS, **changes)}))  # type: ignore[arg-type]  # of one field each

    assert len({compute_content_id(PHOTOS), identity(), identity(sizes=NUMBERS), identity(files=[b"x"] * 3)}) == 4
    assert identity() == identity(root=None, mtimes_ns=NUMBERS)
    assert identity() != compute_content_id(replace(PHOTOS, images={"other": MASKS}))


def test_a_list_of_other_times_is_another_list(tmp_path: Path) -> None:
    later = replace(MASKS, mtimes_ns=MASKS.mtimes_ns + 1)
    (tmp_path / "later").mkdir()
    one, other = reopened(tmp_path, BOTH), reopened(tmp_path / "later", replace(BOTH, images={"mask": later}))
    assert (one.content_id == other.content_id, one.list_id == other.list_id) == (True, False)


def test_selected_rows_keep_their_own_files() -> None:
    assert MASKS.select_rows(np.array([2, 0])).files == [b"c.png", b"m/a.png"]


def test_a_manifest_that_lacks_a_column_of_an_image_is_refused(tmp_path: Path) -> None:
    short = replace(MASKS, sizes=NUMBERS[:2])
    with pytest.raises(ConfigError, match=r"column 'image.mask.sizes' has 2 rows"):
        reopened(tmp_path, replace(PHOTOS, images={"mask": short}))


CLIPS = ImageFiles([b"p.png", b"q.png"], NUMBERS[:2], NUMBERS[:2] * 7, frames=np.array([[0, 1], [1, 1], [0, 0]]))
CLIPPED = replace(PHOTOS, images={"clip": CLIPS})


def test_the_frames_of_clips_come_back_and_count_in_the_identity(tmp_path: Path) -> None:
    clip = reopened(tmp_path, CLIPPED).images["clip"]
    assert [clip.list_frame_files(sample) for sample in range(3)] == [[0, 1], [1, 1], [0, 0]]
    assert clip.file_names() == CLIPS.files
    assert clip.lookup_bytes(np.array([0, 1])).tolist() == [7, 8]
    other = replace(CLIPPED, images={"clip": replace(CLIPS, frames=np.array([[0, 1], [1, 0], [0, 0]]))})
    rows = replace(PHOTOS, row_frames={"clip": np.array([[0, 1], [1, 1], [0, 0]])})
    assert len({compute_content_id(each) for each in (PHOTOS, CLIPPED, other, rows)}) == 4


def test_a_manifest_with_clips_of_fewer_samples_is_refused(tmp_path: Path) -> None:
    short = replace(CLIPPED, images={"clip": replace(CLIPS, frames=np.array([[0, 1], [1, 1]]))})
    with pytest.raises(ConfigError, match=r"column 'image.clip.frames' has 2 rows"):
        reopened(tmp_path, short)
    rows = replace(PHOTOS, row_frames={"clip": np.array([[0, 1]])})
    with pytest.raises(ConfigError, match=r"column 'frames.clip' has 1 rows"):
        reopened(tmp_path, rows)
