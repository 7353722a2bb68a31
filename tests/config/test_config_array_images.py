"""Several images a sample from arrays: which array each is, and what is refused with a remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamd.config.images import build_image_spec
from streamd.config.load import load_config
from streamd.config.schema import StreamConfig
from streamd.dataset.sources import ClassNumbers, ImageSource, RawNumbers
from streamd.errors import ConfigError

NPY: dict[str, Any] = {"kind": "npy", "path": "photos.npy"}
HDF5: dict[str, Any] = {"kind": "hdf5", "path": "x.h5"}
LMDB: dict[str, Any] = {"kind": "lmdb", "path": "x.lmdb"}
PHOTO: dict[str, Any] = {"size": [8, 9], "resize": "random_crop"}
MASK: dict[str, Any] = {"like": "photo", "mode": "index"}
BAND: dict[str, Any] = {"size": "stored", "mode": "raw", "channels": 4, "dtype": "uint16"}


def stream(source: dict[str, Any], images: dict[str, Any], folder: Path | None = None, **keys: Any) -> StreamConfig:
    config = {"streams": {"train": {"source": source, "labels": {}, "images": images, **keys}}}
    if folder is None:
        return load_config(config).streams["train"]
    (folder / "config.yaml").write_text(json.dumps(config))
    return load_config(folder / "config.yaml").streams["train"]


def test_images_of_a_file_are_arrays_by_name(tmp_path: Path) -> None:
    images = {"photo": {**PHOTO, "from": "/rgb"}, "mask": MASK, "band": {**BAND, "from": "bands.npy"}}
    for source in (HDF5, LMDB):
        assert stream(source, images, tmp_path).listing_request.images == {
            "photo": ImageSource("/rgb"),
            "mask": ImageSource("mask", form=ClassNumbers()),
            "band": ImageSource(str(tmp_path / "bands.npy"), form=RawNumbers(4, "uint16")),
        }
    own = stream({**HDF5, "images": "/rgb"}, {"photo": PHOTO, "mask": {**MASK, "from": "m"}}).listing_request.images
    assert own == {"photo": ImageSource(None), "mask": ImageSource("m", form=ClassNumbers())}


def test_npy_files_of_images_are_relative_to_root_or_to_the_configuration(tmp_path: Path) -> None:
    images = {
        "mask": {**MASK, "from": "masks.npy"},
        "photo": PHOTO,
        "band": {**BAND, "from": "b-*.npy", "root": "deep"},
    }
    assert stream(NPY, images, tmp_path).listing_request.images == {
        "mask": ImageSource(str(tmp_path / "masks.npy"), form=ClassNumbers()),
        "photo": ImageSource(None),
        "band": ImageSource(str(tmp_path / "deep" / "b-*.npy"), form=RawNumbers(4, "uint16")),
    }


def test_one_image_of_arrays_is_listed_in_its_own_mode() -> None:
    request = stream(NPY, {"mask": {"mode": "index"}}).listing_request
    assert (request.images, request.raw) == (None, ClassNumbers())
    request = stream(NPY, {"cut": {"mode": "RGBA"}}).listing_request
    assert (request.images, request.raw) == (None, RawNumbers(4, "uint8"))


def test_an_image_without_a_size_has_that_of_its_array_or_of_the_image_it_follows() -> None:
    images = stream(HDF5, {"photo": {}, "mask": MASK, "band": BAND}).all_images
    stored = {"photo": (30, 40), "mask": (15, 20), "band": (5, 6)}
    shapes = {name: build_image_spec(name, images, "none", stored).shape for name in images}
    assert shapes == {"photo": (30, 40, 3), "mask": (30, 40), "band": (5, 6, 4)}
    sized = stream(HDF5, {"photo": PHOTO, "mask": MASK}).all_images
    assert build_image_spec("mask", sized, "none", stored).shape == (8, 9)


@pytest.mark.parametrize(
    ("source", "images", "sentence"),
    [
        (HDF5, {"photo": {**PHOTO, "from": "{stem}.png"}}, "images.photo.from: rows of arrays have no files beside"),
        (HDF5, {"photo": {**PHOTO, "root": "d"}}, "images.photo.root: is for .npy files; remove it"),
        (NPY, {"photo": PHOTO, "more": PHOTO}, "images.more.from: is missing, and photo is the source's own picture"),
        (
            NPY,
            {"photo": {**PHOTO, "from": "a.npy"}},
            "images: each has a from, so none takes the arrays of source.path",
        ),
        (
            {**LMDB, "images": "X"},
            {"photo": {**PHOTO, "from": "Y"}},
            "source.images: is taken by no image, since each has a from; remove it here, or there",
        ),
        (LMDB, {"photo": {**PHOTO, "from": "a.npy"}}, "images: all lie in .npy files, and none in the lmdb file"),
        (
            {**NPY, "range": [0, 1]},
            {"photo": {**BAND, "size": [8, 8]}},
            "source.range: makes pixels of 8 bits, but no image is of mode RGB or L; remove it",
        ),
        (
            HDF5,
            {"photo": PHOTO, "mask": {**MASK, "size": "stored"}},
            "images.mask.size: found 'stored', but it has the",
        ),
    ],
)
def test_what_arrays_cannot_serve_is_refused_in_a_sentence(
    source: dict[str, Any], images: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        stream(source, images)
    lines = str(refused.value).replace("configuration: streams.train.", "").splitlines()
    assert any(line.startswith(sentence) for line in lines), lines


@pytest.mark.parametrize("source", [HDF5, LMDB])
def test_a_file_of_arrays_needs_the_name_of_one_where_there_is_no_key_images(source: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"train\.source\.images: is missing; give the array that holds the images"):
        load_config({"streams": {"train": {"source": source, "labels": {}}}})


def test_files_and_roots_of_images_are_among_the_places_that_a_daemon_waits_for(tmp_path: Path) -> None:
    images = {"photo": PHOTO, "mask": {**MASK, "from": "m.npy"}, "band": {**BAND, "from": "b-*.npy", "root": "deep"}}
    places = [tmp_path / name for name in ("photos.npy", "m.npy", "deep/b-*.npy")]
    assert list(stream(NPY, images, tmp_path).data_paths) == places
    folder = {"kind": "folder", "path": "photos"}
    files = {"photo": PHOTO, "mask": {**MASK, "from": "{stem}.png", "root": "masks"}}
    assert list(stream(folder, files, tmp_path).data_paths) == [tmp_path / "photos", tmp_path / "masks"]
