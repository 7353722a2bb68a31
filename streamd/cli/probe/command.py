"""`streamd probe`: drains a stream as fast as it comes, and says how fast that was."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from streamd.cli.options import (
    CurveSecretOption,
    CurveServerOption,
    EndpointOption,
    JsonOption,
    complete_stream_names,
    use_curve_keys,
)


def probe(
    stream: Annotated[
        str, typer.Argument(metavar="STREAM", help="The stream to drain.", autocompletion=complete_stream_names)
    ],
    endpoint: EndpointOption = None,
    curve_secret: CurveSecretOption = None,
    curve_server: CurveServerOption = None,
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Epochs to drain.")] = 1,
    trainers: Annotated[
        int, typer.Option(min=1, metavar="K", help="How many trainer processes run at the same time.")
    ] = 1,
    headroom: Annotated[
        bool, typer.Option("--headroom", help="Also replay batches from memory, to measure the rate without loading.")
    ] = False,
    load: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:STEP", help="Your function, such as a training step. It is called with each batch."
        ),
    ] = None,
    digest: Annotated[
        bool, typer.Option("--digest", help="Also compute a digest of the order, ids, labels and pixels.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Drains a stream as fast as possible, and reports the rate, the time spent waiting, and the receipts.

    Each trainer is a separate process that reads one byte of every memory page. decodes/batch shows how well they
    share: 1 means that each batch was decoded once for all of them. A line for each epoch names what limited it: disk,
    if workers waited for reads; decode, if all workers were busy; transport, if batches were ready but the trainer
    still waited for them; or the trainer itself. Draining should take at least a few seconds: for a small stream, raise
    --epochs.

    With --headroom, the probe then gives each trainer the same 16 batches from memory, again and again, and reports the
    rate without any loading. A trainer without a training step mostly waits for data, so name your own step with
    --load. If the probe then reports that data cost next to nothing, a faster data pipeline would not speed up your
    training. The first batch is not timed, so a step may compile during it. A step must not return before its work is
    done.

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
    from streamd.cli.probe.trainer_process import TrainerRequest  # noqa: PLC0415 - as above
    from streamd.ipc.endpoint import find_socket  # noqa: PLC0415 - as above

    use_curve_keys(curve_secret, curve_server)
    request = TrainerRequest(stream, find_socket(endpoint), epochs, digest, load, headroom)
    result = probe_stream(request, trainers, lambda line: typer.echo(line, err=True))
    typer.echo(msgspec.json.encode(result).decode() if json else "\n".join(result.format_lines()))
    raise typer.Exit(0 if result.ok else 1)
