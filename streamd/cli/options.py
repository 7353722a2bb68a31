"""What commands share on the command line: options, names of streams that a shell completes, and uncut help pages."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from streamd.core.host import read_regular_file
from streamd.errors import ConfigError
from streamd.ipc.endpoint import find_socket
from streamd.limits import MAX_CONFIG_BYTES

DEFAULT_CONFIG: Final = Path("config.yaml")
SIZE_HELP: Final = "The size of the images, N or HEIGHTxWIDTH; default: their own size if all have the same, else 224."
_SIZE_PATTERN: Final = re.compile(r"([0-9]{1,5})(?:[xX]([0-9]{1,5}))?", re.ASCII)

ConfigOption = Annotated[Path, typer.Option("--config", metavar="FILE", help="The configuration.")]
EndpointOption = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        metavar="ENDPOINT",
        help="The daemon's endpoint; default $STREAMD_ENDPOINT, or else the daemon of this host.",
    ),
]
CurveSecretOption = Annotated[
    Path | None,
    typer.Option("--curve-secret", metavar="FILE", help="Your secret key, for tcp://; default $STREAMD_CURVE_SECRET."),
]
CurveServerOption = Annotated[
    Path | None,
    typer.Option(
        "--curve-server", metavar="FILE", help="The daemon's public key, for tcp://; default $STREAMD_CURVE_SERVER."
    ),
]
RootOption = Annotated[
    Path | None,
    typer.Option("--root", metavar="FOLDER", help="Of a table or a COCO file: the folder of the files it names."),
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME", help="Of a table: a column that is a label, and no other."),
]
EncodingOption = Annotated[
    str | None, typer.Option("--encoding", metavar="NAME", help="Of a table: the encoding of its text, such as cp1252.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def find_daemon(endpoint: str | None, curve_secret: Path | None, curve_server: Path | None) -> str:
    """Returns the endpoint of the daemon that these options name, or that of this host. Raises ConnectError.

    Key files given as options become those of the environment, which the command's own processes inherit.
    """
    for name, path in (("STREAMD_CURVE_SECRET", curve_secret), ("STREAMD_CURVE_SERVER", curve_server)):
        if path is not None:
            os.environ[name] = str(path)
    return find_socket(endpoint)


def parse_size_option(text: str | None) -> tuple[int, int] | None:
    """Parses `128` or `66x200` into (height, width). Raises ConfigError, which says how to write a size."""
    if text is None:
        return None
    found = _SIZE_PATTERN.fullmatch(text.strip())
    sides = () if found is None else (int(found[1]), int(found[2] or found[1]))
    if not sides or 0 in sides:
        raise ConfigError(
            f"--size {text!r}: this is not a size; write N for squares, or HEIGHTxWIDTH, such as 128 or 66x200"
        )
    return sides


_DAEMON_TIMEOUT_S: Final = 1.0  # somebody has pressed Tab, and waits
_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


def complete_stream_names(context: typer.Context, incomplete: str) -> list[str]:
    """Returns the streams of the configuration that --config names, else those of the daemon; none after any error."""
    config, endpoint = context.params.get("config"), context.params.get("endpoint")
    try:
        if config:
            from ruamel.yaml import YAML  # noqa: PLC0415 - without all that checks a configuration, which may be invalid

            data = YAML(typ="safe").load(read_regular_file(os.path.expanduser(config), MAX_CONFIG_BYTES))  # noqa: PTH111 - raises nothing without a home
            found = data.get("streams") if isinstance(data, dict) else None
            names = list(map(str, found or ()))
        else:
            # Without a daemon, this raises before NumPy and ZeroMQ are loaded.
            served = find_socket(endpoint)
            from streamd import connect  # noqa: PLC0415 - as above

            with connect(served, timeout=_DAEMON_TIMEOUT_S) as client:
                names = list(client.streams())
    except Exception:  # noqa: BLE001 - whatever fails, a shell that completes a word has no use for an error
        return []
    return [name for name in names if name.startswith(incomplete) and _NAME_PATTERN.fullmatch(name)]


_SENTENCE_CHARS: Final = 1000  # more than the first sentence of any command has


class UncutHelpGroup(TyperGroup):
    """A group that lists each command with its whole first sentence, wrapped if it is long."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the list of commands like click, but without cutting each sentence to one line.

        The arguments have click's types, or those of the copy of click that some versions of typer contain.
        """
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, each.get_short_help_str(_SENTENCE_CHARS)) for name, each in commands if each and not each.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
