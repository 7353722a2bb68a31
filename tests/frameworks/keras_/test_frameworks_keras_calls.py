"""Where `fit`, `evaluate` and `predict` begin to read, on the library itself. test_keras_backends runs it on more."""

from __future__ import annotations

from typing import Any

import pytest
from support.keras_recorder import Recorder, ids_of, steps, stop_after
from support.stream_fake import ANGLE, FakeStream, make_spec

from streamd.errors import ConfigError
from streamd.frameworks.keras import fit_data, load_keras

pytestmark = pytest.mark.train

FIRST = steps(0, 2)


def make_validation(**changes: Any) -> FakeStream:
    return FakeStream(make_spec(ANGLE, name="val"), **changes)


@pytest.mark.parametrize(
    ("ours", "kerass", "count"), [(2, None, 2), (None, 2, 2), (3, 2, 2), (None, None, 3), (7, None, 3)]
)
def test_every_validation_takes_the_same_samples_whoever_gives_its_steps(
    ours: int | None, kerass: int | None, count: int
) -> None:
    """The model's weights do not change, so equal losses mean equal samples."""
    train, validation, recorder = FakeStream(make_spec(ANGLE)), make_validation(total_epochs=1), Recorder()
    data = fit_data(validation, steps=ours)
    history = recorder.model.fit(
        fit_data(train), validation_data=data, validation_steps=kerass, epochs=4, verbose=0
    ).history
    assert len(set(history["val_loss"])) == 1
    assert recorder.model.evaluate(data, steps=kerass, verbose=0) == history["val_loss"][0]
    assert recorder.trained == ids_of(train, *steps(0, 12))
    assert recorder.validated == 5 * ids_of(validation, *steps(0, count))
    assert data.sample_ids.tolist() == ids_of(validation, *steps(0, count))
    accounts = [(each.epoch, each.steps, each.complete, each.ok) for each in validation.receipts]
    assert accounts == 5 * [(0, count, count == 3, True)]


def test_fit_continues_where_it_was_whatever_was_evaluated_between() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE), total_epochs=2), Recorder()
    data = fit_data(stream)
    recorder.model.evaluate(data, steps=1, verbose=0)
    recorder.model.fit(data, verbose=0, callbacks=[stop_after(1, recorder.model)])
    recorder.model.evaluate(data, verbose=0)
    recorder.model.predict(data, steps=2, verbose=0)
    recorder.model.fit(data, epochs=2, verbose=0)
    assert recorder.trained == ids_of(stream, *steps(0, 6))
    assert recorder.validated == ids_of(stream, *steps(0, 1), *steps(0, 3), *FIRST)


def test_an_evaluation_that_a_callback_ends_is_followed_by_a_whole_one() -> None:
    stream, recorder = make_validation(), Recorder()
    data, callbacks = fit_data(stream), load_keras().callbacks

    def stop(*_: object, **__: object) -> None:
        recorder.model.stop_evaluating = True

    recorder.model.evaluate(data, verbose=0, callbacks=[callbacks.LambdaCallback(on_test_batch_end=stop)])
    recorder.model.evaluate(data, verbose=0)
    assert recorder.validated == ids_of(stream, *steps(0, 1), *steps(0, 3))


@pytest.mark.parametrize("method", ["evaluate", "predict"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_stream_that_a_running_fit_reads_is_refused(method: str, shared: bool) -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    data = fit_data(stream)
    other = fit_data(stream) if shared else data
    look = load_keras().callbacks.LambdaCallback(
        on_epoch_end=lambda *_: getattr(recorder.model, method)(other, steps=1, verbose=0)
    )
    with pytest.raises(ConfigError, match=rf"{method} would take stream 'train' away from the fit.*fit_data\(client"):
        recorder.model.fit(data, epochs=2, verbose=0, callbacks=[look])
    assert stream.taken == steps(0, 3)
    recorder.model.fit(data, verbose=0)
    assert recorder.trained == ids_of(stream, *steps(0, 6))


def test_training_and_validating_on_one_stream_is_refused_before_the_first_step() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    data = fit_data(stream)
    with pytest.raises(ConfigError, match=r"validation would take stream 'train' away from the fit.*of its own"):
        recorder.model.fit(data, validation_data=fit_data(stream), epochs=2, verbose=0)
    assert stream.taken == []


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_fit_releases_its_stream() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    data = fit_data(stream)
    callback = load_keras().callbacks.LambdaCallback(on_train_batch_end=interrupt)
    with pytest.raises(KeyboardInterrupt) as kept:  # with its frames, as a notebook keeps them
        recorder.model.fit(data, verbose=0, callbacks=[callback])
    recorder.model.evaluate(data, verbose=0)
    recorder.model.fit(data, verbose=0)
    assert kept.tb is not None
    assert recorder.validated == ids_of(stream, *steps(0, 3))
    assert recorder.trained == ids_of(stream, *steps(0, 3))


@pytest.mark.parametrize("evaluated", [0, 2])
def test_a_batch_only_taken_ahead_is_given_again_whatever_was_evaluated_before(
    monkeypatch: pytest.MonkeyPatch, evaluated: int
) -> None:
    """Where Keras takes each batch one step early, no step has got the first one before the second is taken."""
    monkeypatch.setattr("streamd.frameworks.keras.adapter.looks_ahead", lambda: True)
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    data = fit_data(stream)
    if evaluated:
        recorder.model.evaluate(data, steps=evaluated, verbose=0)
    callback = load_keras().callbacks.LambdaCallback(on_train_batch_end=interrupt)
    with pytest.raises(KeyboardInterrupt):
        recorder.model.fit(data, verbose=0, callbacks=[callback])
    recorder.model.fit(data, verbose=0)
    assert stream.taken == [*steps(0, evaluated), *steps(0, 1), *steps(0, 3)]


def test_a_callback_may_evaluate_another_stream_within_fit() -> None:
    train, other, recorder = FakeStream(make_spec(ANGLE)), make_validation(), Recorder()
    data = fit_data(other)
    look = load_keras().callbacks.LambdaCallback(
        on_epoch_end=lambda *_: recorder.model.evaluate(data, steps=2, verbose=0)
    )
    recorder.model.fit(fit_data(train), validation_data=data, epochs=2, verbose=0, callbacks=[look])
    assert recorder.trained == ids_of(train, *steps(0, 6))
    assert recorder.validated == 2 * ids_of(other, *steps(0, 3), *FIRST)
