"""`streamd` without a command, `--help`, `--version` and `streamd schema`."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import streamd
from streamd.cli.main import app
from streamd.config.schema import format_json_schema


def test_the_version_is_that_of_the_package() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"streamd {streamd.__version__}\n")


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_names_every_command(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, arguments)
    commands = {command.callback.__name__ for command in app.registered_commands if command.callback}
    assert {"serve", "probe"} <= commands
    assert commands <= set((done.stdout + done.stderr).split())


def test_an_unknown_command_is_a_usage_error() -> None:
    done = CliRunner().invoke(app, ["srve"])
    assert done.exit_code == 2
    assert "srve" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "check --sample 0",
        *(f"probe train {option}" for option in ("--epochs 0", "--epochs x", "--trainers 0")),
        *(f"show train 0:0 --rows {rows}" for rows in ("0", "1025", "x")),
    ],
)
def test_an_impossible_number_is_a_usage_error(command: str) -> None:
    assert CliRunner().invoke(app, command.split()).exit_code == 2


@pytest.mark.parametrize(
    ("module", "program", "extra"), [("main", "streamd", "serve"), ("train.command", "streamd-train", "train")]
)
def test_without_typer_the_program_names_the_extra(module: str, program: str, extra: str) -> None:
    code = f"import sys; sys.modules['typer'] = None; import streamd.cli.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = f"{program}: {program} needs typer, which is not installed: run  pip install 'streamd-loader[{extra}]'\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_schema_prints_the_json_schema() -> None:
    done = CliRunner().invoke(app, ["schema"])
    assert done.exit_code == 0, done.stderr
    assert done.stdout == format_json_schema()
