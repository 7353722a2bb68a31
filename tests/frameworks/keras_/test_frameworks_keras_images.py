"""Real fits with several images a sample, on either side. test_keras_backends runs it on other backends too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.stream_fake import ANGLE, KIND, FakeStream, make_spec

from streamd.core.spec import ImageSpec, LabelSpec, StreamSpec
from streamd.errors import ConfigError
from streamd.frameworks.keras import fit_data, load_keras, normalization

pytestmark = pytest.mark.train

PHOTO = ImageSpec(8, 8, 3, normalize="unit")
TILES = ImageSpec(8, 8, 4, mode="raw", dtype="uint16", normalize="unit")
DEPTH = ImageSpec(8, 8, 1, mode="raw", dtype="float32", normalize="unit")
PAIR = ImageSpec(8, 8, 3, views=2, normalize="imagenet")
MASK = ImageSpec(8, 8, 1, mode="index", fill=255)
BOXES = LabelSpec("boxes", "boxes", width=5, rows=3)


@pytest.fixture(autouse=True)
def _seed_weights() -> None:
    load_keras().utils.set_random_seed(1)


def several(*labels: LabelSpec, bad_policy: str = "substitute", **images: ImageSpec) -> StreamSpec:
    return make_spec(*labels, images=images, bad_policy=bad_policy)


def inputs_of(spec: StreamSpec, *names: str) -> dict[str, Any]:
    keras = load_keras()
    images = {name: spec.images[name] for name in names or spec.images}
    return {name: keras.Input(image.shape, dtype=image.dtype, name=name) for name, image in images.items()}


def fit(model: Any, data: Any, validation: Any = None) -> dict[str, list[float]]:
    history: dict[str, list[float]] = model.fit(data, validation_data=validation, epochs=2, verbose=0).history
    assert all(np.isfinite(values).all() for values in history.values())
    return history


def test_images_of_each_dtype_and_views_lead_to_one_label() -> None:
    keras = load_keras()
    spec = several(ANGLE, photo=PHOTO, tiles=TILES, depth=DEPTH, pair=PAIR)
    inputs = inputs_of(spec)
    vectors = [keras.layers.Flatten()(normalization(spec, name)(each)) for name, each in inputs.items()]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(vectors)))
    model.compile("adam", "mse")
    stream = FakeStream(spec)
    losses = fit(model, fit_data(stream))["loss"]
    assert losses[1] < losses[0]
    assert stream.taken == [(epoch, index) for epoch in range(2) for index in range(3)]
    assert model.predict(fit_data(FakeStream(spec)), verbose=0).shape == (10, 1)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_an_image_leads_to_its_mask_also_where_rows_and_numbers_are_left_out(dtype: Any) -> None:
    """The loss over half of the rows, all of whose pixels count, is the mean over their pixels."""
    keras = load_keras()
    mask = ImageSpec(8, 8, 1, mode="index", dtype=dtype, fill=9)
    spec = several(photo=PHOTO, mask=mask, bad_policy="mask")
    left_out = frozenset(FakeStream(spec).ids(0, 0)[1:3].tolist())
    photo = inputs_of(spec, "photo")["photo"]
    scores = keras.layers.Conv2D(16, 3, padding="same")(normalization(spec, "photo")(photo))
    model = keras.Model(photo, scores)
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=9, reduction="mean_with_sample_weight"
    )
    model.compile(keras.optimizers.SGD(0.0), loss, weighted_metrics=["sparse_categorical_accuracy"])
    stream = FakeStream(spec, weightless=left_out)
    found = model.evaluate(fit_data(stream, targets="mask", steps=1), verbose=0, return_dict=True)
    ids = [number for number in stream.ids(0, 0).tolist() if number not in left_out]
    photos = np.stack([np.full((8, 8, 3), number, np.uint8) for number in ids])
    masks = np.stack([np.full((8, 8), number) for number in ids])
    expected = keras.ops.convert_to_numpy(loss(masks, model(photos)))
    assert found["loss"] == pytest.approx(float(expected), rel=1e-4)
    fit(model, fit_data(FakeStream(spec)), fit_data(FakeStream(spec, weightless=left_out)))


def test_class_weights_of_pixels_weigh_the_loss() -> None:
    """Every prediction has the same loss, so that the loss is the mean weight."""
    keras = load_keras()
    spec = several(photo=PHOTO, mask=MASK)
    photo = inputs_of(spec, "photo")["photo"]
    scores = keras.layers.Conv2D(16, 1, kernel_initializer="zeros")(normalization(spec)(photo))
    model = keras.Model(photo, scores)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    weights: dict[int | str, float] = {3: 5.0, 4: 0.0}
    for data, arguments in (
        (fit_data(FakeStream(spec), class_weight=weights), {}),
        (fit_data(FakeStream(spec)), {"class_weight": weights}),
    ):
        model.optimizer.learning_rate = 0.0
        found = model.fit(data, verbose=0, **arguments).history["loss"][0]
        assert found == pytest.approx(np.log(16) * (8 + 5 + 0) / 10, rel=1e-5)


@pytest.mark.parametrize("named", [["image"], "image"])
def test_an_autoencoder_learns_to_return_its_input(named: Any) -> None:
    keras = load_keras()
    spec = make_spec(KIND, bad_policy="mask")
    stream = FakeStream(spec)
    layers = [keras.Input((8, 8, 3), dtype="uint8"), normalization(spec)]
    layers += [keras.layers.Conv2D(3, 1, kernel_initializer="zeros"), keras.layers.Rescaling(255.0)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.002), "mae", weighted_metrics=["mae"])
    data = fit_data(stream, targets=named)
    history = fit(model, data, fit_data(FakeStream(spec), targets=named))
    assert history["loss"][1] < history["loss"][0]
    model.predict(data, verbose=0)
    assert data.labels.shape == (10, 8, 8, 3)


def test_boxes_are_learned_from_an_image_with_masked_rows() -> None:
    keras = load_keras()
    spec = several(BOXES, photo=PHOTO, bad_policy="mask")
    layers = [keras.Input((8, 8, 3), dtype="uint8"), normalization(spec), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(15), keras.layers.Reshape((3, 5))])
    model.compile("adam", keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    left_out = frozenset({1, 2})
    losses = fit(model, fit_data(FakeStream(spec, weightless=left_out)), fit_data(FakeStream(spec)))["loss"]
    assert losses[1] < losses[0]


def test_a_mask_and_a_label_are_learned_at_once() -> None:
    keras = load_keras()
    spec = several(KIND, photo=PHOTO, mask=MASK, bad_policy="mask")
    photo = inputs_of(spec, "photo")["photo"]
    features = normalization(spec, "photo")(photo)
    outputs = {
        "kind": keras.layers.Dense(3)(keras.layers.GlobalAveragePooling2D()(features)),
        "mask": keras.layers.Conv2D(16, 1)(features),
    }
    model = keras.Model(photo, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy
    model.compile("adam", {name: loss(from_logits=True, reduction="mean_with_sample_weight") for name in outputs})
    history = fit(model, fit_data(FakeStream(spec)), fit_data(FakeStream(spec, weightless=frozenset({1}))))
    assert history["loss"][1] < history["loss"][0]


def test_no_more_than_one_batch_of_several_images_is_held_after_its_step() -> None:
    keras = load_keras()
    spec = several(ANGLE, photo=PHOTO, depth=DEPTH)
    inputs = inputs_of(spec)
    vectors = [keras.layers.Flatten()(normalization(spec, name)(each)) for name, each in inputs.items()]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(vectors)))
    model.compile("sgd", "mse")
    stream = FakeStream(spec)
    model.fit(fit_data(stream), epochs=2, verbose=0)
    assert stream.most_leases <= 2


def test_16_bits_stay_finite_in_a_model_of_16_bits() -> None:
    keras = load_keras()
    spec = several(tiles=ImageSpec(8, 8, 4, mode="raw", dtype="uint16", normalize="minus_one_one"))
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        layer = normalization(spec)
        pixels = np.full((1, 8, 8, 4), 65535, np.uint16)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(pixels)), 1.0, rtol=1e-3)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def test_the_repr_names_the_images_on_both_sides() -> None:
    data = fit_data(FakeStream(several(KIND, photo=PHOTO, pair=PAIR, mask=MASK)))
    assert repr(data) == (
        "<fit_data of 'train': 3 steps an epoch, 4 samples each; x: photo 8x8x3, pair 2x8x8x3; "
        "y: kind (3 classes), mask 8x8>"
    )


def test_a_loss_without_targets_is_refused_with_the_image_that_could_be_one() -> None:
    keras = load_keras()
    model = keras.Sequential([keras.layers.Rescaling(1.0)])
    model.compile("sgd", "mse")
    with pytest.raises(
        ConfigError, match=r"let the model learn an image, with  fit_data\(stream, targets=\['photo'\]\)"
    ):
        model.fit(fit_data(FakeStream(several(photo=PHOTO))), verbose=0)
