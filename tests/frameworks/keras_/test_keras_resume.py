"""Trainings that are interrupted and resumed in another process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from loader_process import python_of
from support.resumed_training import (
    EPOCHS,
    STEPS,
    KilledError,
    killed_at,
    make_model,
    make_stream,
    same_bits,
    train,
    values,
)
from support.stream_fake import FakeStream

from streamd.errors import ConfigError, TokenError
from streamd.frameworks import keras as ours
from streamd.frameworks.checkpoint import Checkpoints
from streamd.frameworks.keras import fit_data, load_keras

pytestmark = pytest.mark.train

TESTS = Path(__file__).parents[2]
QUICK = {  # without this, each process compiles again on JAX
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


class Unkilled(NamedTuple):
    """The final values of a training that was not killed, and the batches it took."""

    values: list[Any]
    history: Any
    taken: list[tuple[int, int]]


def states(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("step-*"))


def train_until_killed(directory: Path, step: int, **changes: Any) -> None:
    with pytest.raises(KilledError):
        train(directory, killed_at(step), **changes)


@pytest.fixture(scope="module")
def unkilled() -> Unkilled:
    """The result of two epochs."""
    model, history, stream = train(None, epochs=2)
    return Unkilled(values(model), history, stream.taken)


@pytest.fixture(scope="module")
def first_epoch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder saved after the first epoch, with validation."""
    directory = tmp_path_factory.mktemp("first")
    train(directory, epochs=1, validated=True)
    return directory


@pytest.fixture
def begun(first_epoch: Path, tmp_path: Path) -> Path:
    """A copy of `first_epoch`."""
    return shutil.copytree(first_epoch, tmp_path / "begun")


@pytest.mark.timeout(240)  # it may have to install a backend
@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_a_run_killed_ten_times_ends_with_the_bits_of_an_unkilled_run(tmp_path: Path, backend: str) -> None:
    python = python_of(None if backend == "tensorflow" else f"keras_{backend}")
    command = [str(python), str(TESTS / "support" / "killed_training.py"), str(tmp_path)]
    environment = {**os.environ, **QUICK, "KERAS_BACKEND": backend, "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
    environment["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path / "compiled")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    account = json.loads(done.stdout)
    assert account["statuses"] == [0, *[-9] * 10, 0]
    unkilled, killed = account["ends"]
    assert unkilled.pop("taken") == EPOCHS * STEPS
    assert killed.pop("taken") == EPOCHS * STEPS - 28
    assert killed == unkilled
    continued_at = [line.rsplit(" ", 1)[1] for line in done.stderr.splitlines() if "continues in" in line]
    assert continued_at == ["2", "4", "6", "6", "8", "12", "12", "12", "5", "2"]


def test_several_steps_an_execution_are_saved_when_they_are_finished(tmp_path: Path, unkilled: Unkilled) -> None:
    train_until_killed(tmp_path, 3, steps_per_execution=4, every=5)  # 12 steps
    assert states(tmp_path) == ["step-0000008", "step-0000012"]
    model, _, stream = train(tmp_path, steps_per_execution=4, every=5, epochs=2)
    assert stream.taken == unkilled.taken[12:]
    assert same_bits(values(model), unkilled.values)


def test_an_epoch_may_have_fewer_steps_than_the_streams(tmp_path: Path, unkilled: Unkilled) -> None:
    train_until_killed(tmp_path, 15, steps=4, epochs=7, every=5)
    model, history, stream = train(tmp_path, steps=4, epochs=7, every=5)
    assert stream.taken[: 26 - 15] == unkilled.taken[15:]
    assert len(stream.taken) == 7 * 4 - 15
    assert len(history["loss"]) == 7
    assert int(model.optimizer.iterations) == 7 * 4


@pytest.mark.parametrize(("steps", "counts"), [(4, [1, 4, 4, 4]), (2, [2, 2, 2])])  # three steps are done of the fourth
def test_a_state_of_a_version_with_one_step_size_is_resumed(
    tmp_path: Path, unkilled: Unkilled, steps: int, counts: list[int]
) -> None:
    train_until_killed(tmp_path, 15, steps=4, epochs=7, every=5)
    kept = Checkpoints(tmp_path, 1, print)
    saved = kept.load_newest_state()
    assert saved is not None
    kept.save_state(
        15, {name: what for name, what in saved.content.items() if name not in {"interrupted", "rate"}}, saved.arrays
    )
    _, history, stream = train(tmp_path, steps=steps, epochs=7, every=5)
    assert stream.taken[: 26 - 15] == unkilled.taken[15 : 15 + len(stream.taken)]
    assert len(stream.taken) == sum(counts)
    assert len(history["loss"]) == 3 + len(counts)


def test_a_fit_ended_before_its_first_step_does_not_affect_a_later_one(tmp_path: Path) -> None:
    train_until_killed(tmp_path, 7, steps=4, every=2)
    model, stream = make_model(), make_stream()
    data = fit_data(stream, steps=4)

    def end(*_: object, **__: object) -> None:
        raise KilledError

    others = load_keras().callbacks.LambdaCallback(on_epoch_begin=end)
    with pytest.raises(KilledError) as kept:  # with its frames, as a notebook keeps them
        model.fit(data, epochs=2, verbose=0, callbacks=[ours.ResumeCallback(data, tmp_path), others])
    assert list(model.fit(data, verbose=0).history) == ["loss", "mae"]
    assert kept.tb is not None
    assert len(stream.taken) == 4


def test_a_finished_run_is_only_loaded(begun: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, history, stream = train(begun, epochs=1, seed=2, rate=0.5)
    assert stream.taken == []
    assert int(model.optimizer.iterations) == STEPS
    assert list(history) == ["loss", "mae", "val_loss", "val_mae"]
    said = capfd.readouterr().err
    assert "the one epoch is done; the saved state is only loaded" in said
    assert "learning rate" not in said


def test_more_epochs_continue_a_finished_run(begun: Path, unkilled: Unkilled) -> None:
    model, history, stream = train(begun, epochs=2, seed=2)
    assert stream.taken == unkilled.taken[STEPS:]
    assert same_bits(values(model), unkilled.values)
    assert (history["loss"], history["mae"]) == (unkilled.history["loss"], unkilled.history["mae"])


def test_a_second_fit_with_the_callback_continues_and_one_without_it_starts_over(tmp_path: Path) -> None:
    model, stream = make_model(), make_stream()
    data = fit_data(stream)
    resume = ours.ResumeCallback(data, tmp_path)
    for epochs, epoch in ((1, 0), (2, 1)):
        assert model.fit(data, epochs=epochs, verbose=0, callbacks=[resume]).epoch[-1] == epoch
    assert model.fit(data, epochs=1, verbose=0).epoch == [0]
    assert stream.taken == [(epoch, index) for epoch in range(3) for index in range(STEPS)]


def test_a_run_that_a_callback_has_ended_stays_ended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def stop() -> Any:
        return load_keras().callbacks.EarlyStopping("loss", min_delta=100, restore_best_weights=True)

    model, history, _ = train(tmp_path, stop())
    assert len(history["loss"]) == 2
    again, _, stream = train(tmp_path, stop(), seed=2)
    assert stream.taken == []
    assert same_bits(values(again), values(model))
    assert "a callback ended this training after epoch 2; remove the folder to start again" in capfd.readouterr().err


def test_a_run_that_a_callback_stopped_within_an_epoch_resumes_there(tmp_path: Path, unkilled: Unkilled) -> None:
    def leave(batch: int, **_: Any) -> None:
        callback.model.stop_training = batch == 4

    callback = load_keras().callbacks.LambdaCallback(on_train_batch_end=leave)
    train(tmp_path, callback, epochs=2)
    assert states(tmp_path) == ["step-0000005"]
    model, history, stream = train(tmp_path, epochs=2)
    assert stream.taken == unkilled.taken[5:]
    assert same_bits(values(model), unkilled.values)
    assert history == unkilled.history


def test_a_state_with_a_nan_is_not_saved(tmp_path: Path) -> None:
    def spoil(batch: int, **_: Any) -> None:
        if batch == 4:
            callback.model.optimizer.learning_rate = float("nan")

    callback = load_keras().callbacks.LambdaCallback(on_train_batch_begin=spoil)
    train(tmp_path, callback, load_keras().callbacks.TerminateOnNaN(), every=3)
    assert states(tmp_path) == ["step-0000003"]


def test_a_full_disk_prints_a_line_and_the_training_continues(
    begun: Path, unkilled: Unkilled, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("streamd.frameworks.checkpoint.os.fsync", full)
    model, _, _ = train(begun, epochs=2)
    assert same_bits(values(model), unkilled.values)
    assert states(begun) == [f"step-{STEPS:07}"]
    lines = [line for line in capfd.readouterr().err.splitlines() if "could not be saved" in line]
    assert len(lines) == 1
    assert f"after step {2 * STEPS} could not be saved in {begun} (No space left on device); train" in lines[0]


def test_a_removed_folder_is_created_again_with_a_message(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "run" / "a"

    def remove(epoch: int, _: Any) -> None:
        if epoch == 1:
            shutil.rmtree(directory.parent)

    train(directory, load_keras().callbacks.LambdaCallback(on_epoch_begin=remove))
    assert states(directory) == [f"step-{2 * STEPS:07}", f"step-{3 * STEPS:07}"]
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("streamd: ")]
    assert said == [
        f"streamd: {directory} was removed, together with the states saved there: it is created again for new states"
    ]


def test_a_folder_that_cannot_be_created_again_is_reported_with_no_state_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"

    def replace(epoch: int, _: Any) -> None:
        if epoch == 1:
            shutil.rmtree(directory)
            directory.write_text("")

    train(directory, load_keras().callbacks.LambdaCallback(on_epoch_begin=replace), epochs=2)
    assert "(Not a directory); training continues, and no earlier one is still there" in capfd.readouterr().err


def test_two_concurrent_fits_may_not_share_a_folder(tmp_path: Path) -> None:
    begun, done = threading.Event(), threading.Event()

    def wait(*_: Any, **__: Any) -> None:
        begun.set()
        assert done.wait(50)

    first = threading.Thread(target=train, args=(tmp_path, load_keras().callbacks.LambdaCallback(on_epoch_end=wait)))
    first.start()
    try:
        assert begun.wait(50)
        with pytest.raises(ConfigError, match=f"another fit in this process is saving to {tmp_path}: give each one"):
            train(tmp_path)
    finally:
        done.set()
        first.join()
    assert train(tmp_path)[2].taken == []  # the first was through, and nothing of it is lost


def test_a_message_tells_that_the_saved_learning_rate_applies(begun: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, _, _ = train(begun, epochs=2, rate=0.5)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.001)
    line = "the learning rate is 0.001, as it was saved; this program's 0.5 is ignored: set model.optimizer."
    assert capfd.readouterr().err.count(line) == 1
    train(begun, epochs=3)
    assert "learning rate" not in capfd.readouterr().err


def test_no_message_appears_for_a_rate_that_a_callback_changed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def halve(*_: Any) -> None:
        callback.model.optimizer.learning_rate = float(callback.model.optimizer.learning_rate) / 2

    callback = load_keras().callbacks.LambdaCallback(on_epoch_begin=halve)
    train(tmp_path, callback, epochs=1)
    assert float(train(tmp_path, callback, epochs=2)[0].optimizer.learning_rate) == pytest.approx(0.00025)
    assert "learning rate" not in capfd.readouterr().err


def test_the_programs_schedule_applies_and_a_message_tells_when_it_changed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    decay = load_keras().optimizers.schedules.ExponentialDecay
    train(tmp_path, epochs=1, rate=decay(0.1, 10, 0.5))
    train(tmp_path, epochs=2, rate=decay(0.1, 10, 0.5))
    assert "learning rate" not in capfd.readouterr().err
    train(tmp_path, epochs=3, rate=decay(0.2, 10, 0.5))
    assert "the learning rate schedule differs from the saved one: this program's schedule" in capfd.readouterr().err


def test_a_message_tells_the_new_epoch_length_when_steps_changed(
    tmp_path: Path, unkilled: Unkilled, capfd: pytest.CaptureFixture[str]
) -> None:
    train_until_killed(tmp_path, 3, steps=5, epochs=3, every=1)
    bars = load_keras().callbacks.ProgbarLogger()
    _, history, stream = train(tmp_path, bars, steps=1, epochs=3, every=1, steps_per_execution=2)
    assert stream.taken == unkilled.taken[3 : 3 + 2 + 1 + 1]
    assert len(history["loss"]) == 3
    line = (
        "an epoch had 5 steps, and from here on has the 1 of this program; before that, the rest of the interrupted "
        "epoch "
    )
    assert capfd.readouterr().err.count(line) == 1


def test_another_model_is_refused_with_what_to_do(begun: Path) -> None:
    with pytest.raises(
        ConfigError, match="holds the state of another model; build the model as it was, or choose another folder"
    ):
        train(begun, epochs=2, width=5)


def test_another_stream_is_refused_before_a_step_is_done(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: FakeStream, token: str, **_after: str) -> None:
        raise TokenError(f"{token} is of another stream")

    monkeypatch.setattr(FakeStream, "seek", refuse)
    with pytest.raises(TokenError, match=f"0:{STEPS - 1} is of another stream"):
        train(begun, epochs=2)


def test_a_resumed_run_is_validated_on_the_same_samples(begun: Path) -> None:
    _, history, _ = train(None, epochs=2, validated=True)
    assert train(begun, epochs=2, validated=True)[1]["val_loss"] == history["val_loss"]


def test_steps_per_epoch_with_a_resume_callback_is_refused(tmp_path: Path) -> None:
    data = fit_data(make_stream())
    with pytest.raises(ConfigError, match=r"steps_per_epoch=5: give  fit_data\(stream, steps=5\)"):
        make_model().fit(data, steps_per_epoch=5, callbacks=[ours.ResumeCallback(data, tmp_path)], verbose=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"every": 0}, "every must be 'epoch' or a number of steps, not 0"),
        ({"every": "10min"}, "every must be 'epoch' or a number of steps, not '10min'"),
        ({"keep": 0}, "keep must be at least 1, not 0"),
        ({"data": [1]}, "needs what fit_data gave to fit, not list"),
    ],
)
def test_wrong_arguments_of_resume_callback_are_refused_at_once(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ours.ResumeCallback(**{"data": fit_data(make_stream()), "directory": tmp_path, **changes})


def test_a_callback_that_fit_does_not_call_raises_with_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"ResumeCallback was not called by Keras: give it to  fit\(callbacks=\[\.\.\.\]\)"
    ):
        ours.ResumeCallback(fit_data(make_stream()), tmp_path).set_model(make_model())


def test_a_resume_callback_given_alone_saves_within_the_step(tmp_path: Path) -> None:
    model, data = make_model(), fit_data(make_stream())
    model.fit(data, epochs=1, verbose=0, callbacks=ours.ResumeCallback(data, tmp_path, every=6, keep=9))
    assert states(tmp_path) == ["step-0000006", "step-0000012", "step-0000013"]


def test_each_epochs_receipt_is_appended_for_streamd_verify(tmp_path: Path) -> None:
    train_until_killed(tmp_path, STEPS + 1)
    train(tmp_path)

    lines = [json.loads(line) for line in (tmp_path / "receipts-0.jsonl").read_text().splitlines()]

    assert [each["epoch"] for each in lines] == list(range(EPOCHS))
    assert all(each["complete"] for each in lines)


def test_receipts_that_cannot_be_written_do_not_end_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "receipts-0.jsonl").mkdir()
    train(tmp_path)
    assert "receipts could not be written" in capsys.readouterr().err
