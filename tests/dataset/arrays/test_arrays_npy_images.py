"""Further images in .npy files of their own: which files those are, and how many rows they must have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.array_records import BANDS, MASKS, PHOTOS

from streamd.config.load import load_config
from streamd.daemon.streams.catalog import compute_config_ids, scan_stream_sources
from streamd.dataset.arrays.npy_scan import find_arrays_in_file, split_own_image
from streamd.dataset.manifest.types import ScannedSamples
from streamd.dataset.sources import ClassNumbers, ImageSource, RawNumbers
from streamd.errors import ConfigError

MASK: dict[str, Any] = {"like": "photo", "mode": "index"}
BAND = RawNumbers(4, "uint16")


def config_of(path: str, **images: Any) -> Any:
    images = {"photo": {"size": [8, 8]}, **images}
    return load_config({"streams": {"s": {"source": {"kind": "npy", "path": path}, "labels": {}, "images": images}}})


def scan(path: str, **images: Any) -> ScannedSamples:
    return scan_stream_sources(config_of(path, **images).streams.values(), lambda *_: None)["s"]


def test_files_of_masks_in_the_folder_of_the_photos_are_no_photos(tmp_path: Path) -> None:
    for number in range(2):
        np.save(tmp_path / f"photos-{number}.npy", PHOTOS[number * 3 : number * 3 + 3])
        np.save(tmp_path / f"masks-{number}.npy", MASKS[number * 2 : number * 4 + 2])
    found = scan(str(tmp_path), mask={**MASK, "from": str(tmp_path / "masks-*.npy")})
    assert found.files == [b"photos-0.npy", b"photos-1.npy"]
    assert found.samples == 6
    masks = found.image_arrays["mask"]
    assert (masks.files, masks.arrays.starts, masks.root) == ([b"masks-0.npy", b"masks-1.npy"], (0, 2, 6), None)


def test_an_image_may_lie_in_the_very_file_of_another(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", PHOTOS)
    found = scan(str(tmp_path / "x.npy"), small={"from": str(tmp_path / "x.npy"), "size": [4, 4]})
    assert found.image_arrays["small"].files == found.files


def test_an_image_in_another_folder_has_a_root_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    np.save(tmp_path / "x.npy", PHOTOS)
    np.save(tmp_path / "m" / "m.npy", MASKS)
    found = scan(str(tmp_path / "x.npy"), mask={**MASK, "from": "m.npy", "root": str(tmp_path / "m")})
    assert found.image_arrays["mask"].root == (tmp_path / "m").resolve()


@pytest.mark.parametrize(
    ("array", "image", "sentence"),
    [
        (MASKS[:5], MASK, "m.npy' has 5 rows, but there are 6 images; it needs one row per image"),
        (MASKS.astype(float), MASK, "holds float64 (6, 20, 30); class numbers are whole numbers"),
        (PHOTOS, MASK, "holds uint8 (6, 40, 60, 3); class numbers have the shape (n, height, width)"),
        (
            BANDS,
            {"size": [4, 4], "mode": "raw", "channels": 4, "dtype": "float32"},
            "holds uint16 (6, 8, 10, 4), but image has dtype: float32; write dtype: uint16",
        ),
        (BANDS, {"size": [4, 4]}, "holds uint16 (6, 8, 10, 4); images have 1 channel or 3"),
    ],
)
def test_an_array_that_is_not_what_its_image_says_is_refused(
    array: Any, image: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", PHOTOS)
    np.save(tmp_path / "m.npy", array)
    with pytest.raises(ConfigError) as refused:
        scan(str(tmp_path / "x.npy"), m={**image, "from": str(tmp_path / "m.npy")})
    assert str(refused.value).startswith("streams.s.images.m.from: ")
    assert sentence in str(refused.value)


def test_another_file_or_mode_of_an_image_is_another_list(tmp_path: Path) -> None:
    images: list[dict[str, Any]] = [
        {"from": "m.npy", "size": [4, 4], "mode": "index"},
        {"from": "n.npy", "size": [4, 4], "mode": "index"},
        {"from": "m.npy", "size": [4, 4], "mode": "L"},
        {"from": "m.npy", "size": [4, 4], "mode": "raw", "channels": 1},
    ]
    ids = [compute_config_ids(config_of(str(tmp_path / "x.npy"), m=image))["s"] for image in images]
    assert len(set(ids)) == len(ids)
    resized = config_of(str(tmp_path / "x.npy"), m={**images[0], "size": [8, 8]})
    assert compute_config_ids(resized)["s"] == ids[0]  # the list does not depend on the size that is served


def test_the_first_array_of_a_file_gives_the_samples_their_rows_where_the_source_names_none() -> None:
    images = {
        "band": ImageSource("/d/b.npy", form=BAND),
        "photo": ImageSource("rgb"),
        "mask": ImageSource("m", form=ClassNumbers()),
    }
    own, inside, beside = find_arrays_in_file("s", None, images, None)
    assert (own.name, own.key, own.form) == ("rgb", "streams.s.images.photo.from", None)
    assert (list(inside), list(beside)) == (["mask"], ["band"])
    named, inside, _ = find_arrays_in_file("s", "x", {"mask": images["mask"], "photo": ImageSource(None)}, None)
    assert (named.name, named.key) == ("x", "streams.s.source.images")
    assert list(inside) == ["mask"]
    assert split_own_image(None, BAND) == (BAND, {})
