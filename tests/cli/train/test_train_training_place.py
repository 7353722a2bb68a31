"""Where a training is, in words."""

from __future__ import annotations

from typing import Any

import pytest
from support.stream_fake import ANGLE, FakeStream, make_spec

from streamd.frameworks.keras import fit_data, load_keras

pytestmark = pytest.mark.train


def test_a_place_is_told_by_its_epoch_and_step_and_what_another_process_did_counts() -> None:
    keras = load_keras()
    from streamd.cli.train.training_place import PlaceRecorder  # noqa: PLC0415 - imports Keras

    class Placing(keras.callbacks.Callback):  # type: ignore[misc, name-defined]  # Keras has no types
        def note(self, *_: Any, **__: Any) -> None:
            places.append(recorder.describe_place())

        on_epoch_begin = on_train_batch_end = on_test_batch_end = on_epoch_end = note

    places: list[str] = []
    data = fit_data(FakeStream(make_spec(ANGLE), index=1))
    held_out = fit_data(FakeStream(make_spec(ANGLE, samples=4, batches=1)), targets="angle")
    recorder = PlaceRecorder(data)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(data, validation_data=held_out, epochs=2, verbose=0, callbacks=[recorder, Placing()])
    assert places[:5] == [
        "after epoch 0 of 2",
        "in epoch 1 of 2, after step 2 of 3",
        "in epoch 1 of 2, after step 3 of 3",
        "in the validation of epoch 1 of 2",
        "in epoch 1 of 2, after step 3 of 3",
    ]
    assert places[5] == "after epoch 1 of 2"
    assert recorder.trained_steps == 5
    assert len(recorder.history["val_loss"]) == 2
