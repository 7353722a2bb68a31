"""What the fork server forks is as what a shell starts; `test_caching.py` sees to its limits, many tests to its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.fork_server import ForkServer

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(fork_server: ForkServer, tmp_path: Path) -> Run:
    """The status of a command, and what it said."""

    def run(*arguments: str, **environment: str) -> tuple[int, str]:
        log = tmp_path / "log"
        log.touch()
        status = fork_server.fork_daemon([*arguments], environment, log).wait()
        return status, log.read_text()

    return run


def test_its_status_and_words_are_the_commands(run: Run) -> None:
    assert run("--version")[0] == 0
    status, said = run("probe")
    assert status == 2
    assert "Missing argument 'STREAM'" in said


def test_its_folder_is_that_of_the_test(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text("memroy: 1GiB")
    status, said = run("serve", "--config", "config.yaml")
    assert status == 2
    assert "memroy: unknown key" in said


def test_its_environment_is_the_one_it_is_given(run: Run) -> None:
    status, said = run("status", STREAMD_ENDPOINT="ipc:///run/nobody/here")
    assert status == 1
    assert "/run/nobody/here" in said
