"""`streamd probe`: drains a stream as fast as it comes, and says how fast that was."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from streamd.cli.terminal.stream_names import complete_stream_names


def probe(
    stream: Annotated[
        str, typer.Argument(metavar="STREAM", help="The stream to drain.", autocompletion=complete_stream_names)
    ],
    endpoint: Annotated[
        str | None, typer.Option(metavar="ENDPOINT", help="The daemon; default $STREAMD_ENDPOINT, then this host's.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Epochs to drain.")] = 1,
    trainers: Annotated[int, typer.Option(min=1, metavar="K", help="Trainer processes at a time.")] = 1,
    headroom: Annotated[
        bool, typer.Option("--headroom", help="Also replay held batches: the rate if data were free.")
    ] = False,
    load: Annotated[
        str | None,
        typer.Option(metavar="MODULE:STEP", help="Your function, called with each batch, such as a training step."),
    ] = None,
    digest: Annotated[bool, typer.Option("--digest", help="Digest order, ids, labels and pixels.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Drains a stream as a trainer that needs no time would: the rate, the waiting, the receipts.

    Each trainer is a process of its own that touches one byte of every page. decodes/batch tells how well they share:
    1 means that each batch was decoded once for all of them. A line an epoch names the limit: disk, when workers
    waited for reads; decode, when all of them were busy; transport, when batches lay ready; or the trainer itself.

    --headroom then gives each trainer 16 batches that it holds, again and again, and says what it reaches when data are
    free. A trainer that does nothing else pays for little but data, so name your own step with --load: where data then
    cost next to nothing, a faster pipeline would gain nothing. The first batch does not count, so that a step may
    compile; it must return when its work is done. Draining should take some seconds: add --epochs to a small stream.

    \b
    Examples:
      streamd probe train --trainers 4 --epochs 2
      streamd probe train --headroom
      streamd probe train --headroom --load mytrainer:step

    \b
      # mytrainer.py, in the current directory
      model = ...                             # made once
      def step(batch):                        # batch.images, batch.labels["label"], ...
          model.train_on_batch(batch.images, batch.labels["label"])
    """
    from streamd.cli.probe.measure import probe_stream  # noqa: PLC0415 - ZeroMQ only when it is needed

    result = probe_stream(
        stream,
        endpoint,
        epochs=epochs,
        trainers=trainers,
        digest=digest,
        write_line=_write_stderr_line,
        load=load,
        headroom=headroom,
    )
    if json:
        typer.echo(msgspec.json.encode(result).decode())
    else:
        for line in result.format_lines():
            typer.echo(line)
    raise typer.Exit(0 if result.ok else 1)


def _write_stderr_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")
