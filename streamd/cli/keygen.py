"""`streamd keygen`: a pair of CURVE keys, for a daemon that serves other hosts, or for a client on one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamd.errors import ConfigError


def keygen(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder for the two files; made if missing.")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The name of the pair; default the folder's own.")
    ] = None,
) -> None:
    """Makes a CURVE key pair: NAME.key, which others may read, and NAME.key_secret, which stays where it is."""
    from streamd.client.sockets import create_key_pair  # noqa: PLC0415 - not needed for --help
    from streamd.ipc.key_files import write_key_files  # noqa: PLC0415 - as above

    chosen = folder.absolute().name if name is None else name
    if not chosen or "/" in chosen or chosen.startswith("."):
        raise ConfigError(f"--name {chosen!r}: this cannot be the name of a file; use letters and digits")
    try:
        public, secret = write_key_files(folder, chosen, create_key_pair())
    except OSError as error:
        raise ConfigError(f"cannot write keys to {folder}: {error.strerror}; choose a folder of your own") from error
    typer.echo(f"{public} may be read by anyone: copy it to the hosts that should know this key")
    typer.echo(f"{secret} is the secret half: keep it where it is used, readable by its user alone")
