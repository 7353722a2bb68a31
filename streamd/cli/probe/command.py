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
    """Drains a stream as fast as it comes, and reports the rate, the waiting and the receipts.

    Each trainer is a process of its own that touches one byte of every page. decodes/batch shows how well they share: 1
    means that each batch was decoded once for all of them. A line for each epoch names the limit: disk, if workers
    waited for reads; decode, if all of them were busy; transport, if batches lay ready; or the trainer itself. Draining
    should take some seconds: add --epochs for a small stream.

    --headroom then gives each trainer the same 16 batches from memory, again and again, and reports the rate without
    any loading. A trainer that does nothing else mostly waits for data, so name your own training step with --load: if
    data then cost next to nothing, a faster pipeline would gain nothing. The first batch does not count, so a step may
    compile in it. A step must return when its work is done.

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
