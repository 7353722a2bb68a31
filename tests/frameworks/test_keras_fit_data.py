"""What `fit` sees of a stream. Each model here records the samples it is given, as their pixels name them."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from trainer_fakes import ANGLE, KIND, FakeStream, make_spec

from streamd.errors import ConfigError, MissingExtraError, ReceiptError
from streamd.frameworks.keras import fit_data, load_keras, normalization

pytestmark = pytest.mark.train

RAN_OUT = "ignore:Your input ran out of data:UserWarning"  # Keras's word for an epoch that is shorter than the others


class Recorder:
    """A model with one weight, and the first pixels of every batch it was trained or evaluated on."""

    def __init__(self, weighted: bool = False, **compiling: Any) -> None:
        keras = load_keras()
        self.seen: list[list[int]] = []
        images = keras.Input((8, 8, 3), dtype="uint8")
        pooled = keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1.0)(images))
        self.model = keras.Model(images, keras.layers.Dense(1)(pooled))
        metrics = {"weighted_metrics": [self.see]} if weighted else {"metrics": [self.see]}
        self.model.compile("sgd", "mse", run_eagerly=True, **metrics, **compiling)
        self.model.optimizer.learning_rate = 0.0

    def see(self, truth: Any, predicted: Any) -> Any:
        self.seen.append([round(value * 10) for value in np.ravel(truth).tolist()])
        return predicted * 0


def batches_of(stream: FakeStream, epochs: range, steps: int = 3) -> list[list[int]]:
    return [stream.ids(epoch, index).tolist() for epoch in epochs for index in range(steps)]


def test_the_default_shuffle_of_fit_leaves_the_order_alone() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE), total_epochs=2), Recorder()
    recorder.model.fit(fit_data(stream), epochs=2, verbose=0, shuffle=True)
    assert recorder.seen == batches_of(stream, range(2))
    assert [receipt.complete for receipt in stream.receipts] == [True, True]


def test_the_model_sees_the_pixels_and_labels_of_the_batch() -> None:
    keras = load_keras()
    stream = FakeStream(make_spec(ANGLE))
    images = keras.Input((8, 8, 3), dtype="uint8")
    model = keras.Model(images, keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1.0)(images)))
    predicted = model.predict(fit_data(stream), verbose=0)
    np.testing.assert_array_equal(predicted[:, 0], np.concatenate([stream.ids(0, index) for index in range(3)]))


def test_nothing_is_fetched_before_fit_and_nothing_beyond_its_last_step() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    data = fit_data(stream)
    assert stream.taken == []
    recorder.model.fit(data, epochs=1, verbose=0)
    assert stream.taken == [(0, 0), (0, 1), (0, 2)]


def test_each_batch_is_fetched_when_its_step_begins() -> None:
    keras = load_keras()
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    ahead: list[int] = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: ahead.append(len(stream.taken)))
    recorder.model.fit(fit_data(stream), epochs=1, verbose=0, callbacks=[count])
    assert ahead == [1, 2, 3]


def test_a_second_fit_goes_on_with_the_next_epoch() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    data = fit_data(stream)
    recorder.model.fit(data, epochs=1, verbose=0)
    recorder.model.fit(data, epochs=2, verbose=0)
    assert recorder.seen == batches_of(stream, range(3))


def test_steps_divides_the_stream_without_skipping_any() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    lengths: list[int] = []
    count = load_keras().callbacks.LambdaCallback(on_epoch_end=lambda *_, **__: lengths.append(len(stream.taken)))
    data = fit_data(stream, steps=2)
    recorder.model.fit(data, epochs=2, verbose=0, callbacks=[count])
    recorder.model.fit(data, epochs=1, verbose=0, callbacks=[count])
    assert lengths == [2, 4, 6]
    assert recorder.seen == batches_of(stream, range(2))
    assert [receipt.complete for receipt in stream.receipts] == [True, True]


def test_more_steps_than_an_epoch_has_change_nothing() -> None:
    assert fit_data(FakeStream(make_spec(ANGLE)), steps=7).num_batches == 3


def test_every_validation_is_one_whole_epoch() -> None:
    train, validation = FakeStream(make_spec(ANGLE)), FakeStream(make_spec(ANGLE, name="validation"))
    recorder = Recorder()
    recorder.model.fit(fit_data(train), validation_data=fit_data(validation), epochs=2, verbose=0)
    both = zip(batches_of(train, range(2)), batches_of(validation, range(2)), strict=True)
    assert sorted(recorder.seen) == sorted(ids for pair in both for ids in pair)
    assert [receipt.complete for receipt in validation.receipts] == [True, True]


@pytest.mark.filterwarnings(RAN_OUT)
def test_an_epoch_left_early_is_gone_on_with_by_the_next_fit() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()

    def stop(batch: int, **_: object) -> None:
        recorder.model.stop_training = batch == 1

    data = fit_data(stream)
    recorder.model.fit(data, verbose=0, callbacks=[load_keras().callbacks.LambdaCallback(on_train_batch_end=stop)])
    assert recorder.seen == batches_of(stream, range(1), steps=2)
    recorder.model.fit(data, epochs=2, verbose=0)
    assert recorder.seen == batches_of(stream, range(2))


@pytest.mark.filterwarnings(RAN_OUT)
def test_a_short_first_epoch_does_not_shorten_the_later_ones() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE), index=2), Recorder()
    recorder.model.fit(fit_data(stream), epochs=3, verbose=0)
    assert recorder.seen == [stream.ids(0, 2).tolist(), *batches_of(stream, range(1, 3))]


@pytest.mark.parametrize("steps_per_execution", [2, 3])
def test_several_steps_an_execution_lose_nothing(steps_per_execution: int) -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder(steps_per_execution=steps_per_execution)
    recorder.model.fit(fit_data(stream), epochs=2, verbose=0)
    assert recorder.seen == batches_of(stream, range(2))


def test_a_subscription_that_is_used_up_says_so() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE), total_epochs=1), Recorder()
    with pytest.raises(ConfigError, match="no epoch left: subscribe with epochs=None"):
        recorder.model.fit(fit_data(stream), epochs=2, verbose=0)


def test_an_account_that_does_not_add_up_ends_fit() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE), missed=1), Recorder()
    with pytest.raises(ReceiptError, match="epoch 0 does not add up"):
        recorder.model.fit(fit_data(stream), epochs=2, verbose=0)


def test_an_epoch_that_is_longer_than_announced_ends_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeStream, "__len__", lambda _: 2)
    with pytest.raises(ReceiptError, match="more steps than announced: 2 came after its end"):
        Recorder().model.fit(fit_data(FakeStream(make_spec(ANGLE))), verbose=0)


def test_weights_reach_the_loss() -> None:
    stream = FakeStream(make_spec(ANGLE, bad_policy="mask"), weightless=frozenset(range(10)))
    recorder = Recorder(weighted=True)
    assert recorder.model.evaluate(fit_data(stream), verbose=0, return_dict=True)["loss"] == 0.0
    assert len(recorder.seen) == 3


def test_a_compiled_graph_takes_one_hot_and_class_weights() -> None:
    keras = load_keras()
    stream = FakeStream(make_spec(KIND))
    model = keras.Sequential([normalization(stream.spec), keras.layers.Flatten(), keras.layers.Dense(3, "softmax")])
    model.compile("adam", "categorical_crossentropy", weighted_metrics=["accuracy"])
    model.fit(fit_data(stream, one_hot=True, class_weight="balanced"), epochs=2, verbose=0)
    assert stream.taken == [(epoch, index) for epoch in range(2) for index in range(3)]


@pytest.mark.parametrize(("steps_per_execution", "eager"), [(1, True), (1, False), (3, True), (3, False)])
def test_fit_holds_no_more_leases_than_the_smallest_credit_allows(steps_per_execution: int, eager: bool) -> None:
    keras = load_keras()
    stream = FakeStream(make_spec(ANGLE))
    model = keras.Sequential([normalization(stream.spec), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution, run_eagerly=eager)
    model.fit(fit_data(stream), epochs=2, verbose=0)
    gc.collect()
    assert stream.leases == 0
    assert stream.most_leases <= 2


@pytest.mark.parametrize(
    ("normalize", "black", "white"),
    [
        ("none", [0, 0, 0], [255, 255, 255]),
        ("unit", [0, 0, 0], [1, 1, 1]),
        ("minus_one_one", [-1, -1, -1], [1, 1, 1]),
        ("imagenet", [-2.1179, -2.0357, -1.8044], [2.2489, 2.4286, 2.64]),
        ({"mean": [51, 102, 0], "std": [51, 51, 255]}, [-1, -2, 0], [4, 3, 1]),
    ],
)
def test_normalization_does_what_the_stream_says(normalize: Any, black: list[float], white: list[float]) -> None:
    layer = normalization(make_spec(normalize=normalize))
    assert type(layer).__module__.startswith("keras.")
    for value, expected in ((0, black), (255, white)):
        pixels = np.full((1, 1, 1, 3), value, dtype=np.uint8)
        np.testing.assert_allclose(np.ravel(layer(pixels)), expected, rtol=1e-3)


def test_a_normalization_of_other_channels_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 means and 2 deviations for 3 channels"):
        normalization(make_spec(normalize={"mean": [0, 0], "std": [1, 1]}))
    with pytest.raises(ConfigError, match="no normalize 'units'; did you mean 'unit'"):
        normalization(make_spec(normalize="units"))


def test_steps_below_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="steps must be at least 1, not 0"):
        fit_data(FakeStream(make_spec(ANGLE)), steps=0)


def test_another_backend_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_keras().backend, "backend", lambda: "jax")
    with pytest.raises(ConfigError, match="Keras runs on jax: set KERAS_BACKEND=tensorflow"):
        fit_data(FakeStream(make_spec(ANGLE)))


def test_a_missing_keras_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(MissingExtraError, match=r"needs keras.*pip install 'streamd\[train\]'"):
        load_keras()


def test_importing_the_package_does_not_import_a_framework() -> None:
    code = "import sys, streamd, streamd.frameworks.keras; print({'keras', 'tensorflow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_distribution_strategy_is_refused_with_the_way_out() -> None:
    import tensorflow as tf  # noqa: PLC0415 - takes seconds

    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        recorder = Recorder()
    with pytest.raises(ConfigError, match=r"cannot be used with a tf\.distribute strategy"):
        recorder.model.fit(fit_data(FakeStream(make_spec(ANGLE))), verbose=0)
