"""`fit_data` on JAX only: one batch taken ahead for an accelerator, and several devices. Run by test_keras_backends."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.keras_recorder import Recorder, ids_of, steps, stop_after
from support.stream_fake import ANGLE, KIND, FakeStream, make_spec

from streamd.core.spec import ImageSpec
from streamd.errors import ConfigError
from streamd.frameworks import import_library
from streamd.frameworks.jax import array
from streamd.frameworks.keras import ResumeCallback, fit_data, load_keras
from streamd.frameworks.keras.calls import PendingSteps

pytestmark = pytest.mark.train

jax = import_library("jax", "jax", "what JAX's arrays are tested for")


@pytest.fixture
def _accelerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras looks one batch ahead where JAX's default backend is not the CPU: it asks by this name alone."""
    monkeypatch.setattr("jax.default_backend", lambda: "tpu")


@pytest.mark.usefixtures("_accelerated")
@pytest.mark.parametrize("last", [0, 1, 2])
def test_a_batch_taken_ahead_of_an_early_stop_is_given_again(last: int) -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    data = fit_data(stream)
    recorder.model.fit(data, verbose=0, callbacks=[stop_after(last, recorder.model)])
    assert recorder.trained == ids_of(stream, *steps(0, last + 1))
    recorder.model.fit(data, epochs=2, verbose=0)
    left = (2 - last) or 3  # of the epoch that the first fit has left
    assert recorder.trained == ids_of(stream, *steps(0, last + 1 + left + 3))


@pytest.mark.usefixtures("_accelerated")
def test_a_batch_taken_ahead_is_given_again_after_an_evaluation_too() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    data = fit_data(stream)
    recorder.model.fit(data, verbose=0, callbacks=[stop_after(0, recorder.model)])
    for _ in range(2):
        recorder.model.evaluate(data, steps=1, verbose=0)
    recorder.model.fit(data, epochs=2, verbose=0)
    assert recorder.trained == ids_of(stream, *steps(0, 6))
    assert recorder.validated == 2 * ids_of(stream, *steps(0, 1))


@pytest.mark.usefixtures("_accelerated")
def test_a_batch_taken_ahead_is_not_finished() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    data = fit_data(stream)
    data.pending_tokens = PendingSteps()
    recorder.model.fit(data, verbose=0, callbacks=[stop_after(1, recorder.model)])
    data.pending_tokens.finish_steps(sys.maxsize)
    assert data.pending_tokens.last is not None
    assert data.pending_tokens.last() == "0:1"
    assert stream.taken == steps(0, 3)


@pytest.mark.usefixtures("_accelerated")
def test_a_model_is_built_without_a_batch_where_two_are_asked_for() -> None:
    keras = load_keras()
    stream = FakeStream(make_spec(ANGLE))
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    asked: list[int] = []
    count = keras.callbacks.LambdaCallback(on_train_begin=lambda _: asked.append(len(stream.taken)))
    model.fit(fit_data(stream), verbose=0, callbacks=[count])
    assert asked == [0]
    assert stream.taken == steps(0, 3)


def test_queued_steps_hold_no_batches() -> None:
    """JAX returns from a step before it is computed: here many steps are begun while the first is at work."""
    keras = load_keras()
    stream = FakeStream(make_spec(ANGLE))
    wide = [keras.layers.Dense(width) for width in (3000, 3000, 1)]
    model = keras.Sequential([keras.Input((8, 8, 3), dtype="uint8"), keras.layers.Flatten(), *wide])
    model.compile("sgd", "mse")
    model.fit(fit_data(stream), epochs=2, verbose=0)
    assert stream.most_leases <= 2


@pytest.fixture
def _four_devices() -> Iterator[None]:
    keras = load_keras()
    devices = keras.distribution.list_devices()
    assert len(devices) == 4, os.environ.get("XLA_FLAGS")
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    yield
    keras.distribution.set_distribution(None)


@pytest.fixture
def _model_in_halves() -> Iterator[None]:
    """Two devices share each batch, two the weights of a layer."""
    distribution = load_keras().distribution
    mesh = distribution.DeviceMesh((2, 2), ("batch", "model"), distribution.list_devices())
    layout = distribution.LayoutMap(mesh)
    layout["halves/kernel"] = (None, "model")
    distribution.set_distribution(distribution.ModelParallel(layout_map=layout, batch_dim_name="batch"))
    yield
    distribution.set_distribution(None)


@pytest.mark.usefixtures("_four_devices")
def test_devices_that_share_each_batch_see_every_sample_once() -> None:
    stream, validation = FakeStream(make_spec(ANGLE, samples=12)), FakeStream(make_spec(ANGLE, samples=12))
    recorder = Recorder()
    data = fit_data(stream)
    recorder.model.fit(data, epochs=2, verbose=0, callbacks=[stop_after(1, recorder.model)])
    recorder.model.fit(data, epochs=2, validation_data=fit_data(validation), verbose=0)
    assert recorder.trained == ids_of(stream, *steps(0, 6))
    assert recorder.validated == 2 * ids_of(validation, *steps(0, 3))
    assert stream.most_leases <= 2


@pytest.mark.usefixtures("_four_devices")
def test_a_training_on_several_devices_resumes_where_it_stopped(tmp_path: Path) -> None:
    def train(folder: str, stop: int | None = None) -> tuple[list[Any], FakeStream]:
        keras = load_keras()
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Rescaling(1 / 50), keras.layers.Flatten(), keras.layers.Dropout(0.5)]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile("adam", "mse")
        stream = FakeStream(make_spec(ANGLE, samples=12))
        data = fit_data(stream)
        callbacks = [] if stop is None else [stop_after(stop, model)]
        model.fit(data, epochs=2, verbose=0, callbacks=[*callbacks, ResumeCallback(data, tmp_path / folder, every=1)])
        return model.get_weights(), stream

    through, _ = train("through")
    train("stopped", stop=1)
    gone_on, stream = train("stopped")
    assert stream.taken == steps(2, 4)
    for here, there in zip(through, gone_on, strict=True):
        np.testing.assert_array_equal(here, there)


@pytest.mark.usefixtures("_model_in_halves")
def test_devices_that_share_a_model_too_see_every_sample_once() -> None:
    stream = FakeStream(make_spec(ANGLE))  # whose last batch has two rows
    layers = load_keras().layers
    recorder = Recorder(load_keras().Sequential([layers.Dense(2, name="halves"), layers.Dense(1)]))
    recorder.model.fit(fit_data(stream), epochs=2, verbose=0)
    assert recorder.trained == ids_of(stream, *steps(0, 6))


@pytest.mark.usefixtures("_four_devices")
def test_rows_that_devices_cannot_share_are_refused_before_anything_is_fetched() -> None:
    stream = FakeStream(make_spec(ANGLE))
    with pytest.raises(ConfigError, match=r"a batch of 2 rows cannot be shared equally by 4 devices: .*pad"):
        Recorder().model.fit(fit_data(stream), verbose=0)
    assert stream.taken == []


@pytest.mark.usefixtures("_four_devices")
def test_devices_share_several_images_masks_and_weights_of_pixels() -> None:
    images = {"photo": ImageSpec(8, 8, 3), "depth": ImageSpec(8, 8, 1, mode="raw", dtype="uint16")}
    mask = ImageSpec(8, 8, 1, mode="index", fill=255)
    spec = make_spec(samples=12, images={**images, "mask": mask}, bad_policy="mask")
    stream, keras = FakeStream(spec, weightless=frozenset({1, 2})), load_keras()
    inputs = {name: keras.Input(image.shape, dtype=image.dtype, name=name) for name, image in images.items()}
    scaled = [keras.layers.Rescaling(0.1)(each) for each in inputs.values()]
    model = keras.Model(inputs, keras.layers.Conv2D(16, 1)(keras.layers.Concatenate()(scaled)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255))
    losses = model.fit(fit_data(stream), epochs=2, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    assert stream.taken == steps(0, 6)


def rows_over_devices() -> Any:
    mesh = jax.sharding.Mesh(jax.devices(), "batch")
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))


def test_a_plain_loop_shares_each_batch_among_devices_and_gives_its_memory_back() -> None:
    rows = rows_over_devices()
    stream = FakeStream(make_spec(KIND, samples=12))
    seen: list[int] = []

    def step(images: Any, kinds: Any) -> Any:
        ids = images.max(axis=(1, 2, 3))
        return ids, (ids % 3 == kinds).all()

    for batch in next(stream.epochs()):
        images, kinds = array(batch.images, rows), array(batch.labels["kind"], rows)
        assert len(images.addressable_shards) == 4
        assert images.shape == (4, 8, 8, 3)
        ids, right = jax.jit(step)(images, kinds)
        assert right
        seen += ids.tolist()
    assert seen == ids_of(stream, *steps(0, 3))
    del batch, images
    gc.collect()
    assert stream.leases == 0


def test_rows_that_a_sharding_cannot_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="evenly divide"):
        array(np.zeros((6, 2)), rows_over_devices())
