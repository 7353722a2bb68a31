"""The networks of `streamd-train`, their losses and their optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.stream_fake import ANGLE, KIND, FakeStream, make_spec
from support.transform_programs import forgotten

from streamd.cli.train.run import ImageTarget, choose_builder, choose_optimizer, compile_model, load_builder
from streamd.core.spec import ImageSpec, LabelSpec
from streamd.errors import ConfigError
from streamd.frameworks.keras import fit_data, load_keras


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, empty; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    with forgotten(tmp_path):
        yield tmp_path


@pytest.mark.train
@pytest.mark.parametrize("shape", [(128, 128, 3), (28, 28, 1), (60, 200, 3), (5, 5, 3)])
def test_a_number_gets_a_regression_network_for_any_shape(shape: tuple[int, int, int]) -> None:
    spec = make_spec(ANGLE, images={"image": ImageSpec(*shape)})
    model = choose_builder(ANGLE, None)(spec)
    assert model(np.zeros((2, *shape), dtype=np.uint8)).shape == (2, 1)
    assert not model.compiled


TAGS = LabelSpec("tags", "tags", width=3, classes=("a", "b", "c"), counts=(1, 2, 3))


@pytest.mark.train
@pytest.mark.parametrize(
    ("label", "outputs", "activation"),
    [(LabelSpec("point", "float", width=2), 2, "linear"), (TAGS, 3, "sigmoid")],
    ids=["an output for each number", "a probability for each tag"],
)
def test_the_outputs_of_the_built_in_network_fit_the_label(label: LabelSpec, outputs: int, activation: str) -> None:
    model = choose_builder(label, None)(make_spec(label))
    assert model.output_shape == (None, outputs)
    assert model.layers[-1].activation.__name__ == activation


@pytest.mark.train
@pytest.mark.parametrize("label", [ANGLE, KIND], ids=["number", "class"])
def test_each_image_but_a_mask_has_a_branch_of_its_own(label: LabelSpec) -> None:
    images = {
        "left": ImageSpec(16, 24, 3),
        "depth": ImageSpec(8, 8, 1, mode="raw", dtype="uint16", normalize="unit"),
        "mask": ImageSpec(16, 24, 1, mode="index"),
    }
    spec = make_spec(label, images=images)
    model = choose_builder(label, None)(spec)
    compile_model(model, label)
    assert {name: (each.shape[1:], each.dtype) for name, each in model.input.items()} == {
        "left": ((16, 24, 3), "uint8"),
        "depth": ((8, 8, 1), "uint16"),
    }
    losses = model.fit(fit_data(FakeStream(spec), targets=label.name), epochs=1, verbose=0).history["loss"]
    assert np.isfinite(losses).all()


@pytest.mark.train
def test_named_inputs_alone_have_branches() -> None:
    images = {"left": ImageSpec(16, 24, 3), "right": ImageSpec(16, 24, 3), "mask": ImageSpec(16, 24, 1, mode="index")}
    spec = make_spec(ANGLE, images=images)
    assert choose_builder(ANGLE, None, ["right"])(spec).input_shape == (None, 16, 24, 3)
    for inputs, given in ((["mask"], "'mask', which holds class numbers"), (["angle"], "not labels")):
        with pytest.raises(
            ConfigError, match=f"takes pictures, and not {given}|{given}.*choose other inputs with --in"
        ):
            choose_builder(ANGLE, None, inputs)(spec)
    viewed = make_spec(ANGLE, images={"pair": ImageSpec(16, 24, 3, views=2)})
    with pytest.raises(ConfigError, match=r"'pair' of stream 'train' has 2 pictures for each sample.*--model"):
        choose_builder(ANGLE, None)(viewed)


def test_an_image_to_learn_needs_a_model_of_the_users_own() -> None:
    target = ImageTarget("mask", ImageSpec(8, 8, 1, mode="index"))
    with pytest.raises(ConfigError, match=r"'mask' is an image of mode index, .*no built-in network: give a model of"):
        choose_builder(target, None)


@pytest.mark.train
def test_a_regression_begins_at_the_mean_of_the_label() -> None:
    label = LabelSpec("height", "float", mean=5000.0, std=1.0)
    predicted = choose_builder(label, None)(make_spec(label))(np.zeros((4, 8, 8, 3), dtype=np.uint8))
    np.testing.assert_allclose(predicted, 5000, atol=10)


@pytest.mark.train
def test_a_regression_distinguishes_positions() -> None:
    model = choose_builder(ANGLE, None)(make_spec(ANGLE, images={"image": ImageSpec(32, 32, 3)}))
    images = np.zeros((2, 32, 32, 3), dtype=np.uint8)
    images[0, 8:12, 4:8] = images[1, 8:12, 20:24] = 255
    left, right = np.ravel(model(images))
    assert left != pytest.approx(right, rel=1e-4)


@pytest.mark.train
@pytest.mark.parametrize(
    ("normalize", "white"), [("none", 1.0), ("unit", 1.0), ({"mean": [5] * 3, "std": [50] * 3}, 5.0)]
)
def test_the_network_normalizes_its_input(normalize: Any, white: float) -> None:
    model = choose_builder(ANGLE, None)(make_spec(ANGLE, normalize=normalize))
    pixels = np.full((1, 8, 8, 3), 255, dtype=np.uint8)
    np.testing.assert_allclose(np.ravel(model.layers[1](pixels)), white)


@pytest.mark.train
def test_a_category_gets_probabilities_of_its_classes() -> None:
    label = replace(KIND, name="Art des Tiers: ä")
    model = choose_builder(label, None)(make_spec(label))
    predicted = model(np.zeros((2, 8, 8, 3), dtype=np.uint8))
    assert predicted.shape == (2, 3)
    np.testing.assert_allclose(np.sum(predicted, axis=1), 1, rtol=1e-5)


@pytest.mark.train
def test_a_user_function_is_called_with_the_spec(folder: Path) -> None:
    (folder / "ownmodel.py").write_text(
        "import keras\n"
        "def build(spec):\n"
        "    return keras.Sequential([keras.Input(spec.image_shape), keras.layers.Flatten()])\n"
    )
    assert load_builder("ownmodel:build")(make_spec(ANGLE)).input_shape == (None, 8, 8, 3)


@pytest.mark.train
def test_a_function_that_returns_no_model_is_refused(folder: Path) -> None:
    (folder / "nomodel.py").write_text("def build(spec):\n    return 7\n")
    with pytest.raises(ConfigError, match=r"nomodel:build must return a keras\.Model, but returned int"):
        load_builder("nomodel:build")(make_spec(ANGLE))


def test_a_model_that_is_not_module_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="--model must be module:function, such as mymodel:build, not 'mymodel"):
        load_builder("mymodel.py")


def test_a_failing_user_function_is_refused_with_its_line(folder: Path) -> None:
    (folder / "failing.py").write_text("def build(spec):\n    return spec.nothing\n")
    with pytest.raises(ConfigError, match=r"failing:build failed: AttributeError.*failing\.py, line 2"):
        load_builder("failing:build")(make_spec(ANGLE))


class CompileRecorder:
    """Stands where a model does, and keeps what it is compiled with."""

    def __init__(self) -> None:
        self.how: tuple[Any, ...] = ()

    def compile(self, optimizer: Any, loss: Any, *, weighted_metrics: list[str]) -> None:
        self.how = (optimizer, loss.name, weighted_metrics)


@pytest.mark.train
@pytest.mark.parametrize(
    ("label", "loss", "metric"),
    [
        (KIND, "sparse_categorical_crossentropy", "accuracy"),
        (TAGS, "binary_crossentropy", "binary_accuracy"),
        (ANGLE, "mean_squared_error", "mae"),
        (replace(ANGLE, width=4), "mean_squared_error", "mae"),
        (LabelSpec("age", "int"), "mean_squared_error", "mae"),
    ],
)
def test_the_label_decides_the_loss_and_the_weighted_metric(label: LabelSpec, loss: str, metric: str) -> None:
    model = CompileRecorder()
    compile_model(model, label, "sgd")
    assert model.how == ("sgd", loss, [metric])


@pytest.mark.train
@pytest.mark.parametrize("label", [KIND, TAGS, ANGLE, replace(ANGLE, width=4)])
def test_the_built_in_network_learns_a_label_of_any_shape_from_weighted_samples(label: LabelSpec) -> None:
    model = choose_builder(label, None)(make_spec(label))
    compile_model(model, label)
    images = np.zeros((4, 8, 8, 3), dtype=np.uint8)
    values = np.ones((4, label.width) if label.width else 4, dtype=label.dtype)
    loss, metric = model.train_on_batch(images, values, sample_weight=np.array([1, 1, 1, 0], np.float32))
    assert np.isfinite([loss, metric]).all()


@pytest.mark.train
@pytest.mark.parametrize("changes", [{"bad_policy": "mask"}, {"remainder": "pad"}])
@pytest.mark.parametrize("label", [KIND, ANGLE])
def test_the_loss_of_a_batch_is_the_mean_of_the_weighted_rows(label: LabelSpec, changes: dict[str, Any]) -> None:
    stream = FakeStream(make_spec(label, samples=4, batches=1, **changes), weightless=frozenset({1, 2}))
    model = choose_builder(label, None)(stream.spec)
    compile_model(model, label)
    found = model.evaluate(fit_data(stream), verbose=0)[0]
    ((images, values, weights),) = fit_data(stream)
    kept = np.asarray(weights) > 0
    wanted = model.test_on_batch(np.asarray(images)[kept], np.asarray(values)[kept])[0]
    assert kept.sum() == 2
    assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.train
def test_an_optimizer_is_found_by_name_in_any_case_and_gets_the_learning_rate() -> None:
    optimizers = load_keras().optimizers
    assert type(choose_optimizer(None, None)) is optimizers.Adam
    assert type(choose_optimizer("AdamW", None)) is optimizers.AdamW
    assert float(choose_optimizer("sgd", 0.25).learning_rate) == 0.25


@pytest.mark.train
def test_an_unknown_optimizer_is_refused_with_the_known_names() -> None:
    with pytest.raises(ConfigError, match=r"no optimizer 'addam'; it has .*adam, .*sgd; did you mean 'adam'"):
        choose_optimizer("addam", 0.1)
    with pytest.raises(ConfigError, match="no optimizer 'LossScaleOptimizer'"):
        choose_optimizer("LossScaleOptimizer", None)
