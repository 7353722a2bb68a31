"""What every command ends with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import typer
from operations_table import code, table

from streamd.cli.main import app
from streamd.cli.terminal.run_guarded import INTERRUPTED, TERMINATED

# command: what 0 says, what 1 says, what 2 says beyond a mistake in the command itself
STATUSES: Final[dict[str, tuple[str, str, str]]] = {
    "streamd init": (
        "the configuration is written, or printed",
        "the file is there already, would lie in the data, or cannot be written",
        "the data are none that a configuration is made from, or serve would refuse them",
    ),
    "streamd serve": (
        "asked to end by SIGTERM or Ctrl-C, and drained",
        "failed by itself: a rule that does not hold, a fault of its own; systemd starts it anew",
        (
            "a mistake in the configuration or the data, an endpoint that is taken; systemd starts it anew only for a "
            "trainer that waits, every ten seconds. Under systemd data that are not there yet are waited for"
        ),
    ),
    "streamd check": (
        "nothing has to be mended",
        "something has to be, also in the configuration",
        "a library that it needs itself is missing",
    ),
    "streamd status": (
        "nothing is wrong",
        "something is wrong, or no daemon answers",
        "the endpoint cannot be one; --url, and there is no dashboard",
    ),
    "streamd top": ("ended by Ctrl-C, or its one frame was printed", "no daemon answers", "the endpoint cannot be one"),
    "streamd show": (
        "the picture is written",
        "no daemon answers, or the picture cannot be written",
        "no such stream or batch",
    ),
    "streamd probe": (
        "all receipts are ok",
        "a receipt is not, a process failed, or no daemon answers",
        "no such stream, no room in memory, a mistake in --load",
    ),
    "streamd pack": (
        "the pack is in its place, read back and compared",
        "a full disk or a fault: the same command goes on",
        "a mistake in the configuration or in what is asked; something is at its place already",
    ),
    "streamd schema": ("printed", "it cannot be printed, as to a disk that is full", "a library is missing"),
    "streamd demo": ("all receipts are ok", "the trainer or a receipt failed", "a library is missing"),
    "streamd service install": (
        "the units are there; nothing is started",
        "the host's own commands failed, or something cannot be written",
        "not root, or no systemd",
    ),
    "streamd service remove": ("they are gone; configuration, state and caches stay", "as above", "as above"),
    "streamd-train": (
        "trained, all receipts ok",
        "a receipt is not ok, the loss is no number, the daemon stayed away, a stream was stopped or changed",
        "a mistake in the arguments, the model or a callback; a refusal; a token of another order",
    ),
}


def commands(group: typer.Typer = app, above: str = "streamd") -> Iterator[str]:
    """Every command that people type."""
    for command in group.registered_commands:
        if command.hidden:
            continue
        assert command.callback is not None  # each was registered with its function
        yield f"{above} {command.name or command.callback.__name__}"
    for each in group.registered_groups:
        assert each.typer_instance is not None
        yield from commands(each.typer_instance, f"{above} {each.name}")
    if group is app:
        yield "streamd-train"


def command_table() -> str:
    rows = [(code(command), *STATUSES[command]) for command in commands()]
    return table(("command", "0", "1", "2"), rows)


def signal_table() -> str:
    rows = [
        ("2", "a mistake in what was asked: an unknown option, a configuration that cannot be used"),
        (str(INTERRUPTED), "Ctrl-C, where that is no way to end it"),
        (str(TERMINATED), "SIGTERM, but for `streamd serve`, which drains and ends with 0"),
        ("1 and a traceback", "a fault in streamd: report it"),
    ]
    return table(("of all commands", "what it says"), rows)
