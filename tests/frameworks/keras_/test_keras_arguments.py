"""Every argument of fit, evaluate and predict is honoured or refused. test_keras_backends runs it on other backends."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from support.keras_recorder import Recorder, ids_of, steps
from support.stream_fake import ANGLE, KIND, FakeClient, FakeStream, make_spec

from streamd.client import Client, Stream
from streamd.core.spec import ImageSpec
from streamd.errors import ConfigError, NoDatasetError
from streamd.frameworks.keras import fit_data, load_keras
from streamd.frameworks.keras.calls import ARGUMENTS

pytestmark = pytest.mark.train


def make_kinds(**changes: Any) -> tuple[FakeStream, Recorder]:
    """A stream of classes, and a model whose loss for each sample is the same, so that a loss is a mean of weights."""
    stream = FakeStream(make_spec(KIND, **changes))
    head = load_keras().layers.Dense(3, "softmax", kernel_initializer="zeros")
    return stream, Recorder(head, loss="sparse_categorical_crossentropy")


def make_validation(**changes: Any) -> FakeStream:
    return FakeStream(make_spec(ANGLE, name="val", **changes))


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_there_is_a_rule_for_every_parameter_of_kerass_own_methods(method: Any) -> None:
    keras = load_keras()
    assert set(inspect.signature(getattr(keras.Model, method)).parameters) - {"self"} == set(ARGUMENTS[method])


SEVERAL = {"photo": ImageSpec(8, 8, 3), "depth": ImageSpec(8, 8, 1), "mask": ImageSpec(8, 8, 1, mode="index")}


def build_network(*names: str, outputs: int = 1) -> Any:
    """A compiled model with an input for each name, or one without a name."""
    layers = load_keras().layers
    inputs = {name: load_keras().Input((8, 8, 3 if name == "photo" else 1), name=name) for name in names or ("photo",)}
    features = layers.Concatenate()([layers.Flatten()(each) for each in (*inputs.values(), *inputs.values())])
    found = {f"kind{number}": layers.Dense(3)(features) for number in range(outputs)}
    given = inputs if names else inputs["photo"]
    model = load_keras().Model(given, found if outputs > 1 else found["kind0"])
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_a_dict_for_a_model_of_one_input_is_refused_with_both_ways_out(method: str) -> None:
    data = fit_data(FakeStream(make_spec(KIND, images=SEVERAL)), targets="kind", one_hot=True)
    with pytest.raises(ConfigError, match=r"takes one array.*gives a dict of 2, photo, depth: choose one, as in  fit_"):
        getattr(build_network(), method)(data, verbose=0)


def test_inputs_that_the_stream_does_not_give_are_named() -> None:
    stream = FakeStream(make_spec(KIND, images=SEVERAL))
    for names, chosen in ((("photo", "range"), None), (("photo", "depth"), ["photo"])):
        data = fit_data(stream, inputs=chosen, targets="kind", one_hot=True)
        with pytest.raises(
            ConfigError, match=rf"the model has the inputs {', '.join(names)}, and stream 'train' gives"
        ):
            build_network(*names).fit(data, verbose=0)


def test_two_targets_for_one_output_are_refused_before_the_first_batch_also_in_validation() -> None:
    stream = FakeStream(make_spec(KIND, ANGLE))
    both = r"the model has one output, and stream 'train' gives a dict of 2 targets, kind, angle: choose one"
    with pytest.raises(ConfigError, match=both):
        build_network().fit(fit_data(stream), verbose=0)
    with pytest.raises(ConfigError, match=rf"validation_data=.*{both}"):
        build_network().fit(
            fit_data(stream, targets="kind", one_hot=True),
            validation_data=fit_data(FakeStream(make_spec(KIND, ANGLE))),
            verbose=0,
        )
    assert stream.taken == []


def test_a_model_that_computes_its_own_loss_is_given_anything() -> None:
    keras = load_keras()

    class Own(keras.Model):  # type: ignore[misc, name-defined]  # Keras has no types
        def compute_loss(self, *given: Any, **_: Any) -> Any:
            return keras.ops.mean(given[2]) + 0.0 * keras.ops.mean(keras.ops.cast(given[1]["kind"], "float32"))

    stream, inputs = FakeStream(make_spec(KIND, ANGLE)), keras.Input((8, 8, 3))
    model = Own(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(inputs)))
    model.compile("sgd", "mse")
    model.fit(fit_data(stream), verbose=0)
    assert len(stream.taken) == 3


REFUSED = [
    ("fit", {"y": np.zeros(10)}, r"fit\(y=\.\.\.\).*fit_data\(stream, targets="),
    ("fit", {"batch_size": 8}, r"fit\(batch_size=8\).*'train' have 4.*client.subscribe\('train', batch_size=8\)"),
    (
        "fit",
        {"validation_split": 0.2},
        r"fit\(validation_split=0.2\).*split: {validation: 0.2}.*validation_data=fit_data",
    ),
    ("fit", {"shuffle": False}, r"fit\(shuffle=False\).*comes shuffled.*shuffle: none"),
    ("fit", {"shuffle": "batch"}, r"fit\(shuffle='batch'\).*leave shuffle out"),
    ("fit", {"sample_weight": np.ones(10)}, r"fit\(sample_weight=\.\.\.\).*weights: COLUMN"),
    ("fit", {"class_weight": {7: 2.0}}, "has no class 7"),
    ("fit", {"class_weight": [1.0, 2.0, 3.0]}, "class_weight is {class: weight}"),
    ("fit", {"epochs": 3}, r"fit has 3 epochs \(9 steps\) to go.*ends after 2 epochs \(6 steps\).*with epochs=None"),
    ("fit", {"epochs": 6, "initial_epoch": 3}, r"fit has 3 epochs \(9 steps\) to go"),
    ("fit", {"steps_per_epoch": 4}, r"fit\(steps_per_epoch=4\).*'train' has 3 steps.*from 1 to 3"),
    ("fit", {"steps_per_epoch": 0}, r"fit\(steps_per_epoch=0\)"),
    ("fit", {"steps_per_epoch": 2, "epochs": 4}, r"fit has 4 epochs \(8 steps\) to go.*\(6 steps\)"),
    (
        "fit",
        {"validation_steps": 2},
        r"fit\(validation_steps=2\).*needs validation_data, which is missing",
    ),
    (
        "fit",
        {"validation_batch_size": 4},
        r"fit\(validation_batch_size=4\).*needs validation_data, which is missing",
    ),
    ("fit", {"validation_freq": 2}, r"fit\(validation_freq=2\).*needs validation_data, which is missing"),
    ("evaluate", {"y": np.zeros(10)}, r"evaluate\(y=\.\.\.\)"),
    ("evaluate", {"batch_size": 5}, r"evaluate\(batch_size=5\)"),
    ("evaluate", {"sample_weight": np.ones(10)}, r"evaluate\(sample_weight=\.\.\.\)"),
    ("evaluate", {"steps": 4}, r"evaluate\(steps=4\).*has 3 steps"),
    ("predict", {"batch_size": 5}, r"predict\(batch_size=5\)"),
    ("predict", {"steps": 4}, r"predict\(steps=4\)"),
]


@pytest.mark.parametrize(("method", "given", "said"), REFUSED)
def test_an_argument_that_a_stream_cannot_honour_is_refused_before_the_first_step(
    method: str, given: dict[str, Any], said: str
) -> None:
    stream, recorder = make_kinds()
    stream.total_epochs = 2
    with pytest.raises(ConfigError, match=said):
        getattr(recorder.model, method)(fit_data(stream), verbose=0, **given)
    assert stream.taken == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"validation_steps": 4}, r"fit\(validation_steps=4\).*'val' has 3 steps"),
        ({"validation_batch_size": 8}, r"fit\(validation_batch_size=8\).*client.subscribe\('val', batch_size=8\)"),
        ({"validation_split": 0.2}, r"fit\(validation_split=0.2\)"),
        ({"validation_data": "with targets"}, r"fit\(validation_data=\.\.\.\).*alone"),
        ({"validation_freq": 0}, r"fit\(validation_freq=0\): give a whole number of epochs, 1 or more, or a list"),
        ({"validation_freq": 1.5}, r"fit\(validation_freq=1.5\): give a whole number"),
        (
            {"validation_data": "no targets"},
            r"fit\(validation_data=\.\.\.\): the model's loss needs targets.*'val' gives",
        ),
        (
            {"validation_data": "val"},
            r"the name 'val' is not data.*validation_data=fit_data\(client.subscribe\('val'\)\)",
        ),
        (
            {"validation_data": "a client"},
            r"a client is not data.*validation_data=fit_data\(client.subscribe\('validation'\)\)",
        ),
        ({"validation_data": "a stream"}, r"fit\(validation_data=\.\.\.\).*validation_data=fit_data\(stream\)"),
    ],
)
def test_an_argument_for_validation_is_refused_before_training_begins(given: dict[str, Any], said: str) -> None:
    (stream, recorder), validation = make_kinds(), make_validation()
    data = {
        "": fit_data(validation),
        "with targets": (fit_data(validation), np.zeros(10)),
        "no targets": fit_data(validation, targets=None),
        "a stream": validation,
        "a client": FakeClient([validation.spec]),
        "val": "val",
    }
    given = {**given, "validation_data": data[given.get("validation_data", "")]}
    with pytest.raises(ConfigError, match=said):
        recorder.model.fit(fit_data(stream), verbose=0, **given)
    assert stream.taken == validation.taken == []


def test_validation_data_beside_arrays_follow_the_same_rules() -> None:
    recorder, images = Recorder(), np.zeros((4, 8, 8, 3), np.uint8)
    data = fit_data(make_validation())
    with pytest.raises(ConfigError, match=r"fit\(validation_batch_size=.*'val' have 4 samples"):
        recorder.model.fit(images, np.zeros(4), batch_size=2, validation_data=data, verbose=0)
    recorder.model.fit(images, np.zeros(4), batch_size=2, validation_data=data, validation_batch_size=4, verbose=0)
    assert len(recorder.validated) == 10


def test_arguments_that_agree_with_the_stream_are_accepted() -> None:
    train, validation, recorder = FakeStream(make_spec(ANGLE, shuffle="none")), make_validation(), Recorder()
    recorder.model.fit(
        fit_data(train),
        y=None,
        batch_size=4,
        validation_split=0.0,
        validation_data=fit_data(validation),
        shuffle=False,
        class_weight=None,
        sample_weight=None,
        steps_per_epoch=3,
        validation_steps=3,
        validation_batch_size=4,
        verbose=0,
    )
    recorder.model.evaluate(fit_data(validation), batch_size=4, steps=3, verbose=0)
    recorder.model.predict(fit_data(validation), batch_size=4, steps=3, verbose=0)
    assert recorder.trained == ids_of(train, *steps(0, 3))


@pytest.mark.parametrize("named", [{"car": 4.0, "dog": 0.0}, {0: 4.0, np.int64(2): 0.0}])
def test_class_weights_given_to_fit_weigh_the_loss_of_that_fit_alone(named: Any) -> None:
    stream, recorder = make_kinds()
    data = fit_data(stream)
    weighted, plain = (recorder.model.fit(data, verbose=0, **how) for how in ({"class_weight": named}, {}))
    weights = [(4.0, 1.0, 0.0)[number % 3] for number in ids_of(stream, *steps(0, 3))]
    assert weighted.history["loss"][0] == pytest.approx(np.mean(weights) * np.log(3), rel=1e-5)
    assert plain.history["loss"][0] == pytest.approx(np.log(3), rel=1e-5)


@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_a_stream_without_targets_is_refused_where_the_loss_needs_them(method: str) -> None:
    stream, recorder = make_kinds()
    unlabeled = FakeStream(make_spec())
    said = rf"{method}\(x=\.\.\.\): the model's loss needs targets, and stream 'train' gives none"
    with pytest.raises(ConfigError, match=rf"{said}: choose with  fit_data\(stream, targets=\.\.\.\).*\(kind\)"):
        getattr(recorder.model, method)(fit_data(stream, targets=None), verbose=0)
    with pytest.raises(ConfigError, match=rf"{said}: serve it with labels"):
        getattr(recorder.model, method)(fit_data(unlabeled), verbose=0)
    recorder.model.predict(fit_data(unlabeled), verbose=0)
    assert stream.taken == []


def test_a_model_with_its_own_loss_trains_without_targets() -> None:
    keras, stream = load_keras(), FakeStream(make_spec())

    class Autoencoder(keras.Sequential):  # type: ignore[misc, name-defined]  # Keras has no types
        def compute_loss(self, *given: Any, **named: Any) -> Any:
            x, _, y_pred, *rest = given or (named.pop("x"), named.pop("y"), named.pop("y_pred"))
            return super().compute_loss(x, 0.9 * y_pred, y_pred, *rest, **named)

    model = Autoencoder([keras.layers.Rescaling(0.1), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    model.fit(fit_data(stream), validation_data=fit_data(make_validation(), targets=None), verbose=0)
    assert stream.taken == steps(0, 3)


def test_class_weights_reach_a_model_that_fit_has_to_build_and_weighted_metrics() -> None:
    keras, (stream, _) = load_keras(), make_kinds()
    model = keras.Sequential([keras.layers.Rescaling(0.1), keras.layers.Flatten(), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    history = model.fit(fit_data(stream), class_weight={0: 0.0, 1: 0.0, 2: 0.0}, verbose=0).history
    assert history["loss"] == [0.0]
    assert history["accuracy"] == [0.0]


def test_class_weights_of_samples_with_weights_are_multiplied() -> None:
    stream, recorder = make_kinds(bad_policy="mask")
    stream.weightless = frozenset(range(3, 10))
    found = recorder.model.fit(fit_data(stream), class_weight={0: 6.0}, verbose=0).history["loss"][0]
    assert found == pytest.approx((6 + 1 + 1) / 10 * np.log(3), rel=1e-5)


def test_class_weights_given_twice_are_refused() -> None:
    stream, recorder = make_kinds()
    with pytest.raises(ConfigError, match="fit_data already has a class_weight: give class_weight to"):
        recorder.model.fit(fit_data(stream, class_weight="balanced"), class_weight={0: 2.0}, verbose=0)


@pytest.mark.filterwarnings("error:Your input ran out of data")
def test_steps_per_epoch_sets_the_length_of_consecutive_epochs() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    data, bars = fit_data(stream), list[int]()
    count = load_keras().callbacks.LambdaCallback(on_train_batch_end=lambda batch, **_: bars.append(batch))
    recorder.model.fit(data, epochs=3, steps_per_epoch=2, verbose=0, callbacks=[count])
    recorder.model.fit(data, verbose=0)
    assert recorder.trained == ids_of(stream, *steps(0, 9))
    assert bars == [0, 1] * 3


@pytest.mark.parametrize(("ours", "kerass"), [(2, 3), (3, 2)])
def test_steps_given_to_a_call_override_those_of_fit_data(ours: int, kerass: int) -> None:
    stream, recorder = make_validation(), Recorder()
    data = fit_data(stream, steps=ours)
    recorder.model.evaluate(data, steps=kerass, verbose=0)
    recorder.model.evaluate(data, verbose=0)
    assert recorder.validated == ids_of(stream, *steps(0, kerass), *steps(0, ours))


def test_the_other_arguments_do_what_keras_says() -> None:
    """Those that Keras acts on itself: epochs, initial_epoch, verbose, callbacks, validation_freq, return_dict."""
    train, validation, recorder = FakeStream(make_spec(ANGLE), total_epochs=2), make_validation(), Recorder()
    begun: list[int] = []
    look = load_keras().callbacks.LambdaCallback(on_epoch_begin=lambda epoch, _: begun.append(epoch))
    history = recorder.model.fit(
        fit_data(train),
        validation_data=fit_data(validation),
        epochs=5,
        initial_epoch=3,
        validation_freq=[5],
        verbose=0,
        callbacks=[look],
    )
    assert begun == [3, 4]
    assert len(history.history["val_loss"]) == 1
    assert set(recorder.model.evaluate(fit_data(validation), return_dict=True, verbose=0)) == {"loss"}
    with pytest.raises(ValueError, match="not recognized"):
        recorder.model.evaluate(fit_data(validation), unknown=1)


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_a_stream_or_a_client_in_the_place_of_fit_data_is_refused_with_what_to_write(method: str) -> None:
    stream = object.__new__(Stream)  # of which Keras asks only what it is
    with pytest.raises(NoDatasetError, match=r"for Keras write  model.fit\(fit_data\(stream\)\)"):
        getattr(Recorder().model, method)(stream, verbose=0)
    client = object.__new__(Client)
    with pytest.raises(ConfigError, match=r"for Keras write  model.fit\(fit_data\(client.subscribe\("):
        getattr(Recorder().model, method)(client, verbose=0)
