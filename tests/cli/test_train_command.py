"""`streamd-train` as a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trainer_fakes import ANGLE, FakeClient, make_spec

import streamd
from streamd.cli.train import main

KERAS_SAVES = "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"  # Keras 3.15, NumPy 2
pytestmark = pytest.mark.filterwarnings(KERAS_SAVES)


class Command:
    """Runs the command against a daemon that serves one stream, `train`; `connected` is how it connected."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.missed = 0
        self.connected: tuple[Any, Any] = (None, None)
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
        monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        monkeypatch.setitem(vars(streamd), "connect", self._connect)

    def _connect(self, endpoint: str | None, *, patience: float | None) -> FakeClient:
        self.connected = (endpoint, patience)
        return FakeClient([make_spec(ANGLE)], missed=self.missed)

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
def test_a_training_is_saved_as_it_goes_where_the_command_says(command: Command, tmp_path: Path) -> None:
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
def test_an_unknown_stream_is_one_line_with_the_near_name(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--stream", "trian", "--epochs", 1, "--save", tmp_path / "m.keras") == 2
    assert capsys.readouterr().err == "streamd-train: no stream 'trian'; did you mean 'train'?\n"


def test_a_folder_for_the_receipts_that_is_not_there_is_refused_first(
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
