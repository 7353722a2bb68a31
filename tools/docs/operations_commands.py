"""What every command ends with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import typer
from operations_table import code, table

from streamd.cli.main import app
from streamd.cli.terminal import INTERRUPTED, TERMINATED

# command: what 0 says, what 1 says, what 2 says beyond a mistake in the command itself
STATUSES: Final[dict[str, tuple[str, str, str]]] = {
    "streamd init": (
        "the configuration is written, or printed",
        "the file already exists, would be among the data, or cannot be written",
        "no configuration can be made from these data, or serve would refuse them",
    ),
    "streamd serve": (
        "stopped by SIGTERM or Ctrl-C, after it drained",
        "an error in the daemon itself, such as a broken invariant; systemd restarts it",
        (
            "a mistake in the configuration or the data, or an endpoint that is in use; systemd starts it again only "
            "if a trainer waits, every ten seconds. Under systemd, the daemon waits for data that are missing"
        ),
    ),
    "streamd check": (
        "nothing has to be fixed",
        "something has to be fixed, in the data or in the configuration",
        "a library that it needs itself is missing",
    ),
    "streamd status": (
        "nothing is wrong",
        "something is wrong, or no daemon answers",
        "the endpoint is not valid, or `--url` was given and there is no dashboard",
    ),
    "streamd top": ("ended by Ctrl-C, or its one frame was printed", "no daemon answers", "the endpoint cannot be one"),
    "streamd show": (
        "the picture is written",
        "no daemon answers, or the picture cannot be written",
        "no such stream or batch",
    ),
    "streamd probe": (
        "all receipts are ok",
        "a receipt is not ok, a process failed, or no daemon answers",
        "no such stream, no room in memory, a mistake in --load",
    ),
    "streamd pack": (
        "the pack is written, read back and compared",
        "a full disk or another failure: run the same command again; its message says whether it continues",
        "a mistake in the configuration or in the arguments, or the output already exists",
    ),
    "streamd verify": (
        "every epoch in the receipts is one epoch exactly",
        "batches are missing or came twice, ranks saw other pixels, or the receipts differ",
        "a file cannot be read, holds no receipts of this version, or has numbers that contradict each other",
    ),
    "streamd manifest export": (
        "the lists are written",
        "the listing process failed",
        "a mistake in the configuration or the data, or the file cannot be written",
    ),
    "streamd manifest import": (
        "the lists are those of the other host now",
        "a lock or a file could not be used",
        (
            "a file is missing or of another size, the settings differ, the file holds no lists, or a daemon serves "
            "the lists; nothing was changed"
        ),
    ),
    "streamd keygen": (
        "both files are written",
        "an error of its own",
        "a file exists already, or the folder cannot be written",
    ),
    "streamd schema": (
        "printed",
        "the output cannot be written, for example because the disk is full",
        "a library is missing",
    ),
    "streamd demo": ("all receipts are ok", "the trainer or a receipt failed", "a library is missing"),
    "streamd service install": (
        "the units are there; nothing is started",
        "the host's own commands failed, or something cannot be written",
        "not root, or no systemd",
    ),
    "streamd service remove": ("the units are removed; configuration, state and caches stay", "as above", "as above"),
    "streamd-train": (
        "the training ended and all receipts are ok",
        (
            "a receipt is not ok, the loss is NaN or infinite, the daemon did not come back, or a stream was stopped "
            "or changed"
        ),
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
        (
            "2",
            (
                "a mistake in the command line or the configuration: an unknown option, a configuration that cannot be "
                "used"
            ),
        ),
        (str(INTERRUPTED), "Ctrl-C, unless Ctrl-C is the normal way to end the command"),
        (str(TERMINATED), "SIGTERM, except for `streamd serve`, which drains and ends with 0"),
        ("1 and a traceback", "a fault in streamd: report it"),
    ]
    return table(("of all commands", "what it says"), rows)
