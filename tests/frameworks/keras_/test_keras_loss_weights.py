"""Losses of the user's own, for boxes and masks with weights. test_keras_backends runs it on other backends too."""

from __future__ import annotations

from typing import Any

import pytest
from support.stream_fake import FakeStream, make_spec

from streamd.core.spec import ImageSpec, LabelSpec
from streamd.errors import ConfigError
from streamd.frameworks.keras import fit_data, load_keras

pytestmark = pytest.mark.train

BOXES = LabelSpec("boxes", "boxes", width=5, rows=4)  # as many as a batch has samples
SPEC = make_spec(BOXES, images={"photo": ImageSpec(8, 8, 3)}, bad_policy="mask")
LEFT_OUT = frozenset(FakeStream(SPEC).ids(0, 0)[:2].tolist())


def measure_sample(true: Any, found: Any) -> Any:
    return load_keras().ops.mean(load_keras().ops.abs(true - found), axis=(1, 2))


def measure_box(true: Any, found: Any) -> Any:
    return load_keras().ops.mean(load_keras().ops.abs(true - found), axis=2)


def build_detector(loss: Any) -> Any:
    """A model that finds 0 everywhere."""
    layers = load_keras().layers
    hidden = [layers.Flatten(), layers.Dense(20, kernel_initializer="zeros"), layers.Reshape((4, 5))]
    model = load_keras().Sequential([load_keras().Input((8, 8, 3)), *hidden])
    model.compile(load_keras().optimizers.SGD(0.0), loss)
    return model


def make_loss_object() -> Any:
    """An object of a class of the user's own, which is made here since Keras is imported late."""

    class Measured(load_keras().losses.Loss):  # type: ignore[misc]  # Keras has no types
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return measure_sample(y_true, y_pred)

    return Measured()


@pytest.mark.parametrize("loss", [measure_sample, measure_box, make_loss_object, "mae"])
def test_a_loss_for_each_sample_or_each_box_leaves_out_the_same_rows(loss: Any) -> None:
    stream = FakeStream(SPEC, weightless=LEFT_OUT)
    model = build_detector(loss() if loss is make_loss_object else loss)
    batch = next(next(FakeStream(SPEC, weightless=LEFT_OUT).epochs()))
    true = abs(batch.labels["boxes"][batch.weights != 0]).mean(axis=(1, 2)).sum()
    for _ in range(2):
        found = model.evaluate(fit_data(stream, steps=1), verbose=0)
        assert found == pytest.approx(true / 4, rel=1e-5)
    history = model.fit(fit_data(stream, steps=1), validation_data=fit_data(FakeStream(SPEC)), verbose=0).history
    assert history["loss"][0] == pytest.approx(true / 4, rel=1e-5)


def test_weights_of_pixels_need_a_loss_for_each_pixel() -> None:
    images = {"photo": ImageSpec(8, 8, 3), "mask": ImageSpec(8, 8, 1, mode="index")}
    model = load_keras().Sequential([load_keras().Input((8, 8, 3)), load_keras().layers.Conv2D(1, 1)])
    model.compile("sgd", lambda true, found: load_keras().ops.mean(true - found, axis=(1, 2)))
    data = fit_data(FakeStream(make_spec(images=images)), class_weight={1: 2.0})
    with pytest.raises(ConfigError, match="one number for each sample, and class_weight weighs each pixel of 'mask'"):
        model.fit(data, verbose=0)


def test_a_loss_that_cannot_be_traced_is_left_to_keras() -> None:
    def measure(_: Any, __: Any) -> Any:
        raise RuntimeError("the loss has a mistake")

    with pytest.raises(RuntimeError, match="the loss has a mistake"):
        build_detector(measure).evaluate(fit_data(FakeStream(SPEC)), verbose=0)
