"""`streamd-train`: trains a Keras model on a running daemon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec

from streamd.cli.main_guard import fail_without_typer, run_guarded
from streamd.receipts import Receipt

PROGRAM = "streamd-train"

try:
    import typer
except ModuleNotFoundError:
    fail_without_typer(PROGRAM, "train")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def train(
    stream: Annotated[str, typer.Option(metavar="NAME", help="The stream to train on.")],
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Epochs to train.")],
    save: Annotated[Path, typer.Option(metavar="FILE", help="Where the trained model goes, a .keras file.")],
    validation: Annotated[
        str | None, typer.Option(metavar="NAME", help="A stream to evaluate after each epoch.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="The daemon; default $STREAMD_ENDPOINT, then this host's.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="NAME", help="The label to learn, where the stream has several.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODULE:BUILD", help="Your function: takes the StreamSpec, returns a keras.Model."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Seeds the initial weights, for a repeatable run.")
    ] = None,
    together: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Begin when K trainers have subscribed to the stream.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save there after each epoch, and go on from there.")
    ] = None,
    receipts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the receipts there, a JSON list.")
    ] = None,
    patience: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="How long the daemon may be away; default for ever.")
    ] = None,
) -> None:
    """Trains a Keras model on a running daemon, and accounts for every batch.

    \b
    Example:
      streamd serve --config config.yaml &
      streamd-train --stream train --validation validation --epochs 10 --save model.keras

    A category gets a small classification network, a number a regression network, both with the normalisation of the
    stream inside; any other model comes from your own function, the current directory being importable:

    \b
      # mymodel.py
      def build(spec):                        # spec.image_shape, spec.labels["angle"].mean, ...
          return keras.Sequential([streamd.frameworks.keras.normalization(spec), ...])
      streamd-train --stream train --model mymodel:build --epochs 10 --save model.keras

    It is compiled for the label's type unless it is compiled already. Each epoch ends in a receipt; the exit status is
    1 if one is not ok. Start the same command again, or several at once: they share what is decoded. Several that are
    meant to run side by side begin together, whichever is up first:  --together 4

    With  --resume DIR  the same command goes on after the last whole epoch, whatever ended it. Each trainer needs a DIR
    of its own.
    """
    from streamd import connect  # noqa: PLC0415 - brings ZeroMQ along, which --help does without
    from streamd.train import run  # noqa: PLC0415 - as above

    job = run.Job(
        stream,
        epochs,
        save,
        validation=validation,
        label=label,
        model=model,
        seed=seed,
        together=together,
        resume=resume,
    )
    if receipts:
        run.check_folder(receipts)
    with connect(endpoint, patience=patience) as client:
        accounts = run.train(client, job, typer.echo)
    if receipts:
        receipts.write_bytes(msgspec.json.encode(accounts))
    raise typer.Exit(exit_status(accounts))


def exit_status(receipts: list[Receipt]) -> int:
    """0 when every epoch was delivered exactly once."""
    return 0 if all(receipt.ok for receipt in receipts) else 1


def quieten_tensorflow() -> None:
    """Set before TensorFlow is imported, unless the user did."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only: its notes bury the progress bar
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # else the first of several trainers takes all memory


def main() -> None:
    quieten_tensorflow()
    run_guarded(PROGRAM, app)


if __name__ == "__main__":
    main()
