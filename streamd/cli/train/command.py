"""`streamd-train`: trains a Keras model on a running daemon."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec

from streamd.cli.terminal.run_guarded import INTERRUPTED, exit_without_typer, print_error, run_guarded
from streamd.cli.terminal.stop_signals import StopSignals
from streamd.core.receipt import Receipt

PROGRAM = "streamd-train"

try:
    import typer
except ModuleNotFoundError:
    exit_without_typer(PROGRAM, "train")

from streamd.cli.terminal.stream_names import complete_stream_names  # noqa: E402 - after the check for typer


class ClassWeightChoice(StrEnum):
    """What `--class-weight` takes."""

    BALANCED = "balanced"


HELP: Final = """Trains a Keras model on a running daemon, and accounts for every batch.

\b
Example:
  streamd serve --config config.yaml &
  streamd-train --stream train --validation validation --epochs 10 --save model.keras

For a category it trains a small classification network, for a number a regression network, both with the stream's
normalization inside. Any other model comes from a function of yours; the current directory is importable:

\b
  # mymodel.py
  def build(spec):                        # spec.image_shape, spec.labels["angle"].mean, ...
      return keras.Sequential([streamd.frameworks.keras.normalization(spec), ...])
  streamd-train --stream train --model mymodel:build --epochs 10 --save model.keras

Unless your model is compiled already, it is compiled with the loss for the label's type: cross-entropy for categories
and tags, squared error for numbers. Your own callbacks are named likewise:

\b
  # mycallbacks.py
  def patience(spec):
      return keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True)
  streamd-train --stream train --validation validation --callback mycallbacks:patience \\
      --optimizer sgd --learning-rate 0.01 --epochs 100 --save model.keras

The progress bar shows the share of the epoch that was spent waiting for data:  wait: 3%.  At the end it prints where
the time went and a receipt for each epoch. Beside model.keras lie its curves, model.curves.png, and
model.streamd.json, with which streamd.load_image prepares a picture as in training.

The exit status is 1 if a receipt is not ok. A loss that is NaN or infinite ends the training with status 1 and
without a model; the batch is saved as a page of pictures with labels and files, in the folder of --save.

Start the same command again, or several at once: they share each decode. With  --together 4  a training waits until
four have subscribed, so that all begin together.

With  --resume DIR  the same command continues after the last whole epoch, whatever ended it. Each trainer needs a DIR
of its own.

Ctrl-C or SIGTERM ends the training after the running step, and saves the model so far as model.interrupted.keras, with
its curves and receipts. With  --resume DIR  the same command then continues after that step or, if a validation was
running, after the epoch before. The exit status is 130, or 143. A second signal ends at once and saves nothing.
"""

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(help=HELP)
def train(
    stream: Annotated[
        str, typer.Option(metavar="NAME", help="The stream to train on.", autocompletion=complete_stream_names)
    ],
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Epochs to train.")],
    save: Annotated[Path, typer.Option(metavar="FILE", help="Where the trained model goes, a .keras file.")],
    validation: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A stream to evaluate after each epoch.", autocompletion=complete_stream_names
        ),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="ENDPOINT", help="The daemon; default $STREAMD_ENDPOINT, then this host's.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="NAME", help="The label to learn, where the stream has several.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODULE:BUILD", help="Your function: takes the StreamSpec, returns a keras.Model."),
    ] = None,
    callback: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="Your own: a keras Callback class, or a function that takes the StreamSpec and returns a callback; "
            "may be given several times.",
        ),
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(metavar="NAME", help="One of Keras's, such as sgd or adamw; default adam.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(metavar="RATE", help="Of the optimizer; default what Keras gives it.")
    ] = None,
    mixed_precision: Annotated[
        bool,
        typer.Option(
            "--mixed-precision",
            help="Compute in 16 bits: float16 on a GPU; bfloat16 on a processor, where few gain by it.",
        ),
    ] = False,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Samples a training step: a divisor or a multiple of the stream's; default the stream's. Validation "
            "keeps that of its own stream, on which its results do not depend.",
        ),
    ] = None,
    class_weight: Annotated[
        ClassWeightChoice | None, typer.Option(help="Weigh each sample by how rare its class is; validation does not.")
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
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What streamd status calls this training; default by --save."),
    ] = None,
    patience: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="How long the daemon may be away; default for ever.")
    ] = None,
) -> None:
    """See HELP."""
    from streamd import connect  # noqa: PLC0415 - brings ZeroMQ along, which --help does without
    from streamd.cli.train import run  # noqa: PLC0415 - as above
    from streamd.cli.train.options import TrainingOptions, check_folder_exists  # noqa: PLC0415 - as above
    from streamd.ipc.endpoint import find_socket  # noqa: PLC0415 - as above

    job = TrainingOptions(
        stream,
        epochs,
        save,
        validation=validation,
        label=label,
        model=model,
        seed=seed,
        together=together,
        resume=resume,
        callbacks=tuple(callback or ()),
        optimizer=optimizer,
        learning_rate=learning_rate,
        mixed_precision=mixed_precision,
        class_weight=class_weight.value if class_weight else None,
        name=name,
        batch_size=batch_size,
        command_line=shlex.join([PROGRAM, *sys.argv[1:]]),
    )
    if receipts:
        check_folder_exists(receipts)
    with StopSignals(print_stop_notice) as stop:
        try:
            with connect(find_socket(endpoint), patience=patience) as client:
                accounts = run.train_model(client, job, typer.echo, stop)
        except KeyboardInterrupt:
            print_error(PROGRAM, f"{stop.signal_text} came before the training began: nothing is saved")
            raise typer.Exit(stop.exit_status or INTERRUPTED) from None
        if receipts:
            receipts.write_bytes(msgspec.json.encode(accounts))
        raise typer.Exit(compute_exit_status(accounts) or stop.exit_status)


def print_stop_notice() -> None:
    """Confirms the first signal at once, since the running step may take long. Called in a thread.

    The text begins with a new line, since the progress bar leaves the cursor within its line.
    """
    text = "stopping after the running step, and saving what there is; a second Ctrl-C ends at once and saves nothing"
    with suppress(OSError):  # the terminal is gone
        os.write(2, f"\n{PROGRAM}: {text}\n".encode())


def compute_exit_status(receipts: list[Receipt]) -> int:
    """Returns 0 if every epoch was delivered exactly once, else 1."""
    return 0 if all(receipt.ok for receipt in receipts) else 1


def set_keras_variable_defaults() -> None:
    """Sets environment variables that Keras reads when it is imported, unless the user has set them.

    Must be called before a user's module is loaded, which may import Keras first.
    """
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only: notes would hide the progress bar
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # else the first trainer takes all the GPU's memory


def main() -> None:
    set_keras_variable_defaults()
    run_guarded(PROGRAM, app)


if __name__ == "__main__":
    main()
