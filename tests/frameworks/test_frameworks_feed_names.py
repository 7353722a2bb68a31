"""The names of a model's inputs and targets, as users give them."""

from __future__ import annotations

from typing import Any

import pytest
from support.stream_fake import ANGLE, KIND, make_spec

from streamd.core.spec import ImageSpec, LabelSpec
from streamd.errors import ConfigError
from streamd.frameworks.model_inputs import choose_inputs, choose_targets, find_label

IMAGES = {"photo": ImageSpec(8, 8, 3), "depth": ImageSpec(8, 8, 1), "mask": ImageSpec(8, 8, 1, mode="index")}
SPEC = make_spec(ANGLE, KIND, LabelSpec("caption", "string", text_bytes=4), images=IMAGES)


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        (None, {"photo": "photo", "depth": "depth"}),
        ([], {"photo": "photo", "depth": "depth"}),
        ("angle", {"images": "photo", "angle": "angle"}),
        (["angle", "kind"], {"images": "photo", "angle": "angle", "kind": "kind"}),
        ("depth", {"depth": "depth"}),
        (["angle", "mask"], {"angle": "angle", "mask": "mask"}),
        (["photo", "photo"], {"photo": "photo"}),
    ],
)
def test_inputs_are_what_is_named_or_all_pictures(given: Any, inputs: dict[str, str]) -> None:
    assert choose_inputs(SPEC, given) == inputs


@pytest.mark.parametrize(
    ("inputs", "given", "targets"),
    [
        ((), "auto", ("angle", "kind", "mask")),
        (("kind", "mask"), "auto", ("angle",)),
        ((), None, ()),
        ((), [], ()),
        (("photo",), "photo", ("photo",)),
        (("photo", "angle"), ["angle", "photo"], ("angle", "photo")),
    ],
)
def test_targets_are_what_is_named_or_all_labels_and_masks(inputs: Any, given: Any, targets: tuple[str, ...]) -> None:
    assert choose_targets(SPEC, inputs, given) == targets


def test_a_label_called_images_and_the_first_image_cannot_both_have_that_name() -> None:
    spec = make_spec(LabelSpec("images", "int"), images={"photo": ImageSpec(8, 8, 3)})
    with pytest.raises(ConfigError, match=r"name the image too, as in  inputs=\['photo', 'images'\]"):
        choose_inputs(spec, "images")
    assert choose_inputs(spec, ["photo", "images"]) == {"photo": "photo", "images": "images"}


@pytest.mark.parametrize("name", ["caption", "fotos"])
def test_text_and_unknown_names_are_refused_on_both_sides(name: str) -> None:
    said = "is text" if name == "caption" else "no image 'fotos'; .* photo .RGB., depth .L., mask .index.; did you mean"
    for choose in (lambda: choose_inputs(SPEC, [name]), lambda: choose_targets(SPEC, (), [name])):
        with pytest.raises(ConfigError, match=said):
            choose()


def test_an_unknown_label_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        ConfigError, match=r"has no label 'angel'; its labels are: angle .float., .*did you mean 'angle'"
    ):
        find_label(SPEC, "angel")
