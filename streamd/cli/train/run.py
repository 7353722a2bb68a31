"""One training: prepare, subscribe, fit, save its curves, account."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from streamd.cli.train.models import choose_builder, choose_optimizer, compile_model, set_mixed_precision
from streamd.cli.train.options import TrainingOptions, check_streams_match, choose_label
from streamd.client import Batch
from streamd.client.client import Start
from streamd.core import spec_file
from streamd.core.epoch_timing import EpochTiming, format_timing_lines
from streamd.core.import_function import format_error_with_source_line, load_function
from streamd.core.receipt import Receipt
from streamd.core.spec import LabelSpec, StreamSpec
from streamd.errors import ConfigError, LossError, ReceiptError, StreamdError
from streamd.frameworks.keras import fit_data, load_keras
from streamd.frameworks.lazy_import import import_library
from streamd.frameworks.model_inputs import FeedStream

MakeCallback = Callable[[StreamSpec], Any]  # gives a keras.callbacks.Callback
TrainingHistory = Mapping[str, Sequence[float]]  # of each value, one number an epoch

_VALIDATION_PREFIX: Final = "val_"  # before the names of what Keras measures on validation data
_COLUMNS: Final = 3
_PANEL_INCHES: Final = (4.2, 3.2)
_DOTS_PER_INCH: Final = 120
_CURVE_STYLES: Final = {
    "training": {"color": "#1f6fb4", "marker": "."},
    "validation": {"color": "#d9730d", "marker": "."},
}


class AccountedStream(FeedStream, Protocol):
    """A stream with its accounts; `wait_s` is the time spent in `next()` so far."""

    @property
    def receipts(self) -> list[Receipt]: ...
    @property
    def timings(self) -> list[EpochTiming]: ...
    @property
    def wait_s(self) -> float: ...


class TrainingClient(Protocol):
    """What a training needs of a client. Raises RefusedError, with a near name, for a stream that is not served."""

    def spec(self, name: str, /) -> StreamSpec: ...
    def subscribe(
        self, stream: str, /, *, epochs: int | None, start: Start = "begin", name: str | None = None
    ) -> AbstractContextManager[AccountedStream]: ...
    def batch(self, stream: str, epoch: int, index: int, /) -> Batch: ...
    def names(self, stream: str, sample_ids: Iterable[int], /) -> list[str]: ...


@dataclass(frozen=True, slots=True, eq=False)
class PreparedModel:
    """A compiled model, the label that it learns, and the user's callbacks."""

    model: Any
    label: LabelSpec
    callbacks: list[Any]


def train_model(client: TrainingClient, options: TrainingOptions, print_line: Callable[[str], None]) -> list[Receipt]:
    """Trains, saves the model and its curves, and tells the account, line by line, to `print_line`.

    Returns the receipts of the training stream, then those of the validation. An epoch whose account does not add up
    ends the training; the model is not saved, and its receipt is the last. Raises ConfigError for what does not fit
    together, LossError, once the account is told, for a loss that is no number; then nothing is saved either.
    """
    check_training_streams(client, options)
    # Takes seconds, in which a subscription would hold memory.
    learner = prepare_model(client.spec(options.stream), options, print_line)
    failure: ReceiptError | LossError | None = None
    results: list[str] = []
    with ExitStack() as stack:
        stream = stack.enter_context(
            client.subscribe(
                options.stream, epochs=options.epochs, start=options.stream_start, name=options.trainer_name
            )
        )
        held_out = (
            stack.enter_context(client.subscribe(options.validation, epochs=None, name=options.trainer_name))
            if options.validation
            else None
        )
        try:
            results = _fit_and_save_model(learner, client, stream, held_out, options)
        except (ReceiptError, LossError) as error:
            failure = error
    receipts = [*stream.receipts, *(held_out.receipts if held_out else [])]
    if failure:
        print_line("")  # the progress bar has stopped within its line
    for line in [
        *results,
        *format_timing_lines([stream.timings]),
        *_format_receipt_lines(receipts, options),
    ]:
        print_line(line)
    if isinstance(failure, LossError) or (failure and all(receipt.ok for receipt in receipts)):
        raise failure
    if not failure:
        print_line(
            f"saved {options.save}, its curves {options.curves_path.name}, and "
            f"{spec_file.spec_file_path(options.save).name} for streamd.load_image"
        )
    return receipts


def check_training_streams(client: TrainingClient, options: TrainingOptions) -> None:
    """Raises ConfigError or RefusedError for what can be told without Keras, which takes long to load."""
    spec = client.spec(options.stream)
    label = choose_label(spec, options.label)
    if options.validation:
        check_streams_match(spec, client.spec(options.validation), label)


def prepare_model(spec: StreamSpec, options: TrainingOptions, print_line: Callable[[str], None]) -> PreparedModel:
    """What can be made before there is a subscription. Raises ConfigError, MissingExtraError."""
    label = choose_label(spec, options.label)
    build, make_callbacks = choose_builder(label, options.model), [load_callback(name) for name in options.callbacks]
    keras = load_keras()
    load_matplotlib_figure()  # where it is missing, that is told now and not after hours
    if options.mixed_precision:
        print_line(f"precision: {set_mixed_precision()}")
    if options.seed is not None:
        keras.utils.set_random_seed(options.seed)
    model = build(spec)
    _compile_unless_compiled(model, label, options)
    return PreparedModel(model, label, [make(spec) for make in make_callbacks])


def _compile_unless_compiled(model: Any, label: LabelSpec, options: TrainingOptions) -> None:
    asked = {"--optimizer": options.optimizer, "--learning-rate": options.learning_rate}
    given = [option for option, value in asked.items() if value is not None]
    if not model.compiled:
        compile_model(model, label, choose_optimizer(options.optimizer, options.learning_rate))
    elif given:
        raise ConfigError(
            f"{options.model} returns a model that is compiled already, with an optimizer of its own: leave out "
            f"{' and '.join(given)}, or return the model uncompiled"
        )


def _fit_and_save_model(
    prepared: PreparedModel,
    client: TrainingClient,
    stream: AccountedStream,
    held_out: AccountedStream | None,
    options: TrainingOptions,
) -> list[str]:
    """Trains and saves; returns what there is to say of it."""
    began_s, waited_before_s = time.monotonic(), stream.wait_s
    history = _fit_model(prepared, client, stream, held_out, options)
    elapsed_s = time.monotonic() - began_s
    prepared.model.save(options.save)
    spec_file.write_spec(spec_file.spec_file_path(options.save), stream.spec)
    draw_curves(history, options.curves_path)
    samples = sum(receipt.samples for receipt in stream.receipts)
    return [format_results(history), format_speed(samples, elapsed_s, stream.wait_s - waited_before_s)]


def _fit_model(
    prepared: PreparedModel,
    client: TrainingClient,
    stream: AccountedStream,
    held_out: AccountedStream | None,
    options: TrainingOptions,
) -> dict[str, list[float]]:
    """The history that Keras returns: a number an epoch for the loss and each metric."""
    name = prepared.label.name
    validation = fit_data(held_out, targets=name) if held_out else None
    data = fit_data(stream, targets=name, class_weight=options.class_weight)
    callbacks = _build_callbacks(prepared, client, stream, data, options)
    try:
        done = prepared.model.fit(
            data,
            validation_data=validation,
            epochs=options.epochs,
            callbacks=callbacks,
            verbose=_choose_keras_verbosity(),
        )
    except (ValueError, TypeError) as error:  # what Keras raises for shapes and types that do not fit
        if options.model is None:
            raise
        height, width, channels = stream.spec.image_shape
        raise ConfigError(
            f"{options.model} cannot be trained on {options.stream!r}, whose images are uint8 (batch, {height}, "
            f"{width}, "
            f"{channels}) and whose label {name!r} is {prepared.label.type}: {str(error).strip().splitlines()[0]}"
        ) from error
    return dict(done.history)


def _choose_keras_verbosity() -> int:
    """Keras's word for a progress bar; where there is no terminal, as in a journal, for a line an epoch."""
    return 1 if sys.stdout.isatty() else 2


def _build_callbacks(
    prepared: PreparedModel, client: TrainingClient, stream: AccountedStream, data: Any, options: TrainingOptions
) -> list[Any]:
    """The user's own, and ours around them: the first sees a spoiled loss before anybody saves what it spoiled."""
    from streamd.cli.train.progress_bar import WaitBar  # noqa: PLC0415 - as above
    from streamd.frameworks.keras import NanGuard, ResumeCallback  # noqa: PLC0415 - imports Keras

    resuming = [ResumeCallback(data, options.resume)] if options.resume else []
    return [NanGuard(data, client, options.save.parent), *prepared.callbacks, WaitBar(stream), *resuming]


def _format_receipt_lines(receipts: Iterable[Receipt], options: TrainingOptions) -> list[str]:
    return [("" if each.stream == options.stream else f"{each.stream} ") + format_receipt(each) for each in receipts]


# --- the user's own callbacks, by name


def load_callback(name: str) -> MakeCallback:
    """What `module:name` names, the current directory being importable. Raises ConfigError.

    That is a class of callbacks, which is made without arguments, or a function of the StreamSpec that returns one.
    """
    found = load_function(name, "a callback", "mycallbacks:patience")
    return lambda spec: _create_checked_callback(name, found, spec)


def _create_checked_callback(name: str, found: Callable[..., Any], spec: StreamSpec) -> Any:
    kind = load_keras().callbacks.Callback
    is_class = isinstance(found, type) and issubclass(found, kind)
    try:
        callback = found() if is_class else found(spec)
    except StreamdError:
        raise
    except Exception as error:
        raise ConfigError(f"{name} failed: {format_error_with_source_line(error)}") from error
    if not isinstance(callback, kind):
        raise ConfigError(f"{name} must return a keras.callbacks.Callback, and returned {type(callback).__name__}")
    return callback


# --- what is said and drawn at the end


def group_curves_by_metric(history: TrainingHistory) -> dict[str, dict[str, Sequence[float]]]:
    """What is drawn together: by metric, the loss first, the curve of `training`, of `validation`, or of both."""
    together: dict[str, dict[str, Sequence[float]]] = {"loss": {}}
    for name, values in history.items():
        kind = "validation" if name.startswith(_VALIDATION_PREFIX) else "training"
        together.setdefault(name.removeprefix(_VALIDATION_PREFIX), {})[kind] = values
    return {metric: curves for metric, curves in together.items() if curves}


def load_matplotlib_figure() -> Any:
    """The module matplotlib.figure, which needs no display. Raises MissingExtraError."""
    return import_library("matplotlib.figure", "train", "drawing the curves of a training")


def draw_curves(history: TrainingHistory, path: Path) -> None:
    """Writes the curves as a PNG, epochs counted from 1. Raises MissingExtraError, OSError."""
    shown = group_curves_by_metric(history)
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    size = (columns * _PANEL_INCHES[0], rows * _PANEL_INCHES[1])
    figure = load_matplotlib_figure().Figure(figsize=size, layout="constrained")
    for place, (metric, curves) in enumerate(shown.items(), 1):
        axes = figure.add_subplot(rows, columns, place, title=metric, xlabel="epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        for kind, values in curves.items():
            axes.plot(range(1, len(values) + 1), values, label=kind, **_CURVE_STYLES[kind])
        axes.legend()
    figure.savefig(path, dpi=_DOTS_PER_INCH, format="png")


def format_receipt(receipt: Receipt) -> str:
    """One epoch in one line, such as `epoch 3: 125 steps, 4000 samples, missed 0, repeated 0, bad 0: ok`."""
    facts = [
        f"{receipt.steps} steps",
        f"{receipt.samples} samples",
        f"missed {receipt.missed}",
        f"repeated {receipt.repeated}",
        f"bad {receipt.bad}",
    ]
    if receipt.dropped:
        facts.append(f"dropped {receipt.dropped}")
    if receipt.changed:
        facts.append("pixels changed since the token was made")
    if not receipt.complete:
        facts.append("stopped early")
    return f"epoch {receipt.epoch}: {', '.join(facts)}: {_format_receipt_result(receipt)}"


def _format_receipt_result(receipt: Receipt) -> str:
    if receipt.ok:
        return "ok"
    adds_up = receipt.missed == receipt.repeated == 0
    return "NOT OK, the order differs from the daemon's" if adds_up else "NOT OK"


def format_speed(samples: int, elapsed_s: float, waited_s: float) -> str:
    """The rate of training and the share of it spent waiting for batches."""
    rate, share = (samples / elapsed_s, waited_s / elapsed_s) if elapsed_s > 0 else (0.0, 0.0)
    return f"{samples} samples in {elapsed_s:.1f} s: {rate:,.0f} samples/s, {share:.0%} of the time waiting for batches"


def format_results(history: Mapping[str, Sequence[float]]) -> str:
    """What the last epoch came to, such as `after 10 epochs: loss 0.1034, val_loss 0.2203 (lowest 0.1951 after 7)`.

    `history` has a number an epoch for the loss and each metric.
    """
    ends = [f"{name} {values[-1]:.4g}{_format_lowest_loss(name, values)}" for name, values in history.items()]
    epochs = max(map(len, history.values()), default=0)
    return f"after {epochs} epoch{'' if epochs == 1 else 's'}: {', '.join(ends)}"


def _format_lowest_loss(name: str, values: Sequence[float]) -> str:
    """Where the loss of the validation was lower than at the end: from there on a model learns its samples by heart."""
    lowest = min(values)
    if name != "val_loss" or lowest == values[-1]:
        return ""
    return f" (lowest {lowest:.4g} after {values.index(lowest) + 1})"
