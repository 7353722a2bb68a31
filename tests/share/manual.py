"""Writes what man and the shells read: `scripts/manual`, from the commands and from the schema of config.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from commands import SHARE, Command, Option, programs
from completions import SCRIPTS
from manual_of_config import config_page
from roff import bold, italic, item, paragraphs, plain, title

from streamd import __version__
from streamd.cli.main import build_completion_script_path

DESCRIPTION: Final = """\
A daemon, `streamd serve`, reads images, shuffles them, decodes them and serves batches; trainers are separate processes
that take them, from shared memory. Several trainers share one decode. Whatever is killed and started again goes on
where it was: nothing is lost and nothing repeated, and each epoch ends in a receipt that says so.

What is served is written in a file, streamd-config(5). `streamd check` looks at it and at its data first. Trainers are
Python programs that call streamd.connect(), or streamd-train(1). `streamd status`, `streamd top` and `streamd show`
look at a daemon that runs. `streamd service install` makes it a service of the host."""
STATUSES: Final = {
    "0": "It was done, and nothing is wrong.",
    "1": "It failed, or something is wrong: no daemon answers, a receipt is not ok, `status` or `check` found trouble.",
    "2": "A mistake in what was asked: an option, the configuration, an extra that is not installed.",
    "130": "Ended by Ctrl-C.",
    "143": "Ended by SIGTERM, after putting away what it began. `streamd serve` ends with 0.",
}
ENVIRONMENTS: Final = {
    "streamd": {
        "STREAMD_ENDPOINT": "The daemon that commands and trainers ask when none is named, such as "
        "ipc:///run/streamd/streamd.sock.",
        "RUNTIME_DIRECTORY, XDG_RUNTIME_DIR": "Where the daemon listens, and is looked for, when nothing says where: "
        "RUNTIME_DIRECTORY/streamd.sock, which systemd sets, XDG_RUNTIME_DIR/streamd/streamd.sock, then "
        "/run/streamd/streamd.sock.",
        "STATE_DIRECTORY, XDG_STATE_HOME": "Where the lists of samples and the verdicts on bad ones are kept: "
        "STATE_DIRECTORY, which systemd sets, else XDG_STATE_HOME/streamd, else ~/.local/state/streamd.",
    },
    "streamd-train": {
        "STREAMD_ENDPOINT": "The daemon to train on when none is named.",
        "KERAS_BACKEND": "What Keras computes with: tensorflow unless it says jax or torch.",
    },
}
FILES: Final = {
    "/etc/streamd/config.yaml": "What the service serves; see streamd-config(5).",
    "/etc/streamd@NAME/config.yaml": "What a further daemon serves, the unit streamd@NAME.",
    "/etc/streamd-train/NAME.env": "The arguments of a training, the unit streamd-train@NAME.",
    "/run/streamd/streamd.sock": "Where trainers meet the service.",
    "/var/lib/streamd": "Its lists of samples, and verdicts on bad ones.",
    "/usr/local/share/streamd": "Alert rules for Prometheus and a dashboard for Grafana.",
}
SEE_ALSO: Final = {
    "streamd": "streamd-train(1), streamd-config(5), journalctl(1), systemctl(1)",
    "streamd-train": "streamd(1), streamd-config(5)",
}


def man(section: int, name: str) -> Path:
    """Where a page lies."""
    return SHARE / "man" / f"man{section}" / f"{name}.{section}"


def command_page(program: str, root: Command) -> str:
    """The page of a program, section 1."""
    lines = [*title(program, 1, __version__), ".SH NAME", f"{plain(program)} \\- {plain(_first(root))}"]
    lines += [".SH SYNOPSIS", *_synopsis(program, root)]
    if root.commands:
        lines += [
            f".br\n{each}" for command in root.walk() if not command.commands for each in _synopsis(program, command)
        ]
    lines += [".SH DESCRIPTION", *paragraphs(DESCRIPTION if root.commands else root.help)]
    lines += [".SH OPTIONS", *_options(root)]
    if root.commands:
        lines.append(".SH COMMANDS")
        for command in list(root.walk())[1:]:
            lines += [f'.SS "{plain(" ".join([program, *command.path]))}"', *_synopsis(program, command)]
            lines += [*paragraphs(command.help), *_arguments(command), *_options(command)]
    lines += [".SH EXIT STATUS", *(line for head, text in STATUSES.items() for line in item(bold(head), text))]
    lines += [
        ".SH ENVIRONMENT",
        *(line for head, text in ENVIRONMENTS[program].items() for line in item(bold(head), text)),
    ]
    if root.commands:
        lines += [".SH FILES", *(line for head, text in FILES.items() for line in item(italic(head), text))]
    return "\n".join([*lines, ".SH SEE ALSO", plain(SEE_ALSO[program]), ""])


def _first(root: Command) -> str:
    return root.summary[0].lower() + root.summary[1:]


def _synopsis(program: str, command: Command) -> list[str]:
    """The words to type; a command of commands has but these."""
    words = [bold(" ".join([program, *command.path]))]
    if command.commands:
        words += [italic("COMMAND"), "..."]
    else:
        words += [italic(each.name) for each in command.arguments]
        options = [each for each in command.options if each.names != ("--help",)]
        words += [_typed(each) if each.required else f"[{_typed(each)}]" for each in options]
    return [" ".join(words)]


def _typed(option: Option) -> str:
    return " ".join([bold(option.names[-1]), *([italic(option.value)] if option.value else [])])


def _arguments(command: Command) -> list[str]:
    return [line for each in command.arguments for line in item(italic(each.name), each.help)]


def _options(command: Command) -> list[str]:
    lines: list[str] = []
    for each in command.options:
        value = f" {italic(each.value)}" if each.value else ""
        lines += item(", ".join(bold(name) for name in each.names) + value, _said(each.help))
    return lines


def _said(text: str) -> str:
    """A help text as a sentence more, for what is in brackets behind it; what is required shows in the synopsis."""
    words, bracket, facts = text.partition("  [")
    told = [_fact(fact) for fact in facts.removesuffix("]").split("; ") if bracket and fact != "required"]
    return " ".join([words, f"{'; '.join(told).capitalize()}."]) if told else words


def _fact(fact: str) -> str:
    between = re.fullmatch(r"(\S+)<=x<=(\S+)", fact)
    return (
        f"from {between[1]} to {between[2]}"
        if between
        else fact.replace("x>=", "at least ").replace("default: ", "default ")
    )


def pages() -> Iterator[tuple[Path, str]]:
    """Where each file lies, and what is to be in it."""
    for program, root in programs().items():
        yield man(1, program), command_page(program, root)
        for shell, script in SCRIPTS.items():
            yield build_completion_script_path(shell, program), script(program, root)
    yield man(5, "streamd-config"), config_page(__version__)


if __name__ == "__main__":
    for path, text in pages():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
