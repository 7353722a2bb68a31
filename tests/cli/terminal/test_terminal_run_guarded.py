"""The exit status and the message with which a command ends."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable

import pytest
import typer

from streamd.cli.terminal import run_guarded
from streamd.errors import ConfigError, ConnectError

Run = Callable[..., object]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a program whose command is a function; its exit status."""

    def run_command(command: Callable[[], None], program: str = "prog") -> object:
        monkeypatch.setattr("sys.argv", [program])
        app = typer.Typer(pretty_exceptions_enable=False)
        app.command()(command)
        with pytest.raises(SystemExit) as ended:
            run_guarded(program, app)
        return ended.value.code

    return run_command


def ending_with(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ConfigError("a mistake"), 2, "prog: a mistake\n"),
        (ConfigError("a mistake\n\n  and another\n"), 2, "prog: a mistake\nand another\n"),
        (ConfigError("a\x1b[2Jb.jpg"), 2, "prog: a\\x1b[2Jb.jpg\n"),
        (ConnectError("ipc://x", "gone"), 1, "prog: no streamd daemon at ipc://x: gone\n"),
        (FileNotFoundError(2, "No such file", "a.json"), 1, "prog: [Errno 2] No such file: 'a.json'\n"),
        (PermissionError(13, "Permission denied", "a.json"), 1, "prog: [Errno 13] Permission denied: 'a.json'\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_prints_a_line_for_each_mistake_and_sets_the_exit_status(
    error: BaseException, status: int, line: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(ending_with(error)) == status
    assert capsys.readouterr().err == line


@pytest.mark.usefixtures("without_folder")
def test_a_missing_file_error_names_a_removed_working_directory(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    missing, mistake = FileNotFoundError(2, "No such file or directory"), ConfigError("c.yaml: there is no such file")
    mistake.__cause__ = missing
    reason = "\nthe working directory was removed: change to another one (cd), and start again\n"
    for error in (missing, mistake):
        run(ending_with(error))
        assert capsys.readouterr().err == f"prog: {error}{reason}"
    run(ending_with(ConfigError("a mistake")))
    assert capsys.readouterr().err == "prog: a mistake\n"


def test_sigterm_lets_a_command_clean_up(run: Run) -> None:
    before, put_away = signal.getsignal(signal.SIGTERM), []

    def command() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            put_away.append("all")

    assert (run(command), put_away) == (143, ["all"])
    assert signal.getsignal(signal.SIGTERM) is before


def test_characters_outside_the_encoding_of_stdout_are_escaped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))

    def command() -> None:
        sys.stdout.write("Zoë.jpg\n")
        sys.stdout.flush()

    assert (run(command), written.getvalue()) == (0, b"Zo\\xeb.jpg\n")


def test_a_missing_library_error_names_the_extra_of_the_command(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ending_with(ModuleNotFoundError("no zmq", name="zmq.backend")), "streamd-train") == 2
    assert capsys.readouterr().err == (
        "streamd-train: streamd-train needs zmq.backend, which is not installed: run  pip install "
        "'streamd-loader[train]'\n"
    )


@pytest.mark.parametrize("bug", [ModuleNotFoundError("no", name="streamd.gone"), ZeroDivisionError()], ids=repr)
def test_a_bug_keeps_its_traceback(bug: Exception, run: Run) -> None:
    with pytest.raises(type(bug)):
        run(ending_with(bug), "streamd")
