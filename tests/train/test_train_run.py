"""One training against a client that needs no daemon."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from trainer_fakes import ANGLE, KIND, FakeClient, FakeStream, make_spec

from streamd import saved
from streamd.bottleneck import Supply, Timing
from streamd.errors import ConfigError, ReceiptError, RefusedError
from streamd.frameworks.keras import load_keras
from streamd.spec import ImageSpec, LabelSpec
from streamd.train import run
from streamd.train.models import builder
from streamd.train.run import Job, check_alike, choose_label, compile_for, train

KERAS_SAVES = "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"  # Keras 3.15, NumPy 2
pytestmark = pytest.mark.filterwarnings(KERAS_SAVES)

TRAIN = make_spec(ANGLE)
VALIDATION = make_spec(ANGLE, name="validation", shuffle="none", bad_policy="mask")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job("train", 2, tmp_path / "model.keras")


@pytest.mark.train
def test_a_training_saves_a_model_and_tells_every_epoch(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    client, said = FakeClient([TRAIN, VALIDATION]), list[str]()
    receipts = train(client, replace(job, validation="validation", seed=1), said.append)
    assert [(receipt.stream, receipt.epoch, receipt.complete) for receipt in receipts] == [
        ("train", 0, True),
        ("train", 1, True),
        ("validation", 0, True),
        ("validation", 1, True),
    ]
    assert said[1:] == [
        f"saved {job.save}, and model.streamd.json for streamd.load_image",
        "epoch 0: 3 steps, 10 samples, missed 0, repeated 0, bad 0: ok",
        "epoch 1: 3 steps, 10 samples, missed 0, repeated 0, bad 0: ok",
        "validation epoch 0: 3 steps, 10 samples, missed 0, repeated 0, bad 0: ok",
        "validation epoch 1: 3 steps, 10 samples, missed 0, repeated 0, bad 0: ok",
    ]
    assert said[0].startswith("20 samples in ")
    assert "Epoch 2/2" in capsys.readouterr().out
    assert load_keras().models.load_model(job.save).input_shape == (None, 8, 8, 3)
    assert saved.read(job.save.with_name("model.streamd.json")) == TRAIN


@pytest.mark.train
def test_those_who_train_together_wait_for_each_other_and_their_validation_does_not(job: Job) -> None:
    client = FakeClient([TRAIN, VALIDATION])
    train(client, replace(job, validation="validation", together=4), lambda _: None)
    assert client.starts == {"train": {"together": 4}, "validation": "begin"}


@pytest.mark.train
def test_training_learns_a_category(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    spec = make_spec(replace(KIND, classes=("even", "odd"), counts=(5, 5)), normalize="minus_one_one")
    train(FakeClient([spec]), job, print)
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.train
def test_the_same_seed_gives_the_same_weights(job: Job) -> None:
    weights = []
    for seed in (5, 5, 6):
        train(FakeClient([TRAIN]), replace(job, seed=seed, epochs=1), print)
        weights.append(load_keras().models.load_model(job.save).get_weights()[0])
    np.testing.assert_array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[0], weights[2])


@pytest.mark.train
def test_a_training_that_resumes_does_what_is_left_and_tells_of_no_more(job: Job, tmp_path: Path) -> None:
    client, resumed = FakeClient([TRAIN]), replace(job, resume=tmp_path / "run", seed=1)
    assert [receipt.epoch for receipt in train(client, replace(resumed, epochs=1), print)] == [0]
    assert [receipt.epoch for receipt in train(client, resumed, print)] == [1]
    weights = load_keras().models.load_model(job.save).get_weights()
    assert train(client, resumed, print) == []
    assert client.subscribed["train"].taken == []
    for loaded, trained in zip(load_keras().models.load_model(job.save).get_weights(), weights, strict=True):
        np.testing.assert_array_equal(loaded, trained)


@pytest.mark.train
def test_an_account_that_does_not_add_up_ends_the_training_and_is_returned(job: Job) -> None:
    said: list[str] = []
    receipts = train(FakeClient([TRAIN], missed=1), job, said.append)
    assert [(receipt.epoch, receipt.ok) for receipt in receipts] == [(0, False)]
    assert said == ["epoch 0: 3 steps, 10 samples, missed 1, repeated 0, bad 0: NOT OK"]
    assert not job.save.exists()


def test_where_the_time_went_is_told(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    timing, said = Timing(0, 43.0, 2.0, "none", Supply()), list[str]()

    def fit(stream: FakeStream, *_: object) -> None:
        stream.timings.append(timing)

    monkeypatch.setattr(run, "load_keras", lambda: None)
    monkeypatch.setattr(run, "_fit", fit)
    train(FakeClient([TRAIN]), job, said.append)
    assert said == [timing.line]
    assert "if data were free: 41 s; with data: 43 s" in timing.line


@pytest.mark.train
def test_a_broken_account_without_a_bad_receipt_is_raised(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeStream, "__len__", lambda _: 2)
    with pytest.raises(ReceiptError, match="more steps than announced"):
        train(FakeClient([TRAIN]), job, print)


@pytest.mark.train
def test_ones_own_compiled_model_keeps_its_loss(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "compiledmodel.py").write_text(
        "import keras\n"
        "def build(spec):\n"
        "    model = keras.Sequential([keras.layers.Rescaling(1.0), keras.layers.Flatten(), keras.layers.Dense(1)])\n"
        "    model.compile('sgd', 'mae', metrics=['cosine_similarity'])\n"
        "    return model\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    train(FakeClient([TRAIN]), replace(job, model="compiledmodel:build"), print)
    assert "cosine_similarity" in capsys.readouterr().out


@pytest.mark.train
def test_ones_own_model_of_another_shape_is_one_line(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "othershape.py").write_text(
        "import keras\n"
        "def build(spec):\n"
        "    return keras.Sequential([keras.Input((9, 9, 3)), keras.layers.Flatten()])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(ConfigError, match=r"othershape:build cannot be trained on 'train', whose images are uint8"):
        train(FakeClient([TRAIN]), replace(job, model="othershape:build"), print)


@pytest.mark.train
def test_an_unknown_stream_is_refused_with_the_near_name(job: Job) -> None:
    with pytest.raises(RefusedError, match="did you mean 'train'"):
        train(FakeClient([TRAIN]), replace(job, stream="trian"), print)


def test_several_labels_ask_for_one() -> None:
    with pytest.raises(ConfigError, match="has the labels angle, kind: choose one with  --label"):
        choose_label(make_spec(ANGLE, KIND), None)
    assert choose_label(make_spec(ANGLE, KIND), "kind") is KIND


def test_no_label_or_a_wrong_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to learn"):
        choose_label(make_spec(), None)
    with pytest.raises(ConfigError, match="did you mean 'angle'"):
        choose_label(make_spec(ANGLE), "angel")


def test_a_validation_that_differs_is_refused() -> None:
    train_spec = make_spec(KIND)
    with pytest.raises(ConfigError, match="give both streams the same  image:"):
        check_alike(train_spec, replace(train_spec, image=ImageSpec(9, 9, 3)), KIND)
    with pytest.raises(ConfigError, match="differ in type or classes"):
        check_alike(train_spec, make_spec(replace(KIND, classes=("car", "cat"))), KIND)
    with pytest.raises(ConfigError, match="no label 'kind'"):
        check_alike(train_spec, make_spec(ANGLE), KIND)


def test_a_label_without_a_loss_asks_for_a_compiled_model() -> None:
    with pytest.raises(ConfigError, match="return a compiled model"):
        compile_for(None, LabelSpec("kinds", "category", width=3))


@pytest.mark.train
def test_tags_are_learned_each_by_itself() -> None:
    label = LabelSpec("tags", "tags", width=2, classes=("a", "b"), counts=(1, 2))
    model = builder(label, None)(make_spec(label))
    compile_for(model, label)
    assert model.loss == "binary_crossentropy"


def test_text_is_no_label_to_choose() -> None:
    text = LabelSpec("caption", "string", text_bytes=9)
    assert choose_label(make_spec(text, KIND), None) is KIND
    with pytest.raises(ConfigError, match="has no labels but text"):
        choose_label(make_spec(text), None)


def test_a_job_that_cannot_be_saved_is_refused_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ending in \.keras, not model\.h5"):
        Job("train", 1, Path("model.h5"))
    with pytest.raises(ConfigError, match="there is no folder"):
        Job("train", 1, tmp_path / "none" / "model.keras")
    with pytest.raises(ConfigError, match="epochs must be at least 1, not 0"):
        Job("train", 0, tmp_path / "model.keras")
