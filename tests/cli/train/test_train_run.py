"""A training against a client that needs no daemon."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.stream_fake import ANGLE, KIND, FakeClient, FakeStream, make_spec
from support.transform_programs import forgotten

from streamd.cli.train import run
from streamd.cli.train.run import TrainingOptions, TrainingResult, train_model
from streamd.core.epoch_timing import BatchSupply, EpochTiming
from streamd.core.spec import ImageSpec
from streamd.decode.inference import read_spec
from streamd.errors import ConfigError, LossError, ReceiptError
from streamd.frameworks.keras import fit_data, load_keras

WriteModule = Callable[[str], str]

KERAS_SAVES = "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"  # Keras 3.15, NumPy 2
pytestmark = pytest.mark.filterwarnings(KERAS_SAVES)

TRAIN = make_spec(ANGLE)
VALIDATION = make_spec(ANGLE, name="validation", shuffle="none", bad_policy="mask")


@pytest.fixture
def job(tmp_path: Path) -> TrainingOptions:
    return TrainingOptions("train", 2, tmp_path / "model.keras")


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WriteModule]:
    """Writes a module of the user's, `keras` being imported in it, and gives the name of its `build`."""
    monkeypatch.chdir(tmp_path)

    def write(source: str) -> str:
        Path("ownmodule.py").write_text(f"import keras\n{source}")
        return "ownmodule:build"

    with forgotten(tmp_path):
        yield write


@pytest.mark.train
def test_a_training_saves_a_model_and_reports_epochs(job: TrainingOptions, capsys: pytest.CaptureFixture[str]) -> None:
    client, said = FakeClient([TRAIN, VALIDATION]), list[str]()
    receipts = train_model(client, replace(job, validation="validation", seed=1), said.append)
    assert [(receipt.stream, receipt.epoch, receipt.complete) for receipt in receipts] == [
        ("train", 0, True),
        ("train", 1, True),
        ("validation", 0, True),
        ("validation", 0, True),
    ]
    assert said[2:] == [
        "epoch 0: 3 steps, 10 samples, missed 0, repeated 0, bad 0: ok",
        "epoch 1: 3 steps, 10 samples, missed 0, repeated 0, bad 0: ok",
        "validation epoch 0: 3 steps, 10 samples, missed 0, repeated 0, bad 0: ok",
        "validation epoch 0: 3 steps, 10 samples, missed 0, repeated 0, bad 0: ok",
        f"saved {job.save}, its curves model.curves.png, and model.streamd.json for streamd.load_image",
    ]
    assert re.match(r"after 2 epochs: loss \S+, mae \S+, val_loss .+, val_mae \S+$", said[0])
    assert said[1].startswith("20 samples in ")
    shown = capsys.readouterr().out
    assert re.search(r"Epoch 2/2\n3/3 - .* - val_loss: .* - val_mae: .* - wait: 0%\n$", shown)
    assert shown.replace("\n", "").isprintable()  # no bar where there is no terminal
    assert job.save.with_name("model.curves.png").read_bytes().startswith(b"\x89PNG")
    assert load_keras().models.load_model(job.save).input_shape == (None, 8, 8, 3)
    assert read_spec(job.save.with_name("model.streamd.json")) == TRAIN


SEVERAL = {"photo": ImageSpec(8, 8, 3), "depth": ImageSpec(8, 8, 1), "mask": ImageSpec(8, 8, 1, mode="index", fill=255)}
SEGMENT = """
def build(spec):
    photo = keras.Input(spec.images["photo"].shape, dtype="uint8")
    scaled = keras.layers.Rescaling(1 / 255)(photo)
    return keras.Model(photo, keras.layers.Conv2D({outputs}, 1, activation={activation!r})(scaled))
"""


@pytest.mark.train
@pytest.mark.parametrize(("label", "outputs", "activation"), [("mask", 16, "softmax"), ("photo", 3, None)])
def test_a_model_of_the_users_own_learns_an_image_from_one_of_several(
    job: TrainingOptions, write_module: WriteModule, label: str, outputs: int, activation: str | None
) -> None:
    model = write_module(SEGMENT.format(outputs=outputs, activation=activation))
    chosen = replace(job, model=model, label=label, inputs=("photo",), validation="validation")
    train, validation = (make_spec(ANGLE, name=name, images=SEVERAL) for name in ("train", "validation"))
    receipts = train_model(FakeClient([train, validation]), chosen, lambda _: None)
    assert [receipt.ok for receipt in receipts] == [True] * 4
    assert load_keras().models.load_model(job.save).output_shape == (None, 8, 8, outputs)


@pytest.mark.train
def test_training_together_applies_to_the_training_stream_alone(job: TrainingOptions) -> None:
    client = FakeClient([TRAIN, VALIDATION])
    train_model(client, replace(job, validation="validation", together=4), lambda _: None)
    assert client.starts == {"train": {"together": 4}, "validation": "begin"}


@pytest.mark.train
def test_the_same_seed_gives_the_same_weights(job: TrainingOptions) -> None:
    weights = []
    for seed in (5, 5, 6):
        train_model(FakeClient([TRAIN]), replace(job, seed=seed, epochs=1), print)
        weights.append(load_keras().models.load_model(job.save).get_weights()[0])
    np.testing.assert_array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[0], weights[2])


@pytest.mark.train
def test_a_resumed_training_runs_and_reports_only_the_remaining_epochs(
    job: TrainingOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client, resumed = FakeClient([TRAIN]), replace(job, resume=tmp_path / "run", seed=1)
    assert [receipt.epoch for receipt in train_model(client, replace(resumed, epochs=1), print)] == [0]
    assert [receipt.epoch for receipt in train_model(client, resumed, print)] == [1]
    weights = load_keras().models.load_model(job.save).get_weights()
    assert train_model(client, resumed, print) == []
    assert client.subscribed["train"].taken == []
    assert "cannot be kept" not in capsys.readouterr().err  # of our own callbacks
    for loaded, trained in zip(load_keras().models.load_model(job.save).get_weights(), weights, strict=True):
        np.testing.assert_array_equal(loaded, trained)


@pytest.mark.train
def test_a_bad_receipt_ends_the_training_and_is_returned(job: TrainingOptions) -> None:
    said: list[str] = []
    receipts = train_model(FakeClient([TRAIN], missed=1), job, said.append)
    assert [(receipt.epoch, receipt.ok) for receipt in receipts] == [(0, False)]
    assert said == ["", "epoch 0: 3 steps, 10 samples, missed 1, repeated 0, bad 0: NOT OK"]
    assert not job.save.exists()


@pytest.mark.train
def test_a_nan_loss_saves_its_batch_but_no_model_and_no_state(job: TrainingOptions) -> None:
    said, folder = list[str](), job.save.parent
    client = FakeClient([TRAIN], spoiled=[3])
    with pytest.raises(LossError, match=r"fix #3 train/3\.png[\s\S]*its pictures are in: .*nan-train-0-"):
        train_model(client, replace(job, resume=folder / "run"), said.append)
    assert [path.suffix for path in folder.glob("nan-train-0-*")] == [".html"]
    assert re.search(r"stopped early: ok$", said[-1])
    assert not job.save.exists()
    assert list((folder / "run").glob("step-*")) == []


@pytest.mark.train
def test_class_weights_apply_to_the_training_stream(job: TrainingOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def watched(stream: Any, **how: Any) -> Any:
        asked.append(how.get("class_weight"))
        return fit_data(stream, **how)

    monkeypatch.setattr(run, "fit_data", watched)
    streams = [make_spec(KIND), make_spec(KIND, name="validation")]
    train_model(FakeClient(streams), replace(job, epochs=1, validation="validation", class_weight="balanced"), print)
    assert asked == [None, "balanced"]


@pytest.mark.train
def test_mixed_precision_applies_to_all_layers_but_the_output(job: TrainingOptions) -> None:
    said, keras = list[str](), load_keras()
    try:
        train_model(FakeClient([TRAIN]), replace(job, epochs=1, mixed_precision=True), said.append)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    model = keras.models.load_model(job.save)
    assert said[0] == "precision: mixed_bfloat16"
    assert {layer.compute_dtype for layer in model.layers if "conv" in layer.name} == {"bfloat16"}
    assert model.layers[-1].compute_dtype == "float32"


@pytest.mark.train
def test_an_optimizer_for_a_compiled_model_is_refused_before_subscribing(
    job: TrainingOptions, write_module: WriteModule
) -> None:
    model = write_module("def build(spec):\n    model = keras.Sequential()\n    model.compile()\n    return model\n")
    client = FakeClient([TRAIN])
    with pytest.raises(
        ConfigError, match=r"compiled already, .*: leave out --optimizer and --learning-rate, or return"
    ):
        train_model(client, replace(job, model=model, optimizer="sgd", learning_rate=0.1), print)
    assert client.subscribed == {}


def test_the_end_of_a_training_says_where_the_time_went(job: TrainingOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    timing, said = EpochTiming(0, 43.0, 2.0, "none", BatchSupply()), list[str]()

    def fit(*given: Any) -> TrainingResult:
        given[2].timings.append(timing)
        return TrainingResult({"loss": [1.0]}, 1.0, 0.0, job.save, 1 << 20)

    monkeypatch.setattr(run, "prepare_model", lambda *_: None)
    monkeypatch.setattr(run, "_fit_and_save_model", fit)
    train_model(FakeClient([TRAIN]), job, said.append)
    assert (said[0], said[2]) == ("after 1 epoch: loss 1", timing.summary_text)
    assert "if data were free: 41 s; with data: 43 s" in timing.summary_text


@pytest.mark.train
def test_a_receipt_error_without_a_bad_receipt_is_raised(job: TrainingOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeStream, "steps_left", property(lambda stream: 2 - stream.index))
    with pytest.raises(ReceiptError, match="more steps than announced"):
        train_model(FakeClient([TRAIN]), job, print)


@pytest.mark.train
def test_a_compiled_user_model_keeps_its_loss(
    job: TrainingOptions, write_module: WriteModule, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_module(
        "def build(spec):\n"
        "    model = keras.Sequential([keras.layers.Rescaling(1.0), keras.layers.Flatten(), keras.layers.Dense(1)])\n"
        "    model.compile('sgd', 'mae', metrics=['cosine_similarity'])\n"
        "    return model\n"
    )
    train_model(FakeClient([TRAIN]), replace(job, model=model), print)
    assert "cosine_similarity" in capsys.readouterr().out


@pytest.mark.train
def test_a_user_model_of_another_shape_is_refused(job: TrainingOptions, write_module: WriteModule) -> None:
    model = write_module(
        "def build(spec):\n    return keras.Sequential([keras.Input((9, 9, 3)), keras.layers.Flatten()])\n"
    )
    with pytest.raises(
        ConfigError,
        match=r"ownmodule:build cannot be trained on 'train', whose images are image uint8 .batch, 8, 8, 3. and",
    ):
        train_model(FakeClient([TRAIN]), replace(job, model=model), print)


def test_the_trainer_name_defaults_to_the_model_file(job: TrainingOptions) -> None:
    assert job.trainer_name == f"streamd-train {job.save.stem}"
    assert replace(job, name="lr-0.01").trainer_name == "lr-0.01"
