"""`streamd status`: what is going on, once."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from streamd.limits import LOOK_TIMEOUT_S


def status(
    endpoint: Annotated[
        str | None, typer.Option(metavar="ENDPOINT", help="The daemon; default $STREAMD_ENDPOINT, then this host's.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
    url: Annotated[bool, typer.Option("--url", help="Print the dashboard's address, and no more.")] = False,
) -> None:
    """Shows who reads what, how fast, and what could be better.

    Rates are those of the last half minute. `decodes a batch` tells how well trainers share: 1 means that each batch
    was decoded once for all of them; where it is high, a line says what to do. `held` is how many batches a trainer
    has, of those that it may have at a time. Where the time of its last epoch went, each trainer says in a line.

    What is wrong comes first, with what to do, and the exit status is 1 then: no daemon, or one that is going away; a
    stream that is stopped, as by too many bad samples, or that has ended its trainers; workers that die over and over;
    a receipt that is not ok; a reload that failed. With --json the object says it in `ok` and `troubles`.

    --url gives the dashboard's address, if `monitor:` is in the configuration. What follows the # in it shows pictures,
    labels and names of files, until the daemon starts anew. From another machine: ssh -L 9191:127.0.0.1:9191 HOST.

    \b
    Example:
      streamd status
      streamd status --json | tail -n 1 | jq .streams
      xdg-open "$(streamd status --url)"
    """
    from rich.console import Console  # noqa: PLC0415 - only when it is needed, not for --help

    from streamd import connect  # noqa: PLC0415 - as above
    from streamd.cli.status.table import WIDTH_CHARS, build_status_table  # noqa: PLC0415 - as above

    with connect(endpoint, timeout=LOOK_TIMEOUT_S) as client:
        if url:
            where = client.dashboard()
            typer.echo(msgspec.json.encode({"url": where}) if json else where)
            return
        now = client.status()
    if json:
        judged = {"ok": not now.all_troubles, "troubles": now.all_troubles}
        typer.echo(msgspec.json.encode({**judged, **msgspec.to_builtins(now)}))
    else:
        console = Console(highlight=False)
        console.width = max(WIDTH_CHARS, console.width)
        console.print(build_status_table(now))
    raise typer.Exit(1 if now.all_troubles else 0)
