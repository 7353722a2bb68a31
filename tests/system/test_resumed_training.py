"""A training that is killed between two saves, on a real daemon: it goes on, and its account adds up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.daemon_process import DaemonProcess, stream_config, write_images
from support.resumed_training import KilledError, killed_at

import streamd
from streamd.client.client import Client
from streamd.core.receipt import Receipt
from streamd.frameworks import keras as ours
from streamd.frameworks.keras import fit_data, load_keras

pytestmark = pytest.mark.train

STEPS = 6  # of 48 images in batches of 8


def train(client: Client, place: Path, begun: int = 10**6, prefetch: int | None = None) -> list[Receipt]:
    keras = load_keras()
    layers = keras.layers
    model = keras.Sequential([layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(2, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    with client.subscribe("train", epochs=3, prefetch=prefetch) as stream:
        data = fit_data(stream)
        callbacks = [ours.ResumeCallback(data, place, every=2), killed_at(begun)]
        model.fit(data, epochs=3, verbose=0, callbacks=callbacks)
    return stream.receipts


def test_each_epoch_is_accounted_for_once_relative_to_what_was_saved(
    start_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    folder = write_images(tmp_path / "data", {"cat": 24, "dog": 24})
    daemon = start_daemon({"streams": {"train": stream_config(folder)}})
    with streamd.connect(daemon.endpoint) as client:
        with pytest.raises(KilledError):
            train(client, tmp_path / "run", begun=STEPS + 3)
        receipts = train(client, tmp_path / "run", prefetch=2)
        assert [(each.epoch, each.complete, each.ok, each.steps, each.samples) for each in receipts] == [
            (1, True, True, STEPS, 48),
            (2, True, True, STEPS, 48),
        ]
        assert train(client, tmp_path / "run") == []
