"""Images beside a sample's own file: found by patterns, left out of the samples, missing ones refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.source_configs import Folder, Stream, put

from streamd.dataset.files.folder import format_pattern
from streamd.dataset.manifest.types import ScannedSamples
from streamd.dataset.scan import scan_source
from streamd.dataset.sources import ImageSource
from streamd.errors import ConfigError


def scan(folder: Path, pattern: str, labels: dict[str, Any] | None = None, root: Path | None = None) -> ScannedSamples:
    images = {"photo": ImageSource(None), "mask": ImageSource(pattern, root, is_pattern=True)}
    return scan_source(Stream(Folder(folder), labels, images=images), lambda _: None)


@pytest.mark.parametrize(
    ("pattern", "file", "found"),
    [
        (b"masks/{stem}.png", b"a.jpg", b"masks/a.png"),
        (b"{dir}/{stem}_mask.png", b"cat/7/a.b.jpg", b"cat/7/a.b_mask.png"),
        (b"{dir}/{stem}.png", b"a.jpg", b"a.png"),
        (b"m/{dir}/{name}", b"cat/a.jpg", b"m/cat/a.jpg"),
    ],
)
def test_a_pattern_is_filled_from_the_samples_own_name(pattern: bytes, file: bytes, found: bytes) -> None:
    assert format_pattern(pattern, file) == found


def test_files_of_a_pattern_are_no_samples_and_a_folder_of_them_is_no_class(tmp_path: Path) -> None:
    put(tmp_path, "cat/a.jpg", "dog/b.jpg", "masks/a.png", "masks/b.png")
    found = scan(tmp_path, "masks/{stem}.png")
    assert list(found.files) == [b"cat/a.jpg", b"dog/b.jpg"]
    assert found.specs["label"].classes == ("cat", "dog")
    assert list(found.images["mask"].files) == [b"masks/a.png", b"masks/b.png"]
    assert found.images["mask"].sizes.tolist() == [11, 11]


def test_masks_may_lie_beside_their_photos_of_a_flat_folder(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg", "a_mask.png", "b.jpg", "b_mask.png")
    found = scan(tmp_path, "{stem}_mask.png")
    assert (list(found.files), found.labels) == ([b"a.jpg", b"b.jpg"], {})


def test_masks_may_lie_below_another_root(tmp_path: Path) -> None:
    put(tmp_path, "photos/a.jpg", "masks/a.png")
    found = scan(tmp_path / "photos", "{stem}.png", root=tmp_path / "masks")
    assert (list(found.images["mask"].files), found.images["mask"].root) == ([b"a.png"], tmp_path / "masks")


def test_a_missing_mask_is_named_with_what_to_do(tmp_path: Path) -> None:
    put(tmp_path, *(f"photos/{name}.jpg" for name in "abcd"), *(f"masks/{name}.png" for name in "abc"))
    with pytest.raises(
        ConfigError, match=r"images\.mask\.from: 1 of 4 files that the pattern names is not in .*masks"
    ) as one:
        scan(tmp_path / "photos", "{stem}.png", root=tmp_path / "masks")
    assert "d.png; add the missing file, or remove the samples" in str(one.value).replace("'", "")
    with pytest.raises(ConfigError, match=r"4 of 4 files .*; correct the pattern, or set root to the folder of these"):
        scan(tmp_path / "photos", "{stem}.tif", root=tmp_path / "masks")
