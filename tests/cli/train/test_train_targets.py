"""What `streamd-train` learns: a label, a mask or a picture, chosen before Keras is loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.stream_fake import ANGLE, KIND, make_spec

from streamd.cli.train.run import ImageTarget, check_streams_match, choose_target
from streamd.core.spec import ImageSpec, LabelSpec
from streamd.errors import ConfigError

PHOTO, MASK = ImageSpec(8, 8, 3), ImageSpec(8, 8, 1, mode="index", fill=255)
SEVERAL = {"photo": PHOTO, "mask": MASK}


def test_several_labels_require_a_choice() -> None:
    with pytest.raises(ConfigError, match="has the labels angle, kind: choose one with --label"):
        choose_target(make_spec(ANGLE, KIND), None)
    assert choose_target(make_spec(ANGLE, KIND), "kind") is KIND


def test_no_label_or_a_wrong_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to learn"):
        choose_target(make_spec(), None)
    with pytest.raises(ConfigError, match="did you mean 'angle'"):
        choose_target(make_spec(ANGLE), "angel")


def test_a_validation_that_differs_is_refused() -> None:
    train_spec = make_spec(KIND)
    with pytest.raises(ConfigError, match="give both streams the same  image:"):
        check_streams_match(train_spec, replace(train_spec, images={"image": ImageSpec(9, 9, 3)}), KIND)
    with pytest.raises(ConfigError, match="differ in type or classes"):
        check_streams_match(train_spec, make_spec(replace(KIND, classes=("car", "cat"))), KIND)
    with pytest.raises(ConfigError, match="no label 'kind'"):
        check_streams_match(train_spec, make_spec(ANGLE), KIND)


def test_a_text_label_cannot_be_learned() -> None:
    text = LabelSpec("caption", "string", text_bytes=9)
    assert choose_target(make_spec(text, KIND), None) is KIND
    with pytest.raises(ConfigError, match="has no labels but text"):
        choose_target(make_spec(text), None)
    with pytest.raises(ConfigError, match="'caption' is text, which cannot be learned: serve it as type category"):
        choose_target(make_spec(text), "caption")


def test_boxes_are_learned_by_the_users_own_program() -> None:
    boxes = LabelSpec("boxes", "boxes", width=5, rows=9)
    with pytest.raises(
        ConfigError, match="label 'boxes' holds boxes, for which streamd-train has no model and no loss"
    ):
        choose_target(make_spec(boxes), "boxes")
    assert choose_target(make_spec(boxes, ANGLE), None) == ANGLE
    with pytest.raises(ConfigError, match="has no labels but text, boxes or points"):
        choose_target(make_spec(boxes), None)


def test_the_only_mask_is_learned_where_there_are_no_labels() -> None:
    assert choose_target(make_spec(images=SEVERAL), None) == ImageTarget("mask", MASK)
    assert choose_target(make_spec(ANGLE, images=SEVERAL), None) is ANGLE
    with pytest.raises(ConfigError, match="has the masks mask, depth: choose one with --label"):
        choose_target(make_spec(images={**SEVERAL, "depth": MASK}), None)


def test_an_image_is_learned_where_it_is_named() -> None:
    spec = make_spec(ANGLE, images=SEVERAL)
    photo, mask = choose_target(spec, "photo"), choose_target(spec, "mask")
    assert (photo.type, mask.type) == ("an image of mode RGB", "an image of mode index")
    assert isinstance(mask, ImageTarget)
    assert mask.is_mask
    check_streams_match(spec, spec, mask)
    with pytest.raises(ConfigError, match=r"mask uint8 .batch, 8, 8., and of .*: give both streams the same  image:"):
        check_streams_match(spec, make_spec(ANGLE, images={"photo": PHOTO}), mask)
