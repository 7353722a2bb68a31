"""Which samples models get in `fit`, `evaluate` and `predict`. test_keras_backends runs it on other backends too."""

from __future__ import annotations

import gc
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.keras_recorder import Recorder, ids_of, steps, stop_after
from support.normalize_forms import FORMS
from support.stream_fake import ANGLE, KIND, FakeStream, make_spec

from streamd.errors import ConfigError, MissingExtraError, ReceiptError
from streamd.frameworks.keras import fit_data, load_keras, normalization

pytestmark = pytest.mark.train


def test_two_fits_take_whole_epochs_in_their_order_whatever_shuffle_says() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE), total_epochs=3), Recorder()
    data = fit_data(stream)
    assert stream.taken == []
    recorder.model.fit(data, epochs=2, verbose=0)
    recorder.model.fit(data, verbose=0, shuffle=True)
    assert recorder.trained == ids_of(stream, *steps(0, 9))
    assert stream.taken == steps(0, 9)
    assert [receipt.complete for receipt in stream.receipts] == [True] * 3


def test_each_batch_is_fetched_when_its_step_begins() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    ahead: list[int] = []
    count = load_keras().callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: ahead.append(len(stream.taken)))
    recorder.model.fit(fit_data(stream), epochs=1, verbose=0, callbacks=[count])
    assert ahead == [1, 2, 3]


@pytest.mark.parametrize(("steps_per_execution", "jit_compile"), [(2, False), (4, True)])
def test_several_steps_an_execution_see_each_sample_once(steps_per_execution: int, jit_compile: bool) -> None:
    stream = FakeStream(make_spec(ANGLE))
    recorder = Recorder(steps_per_execution=steps_per_execution, jit_compile=jit_compile)
    if load_keras().backend.backend() == "torch":
        with pytest.raises(ValueError, match="must be 1 with the PyTorch backend"):
            recorder.model.fit(fit_data(stream), verbose=0)
        return
    recorder.model.fit(fit_data(stream), epochs=2, verbose=0)
    assert recorder.trained == ids_of(stream, *steps(0, 6))
    assert stream.taken == steps(0, 6)


def test_the_argument_steps_sets_the_length_of_an_epoch() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    data = fit_data(stream, steps=2)
    recorder.model.fit(data, epochs=2, verbose=0)
    assert stream.taken == steps(0, 4)
    recorder.model.fit(data, epochs=1, verbose=0)
    assert recorder.trained == ids_of(stream, *steps(0, 6))
    assert [receipt.complete for receipt in stream.receipts] == [True, True]


def test_validation_every_second_epoch_takes_whole_epochs() -> None:
    train, validation, recorder = FakeStream(make_spec(ANGLE)), FakeStream(make_spec(ANGLE, name="val")), Recorder()
    recorder.model.fit(fit_data(train), validation_data=fit_data(validation), validation_freq=2, epochs=4, verbose=0)
    assert recorder.trained == ids_of(train, *steps(0, 12))
    assert recorder.validated == 2 * ids_of(validation, *steps(0, 3))
    assert [receipt.complete for receipt in validation.receipts] == [True, True]


def test_an_early_stop_loses_nothing_of_the_epoch_that_it_leaves() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    data = fit_data(stream)
    recorder.model.fit(data, epochs=2, verbose=0, callbacks=[stop_after(0, recorder.model)])
    assert recorder.trained == ids_of(stream, (0, 0))
    recorder.model.fit(data, epochs=2, verbose=0)
    assert recorder.trained == ids_of(stream, *steps(0, 6))


def test_a_short_first_epoch_is_followed_by_whole_ones() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE), index=2), Recorder()
    recorder.model.fit(fit_data(stream), epochs=3, verbose=0)
    assert recorder.trained == ids_of(stream, *steps(2, 7))


def test_a_model_is_built_without_taking_a_batch() -> None:
    keras = load_keras()
    stream = FakeStream(make_spec(KIND))
    model = keras.Sequential([normalization(stream.spec), keras.layers.Flatten(), keras.layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    asked: list[int] = []
    count = keras.callbacks.LambdaCallback(on_train_begin=lambda _: asked.append(len(stream.taken)))
    data = fit_data(stream)
    model.fit(data, verbose=0, callbacks=[count])
    model.evaluate(data, verbose=0)
    assert asked == [0]
    assert stream.taken == 2 * steps(0, 3)


def test_predict_gives_each_sample_its_own_prediction_and_begins_again_each_time() -> None:
    keras = load_keras()
    stream = FakeStream(make_spec(ANGLE))
    model = keras.Sequential([keras.layers.Rescaling(1.0), keras.layers.GlobalAveragePooling2D()])
    data = fit_data(stream)
    for given in (None, None, 2, 2):
        predicted = model.predict(data, steps=given, verbose=0)
        assert np.round(predicted[:, 0]).astype(int).tolist() == ids_of(stream, *steps(0, given or 3))
        assert data.sample_ids.tolist() == ids_of(stream, *steps(0, given or 3))


def test_several_inputs_and_targets_arrive_by_their_names() -> None:
    """The first target is the sample's number in ten, the second is one of three, by the sample's number too."""
    keras = load_keras()
    stream = FakeStream(make_spec(ANGLE, KIND, replace(ANGLE, name="speed")))
    images, speed = keras.Input((8, 8, 3), dtype="uint8", name="images"), keras.Input((), name="speed")
    means = keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(0.1)(images))[:, 0]
    model = keras.Model({"images": images, "speed": speed}, {"angle": means, "kind": speed * 10.0 % 3.0})
    model.compile(loss={"angle": "mae", "kind": "mae"})
    losses = model.evaluate(fit_data(stream, inputs="speed", targets=["angle", "kind"]), verbose=0, return_dict=True)
    assert losses["loss"] == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("one_hot", [False, True])
def test_class_weights_weigh_the_loss(one_hot: bool) -> None:
    """Every prediction has the same loss, so that the loss is the mean weight."""
    keras = load_keras()
    stream = FakeStream(make_spec(KIND))
    loss = "categorical_crossentropy" if one_hot else "sparse_categorical_crossentropy"
    recorder = Recorder(keras.layers.Dense(3, "softmax", kernel_initializer="zeros"), loss=loss)
    data = fit_data(stream, one_hot=one_hot, class_weight={"car": 4.0, "dog": 0.0})
    found = recorder.model.fit(data, verbose=0).history["loss"][0]
    weights = [(4.0, 1.0, 0.0)[number % 3] for number in ids_of(stream, *steps(0, 3))]
    assert found == pytest.approx(np.mean(weights) * np.log(3), rel=1e-5)


def test_the_loss_as_a_weighted_metric_is_exact_where_a_whole_batch_has_no_weight() -> None:
    spec = make_spec(KIND, samples=8, batches=2, bad_policy="mask")
    kept = FakeStream(spec).ids(0, 0)[:3]
    stream = FakeStream(spec, weightless=frozenset(range(8)) - frozenset(kept.tolist()))
    name, keras = "sparse_categorical_crossentropy", load_keras()
    loss = keras.losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight")
    recorder = Recorder(keras.layers.Dense(3, "softmax"), loss=loss, weighted_metrics=[name])
    found = recorder.model.evaluate(fit_data(stream), verbose=0, return_dict=True)
    chances = recorder.model.predict(fit_data(FakeStream(spec)), verbose=0)[:3]
    wanted = -np.log(chances[range(3), kept % 3]).mean()
    assert found[name] == pytest.approx(wanted, rel=1e-4)
    assert found["loss"] == pytest.approx(wanted / 2, rel=1e-4)  # the mean of the batches, one of which counts as 0


def test_samples_of_weight_0_do_not_count_in_the_loss() -> None:
    stream = FakeStream(make_spec(ANGLE, bad_policy="mask"), weightless=frozenset(range(1, 10)))
    recorder = Recorder(load_keras().layers.Dense(1, kernel_initializer="zeros", bias_initializer="ones"))
    losses = recorder.model.evaluate(fit_data(stream), verbose=0, return_dict=True)
    assert losses["loss"] == pytest.approx(1.0 / 10)  # sample 0, whose target is 0, among ten


@pytest.mark.parametrize("eager", [True, False])
def test_no_more_batches_are_held_than_the_smallest_credit_allows(eager: bool) -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder(run_eagerly=eager)
    recorder.model.fit(fit_data(stream), epochs=2, verbose=0)
    gc.collect()
    assert stream.leases == 0
    assert stream.most_leases <= 2


def test_a_subscription_with_no_epoch_left_raises() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE), total_epochs=1), Recorder()
    recorder.model.fit(fit_data(stream), verbose=0)
    with pytest.raises(ConfigError, match="'train' has no epoch left: subscribe with epochs=None"):
        recorder.model.fit(fit_data(stream), verbose=0)


def test_a_receipt_that_is_not_ok_ends_fit() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE), missed=1), Recorder()
    with pytest.raises(ReceiptError, match="epoch 0 does not add up"):
        recorder.model.fit(fit_data(stream), epochs=2, verbose=0)


def test_an_epoch_that_is_longer_than_announced_ends_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeStream, "steps_left", property(lambda stream: 2 - stream.index))
    with pytest.raises(ReceiptError, match="more steps than announced: batch 2 came after its end"):
        Recorder().model.fit(fit_data(FakeStream(make_spec(ANGLE))), verbose=0)


@pytest.mark.parametrize(("normalize", "black", "white"), FORMS, ids=str)
def test_normalization_does_what_the_stream_says(normalize: Any, black: list[float], white: list[float]) -> None:
    layer = normalization(make_spec(normalize=normalize))
    assert type(layer).__module__.startswith("keras.")
    for value, expected in ((0, black), (255, white)):
        pixels = np.full((1, 1, 1, 3), value, dtype=np.uint8)
        np.testing.assert_allclose(np.ravel(layer(pixels)), expected, rtol=1e-3)


@pytest.mark.parametrize("given", [0, -1, "2", 2.5, True])
def test_steps_must_be_a_whole_number_of_at_least_1(given: Any) -> None:
    with pytest.raises(ConfigError, match=f"steps must be a whole number, 1 or more, not {given!r}"):
        fit_data(FakeStream(make_spec(ANGLE)), steps=given)


def test_a_missing_keras_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(MissingExtraError, match=r"needs keras.*pip install 'streamd-loader\[train\]'"):
        load_keras()


def test_importing_the_package_does_not_import_a_framework() -> None:
    code = "import sys, streamd, streamd.frameworks.keras; print({'keras', 'tensorflow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
