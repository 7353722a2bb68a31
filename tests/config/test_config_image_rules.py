"""The key `images`: what it takes, what it refuses by name, and what becomes of it in a specification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamd.config.images import build_image_spec
from streamd.config.load import load_config
from streamd.config.schema import StreamConfig
from streamd.dataset.sources import ImageSource
from streamd.errors import ConfigError

FOLDER: dict[str, Any] = {"kind": "folder", "path": "d"}
TABLE: dict[str, Any] = {"kind": "table", "path": "d.csv"}
PHOTO: dict[str, Any] = {"size": [8, 9], "resize": "random_crop", "scale": [0.5, 1]}
MASK: dict[str, Any] = {"like": "photo", "mode": "index", "from": "{stem}.png"}
BOTH: dict[str, Any] = {"photo": PHOTO, "mask": MASK}


def stream(**keys: Any) -> StreamConfig:
    return load_config({"streams": {"train": {"source": FOLDER, "labels": {}, **keys}}}).streams["train"]


def refusal(**keys: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        stream(**keys)
    return str(raised.value).removeprefix("configuration: streams.train.")


def test_one_image_is_called_image_and_lies_where_the_source_says() -> None:
    one = stream(image={"size": [8, 8]})
    assert list(one.all_images) == ["image"]
    assert one.listing_request.images is None
    assert stream(images={"photo": {"size": [8, 8]}}).listing_request.images is None


def test_a_pattern_is_relative_to_its_root(tmp_path: Path) -> None:
    asked = stream(images={"photo": PHOTO, "mask": {**MASK, "root": str(tmp_path)}}).listing_request.images
    assert asked == {"photo": ImageSource(None), "mask": ImageSource("{stem}.png", tmp_path, is_pattern=True)}


def test_an_image_of_a_table_is_the_column_of_its_own_name() -> None:
    images = {"left": {"size": [8, 8]}, "right": {"size": [8, 8], "from": "r"}}
    assert stream(source=TABLE, images=images).listing_request.images == {
        "left": ImageSource("left"),
        "right": ImageSource("r"),
    }
    own = stream(source={**TABLE, "image": "path"}, images=images).listing_request.images
    assert own is not None
    assert own["left"] == ImageSource(None)


def test_an_image_that_follows_takes_size_and_resize_of_the_other() -> None:
    images = stream(images=BOTH).all_images
    spec = build_image_spec("mask", images, "imagenet")
    assert (spec.shape, spec.resize, spec.scale, spec.like) == ((8, 9), "random_crop", (0.5, 1), "photo")
    assert (spec.mode, spec.dtype, spec.fill, spec.normalize) == ("index", "uint8", 255, "none")
    assert build_image_spec("photo", images, "imagenet").normalize == "imagenet"
    smaller = stream(images={"photo": PHOTO, "mask": {**MASK, "size": [4, 4], "dtype": "uint16"}}).all_images
    assert build_image_spec("mask", smaller, "none").shape == (4, 4)
    assert build_image_spec("mask", smaller, "none").fill == 65535


def test_the_streams_normalize_goes_to_images_with_as_many_channels() -> None:
    images = stream(images={"photo": PHOTO, "depth": {"like": "photo", "mode": "L", "from": "{name}"}}).all_images
    found = {name: build_image_spec(name, images, "imagenet").normalize for name in images}
    assert found == {"photo": "imagenet", "depth": "none"}
    own = stream(images={"photo": {**PHOTO, "normalize": "unit"}}, normalize="imagenet").all_images
    assert build_image_spec("photo", own, "imagenet").normalize == "unit"


def test_like_drops_the_other_of_image_and_images() -> None:
    config = load_config(
        {
            "streams": {
                "one": {"source": FOLDER, "image": {"size": [8, 8]}},
                "several": {"like": "one", "labels": {}, "images": BOTH},
                "again": {"like": "several", "image": {"size": [4, 4]}},
            }
        }
    )
    assert list(config.streams["several"].all_images) == ["photo", "mask"]
    assert list(config.streams["again"].all_images) == ["image"]


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"images": BOTH, "image": {"size": [8, 8]}}, "images: stands beside image, which is short for one of them"),
        ({"images": {}}, "images: there are none; write images:"),
        ({"images": {"photo": {}}}, "images.photo.size: is missing; add size: [height, width], or like"),
        ({"images": {"photo": PHOTO, "mask": {**MASK, "like": "foto"}}}, "images.mask.like: found 'foto', which is no"),
        ({"images": {"photo": {**PHOTO, "like": "photo"}}}, "images.photo.resize: follows from like: photo"),
        ({"images": {"photo": {"like": "photo"}}}, "images.photo.like: an image cannot follow itself"),
        (
            {"images": {**BOTH, "third": {**MASK, "like": "mask"}}},
            "images.third.like: mask itself follows photo; write like: photo",
        ),
        ({"images": {"photo": PHOTO, "again": {"size": [8, 8]}}}, "images.again.from: is missing, and photo is the"),
        ({"images": {"photo": PHOTO, "mask": {**MASK, "from": "{stm}.png"}}}, "images.mask.from: found '{stm}.png'; a"),
        ({"images": {"photo": PHOTO, "mask": {**MASK, "from": "../{stem}"}}}, "images.mask.from: found '../{stem}'; a"),
        ({"images": {"photo": PHOTO, "mask": {**MASK, "from": "mask"}}}, "images.mask.from: a folder has no column"),
        ({"images": {"photo": {**PHOTO, "root": "d"}}}, "images.photo.root: is for patterns and columns"),
        ({"images": BOTH, "labels": {"mask": "category"}}, "images.mask: a label has the same name; rename one"),
        ({"images": {"a b": PHOTO}}, "images.a b: the name of an image has 1 to 64 characters"),
        ({"images": {"photo": {**PHOTO, "dtype": "uint16"}}}, "images.photo.dtype: pixels of mode RGB are uint8"),
        ({"images": {"photo": PHOTO, "mask": {**MASK, "fill": 256}}}, "images.mask.fill: found 256; use a number from"),
        ({"images": {"photo": PHOTO, "mask": {**MASK, "normalize": "unit"}}}, "images.mask.normalize: class numbers"),
        ({"images": BOTH, "cache": {"path": "c"}}, "cache: would keep one random crop of each sample"),
        (
            {"source": {"kind": "npy", "path": "x.npy"}, "images": BOTH},
            "images.mask.from: rows of arrays have no files",
        ),
        ({"source": TABLE, "image": {"size": [8, 8]}}, "source.image: is missing; give the column that holds the file"),
        (
            {"source": {"kind": "tar", "path": "d"}, "images": {"a": {"size": [8, 8], "from": "{stem}.png"}}},
            "images.a.from: a tar has no files beside it; use a suffix, such as mask.png for 7.mask.png",
        ),
        ({"image": {"size": [8, 8], "from": "mask"}}, "image.from: is a key of images; write images: {image: {...}}"),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_sentence(keys: dict[str, Any], sentence: str) -> None:
    lines = refusal(**keys).replace("configuration: streams.train.", "").splitlines()
    assert any(line.startswith(sentence) for line in lines), lines
