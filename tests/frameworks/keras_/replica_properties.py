"""What models see of a stream under tf.distribute, on two devices of the CPU. Run by test_keras_backends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.keras_recorder import ids_of, steps, stop_after
from support.stream_fake import ANGLE, KIND, FakeStream, make_spec

from streamd.core.spec import ImageSpec
from streamd.errors import ConfigError
from streamd.frameworks.keras import ResumeCallback, fit_data, load_keras
from streamd.frameworks.keras.calls import DATASET_REMEDIES

pytestmark = pytest.mark.train

keras = load_keras()
DEVICES = ("/cpu:0", "/cpu:1")


@pytest.fixture(scope="session", autouse=True)
def _two_devices() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * len(DEVICES))


class Seen(keras.layers.Layer):  # type: ignore[misc, name-defined]  # Keras has no types
    """Writes down the samples that each device is given, as their pixels name them, and passes on their means."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[int]] = []

    def call(self, images: Any) -> Any:
        def write(pixels: Any) -> Any:
            self.batches.append(pixels[:, 0, 0, 0].tolist())
            return pixels.max(axis=(1, 2, 3)).astype(np.float32)[:, None]

        means = tf.numpy_function(write, [images], tf.float32)
        return tf.ensure_shape(means, (None, 1))

    @property
    def everything(self) -> list[int]:
        """In an order that does not depend on which device comes first."""
        return sorted(sample for part in self.batches for sample in part)


def shared_model(strategy: Any, steps_per_execution: int = 1, dropped: float = 0.0) -> tuple[Any, Seen]:
    """A model of one weight, which stays small, under the strategy."""
    with strategy.scope():
        seen = Seen()
        layers = [seen, keras.layers.Dropout(dropped), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((8, 8, 3), dtype="uint8"), *layers])
        model.compile(keras.optimizers.SGD(1e-4), "mse", steps_per_execution=steps_per_execution)
    return model, seen


@pytest.fixture(scope="session")
def mirrored(_two_devices: None) -> Any:
    """One for all tests: TensorFlow numbers sums over replicas by strategy, and refuses a number with another shape."""
    return tf.distribute.MirroredStrategy(DEVICES)


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_replicas_see_each_sample_once_and_two_fits_and_validations_take_whole_epochs(
    mirrored: Any, steps_per_execution: int
) -> None:
    stream, validation = FakeStream(make_spec(ANGLE)), FakeStream(make_spec(ANGLE, name="val"))
    model, seen = shared_model(mirrored, steps_per_execution)
    data, held_out = fit_data(stream), fit_data(validation)
    asked: list[int] = []
    count = keras.callbacks.LambdaCallback(on_train_begin=lambda _: asked.append(len(stream.taken)))
    model.fit(data, epochs=2, validation_data=held_out, validation_freq=2, verbose=0, callbacks=[count])
    model.fit(data, verbose=0)
    assert asked == [0]
    assert stream.taken == steps(0, 9)
    assert validation.taken == steps(0, 3)
    assert seen.everything == sorted(ids_of(stream, *stream.taken) + ids_of(validation, *validation.taken))
    assert {len(part) for part in seen.batches} == {2, 1}  # halves of four, and of the last two
    assert np.isfinite(model.get_weights()[0]).all()
    assert stream.leases == 0
    assert stream.most_leases <= 2


def test_an_early_stop_reads_no_batch_ahead(mirrored: Any) -> None:
    stream = FakeStream(make_spec(ANGLE))
    model, seen = shared_model(mirrored)
    data = fit_data(stream)
    model.fit(data, epochs=2, verbose=0, callbacks=[stop_after(0, model)])
    assert stream.taken == steps(0, 1)
    assert seen.everything == sorted(ids_of(stream, (0, 0)))
    model.fit(data, epochs=2, verbose=0)
    assert seen.everything == sorted(ids_of(stream, *steps(0, 6)))


def test_predictions_come_in_the_order_of_their_ids(mirrored: Any) -> None:
    with mirrored.scope():
        model = keras.Sequential([keras.layers.Rescaling(1.0), keras.layers.GlobalAveragePooling2D()])
    data = fit_data(FakeStream(make_spec(KIND, bad_policy="mask")))  # with weights
    predicted = model.predict(data, verbose=0)
    assert np.round(predicted[:, 0]).astype(int).tolist() == data.sample_ids.tolist()
    assert sorted(data.sample_ids) == list(range(10))


def test_replicas_compute_what_one_device_computes(mirrored: Any) -> None:
    results = []
    for strategy in (mirrored, tf.distribute.OneDeviceStrategy(DEVICES[0])):
        keras.utils.set_random_seed(1)
        model, _ = shared_model(strategy)
        model.fit(fit_data(FakeStream(make_spec(ANGLE)), steps=2), epochs=3, verbose=0)
        results.append(model.get_weights())
    for shared, alone in zip(*results, strict=True):
        np.testing.assert_allclose(shared, alone, rtol=1e-5)


def test_a_training_of_replicas_resumes_where_it_stopped(mirrored: Any, tmp_path: Path) -> None:
    def train(folder: str, *others: Any) -> tuple[list[Any], FakeStream]:
        keras.utils.set_random_seed(1)
        stream = FakeStream(make_spec(ANGLE))
        model, _ = shared_model(mirrored, dropped=0.5)
        data = fit_data(stream)
        stops = [make(model) for make in others]
        callbacks = [*stops, ResumeCallback(data, tmp_path / folder, every=1)]
        model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
        return model.get_weights(), stream

    through, _ = train("through")
    train("stopped", lambda model: stop_after(1, model))
    gone_on, stream = train("stopped")
    assert stream.taken == steps(2, 4)
    for here, there in zip(through, gone_on, strict=True):
        np.testing.assert_array_equal(here, there)


def test_a_batch_too_small_for_its_replicas_is_refused_before_anything_is_fetched(mirrored: Any) -> None:
    stream = FakeStream(make_spec(ANGLE, samples=9))
    model, _ = shared_model(mirrored)
    with pytest.raises(ConfigError, match=r"a batch of 1 row cannot be shared by 2 replicas: .*drop_remainder: true"):
        model.fit(fit_data(stream), verbose=0)
    assert stream.taken == []


def test_the_names_with_a_remedy_are_those_of_a_data_set(mirrored: Any) -> None:
    assert [name for name in DATASET_REMEDIES if not hasattr(tf.data.Dataset, name)] == []
    data = fit_data(FakeStream(make_spec(ANGLE)))
    remedy = r"fit_data\(stream\)\) under the strategy.*experimental_distribute_values_from_function"
    with pytest.raises(ConfigError, match=remedy):
        mirrored.experimental_distribute_dataset(data)
    with pytest.raises(ConfigError, match=remedy):
        mirrored.distribute_datasets_from_function(lambda _: data)


def test_a_strategy_that_shares_no_batches_is_refused_with_a_remedy() -> None:
    stream = FakeStream(make_spec(ANGLE))
    model, _ = shared_model(tf.distribute.experimental.CentralStorageStrategy(DEVICES))
    with pytest.raises(
        ConfigError, match=r"this model is under another one: start one trainer per device.*rank=\"auto\""
    ):
        model.fit(fit_data(stream), verbose=0)


def test_replicas_share_several_images_masks_and_weights_of_pixels(mirrored: Any) -> None:
    images = {"photo": ImageSpec(8, 8, 3), "depth": ImageSpec(8, 8, 1, mode="raw", dtype="uint16")}
    spec = make_spec(images={**images, "mask": ImageSpec(8, 8, 1, mode="index", fill=255)}, bad_policy="mask")
    stream = FakeStream(spec, weightless=frozenset({1, 2}))
    with mirrored.scope():
        inputs = {name: keras.Input(image.shape, dtype=image.dtype, name=name) for name, image in images.items()}
        scaled = [keras.layers.Rescaling(0.1)(each) for each in inputs.values()]
        model = keras.Model(inputs, keras.layers.Conv2D(16, 1)(keras.layers.Concatenate()(scaled)))
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255))
    losses = model.fit(fit_data(stream), epochs=2, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    assert stream.taken == steps(0, 6)
    assert model.predict(fit_data(FakeStream(spec)), verbose=0).shape == (10, 8, 8, 16)
