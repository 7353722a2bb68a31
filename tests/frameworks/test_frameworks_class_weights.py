"""The weights of class numbers in images; tests/frameworks/test_frameworks_model_inputs.py has those of labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.stream_fake import ANGLE, make_spec

from streamd.core.spec import ImageSpec
from streamd.errors import ConfigError
from streamd.frameworks.model_inputs import add_class_weights, build_class_weights, build_model_feed

SPEC = make_spec(
    ANGLE,
    images={
        "photo": ImageSpec(8, 8, 3),
        "mask": ImageSpec(8, 8, 1, mode="index"),
        "parts": ImageSpec(8, 8, 1, mode="index", dtype="uint16"),
    },
)


def test_each_number_of_the_dtype_has_a_weight() -> None:
    weights = build_class_weights(SPEC, ("parts",), {65535: 0.0, 300: 2.5})
    assert weights.table[np.array([[0, 300], [65535, 1]], np.uint16)].tolist() == [[1, 2.5], [0, 1]]
    # Keras takes the numbers of an image as they are.
    fed = add_class_weights(build_model_feed(SPEC, targets="parts"), SPEC, {65535: 0.0, 300: 2.5})
    assert fed.class_weights is not None
    assert fed.class_weights.table.tolist() == weights.table.tolist()


@pytest.mark.parametrize(
    ("target", "given", "said"),
    [
        ("mask", {256: 1.0}, "the classes of image 'mask' are the numbers 0 to 255, not 256"),
        ("mask", {-1: 1.0}, "not -1"),
        ("mask", {"road": 1.0}, "not 'road'"),
        ("mask", {True: 1.0}, "not True"),
        ("mask", {3: -1.0}, "the weight of class 3 must be a finite number, 0 or more"),
        ("mask", "balanced", "class_weight='balanced' needs the counts of classes, .* pixels of 'mask'"),
        ("mask", "balance", "class_weight is {class: weight}, or \"balanced\", not 'balance'"),
        ("photo", {3: 1.0}, "needs exactly one target that is a category, .* or an image of mode index"),
        ("angle", {3: 1.0}, "needs exactly one target that is a category"),
    ],
)
def test_weights_that_match_no_class_are_refused(target: str, given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build_class_weights(SPEC, (target,), given)
