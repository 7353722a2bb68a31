"""What a Tab offers, asked of the shells themselves: bash by its own line editor, fish and zsh where there are any."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path

import pytest
from commands import programs
from completions import SCRIPTS
from daemons import wait_until

from streamd.cli.main import PROGRAMS, build_completion_script_path

TO_THE_BEGIN, TO_THE_END = "\x01", "\x05"
Complete = Callable[[str], str]  # what a line may go on with
INSTALLED = [shell for shell in SCRIPTS if shutil.which(shell)]
CONFIG = "streams: {cats: {}, dogs: {}, 'no name; rm -rf': {}}"

# A line as it is typed, and what it may go on with.
LINES = {
    "streamd s": "serve show status service schema",
    "streamd service ": "install remove",
    "streamd serve --": "--config --size --rescan --verbose --log-json --help",
    "streamd pack --format ": "npy tar hdf5 lmdb",
    "streamd pack --format=h": "hdf5",
    "streamd completion ": "bash zsh fish",
    "streamd pack --config config.yaml ": "cats dogs",
    "streamd pack --shard a:b=c --config=config.yaml c": "cats",
    "streamd pack --config config.yaml cats pictures/": "pictures/a.jpg",
    "streamd serve --config conf": "config.yaml",
    "streamd demo --output pic": "pictures",
    "streamd show cats ": "",
    "streamd top --every ": "",
    "streamd-train --class-weight ": "balanced",
    "streamd-train --epochs 3 --sa": "--save",
    "streamd-train --resume pic": "pictures",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the lines are typed."""
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.jpg").touch()
    (tmp_path / "config.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return tmp_path


class AtATerminal:
    """A shell at a terminal of its own, that completes lines in place of running them."""

    def __init__(self, folder: Path, command: list[str], scripts: str, insert_all: str) -> None:
        self._insert_all = insert_all
        self._out = folder / "completed"
        self._out.touch()
        self._terminal, theirs = pty.openpty()
        os.set_blocking(self._terminal, False)
        variables = {**os.environ, "TERM": "dumb", "HISTFILE": "", "INPUTRC": os.devnull, "ZDOTDIR": os.devnull}
        self._process = subprocess.Popen(
            command, cwd=folder, env=variables, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self._type(f"{scripts}; echo begun > {self._out}\n")
        wait_until(self._written, "the shell has begun")

    def _written(self) -> str:
        with suppress(BlockingIOError):  # what it shows is of no use, but it waits until somebody has read it
            while os.read(self._terminal, 4096):
                pass
        return self._out.read_text()

    def _type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def complete(self, line: str) -> str:
        """What the line may go on with."""
        before = self._written()
        self._type(f"{line}{self._insert_all}{TO_THE_BEGIN}echo {TO_THE_END} >> {self._out}\n")
        wait_until(lambda: self._written() != before, f"the shell has completed {line!r}")
        return self._written().removeprefix(before).strip().removeprefix(line.rpartition(" ")[0])

    def close(self) -> None:
        os.close(self._terminal)
        self._process.wait(10)


@contextmanager
def bash(folder: Path) -> Iterator[Complete]:
    scripts = "; ".join(f"source {build_completion_script_path('bash', program)}" for program in PROGRAMS)
    with closing(AtATerminal(folder, ["bash", "--noprofile", "--norc", "-i"], scripts, "\x1b*")) as shell:
        yield shell.complete


@contextmanager
def zsh(folder: Path) -> Iterator[Complete]:
    setup = (
        "autoload -U compinit; compinit -u -D; zle -C all complete-word _generic; bindkey '^Xa' all; PS1=;"
        "zstyle ':completion:all:*' completer _all_matches _complete; zstyle ':completion:all:*' insert true"
    )
    scripts = "; ".join([setup, *(f"source {build_completion_script_path('zsh', program)}" for program in PROGRAMS)])
    with closing(AtATerminal(folder, ["zsh", "-f", "-i"], scripts, "\x18a")) as shell:
        yield shell.complete


@contextmanager
def fish(folder: Path) -> Iterator[Complete]:
    scripts = "; ".join(f"source {build_completion_script_path('fish', program)}" for program in PROGRAMS)

    def complete(line: str) -> str:
        command = ["fish", "--no-config", "--command", f"{scripts}; complete --do-complete '{line}'"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=30)
        return " ".join(each.partition("\t")[0] for each in done.stdout.splitlines())

    yield complete


@pytest.mark.long
@pytest.mark.parametrize("shell", [each for each in (bash, zsh, fish) if shutil.which(each.__name__)])
def test_a_tab_offers_what_may_come(shell: Callable[[Path], AbstractContextManager[Complete]], folder: Path) -> None:
    with shell(folder) as complete:
        found = {
            line: {word.removeprefix("--format=").rstrip("/") for word in complete(line).split()} for line in LINES
        }
    assert found == {line: set(expected.split()) for line, expected in LINES.items()}


@pytest.mark.parametrize("shell", INSTALLED)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_shell_can_read_its_script(shell: str, program: str) -> None:
    done = subprocess.run(
        [shell, "-n", str(build_completion_script_path(shell, program))],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", SCRIPTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_script_is_what_scripts_manual_would_write_and_knows_every_command(shell: str, program: str) -> None:
    root = programs()[program]
    text = build_completion_script_path(shell, program).read_text(encoding="utf-8")
    assert text == SCRIPTS[shell](program, root)
    words = {word for command in root.walk() for word in command.path}
    names = {name.lstrip("-") for command in root.walk() for option in command.options for name in option.names}
    assert {each for each in words | names if each not in text} == set()
