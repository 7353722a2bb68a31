"""`streamd completion`, and what its scripts ask for: the names of streams."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from daemons import DaemonProcess, stream_config, write_images
from typer.testing import CliRunner

from streamd.cli.main import PROGRAMS, Shell, app, read_completion_script
from streamd.errors import ConnectError


def names(line: str) -> list[str]:
    done = CliRunner().invoke(app, ["streams", line])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout.split()


@pytest.mark.parametrize("shell", Shell)
def test_one_script_completes_both_programs(shell: Shell) -> None:
    done = CliRunner().invoke(app, ["completion", shell])
    assert (done.exit_code, done.stdout) == (0, "".join(read_completion_script(shell, program) for program in PROGRAMS))


def test_another_shell_is_a_mistake_that_names_those_there_are() -> None:
    done = CliRunner().invoke(app, ["completion", "tcsh"])
    assert done.exit_code == 2
    assert all(shell in done.stderr for shell in Shell)


def test_names_are_those_of_the_daemon_that_is_meant(
    start_daemon: Callable[..., DaemonProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = stream_config(write_images(tmp_path, {"cat": 1}))
    daemon = start_daemon({"streams": {"one": stream, "two": stream}})
    assert names(f"streamd show --endpoint {daemon.endpoint} ") == ["one", "two"]
    monkeypatch.setenv("STREAMD_ENDPOINT", daemon.endpoint)
    assert names("streamd-train --stream ") == ["one", "two"]


def test_without_a_daemon_it_fails_and_says_nothing_to_choose_from(tmp_path: Path) -> None:
    with pytest.raises(ConnectError):
        names(f"streamd show --endpoint ipc://{tmp_path}/none ")


@pytest.mark.parametrize(
    "words", ["--config {}", "--config={}", "--config '{}", '--config "{}" --format npy', "--config $THERE/c.yaml"]
)
def test_names_are_those_of_the_file_as_far_as_the_line_is_typed(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THERE", str(tmp_path))
    (tmp_path / "c.yaml").write_text("streams: {one: {}, 2: {source: {kind: folder}}, 'not; a name': {}}")
    assert names(f"streamd pack {words.format(tmp_path / 'c.yaml')}") == ["one", "2"]


def test_a_tilde_is_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "c.yaml").write_text("streams: {one: {}}")
    assert names("streamd pack --config ~/c.yaml ") == ["one"]


@pytest.mark.parametrize("text", ["", "streams:", "[1, 2]", "streams: [one]\n"])
def test_a_file_that_is_not_finished_has_the_names_that_it_has(text: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    assert names(f"streamd pack --config {tmp_path / 'c.yaml'}") == (["one"] if "one" in text else [])


def test_the_command_for_scripts_is_not_among_those_for_people() -> None:
    told = CliRunner().invoke(app, ["--help"]).stdout
    assert re.search(r"^  serve ", told, re.MULTILINE)
    assert not re.search(r"^  streams ", told, re.MULTILINE)
