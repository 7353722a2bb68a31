"""One training: prepare, subscribe, fit, save, account."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from streamd.cli.train import report
from streamd.cli.train.callbacks import load_callback
from streamd.cli.train.compile import choose_optimizer, compile_for, mix_precision
from streamd.cli.train.models import builder
from streamd.cli.train.options import Job, check_alike, choose_label
from streamd.cli.train.report import receipt_line, results_line, speed_line
from streamd.client import Batch
from streamd.client.client import Start
from streamd.core import spec_file
from streamd.core.epoch_timing import EpochTiming
from streamd.core.receipt import Receipt
from streamd.core.spec import LabelSpec, StreamSpec
from streamd.errors import ConfigError, LossError, ReceiptError
from streamd.frameworks.keras import fit_data, load_keras
from streamd.frameworks.model_inputs import FeedStream


class TrainingStream(FeedStream, Protocol):
    """A stream with its accounts; `wait_s` is the time spent in `next()` so far."""

    @property
    def receipts(self) -> list[Receipt]: ...
    @property
    def timings(self) -> list[EpochTiming]: ...
    @property
    def wait_s(self) -> float: ...


class Subscriber(Protocol):
    """What a training needs of a client. Raises RefusedError, with a near name, for a stream that is not served."""

    def spec(self, name: str, /) -> StreamSpec: ...
    def subscribe(
        self, name: str, /, *, epochs: int | None, start: Start = "begin"
    ) -> AbstractContextManager[TrainingStream]: ...
    def batch(self, stream: str, epoch: int, index: int, /) -> Batch: ...
    def names(self, stream: str, sample_ids: Iterable[int], /) -> list[str]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Learner:
    """A compiled model, the label that it learns, and the user's callbacks."""

    model: Any
    label: LabelSpec
    callbacks: list[Any]


def train(client: Subscriber, job: Job, say: Callable[[str], None]) -> list[Receipt]:
    """Trains, saves the model and its curves, and tells the account, line by line, to `say`.

    Returns the receipts of the training stream, then those of the validation. An epoch whose account does not add up
    ends the training; the model is not saved, and its receipt is the last. Raises ConfigError for what does not fit
    together, LossError, once the account is told, for a loss that is no number; then nothing is saved either.
    """
    check(client, job)
    learner = prepare(client.spec(job.stream), job, say)  # takes seconds, in which a subscription would hold memory
    failure: ReceiptError | LossError | None = None
    results: list[str] = []
    with ExitStack() as stack:
        stream = stack.enter_context(client.subscribe(job.stream, epochs=job.epochs, start=job.start))
        held_out = stack.enter_context(client.subscribe(job.validation, epochs=None)) if job.validation else None
        try:
            results = _fit(learner, client, stream, held_out, job)
        except (ReceiptError, LossError) as error:
            failure = error
    receipts = [*stream.receipts, *(held_out.receipts if held_out else [])]
    if failure:
        say("")  # the progress bar has stopped within its line
    for line in [*results, *(timing.summary_text for timing in stream.timings), *_receipt_lines(receipts, job)]:
        say(line)
    if isinstance(failure, LossError) or (failure and all(receipt.ok for receipt in receipts)):
        raise failure
    if not failure:
        say(
            f"saved {job.save}, its curves {job.curves.name}, and {spec_file.spec_file_path(job.save).name} for "
            "streamd.load_image"
        )
    return receipts


def check(client: Subscriber, job: Job) -> None:
    """Raises ConfigError or RefusedError for what can be told without Keras, which takes long to load."""
    spec = client.spec(job.stream)
    label = choose_label(spec, job.label)
    if job.validation:
        check_alike(spec, client.spec(job.validation), label)


def prepare(spec: StreamSpec, job: Job, say: Callable[[str], None]) -> Learner:
    """What can be made before there is a subscription. Raises ConfigError, MissingExtraError."""
    label = choose_label(spec, job.label)
    build, make_callbacks = builder(label, job.model), [load_callback(name) for name in job.callbacks]
    keras = load_keras()
    report.load_figures()  # where it is missing, that is told now and not after hours
    if job.mixed_precision:
        say(f"precision: {mix_precision()}")
    if job.seed is not None:
        keras.utils.set_random_seed(job.seed)
    model = build(spec)
    _compile(model, label, job)
    return Learner(model, label, [make(spec) for make in make_callbacks])


def _compile(model: Any, label: LabelSpec, job: Job) -> None:
    asked = {"--optimizer": job.optimizer, "--learning-rate": job.learning_rate}
    given = [option for option, value in asked.items() if value is not None]
    if not model.compiled:
        compile_for(model, label, choose_optimizer(job.optimizer, job.learning_rate))
    elif given:
        raise ConfigError(
            f"{job.model} returns a model that is compiled already, with an optimizer of its own: leave out "
            f"{' and '.join(given)}, or return the model uncompiled"
        )


def _fit(
    learner: Learner, client: Subscriber, stream: TrainingStream, held_out: TrainingStream | None, job: Job
) -> list[str]:
    """Trains and saves; returns what there is to say of it."""
    began_s, waited_before_s = time.monotonic(), stream.wait_s
    history = _run(learner, client, stream, held_out, job)
    elapsed_s = time.monotonic() - began_s
    learner.model.save(job.save)
    spec_file.write_spec(spec_file.spec_file_path(job.save), stream.spec)
    report.draw(history, job.curves)
    samples = sum(receipt.samples for receipt in stream.receipts)
    return [results_line(history), speed_line(samples, elapsed_s, stream.wait_s - waited_before_s)]


def _run(
    learner: Learner, client: Subscriber, stream: TrainingStream, held_out: TrainingStream | None, job: Job
) -> dict[str, list[float]]:
    """The history that Keras returns: a number an epoch for the loss and each metric."""
    name = learner.label.name
    validation = fit_data(held_out, targets=name) if held_out else None
    data = fit_data(stream, targets=name, class_weight=job.class_weight)
    callbacks = _callbacks(learner, client, stream, data, job)
    try:
        done = learner.model.fit(
            data, validation_data=validation, epochs=job.epochs, callbacks=callbacks, verbose=_verbosity()
        )
    except (ValueError, TypeError) as error:  # what Keras raises for shapes and types that do not fit
        if job.model is None:
            raise
        height, width, channels = stream.spec.image_shape
        raise ConfigError(
            f"{job.model} cannot be trained on {job.stream!r}, whose images are uint8 (batch, {height}, {width}, "
            f"{channels}) and whose label {name!r} is {learner.label.type}: {str(error).strip().splitlines()[0]}"
        ) from error
    return dict(done.history)


def _verbosity() -> int:
    """Keras's word for a progress bar; where there is no terminal, as in a journal, for a line an epoch."""
    return 1 if sys.stdout.isatty() else 2


def _callbacks(learner: Learner, client: Subscriber, stream: TrainingStream, data: Any, job: Job) -> list[Any]:
    """The user's own, and ours around them: the first sees a spoiled loss before anybody saves what it spoiled."""
    from streamd.cli.train.progress_bar import WaitBar  # noqa: PLC0415 - as above
    from streamd.frameworks.keras import NanGuard, ResumeCallback  # noqa: PLC0415 - imports Keras

    resuming = [ResumeCallback(data, job.resume)] if job.resume else []
    return [NanGuard(data, client, job.save.parent), *learner.callbacks, WaitBar(stream), *resuming]


def _receipt_lines(receipts: Iterable[Receipt], job: Job) -> list[str]:
    return [("" if each.stream == job.stream else f"{each.stream} ") + receipt_line(each) for each in receipts]
