"""A configuration is made in a separate process."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from support.daemon_process import write_images

from streamd.core import log
from streamd.daemon.starter import process
from streamd.daemon.starter.process import build_config_in_process
from streamd.daemon.starter.starter_config import LoggedProgress, build_unwritten_config
from streamd.daemon.starter.survey import StarterChoices
from streamd.errors import ConfigError


@pytest.mark.long
def test_the_process_makes_the_same_configuration_as_a_direct_call(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat": 6, "dog": 6})
    for size in (None, (8, 9)):
        made = build_config_in_process(tmp_path, size, StarterChoices(), level=log.NOTICE)
        assert made == build_unwritten_config(tmp_path, size, LoggedProgress())


@pytest.mark.long
def test_an_error_in_the_data_becomes_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is empty; streamd makes a configuration only from"):
        build_config_in_process(tmp_path, None, StarterChoices(), level=log.NOTICE)


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (3, "making a configuration failed with status 3"),
        (-signal.SIGKILL, "making a configuration was ended by SIGKILL: by a user, or for lack of memory;"),
    ],
)
def test_a_silent_process_is_explained_by_its_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, why: str
) -> None:
    monkeypatch.setattr("subprocess.run", lambda *_, **__: subprocess.CompletedProcess([], status, b""))
    with pytest.raises(ConfigError) as found:
        build_config_in_process(tmp_path, None, StarterChoices(), level=log.NOTICE)
    assert str(found.value).startswith(why)


def request(path: Path, size: tuple[int, int] | None) -> str:
    return json.dumps({"path": str(path), "size": size, "choices": {}, "level": 20, "form": [], "parent": 1})


def test_the_process_writes_the_configuration_or_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_images(tmp_path, {"cat": 6, "dog": 6})
    monkeypatch.setattr("streamd.core.log.configure_logging", lambda **_: None)
    monkeypatch.setattr("streamd.ipc.inherited_state.die_with_parent", lambda parent: parent)
    monkeypatch.setattr("streamd.ipc.inherited_state.raise_oom_score", lambda: None)
    before = signal.getsignal(signal.SIGINT)
    try:
        monkeypatch.setattr("sys.argv", ["process", request(tmp_path, (8, 9))])
        process.main()
        assert '"image":{"size":[8,9]}' in capfd.readouterr().out
        monkeypatch.setattr("sys.argv", ["process", request(tmp_path / "none", None)])
        with pytest.raises(SystemExit) as ended:
            process.main()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == ConfigError.exit_status
    assert "PATH: there is no" in capfd.readouterr().out
