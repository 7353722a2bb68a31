"""NanGuard on Keras itself: a training whose loss becomes NaN or infinite."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.keras_recorder import ids_of
from support.stream_fake import ANGLE, FakeClient, FakeStream, make_spec

from streamd.core.spec import ImageSpec
from streamd.errors import ConfigError, ConnectError, LossError
from streamd.frameworks import keras as ours
from streamd.frameworks.keras import fit_data, load_keras

pytestmark = pytest.mark.train

SPEC = make_spec(ANGLE)


def model(**compiling: Any) -> Any:
    keras = load_keras()
    made = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(1)])
    made.compile("sgd", "mse", **compiling)
    return made


def fit(made: Any, client: FakeClient, folder: Path, *others: Any, epochs: int = 1) -> Any:
    """The data that was trained on."""
    with client.subscribe("train", epochs=epochs) as stream:
        data = fit_data(stream)
        made.fit(data, epochs=epochs, verbose=0, callbacks=[ours.NanGuard(data, client, folder), *others])
    return data


def spoiled_in(epoch: int, index: int) -> tuple[FakeClient, list[int]]:
    """A client whose first sample of that batch has NaN for its label, and all samples of the batch."""
    ids = ids_of(FakeStream(SPEC), (epoch, index))
    return FakeClient([SPEC], spoiled=ids[:1]), ids


def test_the_batch_whose_label_spoils_the_loss_is_shown_and_ends_the_training(tmp_path: Path) -> None:
    client, ids = spoiled_in(0, 1)
    seen: list[int] = []
    counting = load_keras().callbacks.LambdaCallback(on_train_batch_end=lambda batch, **_: seen.append(batch))
    with pytest.raises(LossError) as raised:
        fit(model(), client, tmp_path / "shown", counting)
    page = tmp_path / "shown" / "nan-train-0-1.html"
    assert str(raised.value).splitlines() == [
        "the loss is nan after batch 0:1 of 'train'",
        (
            "label 'angle' is NaN or infinite in 1 of 4 samples, which makes the loss NaN or infinite: "
            f"fix #{ids[0]} train/{ids[0]}.png"
        ),
        f"its pictures are in: {page}",
    ]
    shown = page.read_text()
    assert all(f">#{each}</div>" in shown and f">train/{each}.png</div>" in shown for each in ids)
    assert "angle nan" in page.read_text()
    assert seen == [0]


def test_a_diverged_loss_is_blamed_on_the_weights(tmp_path: Path) -> None:
    made = model()
    made.optimizer.learning_rate = 1e30
    with pytest.raises(LossError, match="all its labels and pixels are finite, so the weights have overflowed"):
        fit(made, FakeClient([SPEC]), tmp_path, epochs=2)


def test_the_image_whose_pixels_spoil_the_loss_is_named(tmp_path: Path) -> None:
    images = {"photo": ImageSpec(8, 8, 3), "depth": ImageSpec(8, 8, 1, mode="raw", dtype="float32")}
    spec = make_spec(ANGLE, images=images)
    odd = ids_of(FakeStream(spec), (0, 1))[0]
    keras = load_keras()
    inputs = {name: keras.Input(image.shape, dtype=image.dtype, name=name) for name, image in images.items()}
    vectors = [keras.layers.Flatten()(keras.layers.Rescaling(0.001)(each)) for each in inputs.values()]
    made = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(vectors)))
    made.compile("sgd", "mse")
    with pytest.raises(LossError, match=rf"image 'depth' has pixels that are NaN or .* 1 of 4 samples.*fix #{odd} tr"):
        fit(made, FakeClient([spec], spoiled_pixels=[odd]), tmp_path)


def test_the_spoiled_step_of_one_execution_is_shown(tmp_path: Path) -> None:
    client, _ = spoiled_in(0, 1)
    with pytest.raises(LossError, match="after batches 0:0 to 0:1 of 'train', which were executed together"):
        fit(model(steps_per_execution=2), client, tmp_path)
    assert [page.name for page in tmp_path.iterdir()] == ["nan-train-0-1.html"]


def test_the_error_is_complete_without_pictures_when_the_daemon_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise ConnectError("ipc:///x", "nobody listens")

    client, ids = spoiled_in(0, 0)
    monkeypatch.setattr(client, "batch", gone)
    with pytest.raises(LossError, match=rf"#{ids[0]} [\s\S]*its pictures could not be saved: .*nobody listens"):
        fit(model(), client, tmp_path)


def test_a_batch_of_other_samples_is_not_shown_as_the_trainers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, _ = spoiled_in(0, 0)
    monkeypatch.setattr(client, "batch", lambda *_: FakeClient([SPEC]).batch("train", 1, 1))
    with pytest.raises(
        LossError, match="could not be saved: batch 0:0 of 'train' does not hold the samples that the trainer"
    ):
        fit(model(), client, tmp_path)


def test_a_sound_training_ends_without_a_page_and_detaches_from_the_data(tmp_path: Path) -> None:
    assert fit(model(), FakeClient([SPEC]), tmp_path, epochs=2).on_batch is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["NanGuard", "ResumeCallback"])
def test_a_callback_for_other_data_than_the_fit_reads_ends_it_before_the_first_step(name: str, tmp_path: Path) -> None:
    stream = FakeStream(SPEC)

    def make(data: Any) -> Any:
        if name == "NanGuard":
            return ours.NanGuard(data, FakeClient([SPEC]), tmp_path)
        return ours.ResumeCallback(data, tmp_path)

    written = rf"does not read the data that {name} was given.*model.fit\(data, callbacks=\[{name}\(data, "
    with pytest.raises(ConfigError, match=written):
        model().fit(fit_data(stream), verbose=0, callbacks=[make(fit_data(stream))])
    with pytest.raises(ConfigError, match=written):
        model().fit(np.zeros((4, 8, 8, 3)), np.zeros(4), verbose=0, callbacks=[make(fit_data(stream))])
    assert stream.taken == []


def test_nan_guard_refuses_data_that_fit_data_did_not_return(tmp_path: Path) -> None:
    other: Any = []
    with pytest.raises(ConfigError, match="NanGuard needs what fit_data gave to fit, not list"):
        ours.NanGuard(other, FakeClient([SPEC]), tmp_path)


def test_a_deep_copy_as_tuners_make_for_each_trial_guards_the_same_data(tmp_path: Path) -> None:
    client, _ = spoiled_in(0, 1)
    with client.subscribe("train", epochs=2) as stream:
        data = fit_data(stream)
        guard = ours.NanGuard(data, client, tmp_path / "shown")
        guard.note = ["of a subclass"]
        for _ in range(2):
            copied = deepcopy([guard, guard])
            assert copied[0] is copied[1] is not guard
            assert copied[0].note == guard.note
            assert copied[0].note is not guard.note
        with pytest.raises(LossError, match="after batch 0:1"):
            model().fit(data, verbose=0, callbacks=copied[:1])
