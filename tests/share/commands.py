"""The commands as manual pages and shells want to know them: read from the programs themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import typer

from streamd.cli.main import app as streamd
from streamd.cli.train.command import app as streamd_train

SHARE: Final = Path(__file__).resolve().parents[2] / "streamd" / "share"

FILE, FOLDER, STREAMS, ANYTHING = "<file>", "<folder>", "<streams>", ""
# What goes where a command wants a value, by what its help calls it; `a|b` and `[a|b]` are words to choose from.
_WANTED: Final = {"FILE": FILE, "DEST": FILE, "PATH": FILE, "FOLDER": FOLDER, "DIR": FOLDER, "STREAM": STREAMS}
_OF_STREAMS: Final = {"--stream", "--validation"}


@dataclass(frozen=True)
class Option:
    """`value` is what its help calls its value, nothing for a switch; `wanted` is a mark from above, or words."""

    names: tuple[str, ...]
    value: str
    help: str
    wanted: str
    repeats: bool
    required: bool


@dataclass(frozen=True)
class Argument:
    """What a command takes by its place."""

    name: str
    help: str
    wanted: str


@dataclass(frozen=True)
class Command:
    """One command of a program, by the words that lead to it; its `help` as it is written, with `\\b` before tables."""

    path: tuple[str, ...]
    help: str
    options: tuple[Option, ...]
    arguments: tuple[Argument, ...]
    commands: tuple[Command, ...]

    @property
    def summary(self) -> str:
        """The first sentence."""
        return re.split(r"(?<=[.])\s", " ".join(self.help.split()), maxsplit=1)[0].removesuffix(".")

    def walk(self) -> Iterator[Command]:
        """This one and those below it."""
        yield self
        yield from chain.from_iterable(each.walk() for each in self.commands)


def programs() -> dict[str, Command]:
    """The programs by their names."""
    return {
        name: _command((), typer.main.get_command(app))
        for name, app in (("streamd", streamd), ("streamd-train", streamd_train))
    }


def _command(path: tuple[str, ...], command: Any) -> Command:
    context = typer.Context(command)
    found = command.get_params(context)
    below = [(name, each) for name, each in getattr(command, "commands", {}).items() if not each.hidden]
    return Command(
        path,
        command.help or "",
        tuple(_option(each, context) for each in found if each.param_type_name == "option" and not each.hidden),
        tuple(
            Argument(each.metavar, each.help, _wanted(each.metavar))
            for each in found
            if each.param_type_name == "argument"
        ),
        tuple(_command((*path, name), each) for name, each in below),
    )


def _option(option: Any, context: typer.Context) -> Option:
    heading, text = option.get_help_record(context)
    value = "" if option.is_flag else heading.rpartition(" ")[2]
    wanted = STREAMS if _OF_STREAMS & set(option.opts) else _wanted(value)
    return Option(
        tuple(sorted(option.opts, key=len)), value.strip("<>[]"), text, wanted, option.multiple, option.required
    )


def _wanted(value: str) -> str:
    words = value.strip("[]<>")
    return " ".join(words.split("|")) if "|" in words or words != value else _WANTED.get(value, ANYTHING)
