"""Where `fit`, `evaluate` and `predict` begin to read, on the library itself. test_keras_backends runs it on more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.keras_recorder import Recorder, ids_of, steps, stop_after
from support.stream_fake import ANGLE, FakeStream, make_spec

from streamd.errors import ConfigError
from streamd.frameworks import keras as ours
from streamd.frameworks.keras import fit_data, load_keras

pytestmark = pytest.mark.train

FIRST = steps(0, 2)
KERAS_SAVES = "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"  # Keras 3.15, NumPy 2


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


def build_callbacks(data: Any, folder: Path, names: list[str]) -> list[Any]:
    backup = load_keras().callbacks.BackupAndRestore
    made: dict[str, Callable[[], Any]] = {
        "backup": lambda: backup(folder / "backup", delete_checkpoint=False),
        "backup each step": lambda: backup(folder / "backup", save_freq=1, delete_checkpoint=False),
        "own backup": lambda: type("Backup", (backup,), {})(folder / "backup", delete_checkpoint=False),
        "resume": lambda: ours.ResumeCallback(data, folder / "resume"),
    }
    return [made[name]() for name in names]


@pytest.fixture(scope="module")
def trained() -> Recorder:
    """One for all rows below, so that it is compiled once."""
    return Recorder()


@pytest.mark.filterwarnings(KERAS_SAVES)
@pytest.mark.parametrize(
    ("names", "first_epoch", "at_epoch", "said"),
    [
        (["backup"], 0, 0, "BackupAndRestore restores the weights, and not the position in stream 'train'"),
        (["backup each step"], 0, 0, "BackupAndRestore restores the weights"),
        (["own backup"], 0, 0, "Backup restores the weights"),
        (["backup"], 2, 0, "BackupAndRestore restores the weights"),
        ([], 2, 0, "fit begins with epoch 2, and stream 'train' with epoch 0"),
        ([], 2, 2, ""),
        ([], 0, 0, ""),
        ([], 0, 2, ""),
        (["resume"], 0, 0, ""),
        (["resume", "backup"], 0, 0, ""),
    ],
)
def test_a_fit_that_restores_the_weights_and_not_the_data_says_what_to_write(
    trained: Recorder,
    names: list[str],
    first_epoch: int,
    at_epoch: int,
    said: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    stream = FakeStream(make_spec(ANGLE))
    data = fit_data(stream)
    stream.advance_to_epoch(at_epoch)
    callbacks = build_callbacks(data, tmp_path, names)
    trained.model.fit(data, epochs=3, initial_epoch=first_epoch, callbacks=callbacks, verbose=0)

    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("streamd: ")]
    assert len(lines) == bool(said)
    assert all(said in line and "callbacks=[ResumeCallback(data, DIR)]" in line for line in lines)
    assert stream.taken[0] == (at_epoch, 0)


@pytest.mark.filterwarnings(KERAS_SAVES)
def test_weights_that_keras_restores_meet_the_first_epoch_with_a_line(
    trained: Recorder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for epochs in (2, 4):
        stream = FakeStream(make_spec(ANGLE))
        data = fit_data(stream)
        callbacks = build_callbacks(data, tmp_path, ["backup"])
        trained.model.fit(data, epochs=epochs, callbacks=callbacks, verbose=0)
        assert stream.taken == steps(0, 6)
        assert capfd.readouterr().err.count("callbacks=[ResumeCallback(data, DIR)]") == 1
