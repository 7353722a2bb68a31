"""What is JAX's own: one batch taken ahead beside an accelerator, and several devices. Run by test_keras_backends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from keras_recorder import Recorder, ids_of, steps, stop_after
from trainer_fakes import ANGLE, FakeStream, make_spec

from streamd.frameworks.finished import Finished
from streamd.frameworks.keras import fit_data, load_keras

pytestmark = pytest.mark.train


@pytest.fixture
def _accelerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras looks one batch ahead where JAX's default backend is not the CPU: it asks by this name alone."""
    monkeypatch.setattr("jax.default_backend", lambda: "tpu")


@pytest.mark.usefixtures("_accelerated")
@pytest.mark.parametrize("last", [0, 1, 2])
def test_a_batch_that_was_taken_ahead_of_an_early_stop_is_given_again(last: int) -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    data = fit_data(stream)
    recorder.model.fit(data, verbose=0, callbacks=[stop_after(last, recorder.model)])
    assert recorder.trained == ids_of(stream, *steps(0, last + 1))
    recorder.model.fit(data, epochs=2, verbose=0)
    left = (2 - last) or 3  # of the epoch that the first fit has left
    assert recorder.trained == ids_of(stream, *steps(0, last + 1 + left + 3))


@pytest.mark.usefixtures("_accelerated")
def test_a_batch_that_was_taken_ahead_is_not_finished() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    data = fit_data(stream)
    data.finished = Finished()
    recorder.model.fit(data, verbose=0, callbacks=[stop_after(1, recorder.model)])
    data.finished.finish(sys.maxsize)
    assert data.finished.token == "0:1"  # noqa: S105 - a place in a stream
    assert stream.taken == steps(0, 3)


@pytest.mark.usefixtures("_accelerated")
def test_a_model_is_built_without_a_batch_where_two_are_asked_for() -> None:
    keras = load_keras()
    stream = FakeStream(make_spec(ANGLE))
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    asked: list[int] = []
    count = keras.callbacks.LambdaCallback(on_train_begin=lambda _: asked.append(len(stream.taken)))
    model.fit(fit_data(stream), verbose=0, callbacks=[count])
    assert asked == [0]
    assert stream.taken == steps(0, 3)


def test_steps_that_wait_for_their_turn_hold_no_batches() -> None:
    """JAX returns from a step before it is computed: here many steps are begun while the first is at work."""
    keras = load_keras()
    stream = FakeStream(make_spec(ANGLE))
    wide = [keras.layers.Dense(width) for width in (3000, 3000, 1)]
    model = keras.Sequential([keras.Input((8, 8, 3), dtype="uint8"), keras.layers.Flatten(), *wide])
    model.compile("sgd", "mse")
    model.fit(fit_data(stream), epochs=2, verbose=0)
    assert stream.most_leases <= 2


@pytest.fixture
def _two_devices() -> Iterator[None]:
    keras = load_keras()
    devices = keras.distribution.list_devices()
    assert len(devices) == 2, os.environ.get("XLA_FLAGS")
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    yield
    keras.distribution.set_distribution(None)


@pytest.mark.usefixtures("_two_devices")
def test_devices_that_share_each_batch_see_every_sample_once() -> None:
    stream = FakeStream(make_spec(ANGLE, samples=12))
    recorder = Recorder()
    data = fit_data(stream)
    recorder.model.fit(data, epochs=2, verbose=0, callbacks=[stop_after(1, recorder.model)])
    recorder.model.fit(data, verbose=0)
    assert recorder.trained == ids_of(stream, *steps(0, 3))
