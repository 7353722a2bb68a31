"""How commands end."""

from __future__ import annotations

import io
import signal
import sys

import pytest
import typer

from streamd.cli.terminal.run_guarded import exit_without_typer, run_guarded
from streamd.errors import ConfigError, ConnectError


def ending_with(error: BaseException) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def command() -> None:
        raise error

    return app


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ConfigError("a mistake"), 2, "prog: a mistake\n"),
        (ConfigError("a mistake\n\n  and another\n"), 2, "prog: a mistake\nand another\n"),
        (ConfigError("a\x1b[2Jb.jpg"), 2, "prog: a\\x1b[2Jb.jpg\n"),
        (ConnectError("ipc://x", "gone"), 1, "prog: no streamd daemon at ipc://x: gone\n"),
        (PermissionError(13, "Permission denied", "a.json"), 1, "prog: [Errno 13] Permission denied: 'a.json'\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_a_line_for_each_mistake_and_a_status(
    error: BaseException,
    status: int,
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["prog"])
    with pytest.raises(SystemExit) as ended:
        run_guarded("prog", ending_with(error))
    assert ended.value.code == status
    assert capsys.readouterr().err == line


def told(error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("sys.argv", ["prog"])
    with pytest.raises(SystemExit):
        run_guarded("prog", ending_with(error))
    return capsys.readouterr().err


@pytest.mark.usefixtures("without_folder")
def test_what_is_not_found_from_a_folder_that_was_removed_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing, mistake = FileNotFoundError(2, "No such file or directory"), ConfigError("c.yaml: there is no such file")
    mistake.__cause__ = missing
    reason = "\nthe working directory was removed: change to another one (cd), and start again\n"
    for error in (missing, mistake):
        assert told(error, capsys, monkeypatch) == f"prog: {error}{reason}"
    assert told(ConfigError("a mistake"), capsys, monkeypatch) == "prog: a mistake\n"


def test_what_is_not_found_from_a_folder_that_is_there_is_that_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = FileNotFoundError(2, "No such file or directory", "a.json")
    assert told(error, capsys, monkeypatch) == f"prog: {error}\n"


def test_sigterm_lets_a_command_put_away_what_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["prog"])
    before = signal.getsignal(signal.SIGTERM)
    app, put_away = typer.Typer(pretty_exceptions_enable=False), []

    @app.command()
    def command() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            put_away.append("all")

    with pytest.raises(SystemExit) as ended:
        run_guarded("prog", app)
    assert (ended.value.code, put_away) == (143, ["all"])
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_the_encoding_of_stdout_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["prog"])
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def command() -> None:
        sys.stdout.write("Zoë.jpg\n")
        sys.stdout.flush()

    with pytest.raises(SystemExit) as ended:
        run_guarded("prog", app)
    assert (ended.value.code, written.getvalue()) == (0, b"Zo\\xeb.jpg\n")


def test_a_library_that_is_not_here_names_the_extra_of_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["streamd-train"])
    with pytest.raises(SystemExit) as ended:
        run_guarded("streamd-train", ending_with(ModuleNotFoundError("no zmq", name="zmq.backend")))
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "streamd-train: streamd-train needs zmq.backend, which is not installed: run  pip install "
        "'streamd-loader[train]'\n"
    )


def test_a_missing_module_of_our_own_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["streamd"])
    with pytest.raises(ModuleNotFoundError):
        run_guarded("streamd", ending_with(ModuleNotFoundError("no", name="streamd.gone")))


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["prog"])
    with pytest.raises(ZeroDivisionError):
        run_guarded("prog", ending_with(ZeroDivisionError()))


def test_a_missing_command_line_library_names_the_extra(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        exit_without_typer("streamd-train", "train")
    assert ended.value.code == 2
    assert "pip install 'streamd-loader[train]'" in capsys.readouterr().err
