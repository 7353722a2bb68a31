"""Keras learns from pictures on the disk, several a sample, through a daemon: one damaged, and with weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.daemon_process import Start
from support.recorded_scenes import BATCH, SCENES, UNREADABLE, configure_scenes, write_scenes

import streamd
from streamd.client import Client
from streamd.errors import LossError
from streamd.frameworks.keras import fit_data, load_keras, normalization

pytestmark = pytest.mark.train

PICTURES = ("photo", "far", "height", "glass", "pair")


@pytest.fixture
def client(tmp_path: Path, start_daemon: Start) -> Iterator[Client]:
    """A client of a daemon that masks the damaged scene; `train` is weighted, `plain` is not."""
    load_keras().utils.set_random_seed(3)
    table = write_scenes(tmp_path / "scenes", damaged=True)
    bad: dict[str, Any] = {"bad_samples": {"policy": "mask", "max_fraction": 0.5}}
    streams = {
        "train": configure_scenes(table, weighted=True, **bad),
        "plain": configure_scenes(table, **bad),
    }
    with streamd.connect(start_daemon({"streams": streams}).endpoint) as client:
        yield client


def build_inputs(spec: Any, *names: str) -> dict[str, Any]:
    return {
        name: load_keras().Input(spec.images[name].shape, dtype=spec.images[name].dtype, name=name) for name in names
    }


def fit(model: Any, client: Client, stream: str, epochs: int, **chosen: Any) -> dict[str, list[float]]:
    """Fits on a stream with another one to validate, and checks that no batch was missed."""
    with client.subscribe(stream) as train, client.subscribe("plain") as held_out:
        validation = fit_data(held_out, **chosen)
        history = model.fit(fit_data(train, **chosen), validation_data=validation, epochs=epochs, verbose=0).history
        receipts = train.receipts
    assert [(each.complete, each.ok, each.bad, each.samples) for each in receipts] == [
        (True, True, 1, SCENES - 1)
    ] * epochs
    assert all(np.isfinite(values).all() for values in history.values())
    return dict(history)


def test_five_pictures_of_a_sample_lead_to_its_label(client: Client) -> None:
    layers, spec = load_keras().layers, client.spec("train")
    inputs = build_inputs(spec, *PICTURES)
    vectors = [layers.Flatten()(normalization(spec, name)(each)) for name, each in inputs.items()]
    hidden = layers.Dense(16, activation="relu")(layers.Concatenate()(vectors))
    model = load_keras().Model(inputs, layers.Dense(2, activation="softmax")(hidden))
    loss = load_keras().losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight")
    model.compile("adam", loss, weighted_metrics=["accuracy"])
    history = fit(model, client, "train", 6, targets="side")
    assert history["val_accuracy"][-1] > 0.9


def test_normalization_of_each_picture_reaches_the_numbers_that_it_names(client: Client) -> None:
    spec, batch = client.spec("train"), client.batch("train", 0, 0)
    numbers = {
        name: load_keras().ops.convert_to_numpy(normalization(spec, name)(batch.arrays[name])) for name in PICTURES
    }
    assert {str(values.dtype) for values in numbers.values()} == {"float32"}
    np.testing.assert_allclose(numbers["far"], batch.arrays["far"] / np.float32(65535), atol=1e-6)
    np.testing.assert_allclose(numbers["height"], (batch.arrays["height"] + 1) / 2.5, atol=1e-6)
    np.testing.assert_allclose(numbers["glass"], batch.arrays["glass"] / 127.5 - 1, atol=1e-6)
    assert numbers["pair"].shape == (BATCH, 2, 16, 16, 3)


def test_a_photo_leads_to_its_mask(client: Client) -> None:
    layers, spec = load_keras().layers, client.spec("train")
    photo = build_inputs(spec, "photo")["photo"]
    features = layers.Conv2D(8, 3, padding="same", activation="relu")(normalization(spec, "photo")(photo))
    model = load_keras().Model(photo, layers.Conv2D(2, 1, activation="softmax")(features))
    loss = load_keras().losses.SparseCategoricalCrossentropy(ignore_class=255, reduction="mean_with_sample_weight")
    model.compile(load_keras().optimizers.Adam(0.05), loss)
    history = fit(model, client, "train", 6, inputs="photo", targets="mask")
    assert history["val_loss"][-1] < 0.3 < history["loss"][0]
    with client.subscribe("plain") as held_out:
        data = fit_data(held_out, inputs="photo", targets="mask")
        predicted = model.predict(data, verbose=0).argmax(axis=-1)
        seen = data.labels != 255
        assert (predicted == data.labels)[seen].mean() > 0.95
        assert not seen[data.sample_ids == UNREADABLE].any(), "a masked row holds no class"


def test_an_autoencoder_returns_the_photo(client: Client) -> None:
    layers, spec = load_keras().layers, client.spec("train")
    photo = build_inputs(spec, "photo")["photo"]
    pixels = layers.Conv2D(3, 3, padding="same")(normalization(spec, "photo")(photo))
    model = load_keras().Model(photo, layers.Rescaling(255.0)(pixels))
    model.compile(load_keras().optimizers.Adam(0.02), "mae")
    history = fit(model, client, "train", 6, inputs=["photo"], targets=["photo"])
    assert history["val_loss"][-1] < history["val_loss"][0] / 2


def test_boxes_are_learned_with_a_loss_for_each_box(client: Client) -> None:
    keras, spec = load_keras(), client.spec("train")
    photo = build_inputs(spec, "photo")["photo"]
    numbers = keras.layers.Dense(10)(keras.layers.Flatten()(normalization(spec, "photo")(photo)))
    model = keras.Model(photo, keras.layers.Reshape((2, 5))(numbers))

    def measure_boxes(true: Any, found: Any) -> Any:
        """Returns the distance of each box, (B, max); 0 behind the last."""
        return keras.ops.mean(keras.ops.abs(true - found), axis=-1) * keras.ops.cast(true[..., 4] >= 0, "float32")

    model.compile(keras.optimizers.Adam(0.01), measure_boxes)
    history = fit(model, client, "train", 4, inputs="photo", targets="boxes")
    assert history["val_loss"][-1] < history["val_loss"][0]


def test_two_views_of_a_picture_find_each_other_without_targets(client: Client) -> None:
    keras, spec = load_keras(), client.spec("train")

    class Contrastive(keras.Model):  # type: ignore[misc, name-defined]  # Keras has no types
        """Its loss is lowest where the views of one picture are more alike than those of different pictures."""

        def compute_loss(self, *given: Any, **_: Any) -> Any:
            y_pred = given[2]  # x, y, what was predicted, and weights
            one, other = (keras.utils.normalize(y_pred[:, view]) for view in range(2))
            alike = one @ keras.ops.transpose(other) / 0.1
            own = keras.ops.arange(alike.shape[0])
            return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(own, alike, from_logits=True))

    pair = build_inputs(spec, "pair")["pair"]
    merged = keras.ops.reshape(normalization(spec, "pair")(pair), (-1, 16, 16, 3))
    features = keras.layers.Dense(8)(keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(8, 3)(merged)))
    model = Contrastive(pair, keras.ops.reshape(features, (-1, 2, 8)))
    model.compile("adam")
    with client.subscribe("train") as stream:
        model.fit(fit_data(stream, inputs="pair", targets=None), epochs=2, verbose=0)
        assert [each.ok for each in stream.receipts] == [True, True]


def test_a_loss_that_is_nan_names_the_picture_whose_numbers_are(
    tmp_path: Path, start_daemon: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamd.frameworks.keras import NanGuard  # noqa: PLC0415 - Keras takes seconds to load

    monkeypatch.chdir(tmp_path)
    table = write_scenes(tmp_path / "scenes")
    holes = np.full((16, 16), np.nan, np.float32)
    Image.fromarray(holes).save(table.parent / "height" / "07.tif")
    keras, endpoint = load_keras(), start_daemon({"streams": {"train": configure_scenes(table)}}).endpoint
    with streamd.connect(endpoint) as client, client.subscribe("train") as stream:
        inputs = build_inputs(stream.spec, "photo", "height")
        vectors = [keras.layers.Flatten()(normalization(stream.spec, name)(each)) for name, each in inputs.items()]
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(vectors)))
        model.compile("sgd", "mse")
        data = fit_data(stream, inputs=["photo", "height"], targets="x")
        with pytest.raises(
            LossError, match=r"image 'height' has pixels that are NaN .* 1 of 4 samples.*fix #7 photo/07"
        ) as found:
            model.fit(data, verbose=0, callbacks=[NanGuard(data, client)])
    page = next(tmp_path.glob("nan-train-0-*.html"))
    assert page.name in str(found.value)
    assert page.read_text().count("<img") >= 4 * len(stream.spec.images)
