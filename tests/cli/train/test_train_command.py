"""`streamd-train` as a command."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support.stream_fake import ANGLE, FakeClient, make_spec

import streamd
from streamd.cli.train.command import main
from streamd.frameworks.keras import load_keras

KERAS_SAVES = "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"  # Keras 3.15, NumPy 2
pytestmark = pytest.mark.filterwarnings(KERAS_SAVES)


class Command:
    """Runs the command against a daemon that serves one stream, `train`; `connected` is how it connected."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.missed = 0
        self.spoiled: tuple[int, ...] = ()
        self.connected: tuple[Any, Any] = (None, None)
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
        monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        monkeypatch.setitem(vars(streamd), "connect", self._connect)
        monkeypatch.setattr("streamd.cli.options.find_socket", lambda endpoint: endpoint)

    def _connect(self, endpoint: str | None, *, patience: float | None) -> FakeClient:
        self.connected = (endpoint, patience)
        return FakeClient([make_spec(ANGLE)], missed=self.missed, spoiled=self.spoiled)

    def __call__(self, *arguments: object) -> object:
        self._monkeypatch.setattr("sys.argv", ["streamd-train", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(monkeypatch)


@pytest.mark.train
def test_a_training_ends_with_status_0_and_writes_its_receipts(command: Command, tmp_path: Path) -> None:
    receipts = tmp_path / "receipts.json"
    where = ("--endpoint", "ipc:///x", "--patience", "3")
    model = tmp_path / "m.keras"
    assert command("--stream", "train", "--epochs", 2, "--save", model, "--receipts", receipts, *where) == 0
    assert [(receipt["epoch"], receipt["ok"]) for receipt in json.loads(receipts.read_bytes())] == [
        (0, True),
        (1, True),
    ]
    assert model.exists()
    assert command.connected == ("ipc:///x", 3.0)


@pytest.mark.train
def test_resume_saves_the_training_state_in_its_folder(command: Command, tmp_path: Path) -> None:
    what = ("--stream", "train", "--epochs", 1, "--save", tmp_path / "m.keras", "--resume", tmp_path / "run")
    assert command(*what) == 0
    assert [path.name for path in (tmp_path / "run").glob("step-*")] == ["step-0000003"]


@pytest.mark.train
def test_a_receipt_that_is_not_ok_is_written_and_ends_with_status_1(command: Command, tmp_path: Path) -> None:
    command.missed = 1
    receipts = tmp_path / "receipts.json"
    model = tmp_path / "m.keras"
    assert command("--stream", "train", "--epochs", 2, "--save", model, "--receipts", receipts) == 1
    assert [receipt["ok"] for receipt in json.loads(receipts.read_bytes())] == [False]


@pytest.mark.train
def test_a_nan_loss_ends_with_status_1_and_names_the_page_of_pictures(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.spoiled = (3,)
    assert command("--stream", "train", "--epochs", 2, "--save", tmp_path / "m.keras") == 1
    said = capsys.readouterr().err
    assert "streamd-train: the loss is nan after batch 0:" in said
    (page,) = tmp_path.iterdir()
    assert f"its pictures are in: {page}\n" in said


@pytest.mark.train
def test_an_unknown_optimizer_ends_with_status_2_and_a_similar_name(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--optimizer", "adamww", "--learning-rate", "0.1", "--class-weight", "balanced", "--mixed-precision")
    try:
        assert command("--stream", "train", "--epochs", 1, "--save", tmp_path / "m.keras", *options) == 2
    finally:
        load_keras().mixed_precision.set_global_policy("float32")
    said = r"streamd-train: Keras has no optimizer 'adamww'; it has .*, adamw, .*; did you mean 'adamw'\?$"
    assert re.search(said, capsys.readouterr().err, re.MULTILINE)


@pytest.mark.train
def test_callbacks_are_called_in_the_order_of_the_options(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("saying.py").write_text(
        "import keras\n"
        "def one(spec): return keras.callbacks.LambdaCallback(on_train_end=lambda logs: print('one'))\n"
        "class Two(keras.callbacks.Callback):\n"
        "    def on_train_end(self, logs=None): print('two')\n"
    )
    what = ("--stream", "train", "--epochs", 1, "--save", tmp_path / "m.keras", "--callback", "saying:one")
    assert command(*what, "--callback", "saying:Two") == 0
    assert "one\ntwo\n" in capsys.readouterr().out


def test_a_missing_folder_for_the_receipts_is_refused_first(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    receipts = tmp_path / "none" / "receipts.json"
    assert command("--stream", "x", "--epochs", 1, "--save", tmp_path / "m.keras", "--receipts", receipts) == 2
    assert "receipts.json cannot be written: there is no folder" in capsys.readouterr().err


def test_a_missing_option_ends_with_status_2(command: Command) -> None:
    assert command("--stream", "train") == 2


def test_the_help_has_an_example_that_can_be_copied(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--help") == 0
    shown = capsys.readouterr().out
    assert "streamd-train --stream train --validation validation --epochs 10 --save model.keras\n" in shown
    assert "--callback mycallbacks:patience \\\n" in shown
