"""One training: subscribe, build, fit, save, account."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from streamd import saved
from streamd.bottleneck import Timing
from streamd.client.client import Start
from streamd.errors import ConfigError, ReceiptError
from streamd.frameworks.feed import Stream, label_of
from streamd.frameworks.keras import fit_data, load_keras
from streamd.receipts import Receipt
from streamd.spec import LabelSpec, StreamSpec
from streamd.train.models import builder
from streamd.train.summary import receipt_line, speed_line


class TrainingStream(Stream, Protocol):
    """A stream with its accounts; `wait_s` is the time spent in `next()` so far."""

    @property
    def receipts(self) -> list[Receipt]: ...
    @property
    def timings(self) -> list[Timing]: ...
    @property
    def wait_s(self) -> float: ...


class Subscriber(Protocol):
    """What a training needs of a client. Raises RefusedError, with a near name, for a stream that is not served."""

    def spec(self, name: str, /) -> StreamSpec: ...
    def subscribe(
        self, name: str, /, *, epochs: int | None, start: Start = "begin"
    ) -> AbstractContextManager[TrainingStream]: ...


@dataclass(frozen=True, slots=True)
class Job:
    """What to train on what. `label` None means the only one, `model` None the built-in network for it.

    With `together` the training begins when so many trainers have subscribed to the stream. With `resume` it is saved
    in that folder as it goes, and goes on from there.
    """

    stream: str
    epochs: int
    save: Path
    validation: str | None = None
    label: str | None = None
    model: str | None = None
    seed: int | None = None
    together: int | None = None
    resume: Path | None = None

    @property
    def start(self) -> Start:
        """How the stream is subscribed to."""
        return {"together": self.together} if self.together else "begin"

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ConfigError(f"epochs must be at least 1, not {self.epochs}")
        if self.save.suffix != ".keras":
            raise ConfigError(
                f"the model is saved in Keras's own format: name a file ending in .keras, not {self.save}"
            )
        check_folder(self.save)


def check_folder(path: Path) -> None:
    """Raises ConfigError unless the folder of `path` exists: better before hours of training than after."""
    if not path.parent.is_dir():
        raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}")


def train(client: Subscriber, job: Job, say: Callable[[str], None]) -> list[Receipt]:
    """Trains, saves the model and tells the account, line by line, to `say`.

    Returns the receipts of the training stream, then those of the validation. An epoch whose account does not add up
    ends the training; the model is not saved, and its receipt is the last. Raises ConfigError for what does not fit
    together.
    """
    check(client, job)
    load_keras()  # takes seconds, in which a subscription would hold memory that others could use
    failure: ReceiptError | None = None
    with ExitStack() as stack:
        stream = stack.enter_context(client.subscribe(job.stream, epochs=job.epochs, start=job.start))
        held_out = stack.enter_context(client.subscribe(job.validation, epochs=None)) if job.validation else None
        try:
            _fit(stream, held_out, job, say)
        except ReceiptError as error:
            failure = error
    for timing in stream.timings:
        say(timing.line)
    receipts = [*stream.receipts, *(held_out.receipts if held_out else [])]
    for receipt in receipts:
        say(("" if receipt.stream == job.stream else f"{receipt.stream} ") + receipt_line(receipt))
    if failure and all(receipt.ok for receipt in receipts):
        raise failure
    return receipts


def check(client: Subscriber, job: Job) -> None:
    """Raises ConfigError or RefusedError for what can be told without Keras, which takes long to load."""
    spec = client.spec(job.stream)
    label = choose_label(spec, job.label)
    if job.validation:
        check_alike(spec, client.spec(job.validation), label)


def _fit(stream: TrainingStream, held_out: TrainingStream | None, job: Job, say: Callable[[str], None]) -> None:
    label = choose_label(stream.spec, job.label)
    build = builder(label, job.model)
    if job.seed is not None:
        load_keras().utils.set_random_seed(job.seed)
    model = build(stream.spec)
    if not model.compiled:
        compile_for(model, label)
    began_s, waited_before_s = time.monotonic(), stream.wait_s
    _run(model, stream, held_out, label, job)
    elapsed_s = time.monotonic() - began_s
    model.save(job.save)
    saved.write(saved.beside(job.save), stream.spec)
    samples = sum(receipt.samples for receipt in stream.receipts)
    say(speed_line(samples, elapsed_s, stream.wait_s - waited_before_s))
    say(f"saved {job.save}, and {saved.beside(job.save).name} for streamd.load_image")


def _run(model: Any, stream: TrainingStream, held_out: TrainingStream | None, label: LabelSpec, job: Job) -> None:
    validation = fit_data(held_out, targets=label.name) if held_out else None
    data = fit_data(stream, targets=label.name)
    try:
        model.fit(data, validation_data=validation, epochs=job.epochs, callbacks=_callbacks(data, job))
    except (ValueError, TypeError) as error:  # what Keras raises for shapes and types that do not fit
        if job.model is None:
            raise
        height, width, channels = stream.spec.image_shape
        raise ConfigError(
            f"{job.model} cannot be trained on {job.stream!r}, whose images are uint8 (batch, {height}, {width}, "
            f"{channels}) and whose label {label.name!r} is {label.type}: {str(error).strip().splitlines()[0]}"
        ) from error


def _callbacks(data: Any, job: Job) -> list[Any]:
    if job.resume is None:
        return []
    from streamd.frameworks.keras import ResumeCallback  # noqa: PLC0415 - imports Keras

    return [ResumeCallback(data, job.resume)]


def choose_label(spec: StreamSpec, name: str | None) -> LabelSpec:
    """The label to learn: the one named, or the only one. Raises ConfigError."""
    if name is not None:
        return label_of(spec, name)
    learnable = [label for label in spec.labels.values() if label.type != "string"]
    if not learnable:
        what = "labels but text" if spec.labels else "labels"
        raise ConfigError(f"stream {spec.name!r} has no {what}, so there is nothing to learn from it")
    if len(learnable) > 1:
        names = ", ".join(label.name for label in learnable)
        raise ConfigError(f"stream {spec.name!r} has the labels {names}: choose one with  --label")
    return learnable[0]


def check_alike(train: StreamSpec, validation: StreamSpec, label: LabelSpec) -> None:
    """Raises ConfigError unless a model for one stream can be judged by the other."""
    other = label_of(validation, label.name)
    if train.image_shape != validation.image_shape:
        raise ConfigError(
            f"images of {train.name!r} are {train.image_shape} and of {validation.name!r} {validation.image_shape}: "
            "give both streams the same  image:"
        )
    if (label.type, label.width, label.classes) != (other.type, other.width, other.classes):
        raise ConfigError(
            f"label {label.name!r} of {train.name!r} and of {validation.name!r} differ in type or classes: "
            "serve both from one configuration, where they share them"
        )


def compile_for(model: Any, label: LabelSpec) -> None:
    """Compiles a model with the loss for a label. The metrics heed weights, which masked samples need."""
    if label.type == "category" and not label.width:
        model.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    elif label.type == "tags":
        model.compile("adam", "binary_crossentropy", weighted_metrics=["binary_accuracy"])
    elif label.type in {"float", "int"}:
        model.compile("adam", "mse", weighted_metrics=["mae"])
    else:
        raise ConfigError(
            f"no loss is known for label {label.name!r} of type {label.type}: return a compiled model "
            "from your  --model  function"
        )
