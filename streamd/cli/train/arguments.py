"""The arguments of `streamd-train` on its command line: types, names and help texts."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from streamd.cli.options import complete_stream_names


class ClassWeightChoice(StrEnum):
    """What `--class-weight` takes."""

    BALANCED = "balanced"


Stream = Annotated[
    str, typer.Option(metavar="NAME", help="The stream to train on.", autocompletion=complete_stream_names)
]
Epochs = Annotated[int, typer.Option(min=1, metavar="N", help="Epochs to train.")]
Save = Annotated[Path, typer.Option(metavar="FILE", help="Where the trained model goes, a .keras file.")]
Validation = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A stream to evaluate after each epoch.", autocompletion=complete_stream_names),
]
Label = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The label to learn, if the stream has several, or the image to learn."),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME",
        help="An image or a label that goes into the model; default: all images but masks. You can give this option "
        "several times.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(metavar="MODULE:BUILD", help="Your function that takes the StreamSpec and returns a keras.Model."),
]
Callback = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE:NAME",
        help="Your own callback: a Keras Callback class, or a function that takes the StreamSpec and returns a "
        "callback. You can give this option several times.",
    ),
]
Optimizer = Annotated[
    str | None, typer.Option(metavar="NAME", help="A Keras optimizer, such as sgd or adamw; default adam.")
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        metavar="RATE", help="The learning rate of the optimizer; default: Keras's default for this optimizer."
    ),
]
MixedPrecision = Annotated[
    bool,
    typer.Option(
        "--mixed-precision",
        help="Compute in 16 bits: float16 on a GPU; bfloat16 on a CPU, where it rarely helps.",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Samples per training step: a divisor or a multiple of the stream's batch size, which is the default. "
        "Validation keeps the batch size of its own stream; its results do not depend on the batch size.",
    ),
]
ClassWeight = Annotated[
    ClassWeightChoice | None,
    typer.Option(help="Weight each sample by how rare its class is, in training only, not in validation."),
]
Seed = Annotated[int | None, typer.Option(min=0, metavar="N", help="Seeds the initial weights, for a repeatable run.")]
Together = Annotated[
    int | None, typer.Option(min=1, metavar="K", help="Begin when K trainers have subscribed to the stream.")
]
Resume = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Save the state of the training run in DIR after each epoch, and resume from DIR at the next start.",
    ),
]
Receipts = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the receipts to FILE, as a JSON list.")]
Name = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The name of this training run in `streamd status`; default: made from the file name in --save.",
    ),
]
Patience = Annotated[
    float | None,
    typer.Option(min=0, metavar="SECONDS", help="How long to wait for a daemon that has gone away; default: forever."),
]
