"""`streamd manifest`: export on one host, import on another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.daemon_process import stream_config, write_images
from support.served_folder import change_times
from typer.testing import CliRunner, Result

from streamd.cli.main import app


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two hosts with a copy each."""
    write_images(tmp_path / "one" / "data", {"cat": 5}, size=(8, 8))
    shutil.copytree(tmp_path / "one" / "data", tmp_path / "two" / "data", copy_function=shutil.copyfile)
    change_times(tmp_path / "two" / "data" / "cat" / "0000.jpg", 10**18)
    for host in ("one", "two"):
        config = {"streams": {"train": stream_config(tmp_path / host / "data")}}
        (tmp_path / host / "config.yaml").write_text(json.dumps(config))
    return tmp_path


def run(place: Path, host: str, command: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.setenv("STATE_DIRECTORY", str(place / host / "state"))
    config = str(place / host / "config.yaml")
    return CliRunner().invoke(app, ["manifest", command, str(place / "lists"), "--config", config])


@pytest.mark.long
def test_a_list_goes_to_another_host_with_its_order(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported = run(place, "one", "export", monkeypatch)
    assert exported.exit_code == 0, exported.output
    assert exported.stdout.startswith("train: 5 samples, order ")
    imported = run(place, "two", "import", monkeypatch)
    assert imported.exit_code == 0, imported.output
    assert imported.stdout == exported.stdout


@pytest.mark.long
def test_an_incomplete_copy_is_refused_by_name(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(place, "one", "export", monkeypatch)
    (place / "two" / "data" / "cat" / "0002.jpg").unlink()
    refused = run(place, "two", "import", monkeypatch)
    assert getattr(refused.exception, "exit_status", None) == 2
    assert "cat/0002.jpg" in str(refused.exception)
