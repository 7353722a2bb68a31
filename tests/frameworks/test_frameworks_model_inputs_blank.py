"""A batch of the right shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.stream_fake import ANGLE, KIND, FakeStream, make_spec

from streamd.core.spec import LabelSpec
from streamd.frameworks.model_inputs import build_blank_batch, build_model_feed


def test_it_has_the_shapes_and_types_of_the_streams_own() -> None:
    spec = make_spec(ANGLE, KIND)
    blank, real = build_blank_batch(spec), next(next(FakeStream(spec).epochs()))
    pairs: list[tuple[Any, Any]] = [(blank.images, real.images), (blank.weights, real.weights)]
    pairs += [(blank.labels[name], real.labels[name]) for name in ("angle", "kind")]
    assert [(one.shape, one.dtype) for one, _ in pairs] == [(other.shape, other.dtype) for _, other in pairs]


def test_a_vector_has_its_width_and_an_image_takes_no_memory() -> None:
    blank = build_blank_batch(make_spec(LabelSpec("pose", "float", width=3), batch_size=100))
    assert blank.labels["pose"].shape == (100, 3)
    assert blank.images.strides == (0, 0, 0, 0)


def test_a_feed_takes_it_as_any_other() -> None:
    spec = make_spec(KIND)
    x, y, weights = build_model_feed(spec, one_hot=True, class_weight={"cat": 2.0}).build_arrays(
        build_blank_batch(spec)
    )
    assert (x.shape, y.shape, weights.tolist()) == ((4, 8, 8, 3), (4, 3), [1, 1, 1, 1])
    assert np.count_nonzero(y[:, 0]) == 4
