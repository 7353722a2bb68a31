"""Which arrays of a batch a model gets: inputs, targets and weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.stream_fake import ANGLE, KIND, FakeStream, make_spec

from streamd.client import Batch
from streamd.core.spec import ImageSpec, LabelSpec, StreamSpec
from streamd.errors import ConfigError, StreamdError
from streamd.frameworks.model_inputs import add_class_weights, build_blank_batch, build_model_feed

SEVERAL = make_spec(
    KIND,
    images={
        "photo": ImageSpec(8, 8, 3),
        "bands": ImageSpec(8, 8, 4, mode="raw", dtype="uint16"),
        "mask": ImageSpec(8, 8, 1, mode="index", fill=255),
    },
)
CAPTION = LabelSpec("caption", "string", text_bytes=20)
TAGS = LabelSpec("tags", "tags", width=2, classes=("a", "b"), counts=(1, 2))
UNCOUNTED = LabelSpec("kind", "category", classes=("a", "b"))
BOTH = (KIND, ANGLE)
TEXT = r"label 'caption' of stream 'train' is text.*category or tags"


def first_batch(spec: StreamSpec, weightless: frozenset[int] = frozenset()) -> Batch:
    batch: Batch = next(next(FakeStream(spec, weightless=weightless).epochs()))
    return batch


def test_the_only_label_is_the_target() -> None:
    spec = make_spec(ANGLE)
    batch = first_batch(spec)
    x, y = build_model_feed(spec).build_arrays(batch)
    assert x is batch.images
    np.testing.assert_array_equal(y, batch.labels["angle"])


def test_several_labels_are_a_dict_of_targets() -> None:
    spec = make_spec(ANGLE, KIND)
    _, y = build_model_feed(spec).build_arrays(first_batch(spec))
    assert list(y) == ["angle", "kind"]


def test_a_stream_without_labels_gives_images_alone() -> None:
    spec = make_spec()
    assert len(build_model_feed(spec).build_arrays(first_batch(spec))) == 1


def test_one_target_is_an_array_however_it_is_named() -> None:
    spec = make_spec(ANGLE, KIND)
    batch = first_batch(spec)
    assert build_model_feed(spec, targets="kind").build_arrays(batch)[1] is batch.labels["kind"]
    assert build_model_feed(spec, targets=["kind"]).build_arrays(batch)[1] is batch.labels["kind"]
    assert len(build_model_feed(spec, targets=None).build_arrays(batch)) == 1


def test_inputs_go_beside_the_images_and_are_no_targets() -> None:
    spec = make_spec(ANGLE, KIND)
    batch = first_batch(spec)
    x, y = build_model_feed(spec, inputs="angle").build_arrays(batch)
    assert x == {"images": batch.images, "angle": batch.labels["angle"]}
    assert y is batch.labels["kind"]


def test_text_is_not_a_default_target() -> None:
    assert build_model_feed(make_spec(CAPTION, ANGLE)).targets == ("angle",)
    assert build_model_feed(make_spec(CAPTION)).targets == ()
    assert build_model_feed(make_spec(CAPTION, ANGLE, KIND)).targets == ("angle", "kind")


def test_boxes_are_targets_and_a_blank_batch_has_none() -> None:
    spec = make_spec(LabelSpec("boxes", "boxes", width=5, rows=7), LabelSpec("joints", "points", width=2, rows=3))
    assert build_model_feed(spec).targets == ("boxes", "joints")
    blank = build_blank_batch(spec).labels
    assert (blank["boxes"].shape, blank["joints"].shape) == ((spec.batch_size, 7, 5), (spec.batch_size, 3, 2))
    assert (blank["boxes"] == -1).all()


def test_tags_are_targets_without_a_change() -> None:
    feed = build_model_feed(make_spec(TAGS))
    assert (feed.targets, feed.one_hot) == (("tags",), {})


@pytest.mark.parametrize(
    ("labels", "choice", "said"),
    [
        (
            (ANGLE,),
            {"targets": "angel"},
            r"image 'angel'; the labels .* are: angle \(float\); its images are: image .RGB.; did you mean 'angle'",
        ),
        ((ANGLE,), {"inputs": ["speed"]}, "no label and no image 'speed'"),
        ((ANGLE,), {"one_hot": True}, "one_hot needs a target that is a category"),
        ((ANGLE,), {"class_weight": "balanced"}, "exactly one target that is a category"),
        ((TAGS,), {"one_hot": True}, r"tags \(tags\)"),
        ((TAGS,), {"class_weight": "balanced"}, r"tags \(tags\)"),
        ((CAPTION, ANGLE), {"targets": "caption"}, TEXT),
        ((CAPTION, ANGLE), {"inputs": "caption"}, TEXT),
        ((CAPTION, ANGLE), {"targets": ["angle", "caption"]}, TEXT),
        ((UNCOUNTED,), {"class_weight": "balanced"}, "needs the counts of 'kind'"),
        (
            (KIND,),
            {"class_weight": {"dogs": 2.0}},
            (
                "'kind' has no class 'dogs'; its classes are: 'car', 'cat', 'dog', or the numbers 0 to 2; "
                "did you mean 'dog'"
            ),
        ),
        (
            BOTH,
            {"targets": 3},
            'targets must be the name of a label or an image, a list of names, "auto" or None, not 3',
        ),
        (BOTH, {"targets": True}, "targets must be .* not True"),
        (BOTH, {"targets": ["kind", 3]}, "targets must be .* not \\['kind', 3\\]"),
        (BOTH, {"inputs": 3}, "inputs must be the name of an image or a label, a list of names or None, not 3"),
        (BOTH, {"one_hot": "yes"}, "one_hot must be True or False, not 'yes'"),
        (
            BOTH,
            {"inputs": ["images"]},
            "inputs= names images and labels of the stream, and none is called 'images': name labels alone",
        ),
        (
            BOTH,
            {"inputs": ["angle"], "targets": "angle"},
            "label 'angle' of stream 'train' is both an input and a target",
        ),
    ],
)
def test_targets_and_inputs_that_the_labels_do_not_allow_are_refused(
    labels: tuple[LabelSpec, ...], choice: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        build_model_feed(make_spec(*labels), **choice)


def test_one_hot_expands_categories_to_the_number_of_classes() -> None:
    spec = make_spec(KIND, ANGLE)
    batch = first_batch(spec)
    _, y = build_model_feed(spec, one_hot=True).build_arrays(batch)
    assert y["kind"].shape == (4, 3)
    assert y["kind"].dtype == np.float32
    np.testing.assert_array_equal(y["kind"].argmax(axis=1), batch.labels["kind"])
    np.testing.assert_array_equal(y["kind"].sum(axis=1), 1)
    assert y["angle"] is batch.labels["angle"]


def test_balanced_weights_give_every_class_the_same_total() -> None:
    feed = build_model_feed(make_spec(KIND), class_weight="balanced")
    assert feed.class_weights is not None
    np.testing.assert_allclose(feed.class_weights.table * KIND.counts, 10 / 3, rtol=1e-6)


def test_balanced_weights_are_one_on_average_whatever_classes_have_no_sample() -> None:
    counts = np.array([6, 0, 2, 0, 1])
    feed = build_model_feed(
        make_spec(LabelSpec("kind", "category", classes=tuple("abcde"), counts=tuple(counts.tolist()))),
        class_weight="balanced",
    )
    assert feed.class_weights is not None
    np.testing.assert_allclose(feed.class_weights.table * counts, [3, 0, 3, 0, 3])
    assert np.isfinite(feed.class_weights.table).all()


@pytest.mark.parametrize("name", ["dog", 2])
def test_class_weights_multiply_the_weights_by_name_or_number(name: int | str) -> None:
    spec = make_spec(KIND)
    batch = first_batch(spec, weightless=frozenset({2, 4}))
    weights = build_model_feed(spec, class_weight={name: 5.0}).build_arrays(batch)[2]
    np.testing.assert_array_equal(weights, batch.weights * np.where(batch.labels["kind"] == 2, 5, 1))
    assert weights.dtype == np.float32


def test_classes_that_are_numbers_are_named_by_their_value_only() -> None:
    digits = LabelSpec("digit", "category", classes=(10, 20))
    feed = build_model_feed(make_spec(digits), class_weight={20: 3.0})
    assert feed.class_weights is not None
    np.testing.assert_array_equal(feed.class_weights.table, [1, 3])
    with pytest.raises(ConfigError, match="no class 1"):
        build_model_feed(make_spec(digits), class_weight={1: 3.0})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({0: "a"}, "the weight of class 0 must be a finite number, 0 or more, not 'a'"),
        ({"car": float("nan")}, "the weight of class 'car' must be a finite number, 0 or more, not nan"),
        ({0: float("inf")}, "not inf"),
        ({0: -1}, "not -1"),
        ({0: None}, "not None"),
        ({0.5: 2}, r"'kind' has no class 0\.5; its classes are: 'car', 'cat', 'dog', or the numbers 0 to 2"),
        ({2: 1.0, "dog": 2.0}, "gives class 'dog' of 'kind' twice, as 2 and as 'dog'"),
    ],
)
def test_invalid_or_ambiguous_class_weights_are_refused(given: dict[int | str, float], said: str) -> None:
    spec = make_spec(KIND)
    with pytest.raises(ConfigError, match=said):
        build_model_feed(spec, class_weight=given)
    with pytest.raises(ConfigError, match=said):
        add_class_weights(build_model_feed(spec), spec, given)


def test_class_weights_of_several_targets_are_refused_with_the_argument_that_chooses_one() -> None:
    spec = make_spec(KIND, ANGLE)
    said = r"would weigh all 2 targets of stream 'train' by the class of one \(kind, angle\): .* with targets="
    with pytest.raises(ConfigError, match=said):
        build_model_feed(spec, class_weight="balanced")
    with pytest.raises(ConfigError, match=said):
        add_class_weights(build_model_feed(spec), spec, {0: 2.0})
    assert build_model_feed(spec, targets=["kind"], class_weight="balanced").weighted


@pytest.mark.parametrize("changes", [{"bad_policy": "mask"}, {"remainder": "pad"}, {"weighted": True}])
def test_weights_are_fed_where_a_sample_can_weigh_other_than_1(changes: dict[str, str]) -> None:
    spec = make_spec(ANGLE, **changes)
    batch = first_batch(spec)
    assert build_model_feed(spec).build_arrays(batch)[2] is batch.weights
    assert build_model_feed(make_spec(**changes)).build_arrays(batch)[1:] == (None, batch.weights)


def test_the_weight_of_a_sample_and_that_of_its_class_are_multiplied() -> None:
    spec = make_spec(KIND, weighted=True)
    batch = first_batch(spec)
    batch.weights[:] = [0.5, 2, 0, 1]
    weights = build_model_feed(spec, class_weight={"dog": 5.0}).build_arrays(batch)[2]
    np.testing.assert_array_equal(weights, [0.5, 2, 0, 1] * np.where(batch.labels["kind"] == 2, 5, 1))


def test_an_unexpected_weight_is_an_error_that_says_what_to_do() -> None:
    spec = make_spec(ANGLE)
    batch = first_batch(spec, weightless=frozenset(range(10)))
    with pytest.raises(StreamdError, match=r"batch 0:0 has samples of weight 0.*policy: mask"):
        build_model_feed(spec).build_arrays(batch)


@pytest.mark.parametrize("number", [0, 10])
def test_class_weights_given_to_fit_for_classes_with_other_numbers_are_refused(number: int) -> None:
    """Keras counts classes from 0, so a number could be a class or its place."""
    spec = make_spec(LabelSpec("digit", "category", classes=(0, 10, 20), counts=(4, 3, 3)))
    with pytest.raises(
        ConfigError, match=r"numbers the classes of 'digit' from 0.*the classes are 0, 10, 20.*fit_data\(stream"
    ):
        add_class_weights(build_model_feed(spec), spec, {number: 3.0})
    assert add_class_weights(build_model_feed(spec), spec, "balanced").weighted


def test_class_weights_given_to_fit_do_not_change_the_original_feed() -> None:
    spec = make_spec(KIND)
    feed = build_model_feed(spec)
    weights = add_class_weights(feed, spec, {0: 3.0}).class_weights
    assert weights is not None
    np.testing.assert_array_equal(weights.table, [3, 1, 1])
    assert feed.class_weights is None


# --- several images


def test_all_images_but_masks_go_in_and_masks_are_targets_beside_the_labels() -> None:
    batch = first_batch(SEVERAL)
    x, y = build_model_feed(SEVERAL).build_arrays(batch)
    assert x == {"photo": batch.arrays["photo"], "bands": batch.arrays["bands"]}
    assert y == {"kind": batch.labels["kind"], "mask": batch.arrays["mask"]}
    assert x["photo"] is batch.images


def test_labels_alone_are_joined_by_the_first_image_and_a_named_image_by_nothing() -> None:
    batch = first_batch(SEVERAL)
    x, y = build_model_feed(SEVERAL, inputs="kind").build_arrays(batch)
    assert x == {"images": batch.images, "kind": batch.labels["kind"]}
    assert y is batch.arrays["mask"]
    x, y = build_model_feed(SEVERAL, inputs=["bands", "kind"]).build_arrays(batch)
    assert x == {"bands": batch.arrays["bands"], "kind": batch.labels["kind"]}
    assert y is batch.arrays["mask"]
    assert build_model_feed(SEVERAL, inputs=["bands"]).build_arrays(batch)[0] is batch.arrays["bands"]
    x, y = build_model_feed(SEVERAL, inputs=["photo", "mask"]).build_arrays(batch)
    assert (list(x), y is batch.labels["kind"]) == (["photo", "mask"], True)


def test_an_image_may_be_input_and_target_at_once() -> None:
    spec = make_spec(KIND)
    batch = first_batch(spec)
    assert build_model_feed(spec, targets=["image"]).build_arrays(batch) == (batch.images, batch.images)


def test_a_stream_of_class_numbers_alone_needs_an_input_by_name() -> None:
    spec = make_spec(KIND, images={"mask": ImageSpec(8, 8, 1, mode="index")})
    with pytest.raises(ConfigError, match=r"hold class numbers \(mask\).* as in  inputs=\['mask'\]"):
        build_model_feed(spec)
    assert build_model_feed(spec, inputs="mask").targets == ("kind",)


def test_weights_have_the_shape_of_each_targets_losses() -> None:
    """A row's weight for each pixel and each box, and one weight for a class or a vector."""
    labels = (KIND, LabelSpec("boxes", "boxes", width=5, rows=7), LabelSpec("pose", "float", width=3))
    spec = replace(SEVERAL, labels={label.name: label for label in labels}, bad_policy="mask")
    weightless = frozenset(FakeStream(spec).ids(0, 0)[1:2].tolist())
    batch = first_batch(spec, weightless)
    weights = build_model_feed(spec, targets=["photo", "mask", "kind", "boxes", "pose"]).build_arrays(batch)[2]
    shapes = {"photo": (4, 8, 8), "mask": (4, 8, 8), "kind": (4,), "boxes": (4, 7), "pose": (4,)}
    assert {name: each.shape for name, each in weights.items()} == shapes
    for each in weights.values():
        assert each.reshape(4, -1).mean(axis=1).tolist() == batch.weights.tolist() == [1, 0, 1, 1]
    assert build_model_feed(spec, targets=["kind", "pose"]).build_arrays(batch)[2] is batch.weights
    assert build_model_feed(spec, targets="mask").build_arrays(batch)[2].shape == (4, 8, 8)


def test_classes_of_pixels_have_weights() -> None:
    spec = replace(SEVERAL, bad_policy="mask")
    batch = first_batch(spec, weightless=frozenset(FakeStream(spec).ids(0, 0)[:1].tolist()))
    batch.arrays["mask"] = np.zeros((4, 8, 8), np.uint8)
    batch.arrays["mask"][:, 0, 0], batch.arrays["mask"][:, 0, 1] = 255, 3
    weights = build_model_feed(spec, targets="mask", class_weight={255: 0.0, 3: 5.0}).build_arrays(batch)[2]
    assert weights.dtype == np.float32
    assert (weights[0] == 0).all()
    assert weights[1, 0, :3].tolist() == [0, 5, 1]


def test_each_view_has_the_weight_of_its_sample() -> None:
    spec = make_spec(images={"pair": ImageSpec(8, 8, 3, views=2)}, bad_policy="mask")
    assert build_model_feed(spec, targets=["pair"]).build_arrays(first_batch(spec))[2].shape == (4, 2, 8, 8)


# --- a batch of the right shapes


def test_a_blank_batch_has_the_shapes_and_types_of_the_streams_own() -> None:
    spec = make_spec(ANGLE, KIND)
    blank, real = build_blank_batch(spec), first_batch(spec)
    pairs: list[tuple[Any, Any]] = [(blank.arrays["image"], real.images), (blank.weights, real.weights)]
    pairs += [(blank.labels[name], real.labels[name]) for name in ("angle", "kind")]
    assert [(one.shape, one.dtype) for one, _ in pairs] == [(other.shape, other.dtype) for _, other in pairs]


def test_a_blank_vector_has_its_width_and_an_image_takes_no_memory() -> None:
    blank = build_blank_batch(make_spec(LabelSpec("pose", "float", width=3), batch_size=100))
    assert blank.labels["pose"].shape == (100, 3)
    assert blank.arrays["image"].strides == (0, 0, 0, 0)


def test_a_feed_accepts_a_blank_batch() -> None:
    spec = make_spec(KIND)
    x, y, weights = build_model_feed(spec, one_hot=True, class_weight={"cat": 2.0}).build_arrays(
        build_blank_batch(spec)
    )
    assert (x.shape, y.shape, weights.tolist()) == ((4, 8, 8, 3), (4, 3), [1, 1, 1, 1])
    assert np.count_nonzero(y[:, 0]) == 4
