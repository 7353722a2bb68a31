"""The key `views`: what it needs, what it refuses by name, and what becomes of it in a specification."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.config.images import build_image_spec
from streamd.config.load import load_config
from streamd.config.schema import StreamConfig
from streamd.dataset.sources import FrameRule
from streamd.errors import ConfigError

FOLDER: dict[str, Any] = {"kind": "folder", "path": "d"}
VIEWED: dict[str, Any] = {"size": [8, 9], "resize": "random_crop", "views": 2}
MASK: dict[str, Any] = {"like": "photo", "mode": "index", "from": "{stem}.png"}
BOXES: dict[str, Any] = {"boxes": {"type": "boxes", "max": 3}}


def stream(**keys: Any) -> StreamConfig:
    return load_config({"streams": {"train": {"source": FOLDER, "labels": {}, **keys}}}).streams["train"]


def refusal(**keys: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        stream(**keys)
    return str(raised.value).removeprefix("configuration: streams.train.")


def test_views_stand_before_the_shape_of_the_picture_and_are_followed() -> None:
    images = stream(images={"photo": VIEWED, "mask": MASK}).all_images
    assert build_image_spec("photo", images, "none").shape == (2, 8, 9, 3)
    assert build_image_spec("photo", images, "none").picture_shape == (8, 9, 3)
    assert build_image_spec("mask", images, "none").shape == (2, 8, 9)
    assert build_image_spec("image", stream(image={**VIEWED, "views": 1}).all_images, "none").shape == (1, 8, 9, 3)


@pytest.mark.parametrize("views", [0, 65, "2", True, 1.5])
def test_the_number_of_views_is_bounded(views: object) -> None:
    assert "use a whole number from 1 to 64" in refusal(image={**VIEWED, "views": views})


def test_views_need_something_that_tells_them_apart() -> None:
    plain = {"size": [8, 9], "views": 2}
    why = "makes equal views; add resize: random_crop, or a transform that draws from its rng"
    assert refusal(image=plain) == f"image.views: {why}"
    assert refusal(images={"image": plain}) == f"images.image.views: {why}"
    assert stream(image=plain, transform="augment:flip").image.views == 2


def test_what_does_not_go_with_views_is_refused_by_name() -> None:
    follower = {**MASK, "views": 2}
    assert refusal(images={"photo": VIEWED, "mask": follower}) == (
        "images.mask.views: follows from like: photo; remove it"
    )
    assert refusal(image=VIEWED, labels=BOXES, source={"kind": "table", "path": "t.csv", "image": "path"}) == (
        "labels.boxes.of: image has views, and boxes lie in one picture; name an image without views, or leave the "
        "label out"
    )
    coco = {"kind": "coco", "path": "i.json", "root": "d"}
    assert refusal(image=VIEWED, labels=None, source=coco) == (
        "labels: the boxes of kind coco lie in one picture, but image has views; write labels: {}, or remove views"
    )
    assert refusal(image=VIEWED, cache={"path": "c"}) == (
        "cache: would keep one random crop of each sample forever; remove it, or use resize: crop"
    )


def test_boxes_may_follow_an_image_without_views() -> None:
    images = {"photo": {**VIEWED, "from": "p"}, "whole": {"size": [8, 9], "from": "w"}}
    labels = {"boxes": {"type": "boxes", "max": 3, "of": "whole"}}
    assert stream(source={"kind": "table", "path": "t.csv"}, images=images, labels=labels).labels is not None


CLIP: dict[str, Any] = {"size": [8, 9], "frames": {"by": "drive", "order": "frame", "offsets": [-1, 0]}}
TABLE: dict[str, Any] = {"kind": "table", "path": "t.csv", "image": "path"}


def test_frames_stand_before_the_shape_of_the_picture_and_are_followed() -> None:
    mask = {"like": "clip", "mode": "index", "from": "mask"}
    images = stream(source=TABLE, images={"clip": CLIP, "mask": mask}).all_images
    assert build_image_spec("clip", images, "none").shape == (2, 8, 9, 3)
    assert build_image_spec("clip", images, "none").picture_shape == (8, 9, 3)
    assert build_image_spec("mask", images, "none").shape == (2, 8, 9)
    request = stream(source=TABLE, image=CLIP).listing_request.images
    assert request is not None
    assert request["image"].place is None
    assert request["image"].frames == FrameRule("drive", "frame", (-1, 0), "repeat")


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"offsets": []}, "image.frames.offsets: "),
        ({"offsets": [0] * 65}, "image.frames.offsets: "),
        ({"offsets": [0.5]}, "image.frames.offsets[0]: "),
        ({"offsets": [True]}, "image.frames.offsets[0]: "),
        ({"offsets": -1}, "image.frames.offsets: "),
        ({"edge": "wrap"}, "image.frames.edge: found 'wrap'; use repeat or drop"),
        ({"by": ""}, "image.frames.by: "),
        ({"every": 2}, "image.frames.every: unknown key"),
    ],
)
def test_the_rule_of_frames_is_checked(rule: dict[str, Any], says: str) -> None:
    assert refusal(source=TABLE, image={**CLIP, "frames": CLIP["frames"] | rule}).startswith(says)


def test_what_does_not_go_with_frames_is_refused_by_name() -> None:
    assert refusal(image=CLIP) == (
        "image.frames: a folder has no columns that say which pictures follow each other; use kind table, with a "
        "column for drive and one for frame"
    )
    assert refusal(image={**CLIP, "size": "stored"}, source={"kind": "npy", "path": "x.npy"}) == (
        "image.frames: no table says which rows follow each other; add table: FILE under source, with a column for "
        "drive and one for frame"
    )
    both = {**CLIP, "views": 2, "resize": "random_crop"}
    assert refusal(image=both, source=TABLE) == (
        "image.views: an image has views or frames, and not both; remove one of them"
    )
    followers = {"clip": CLIP, "mask": {"like": "clip", "mode": "index", "from": "{stem}.png"}}
    assert refusal(images=followers, source=TABLE) == (
        "images.mask.from: the frames of a clip are files that a column names, and a pattern is not a column; write "
        "the file names into a column"
    )
    followers["mask"] = {"like": "clip", "mode": "index", "frames": CLIP["frames"]}
    assert refusal(images=followers, source=TABLE) == "images.mask.frames: follows from like: clip; remove it"
    assert refusal(image=CLIP, source=TABLE, labels=BOXES) == (
        "labels.boxes.of: image has frames, and boxes lie in one picture; name an image without frames, or leave the "
        "label out"
    )
