"""Held batches in place of a stream."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
from support.daemon_process import DaemonProcess, stream_config, write_images

import streamd
from streamd.client import Batch
from streamd.errors import ConfigError, StreamdError
from streamd.headroom import Replay, hold, measure_rate

PUBLIC_LIBRARIES = {"msgspec", "numpy", "zmq"}  # all that a trainer installs
THEIR_OWN = {"cython_runtime", "typing_extensions"}  # what pyzmq brings of itself, where it is there


def modules_after(program: str) -> set[str]:
    """The modules, but those of the standard library, that `program` brings into a fresh interpreter."""
    lines = ["import sys", "before = set(sys.modules)", program, "print(*set(sys.modules) - before)"]
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return {name for name in done.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}


def libraries_after(program: str) -> set[str]:
    names = {name.partition(".")[0] for name in modules_after(program)}
    return {name for name in names - THEIR_OWN - {"streamd"} if not name.startswith("_cython_")}


def test_the_package_gives_it_without_an_import_of_its_own() -> None:
    assert libraries_after("import streamd; streamd.headroom.hold") == PUBLIC_LIBRARIES


def test_the_package_brings_it_and_its_libraries_only_when_it_is_asked_for() -> None:
    assert modules_after("import streamd") == {"streamd", "streamd.errors"}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("d")
    folder = write_images(place / "data", {"cat": 16, "dog": 20})
    with DaemonProcess(place, {"workers": 1, "streams": {"train": stream_config(folder)}}) as daemon:
        yield daemon.endpoint


def held_of(endpoint: str, batches: int, epochs: int | None = None) -> Replay:
    with streamd.connect(endpoint) as client, client.subscribe("train", epochs=1) as stream:
        return hold(stream, batches, epochs)


def test_a_few_batches_come_again_and_again_in_epochs_as_long_as_the_streams(endpoint: str) -> None:
    replay = held_of(endpoint, 2, epochs=2)
    with streamd.connect(endpoint) as client, client.subscribe("train", epochs=1) as again:
        first, second = (batch.copy() for batch in islice(again, 2))
        assert (len(replay), replay.spec) == (len(again), again.spec)
    epochs = [list(epoch) for epoch in replay.epochs()]
    assert [[(batch.epoch, batch.index) for batch in epoch] for epoch in epochs] == [
        [(epoch, index) for index in range(5)] for epoch in range(2)
    ]
    for batch, held in zip(epochs[1], [first, second, first, second, first], strict=True):
        assert np.array_equal(batch.images, held.images)
        assert np.array_equal(batch.labels["label"], held.labels["label"])
        assert np.array_equal(batch.sample_ids, held.sample_ids)
        assert batch.token == held.token
    assert [(batch.epoch, batch.index) for batch in replay] == [
        (epoch, index) for epoch in range(2) for index in range(5)
    ]


def test_without_a_number_of_epochs_it_has_no_end(endpoint: str) -> None:
    assert [batch.epoch for batch in islice(held_of(endpoint, 1), 12)] == [0] * 5 + [1] * 5 + [2] * 2


def test_an_epoch_shorter_than_what_is_wanted_is_held_whole_and_stays_when_the_stream_is_closed(endpoint: str) -> None:
    replay = held_of(endpoint, 100)
    assert [len(batch) for batch in replay.held] == [8, 8, 8, 8, 4]
    assert sorted(each for batch in replay.held for each in batch.sample_ids.tolist()) == list(range(36))


def test_nothing_can_be_held_of_a_stream_at_its_end_nor_less_than_a_batch(endpoint: str) -> None:
    with streamd.connect(endpoint) as client, client.subscribe("train", epochs=1) as stream:
        with pytest.raises(ConfigError, match="cannot hold 0 batches: give a whole number, at least 1"):
            hold(stream, 0)
        assert sum(1 for _ in stream) == 5
        with pytest.raises(StreamdError, match="stream 'train' is at its end, so there is nothing to hold: subscribe"):
            hold(stream)


def test_a_rate_is_that_of_the_work_over_the_time_that_was_asked_for(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0

    def work(_: Batch) -> None:
        nonlocal now_s
        now_s += 0.5

    held = held_of(endpoint, 2).held
    monkeypatch.setattr("streamd.headroom.time", SimpleNamespace(monotonic=lambda: now_s))
    assert measure_rate(held, work, 3.0) == 6 * 8 / 3.0
    assert measure_rate(held, work, 0.0) == 2 * 8 / 1.0  # each at least once


@pytest.mark.train
def test_a_model_fits_held_batches_as_it_would_a_stream(endpoint: str) -> None:
    import keras  # noqa: PLC0415 - takes seconds, and only where it is installed

    from streamd.frameworks.keras import fit_data  # noqa: PLC0415 - as above

    replay = held_of(endpoint, 2)
    layers = [keras.Input(replay.spec.image_shape), keras.layers.Flatten(), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(fit_data(replay), epochs=3, verbose=0)
    assert len(history.history["loss"]) == 3
    assert int(model.optimizer.iterations) == 3 * len(replay)
