"""`streamd probe`: drains a stream as fast as it comes, and says how fast that was."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer


def probe(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream to drain.")],
    endpoint: Annotated[
        str | None, typer.Option(help="The daemon; default $STREAMD_ENDPOINT, then this host's.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Epochs to drain.")] = 1,
    trainers: Annotated[int, typer.Option(min=1, metavar="K", help="Trainer processes at a time.")] = 1,
    digest: Annotated[bool, typer.Option("--digest", help="Digest order, ids, labels and pixels.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Drains a stream as a trainer that needs no time would: the rate, the waiting, the receipts.

    Each trainer is a process of its own that touches one byte of every page. decodes/batch tells how well they share:
    1 means that each batch was decoded once for all of them.

    \b
    Example:
      streamd probe train --trainers 4 --epochs 2
    """
    from streamd.probe import drain_all  # noqa: PLC0415 - ZeroMQ only when it is needed

    result = drain_all(stream, endpoint, epochs=epochs, trainers=trainers, digest=digest, say=_say)
    if json:
        typer.echo(msgspec.json.encode(result).decode())
    else:
        for line in result.lines():
            typer.echo(line)
    raise typer.Exit(0 if result.ok else 1)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
