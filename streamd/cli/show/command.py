"""`streamd show`: any batch as pictures with labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from streamd.errors import ConfigError
from streamd.limits import LOOK_TIMEOUT_S

DEFAULT_ROWS: Final = 256
MAX_ROWS: Final = 1024  # a sheet of some 7,000 by 7,000 pixels: more than most viewers open gladly
_POSITION_PATTERN: Final = re.compile(r"([0-9]{1,12}):([0-9]{1,12})", re.ASCII)


def show(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")],
    place: Annotated[str, typer.Argument(metavar="EPOCH:INDEX", help="The batch; both count from 0.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The PNG; default batch-STREAM-EPOCH-INDEX.png."),
    ] = None,
    rows: Annotated[
        int, typer.Option(min=1, max=MAX_ROWS, metavar="N", help="Show the first N rows at most.")
    ] = DEFAULT_ROWS,
    endpoint: Annotated[
        str | None, typer.Option(metavar="ENDPOINT", help="The daemon; default $STREAMD_ENDPOINT, then this host's.")
    ] = None,
) -> None:
    """Draws any batch of a running daemon as one picture: what trainers get, or got, at that place.

    Small images are enlarged without smoothing, large ones reduced. Below each are its labels, its sample id and its
    file. Rows whose sample was bad are framed and give the reason; rows that do not count are hatched.

    \b
    Example:
      streamd show train 0:12 -o batch.png
    """
    epoch, index = parse_batch_position(place)
    path = output or Path(f"batch-{stream}-{epoch}-{index}.png")
    if path.suffix.lower() != ".png":
        raise ConfigError(f"{path}: the sheet is a PNG; give a name that ends in .png")

    from streamd import connect  # noqa: PLC0415 - ZeroMQ and Pillow only when they are needed, not for --help
    from streamd.cli.show.contact_sheet import draw_sheet  # noqa: PLC0415 - as above

    with connect(endpoint, timeout=LOOK_TIMEOUT_S) as client:
        batch = client.batch(stream, epoch, index)
        ids = batch.sample_ids[:rows].tolist()
        files = {sample_id: name for sample_id, name in zip(ids, client.names(stream, ids), strict=True) if name}
    draw_sheet(batch, files, rows).save(path, format="PNG")
    some = f"the first {rows} of " if rows < len(batch) else ""
    typer.echo(f"{path}: {some}{len(batch)} row{'' if len(batch) == 1 else 's'} of {stream} {epoch}:{index}")


def parse_batch_position(text: str) -> tuple[int, int]:
    """(epoch, index) of `EPOCH:INDEX`. Raises ConfigError that says how it is written."""
    found = _POSITION_PATTERN.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"{text!r} names no batch; write EPOCH:INDEX, both counted from 0: "
            "0:12 is the thirteenth batch of the first epoch"
        )
    return int(found[1]), int(found[2])
