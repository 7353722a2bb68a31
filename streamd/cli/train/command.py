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

from streamd.cli.terminal import INTERRUPTED, StopSignals, exit_without_typer, print_error, run_guarded

PROGRAM = "streamd-train"

try:
    import typer
except ModuleNotFoundError:
    exit_without_typer(PROGRAM, "train")

from streamd.cli.options import (  # noqa: E402 - after the check for typer
    CurveSecretOption,
    CurveServerOption,
    EndpointOption,
    complete_stream_names,
    find_daemon,
)


class ClassWeightChoice(StrEnum):
    """What `--class-weight` takes."""

    BALANCED = "balanced"


HELP: Final = """Trains a Keras model on a stream of a running daemon, and accounts for every batch.

\b
Example:
  streamd serve --config config.yaml &
  streamd-train --stream train --validation validation --epochs 10 --save model.keras

If the label is a category, the command trains a small classification network; if the label is a number, it trains a
regression network. Both networks contain the stream's normalization, and have a branch for each image of a sample. For
any other model, write a function that returns the model, and name the function with --model. The current directory is
importable:

\b
  # mymodel.py
  def build(spec):                        # spec.image_shape, spec.labels["angle"].mean, ...
      return keras.Sequential([streamd.frameworks.keras.normalization(spec), ...])
  streamd-train --stream train --model mymodel:build --epochs 10 --save model.keras

Your model receives the images as one array, or as a dict of several by name; --input chooses among images and labels.
With --label, it can also learn an image, such as a mask: its outputs are then probabilities of classes for each pixel.

Unless your model is compiled already, it is compiled with the loss for the label's type: cross-entropy for categories,
tags and masks, squared error for numbers and pictures. Name your own callbacks in the same way, with --callback:

\b
  # mycallbacks.py
  def patience(spec):
      return keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True)
  streamd-train --stream train --validation validation --callback mycallbacks:patience \\
      --optimizer sgd --learning-rate 0.01 --epochs 100 --save model.keras

The progress bar shows the share of the epoch that was spent waiting for data, as in `wait: 3%`. At the end, the command
prints where the time went and a receipt for each epoch. A receipt is ok if no batch was missed or repeated. The command
also saves two files next to model.keras: model.curves.png, which shows the training curves, and model.streamd.json,
which streamd.load_image uses to prepare an image as in training.

The exit status is 1 if a receipt is not ok. If the loss becomes NaN or infinite, the training ends with status 1 and
saves no model. Instead, it saves the page nan-STREAM-EPOCH-INDEX.html in the folder of --save. The page shows the
images of the batch that caused this, with their labels and file names.

You can run the same command several times in parallel: all trainers then share each decoded batch. With `--together 4`,
each training run waits until four trainers have subscribed, so that all begin together.

With `--resume DIR`, the same command continues an earlier training run. If that run was killed or failed, the command
continues after the last complete epoch. Each trainer needs its own DIR.

Ctrl-C or SIGTERM ends the training after the current step, and saves the model so far as model.interrupted.keras, with
its curves and receipts. With `--resume DIR`, the same command then continues after that step or, if validation was
running, repeats the epoch that was being validated. The exit status is 130 after Ctrl-C, and 143 after SIGTERM. A
second signal ends the training at once, and nothing is saved.
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
    endpoint: EndpointOption = None,
    curve_secret: CurveSecretOption = None,
    curve_server: CurveServerOption = None,
    label: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The label to learn, if the stream has several, or the image to learn."),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME",
            help="An image or a label that goes into the model; default: all images but masks. You can give this "
            "option several times.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODULE:BUILD", help="Your function that takes the StreamSpec and returns a keras.Model."),
    ] = None,
    callback: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="Your own callback: a Keras Callback class, or a function that takes the StreamSpec and returns a "
            "callback. You can give this option several times.",
        ),
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(metavar="NAME", help="A Keras optimizer, such as sgd or adamw; default adam.")
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            metavar="RATE", help="The learning rate of the optimizer; default: Keras's default for this optimizer."
        ),
    ] = None,
    mixed_precision: Annotated[
        bool,
        typer.Option(
            "--mixed-precision", help="Compute in 16 bits: float16 on a GPU; bfloat16 on a CPU, where it rarely helps."
        ),
    ] = False,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Samples per training step: a divisor or a multiple of the stream's batch size, which is the default. "
            "Validation keeps the batch size of its own stream; its results do not depend on the batch size.",
        ),
    ] = None,
    class_weight: Annotated[
        ClassWeightChoice | None,
        typer.Option(help="Weight each sample by how rare its class is, in training only, not in validation."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Seeds the initial weights, for a repeatable run.")
    ] = None,
    together: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Begin when K trainers have subscribed to the stream.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Save the state of the training run in DIR after each epoch, and resume from DIR at the next start.",
        ),
    ] = None,
    receipts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the receipts to FILE, as a JSON list.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The name of this training run in `streamd status`; default: made from the file name in --save.",
        ),
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="How long to wait for a daemon that has gone away; default: forever."
        ),
    ] = None,
) -> None:
    """See HELP."""
    from streamd import connect  # noqa: PLC0415 - brings ZeroMQ along, which --help does without
    from streamd.cli.train import run  # noqa: PLC0415 - as above

    options = run.TrainingOptions(
        stream=stream,
        epochs=epochs,
        save=save,
        validation=validation,
        label=label,
        inputs=tuple(inputs or ()),
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
        run.check_folder_exists(receipts)
    with StopSignals(print_stop_notice) as stop:
        try:
            with connect(find_daemon(endpoint, curve_secret, curve_server), patience=patience) as client:
                accounts = run.train_model(client, options, typer.echo, stop)
        except KeyboardInterrupt:
            print_error(PROGRAM, f"{stop.signal_text} came before the training began: nothing is saved")
            raise typer.Exit(stop.exit_status or INTERRUPTED) from None
        if receipts:
            receipts.write_bytes(msgspec.json.encode(accounts))
        raise typer.Exit(int(not all(receipt.ok for receipt in accounts)) or stop.exit_status)


def print_stop_notice() -> None:
    """Confirms the first signal at once, since the running step may take long. Called in a thread.

    The text begins with a new line, since the progress bar leaves the cursor within its line.
    """
    text = (
        "stopping after the current step, and saving the model so far; a second Ctrl-C ends at once and saves nothing"
    )
    with suppress(OSError):  # the terminal is gone
        os.write(2, f"\n{PROGRAM}: {text}\n".encode())


def main() -> None:
    # Keras reads these when it is imported, which a user's module may do first. What the user has set stays.
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only: notes would hide the progress bar
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # else the first trainer takes all the GPU's memory
    run_guarded(PROGRAM, app)


if __name__ == "__main__":
    main()
