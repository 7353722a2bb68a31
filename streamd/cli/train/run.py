"""Runs one training: builds the model, subscribes, fits, saves model and curves, and prints the account.

What is learnt follows from the stream's labels and images. The network for it is the user's own, or a built-in one.
"""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from streamd.cli.terminal import StopSignals
from streamd.client import Client, Stream
from streamd.client.arguments import Start
from streamd.client.batch import BatchSplit
from streamd.core.epoch_timing import format_timing_lines
from streamd.core.import_function import call_user_function, load_function
from streamd.core.receipt import Receipt
from streamd.core.spec import ImageSpec, LabelSpec, StreamSpec
from streamd.core.text import format_count, shorten_text
from streamd.decode.inference import spec_file_path, write_spec
from streamd.errors import ConfigError, LossError, ReceiptError, suggest_name
from streamd.frameworks import import_library
from streamd.frameworks.keras import fit_data, load_keras, normalization
from streamd.frameworks.model_inputs import choose_inputs, find_label
from streamd.limits import MAX_TRAINER_NAME_CHARS

# --- what is learnt: a label, or an image of every sample; needs no Keras


@dataclass(frozen=True, slots=True)
class ImageTarget:
    """An image that a model learns: the class of each pixel of a mask, or the numbers of a picture."""

    name: str
    image: ImageSpec

    @property
    def is_mask(self) -> bool:
        return self.image.mode == "index"

    @property
    def type(self) -> str:
        return f"an image of mode {self.image.mode}"


LearningTarget = LabelSpec | ImageTarget


def choose_target(spec: StreamSpec, name: str | None) -> LearningTarget:
    """Returns what to learn: the label or image `name`; else the only label, or without labels the only mask.

    Raises ConfigError.
    """
    if name is not None and name in spec.images:
        return ImageTarget(name, spec.images[name])
    if name is not None:
        label = find_label(spec, name)
        if label.type == "string":
            raise ConfigError(
                f"label {label.name!r} is text, which cannot be learned: serve it as type category or tags"
            )
        if label.is_ragged:
            raise ConfigError(
                f"label {label.name!r} holds {label.type}, for which streamd-train has no model and no loss: write a "
                "training program with fit_data or loader, or choose another label"
            )
        return label
    learnable = [each for each in spec.labels.values() if each.type != "string" and not each.is_ragged]
    masks = [ImageTarget(each, image) for each, image in spec.images.items() if image.mode == "index"]
    choices = learnable or masks
    if not choices:
        what = "labels but text, boxes or points" if spec.labels else "labels"
        raise ConfigError(
            f"stream {spec.name!r} has no {what}, so there is nothing to learn from it; add labels to the stream, or "
            "choose another stream"
        )
    if len(choices) > 1:
        names = ", ".join(choice.name for choice in choices)
        kind = "labels" if learnable else "masks"
        raise ConfigError(f"stream {spec.name!r} has the {kind} {names}: choose one with --label")
    return choices[0]


def describe_images(spec: StreamSpec) -> str:
    """Describes the images of a stream's batches: `photo uint8 (batch, 32, 32, 3), depth uint16 (batch, 32, 32, 1)`."""
    return ", ".join(
        f"{name} {image.dtype} (batch, {', '.join(map(str, image.shape))})" for name, image in spec.images.items()
    )


def check_streams_match(train: StreamSpec, validation: StreamSpec, target: LearningTarget) -> None:
    """Raises ConfigError unless a model for one stream can be evaluated on the other."""
    ours, others = (
        {name: (image.shape, image.dtype) for name, image in spec.images.items()} for spec in (train, validation)
    )
    other = None if isinstance(target, ImageTarget) else find_label(validation, target.name)
    if ours != others:
        raise ConfigError(
            f"images of {train.name!r} are {describe_images(train)}, and of {validation.name!r} "
            f"{describe_images(validation)}: give both streams the same  image:  or  images:"
        )
    if other is None or isinstance(target, ImageTarget):
        return
    if (target.type, target.width, target.classes) != (other.type, other.width, other.classes):
        raise ConfigError(
            f"label {target.name!r} of {train.name!r} and of {validation.name!r} differ in type or classes: serve both "
            "from one configuration, where they share them"
        )


# --- the networks, built in or the user's own

BuildModel = Callable[[StreamSpec], Any]  # gives a keras.Model, compiled or not

SMALLEST_MAP = 8  # the convolutions halve the map down to this side: a place on it is still a place in the picture
LARGE_SIDE = 96  # from here on the first convolution steps by four, or it alone would cost more than all others
_PICTURE_RANK: Final = 3  # height, width, channels
LAYER_WIDTHS = (24, 36, 48, 64)
_OUTPUT_TYPE = "float32"  # of the outputs: with mixed precision, what is before them has 16 bits

# (loss, metric) by the type of the label. A label of several values has one loss and one metric over all of them.
_LOSSES_AND_METRICS: Final = {
    "category": ("SparseCategoricalCrossentropy", "accuracy"),
    "tags": ("BinaryCrossentropy", "binary_accuracy"),
    "float": ("MeanSquaredError", "mae"),
    "int": ("MeanSquaredError", "mae"),
}
# Optimizers that cannot be chosen by name: the base class, and those that wrap other optimizers.
_WRAPPING_OPTIMIZERS: Final = frozenset({"Optimizer", "LossScaleOptimizer", "MultiOptimizer"})


def choose_builder(target: LearningTarget, model: str | None, inputs: Sequence[str] = ()) -> BuildModel:
    """Returns the function that builds the network: the user's `module:function`, or the built-in one for a label.

    `inputs` are the images and labels that go into it. Raises ConfigError.
    """
    if model is not None:
        return load_builder(model)
    if isinstance(target, ImageTarget):
        raise ConfigError(
            f"{target.name!r} is {target.type}, for which there is no built-in network: give a model of your own with "
            "--model module:build, or choose a label with --label"
        )
    return lambda spec: build_network(spec, target, inputs)


def build_network(spec: StreamSpec, label: LabelSpec, inputs: Sequence[str] = ()) -> Any:
    """Builds a network for a label: a branch of convolutions for each image that goes into it, with its own weights.

    For classes it predicts the probability of each: of exclusive classes, or of each tag separately. The feature map is
    averaged, so the position of an object does not matter. For numbers it predicts one, or `label.width` of them, and
    the feature map is flattened, so the position matters. The input is one array, or a dict of several, as `fit_data`
    gives them. Raises ConfigError for labels, masks and views as inputs.
    """
    keras, layers = load_keras(), load_keras().layers
    names = tuple(choose_inputs(spec, inputs))
    own = "give a model of your own with --model module:build, or choose other inputs with --input"
    for name in names:
        image = spec.images.get(name)
        if image is None or image.mode == "index":
            given = "labels" if image is None else f"{name!r}, which holds class numbers"
            raise ConfigError(f"the built-in model takes pictures, and not {given}: {own}")
        if len(image.shape) > _PICTURE_RANK:
            raise ConfigError(
                f"{name!r} of stream {spec.name!r} has {image.shape[0]} pictures for each sample, and the built-in "
                f"model takes one: {own}"
            )
    are_classes = label.type in {"category", "tags"}
    entries, vectors = {}, []
    for name in names:
        image, scaled = spec.images[name], spec
        entries[name] = keras.Input(image.shape, dtype=image.dtype, name="images" if len(names) == 1 else name)
        # `normalize: none` leaves scaling to the model: these learn twice as well from -1 to 1 as from 0 to 255.
        if (spec.normalize if len(spec.images) == 1 else image.normalize) == "none":
            images = {**spec.images, name: replace(image, normalize="minus_one_one")}
            scaled = replace(spec, normalize="minus_one_one", images=images)
        features = normalization(scaled, name)(entries[name])
        # Strided convolutions, down to a feature map of about SMALLEST_MAP a side.
        for number, (side, stride) in enumerate(_compute_strides(min(image.height, image.width))):
            width = LAYER_WIDTHS[min(number, len(LAYER_WIDTHS) - 1)]
            kernel = 5 if side >= LARGE_SIDE else 3
            features = layers.Conv2D(width, kernel, strides=stride, padding="same", activation="relu")(features)
        vectors.append((layers.GlobalAveragePooling2D if are_classes else layers.Flatten)()(features))
    features = vectors[0] if len(vectors) == 1 else layers.Concatenate()(vectors)
    features = layers.Dense(64, activation="relu")(features)
    if are_classes:
        activation = "sigmoid" if label.type == "tags" else "softmax"
        outputs = layers.Dense(len(label.classes), activation=activation, dtype=_OUTPUT_TYPE)(features)
    else:
        outputs = layers.Dense(label.width or 1, dtype=_OUTPUT_TYPE)(features)
        if label.mean is not None and label.std:
            # The layers before it work in units of std.
            outputs = layers.Rescaling(label.std, offset=label.mean, dtype=_OUTPUT_TYPE)(outputs)
    # Keras allows only these characters in scopes.
    letters = (each if each.isascii() and each.isalnum() else "_" for each in f"streamd_{label.name}")
    return keras.Model(entries[names[0]] if len(names) == 1 else entries, outputs, name="".join(letters))


def _compute_strides(side: int) -> list[tuple[int, int]]:
    """Returns (side before, stride) of each convolution; the last keeps the size."""
    steps: list[tuple[int, int]] = []
    while side > SMALLEST_MAP:
        stride = 4 if side >= LARGE_SIDE and not steps else 2
        steps.append((side, stride))
        side = -(-side // stride)
    return [*steps, (side, 1)]


def load_builder(name: str) -> BuildModel:
    """Loads the function `module:function`, also from the current directory. Raises ConfigError."""
    function = load_function(name, "--model", "mymodel:build")

    def build_model(spec: StreamSpec) -> Any:
        model = call_user_function(name, function, spec)
        if not isinstance(model, load_keras().Model):
            raise ConfigError(f"{name} must return a keras.Model, but returned {type(model).__name__}")
        return model

    return build_model


# --- how they learn: the loss, which follows from the label; the optimizer; the precision


def compile_model(model: Any, target: LearningTarget, optimizer: Any = "adam") -> None:
    """Compiles a model with the loss for what it learns. Rows of weight 0, as masked samples have, do not count.

    Keras's own choice divides the loss of a batch by all its rows, so that it would be too small. The outputs for a
    mask are probabilities of classes; pixels of its `fill` have no class, and do not count.
    """
    losses = load_keras().losses
    if isinstance(target, ImageTarget) and target.is_mask:
        fill = target.image.fill
        loss = losses.SparseCategoricalCrossentropy(ignore_class=fill, reduction="mean_with_sample_weight")
        model.compile(optimizer, loss)  # no metric of Keras's leaves out the pixels without a class
        return
    kind = "float" if isinstance(target, ImageTarget) else target.type
    name, metric = _LOSSES_AND_METRICS[kind]
    model.compile(optimizer, getattr(losses, name)(reduction="mean_with_sample_weight"), weighted_metrics=[metric])


def choose_optimizer(name: str | None, learning_rate: float | None) -> Any:
    """Returns one of Keras's optimizers, adam by default, by name in any case.

    Raises ConfigError, with a similar name.
    """
    found = vars(load_keras().optimizers)
    kind = found["Optimizer"]
    known = {
        each.lower(): value
        for each, value in found.items()
        if isinstance(value, type) and issubclass(value, kind) and each not in _WRAPPING_OPTIMIZERS
    }
    wanted = (name or "adam").lower()
    if wanted not in known:
        hint = suggest_name(wanted, known)
        raise ConfigError(f"Keras has no optimizer {name!r}; it has {', '.join(sorted(known))}{hint}")
    return known[wanted]() if learning_rate is None else known[wanted](learning_rate=learning_rate)


def set_mixed_precision() -> str:
    """Makes models that are built from now on compute in 16 bits and keep weights in 32; returns the policy's name.

    float16 on a GPU: every GPU is fast with it, and Keras scales the loss for its narrow range. bfloat16 without a GPU,
    since it is the only 16-bit type that processors support.
    """
    keras = load_keras()
    match keras.backend.backend():
        case "torch":
            has_gpu = import_library("torch", "torch", "Keras on torch").cuda.is_available()
        case "jax":
            has_gpu = import_library("jax", "jax", "Keras on JAX").default_backend() == "gpu"
        case _:
            has_gpu = import_library("tensorflow", "train", "Keras on TensorFlow").config.list_physical_devices("GPU")
    policy = "mixed_float16" if has_gpu else "mixed_bfloat16"
    keras.mixed_precision.set_global_policy(policy)
    return policy


# --- the options, and checks of them that need no Keras


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The options of one training. Raises ConfigError for invalid ones.

    label: the label, or the image, to learn; None for the only one.
    inputs: the images and labels that go into the model; none of them named: all images but masks.
    model: `module:function`; None for the built-in network for the label.
    together: begin when this many trainers have subscribed to the stream.
    resume: the folder in which the training is saved, and from which it continues.
    callbacks: names of the form module:function.
    optimizer, learning_rate: None for Keras's own.
    batch_size: None for the stream's.
    name: the trainer's name in the daemon's status; None for the command with the model's name.
    command_line: the command with which the training was started.
    """

    stream: str
    epochs: int
    save: Path
    validation: str | None = None
    label: str | None = None
    inputs: tuple[str, ...] = ()
    model: str | None = None
    seed: int | None = None
    together: int | None = None
    resume: Path | None = None
    callbacks: tuple[str, ...] = ()
    optimizer: str | None = None
    learning_rate: float | None = None
    mixed_precision: bool = False
    class_weight: Literal["balanced"] | None = None
    name: str | None = None
    batch_size: int | None = None
    command_line: str = "streamd-train"

    @property
    def trainer_name(self) -> str:
        """The training's name in `streamd status`: `streamd-train model` if it saves model.keras."""
        return self.name or shorten_text(f"streamd-train {self.save.stem}", MAX_TRAINER_NAME_CHARS)

    @property
    def interrupted_save(self) -> Path:
        """The path of the model of a training that was stopped: `model.interrupted.keras`."""
        return self.save.with_suffix(f".interrupted{self.save.suffix}")

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ConfigError(f"epochs must be at least 1, not {self.epochs}")
        if self.save.suffix != ".keras":
            raise ConfigError(
                f"the model is saved in Keras's own format: name a file ending in .keras, not {self.save}"
            )
        rate = self.learning_rate
        if rate is not None and not (rate > 0 and math.isfinite(rate)):
            raise ConfigError(f"the learning rate must be a number above 0, such as 0.001, not {rate}")
        check_folder_exists(self.save)


def get_curves_path(model: Path) -> Path:
    """Returns the path of a model's curves: `model.curves.png` beside `model.keras`."""
    return model.with_suffix(".curves.png")


def check_folder_exists(path: Path) -> None:
    """Raises ConfigError unless the folder of `path` exists, before hours of training and not after."""
    if not path.parent.is_dir():
        raise ConfigError(
            f"{path} cannot be written: there is no folder {path.parent}; create it, or choose another file"
        )


# --- one training

MakeCallback = Callable[[StreamSpec], Any]  # returns a keras.callbacks.Callback
TrainingHistory = Mapping[str, Sequence[float]]  # for each value, one number an epoch

_VALIDATION_PREFIX: Final = "val_"  # Keras's prefix for values that it measures on validation data
_COLUMNS: Final = 3
_PANEL_INCHES: Final = (4.2, 3.2)
_DOTS_PER_INCH: Final = 120
_CURVE_STYLES: Final = {
    "training": {"color": "#1f6fb4", "marker": "."},
    "validation": {"color": "#d9730d", "marker": "."},
}


@dataclass(frozen=True, slots=True, eq=False)
class PreparedModel:
    """A compiled model, the label or image that it learns, and the user's callbacks."""

    model: Any
    target: LearningTarget
    callbacks: list[Any]


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of a `fit`.

    saved: the path of the model; None if the training was stopped before its first step.
    most_samples: the samples that its steps can have had; the receipts count more, where an epoch was resumed.
    stopped_place: where the training was stopped, in words; None if it was not.
    continued_place: where a run with `--resume` would continue, in words.
    """

    history: TrainingHistory
    elapsed_s: float
    waited_s: float
    saved: Path | None
    most_samples: int
    stopped_place: str | None = None
    continued_place: str | None = None


def train_model(
    client: Client, options: TrainingOptions, print_line: Callable[[str], None], stop: StopSignals | None = None
) -> list[Receipt]:
    """Trains, saves the model and its curves, and passes the account line by line to `print_line`.

    Returns the receipts of the training stream, then those of the validation stream. If an epoch's account does not add
    up, the training ends, the model is not saved, and that epoch's receipt is the last. A signal that `stop` handles
    ends the training after the running step, and the model is saved as `options.interrupted_save`.

    Raises ConfigError for options and streams that do not fit together. Raises LossError, after printing the account,
    for a loss that is NaN or infinite; then nothing is saved either. KeyboardInterrupt is raised only before there is a
    subscription.
    """
    stop = stop or StopSignals()
    # First the mistakes that can be found without Keras, which takes long to import.
    spec = BatchSplit.from_batch_size(client.spec(options.stream), options.batch_size).trainer_spec
    target = choose_target(spec, options.label)
    choose_inputs(spec, options.inputs)
    if options.validation:
        check_streams_match(spec, client.spec(options.validation), target)
    # Before subscribing: importing Keras and building the model take seconds, during which a subscription would hold
    # memory.
    learner = prepare_model(spec, options, print_line)
    failure: ReceiptError | LossError | None = None
    result: TrainingResult | None = None
    with ExitStack() as stack:
        start: Start = {"together": options.together} if options.together else "begin"
        epochs, size, name = options.epochs, options.batch_size, options.trainer_name
        training = client.subscribe(options.stream, epochs=epochs, start=start, batch_size=size, name=name)
        stream = stack.enter_context(training)
        held_out = None
        if options.validation is not None:
            held_out = stack.enter_context(client.subscribe(options.validation, epochs=None, name=name))
        stop.defer()
        try:
            result = _fit_and_save_model(learner, client, stream, held_out, options, stop)
        except (ReceiptError, LossError) as error:
            failure = error
    receipts = [*stream.receipts, *(held_out.receipts if held_out else [])]
    if failure or (result and result.stopped_place):
        print_line("")  # ends the line in which the progress bar stopped
    lines = []
    if result and result.stopped_place:
        lines.append(f"{stop.signal_text} stopped the training {result.stopped_place}")
    if result and result.history:
        lines.append(format_results(result.history))
    if result and result.saved:
        samples = min(result.most_samples, sum(receipt.samples for receipt in stream.receipts))
        lines.append(format_speed(samples, result.elapsed_s, result.waited_s))
    for line in [
        *lines,
        *format_timing_lines([stream.timings]),
        *(("" if each.stream == options.stream else f"{each.stream} ") + format_receipt(each) for each in receipts),
        *(_format_ending_lines(result, options) if result else ()),
    ]:
        print_line(line)
    if isinstance(failure, LossError) or (failure and all(receipt.ok for receipt in receipts)):
        raise failure
    return receipts


def prepare_model(spec: StreamSpec, options: TrainingOptions, print_line: Callable[[str], None]) -> PreparedModel:
    """Builds model and callbacks, for which no subscription is needed. Raises ConfigError, MissingExtraError."""
    target = choose_target(spec, options.label)
    build = choose_builder(target, options.model, options.inputs)
    make_callbacks = [load_callback(name) for name in options.callbacks]
    keras = load_keras()
    load_matplotlib_figure()  # if it is not installed, raises now and not after hours of training
    if options.mixed_precision:
        print_line(f"precision: {set_mixed_precision()}")
    if options.seed is not None:
        keras.utils.set_random_seed(options.seed)
    model = build(spec)
    asked = {"--optimizer": options.optimizer, "--learning-rate": options.learning_rate}
    given = [option for option, value in asked.items() if value is not None]
    if not model.compiled:
        compile_model(model, target, choose_optimizer(options.optimizer, options.learning_rate))
    elif given:
        raise ConfigError(
            f"{options.model} returns a model that is compiled already, with an optimizer of its own: leave out "
            f"{' and '.join(given)}, or return the model uncompiled"
        )
    return PreparedModel(model, target, [make(spec) for make in make_callbacks])


def _fit_and_save_model(
    prepared: PreparedModel,
    client: Client,
    stream: Stream,
    held_out: Stream | None,
    options: TrainingOptions,
    stop: StopSignals,
) -> TrainingResult:
    """Trains, and saves the model when the training ends or is interrupted."""
    from streamd.cli.train.callbacks import PlaceRecorder, WaitBar  # noqa: PLC0415 - imports Keras
    from streamd.frameworks.keras import NanGuard, ResumeCallback  # noqa: PLC0415 - as above

    inputs, targets = options.inputs or None, [prepared.target.name]
    validation = fit_data(held_out, inputs=inputs, targets=targets) if held_out else None
    data = fit_data(stream, inputs=inputs, targets=targets, class_weight=options.class_weight)
    for each in (data,) if validation is None else (data, validation):
        each.guard_fetch = stop.allow_interrupt
    # The user's callbacks, with ours around them. NanGuard comes first, so that it ends the training before any other
    # callback saves weights that a NaN has spoiled.
    recorder = PlaceRecorder(data)
    resuming = ResumeCallback(data, options.resume) if options.resume else None
    ours = [WaitBar(stream), recorder, *([resuming] if resuming else [])]
    callbacks = [NanGuard(data, client, options.save.parent), *prepared.callbacks, *ours]
    verbose = 1 if sys.stdout.isatty() else 2  # a progress bar on a terminal, else one line an epoch, as for a journal
    began_s, waited_before_s = time.monotonic(), stream.wait_s
    stopped_place = None
    try:
        prepared.model.fit(
            data, validation_data=validation, epochs=options.epochs, callbacks=callbacks, verbose=verbose
        )
    except KeyboardInterrupt:
        stopped_place = recorder.describe_place()
        if resuming:
            resuming.save_interrupted()
    except (ValueError, TypeError) as error:  # Keras raises these for shapes and types that do not match
        if options.model is None:
            raise
        raise ConfigError(
            f"{options.model} cannot be trained on {options.stream!r}, whose images are "
            f"{describe_images(stream.spec)} and whose {prepared.target.name!r} to learn is {prepared.target.type}: "
            f"{str(error).strip().splitlines()[0]}"
        ) from error
    finally:
        if resuming:
            resuming.append_receipts()  # also the one of an epoch that does not add up, which ends the training
    elapsed_s, waited_s = time.monotonic() - began_s, stream.wait_s - waited_before_s
    history = recorder.history
    continued_place = resuming.describe_saved_place() if resuming else None
    if stopped_place and not recorder.trained_steps:
        return TrainingResult(history, elapsed_s, waited_s, None, 0, "before its first step", continued_place)
    # The model, its stream's specification and its curves: each file is complete or absent. The callback's `model`
    # property is used because on JAX it first writes the trained variables into the model.
    saved = options.interrupted_save if stopped_place else options.save
    with stop.write_beside(saved) as file:
        recorder.model.save(file)
    with stop.write_beside(spec_file_path(saved)) as file:
        write_spec(file, stream.spec)
    if history:
        with stop.write_beside(get_curves_path(saved)) as file:
            draw_curves(history, file)
    most_samples = recorder.trained_steps * stream.spec.batch_size
    return TrainingResult(history, elapsed_s, waited_s, saved, most_samples, stopped_place, continued_place)


# --- the user's own callbacks, by name


def load_callback(name: str) -> MakeCallback:
    """Loads `module:name`, also from the current directory, and returns a function that makes the callback.

    The name is a callback class, which is called without arguments, or a function that takes the StreamSpec and returns
    a callback. Raises ConfigError.
    """
    found = load_function(name, "--callback", "mycallbacks:patience")

    def create_callback(spec: StreamSpec) -> Any:
        kind = load_keras().callbacks.Callback
        is_class = isinstance(found, type) and issubclass(found, kind)
        callback = call_user_function(name, found, *([] if is_class else [spec]))
        if not isinstance(callback, kind):
            raise ConfigError(f"{name} must return a keras.callbacks.Callback, but returned {type(callback).__name__}")
        return callback

    return create_callback


# --- the lines and curves at the end


def group_curves_by_metric(history: TrainingHistory) -> dict[str, dict[str, Sequence[float]]]:
    """Groups a history by metric, the loss first: for each its curves, `training`, `validation` or both."""
    together: dict[str, dict[str, Sequence[float]]] = {"loss": {}}
    for name, values in history.items():
        kind = "validation" if name.startswith(_VALIDATION_PREFIX) else "training"
        together.setdefault(name.removeprefix(_VALIDATION_PREFIX), {})[kind] = values
    return {metric: curves for metric, curves in together.items() if curves}


def load_matplotlib_figure() -> Any:
    """Imports and returns matplotlib.figure, which needs no display. Raises MissingExtraError."""
    return import_library("matplotlib.figure", "train", "drawing training curves")


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


def _format_ending_lines(result: TrainingResult, options: TrainingOptions) -> list[str]:
    """Returns the lines about saved files, and about continuing a training that was stopped."""
    lines = ["no model was saved: it has learned nothing yet"]
    if result.saved:
        spec_name = spec_file_path(result.saved).name
        curves = f"its curves {get_curves_path(result.saved).name}, and " if result.history else "and "
        lines = [f"saved {result.saved}, {curves}{spec_name} for streamd.load_image"]
    if result.stopped_place and options.resume:
        place = result.continued_place or "begins with epoch 1, since no state was saved yet"
        lines += [f"to continue, run the same command again; it {place}:", f"  {options.command_line}"]
    elif result.stopped_place and result.saved:
        folder = options.save.with_suffix(".resume")
        lines += [
            f"to use the model, or train it further:  keras.models.load_model({str(result.saved)!r})",
            "this training run cannot continue where it stopped; a run that is started with  --resume DIR  can:",
            f"  {options.command_line} --resume {shlex.quote(str(folder))}",
        ]
    return lines


def format_receipt(receipt: Receipt) -> str:
    """Formats a receipt in one line, such as `epoch 3: 125 steps, 4,000 samples, missed 0, repeated 0, bad 0: ok`."""
    facts = [
        format_count(receipt.steps, "step"),
        format_count(receipt.samples, "sample"),
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
    adds_up = receipt.missed == receipt.repeated == 0
    wrong = "NOT OK, the order differs from the daemon's" if adds_up else "NOT OK"
    return f"epoch {receipt.epoch}: {', '.join(facts)}: {'ok' if receipt.ok else wrong}"


def format_speed(samples: int, elapsed_s: float, waited_s: float) -> str:
    """Formats the rate of a training, and the share of its time that was spent waiting for batches."""
    rate, share = (samples / elapsed_s, waited_s / elapsed_s) if elapsed_s > 0 else (0.0, 0.0)
    return (
        f"{format_count(samples, 'sample')} in {elapsed_s:.1f} s: {rate:,.0f} samples/s, {share:.0%} of the time "
        "waiting for batches"
    )


def format_results(history: Mapping[str, Sequence[float]]) -> str:
    """Formats the last epoch's values: `after 10 epochs: loss 0.1034, val_loss 0.2203 (lowest 0.1951 after 7)`.

    `history` has one number an epoch for the loss and each metric.
    """
    ends = []
    for name, values in history.items():
        # The lowest validation loss, if it was lower than the last: since then the model has been overfitting.
        lowest = min(values)
        is_past = name == "val_loss" and lowest != values[-1]
        best = f" (lowest {lowest:.4g} after {values.index(lowest) + 1})" if is_past else ""
        ends.append(f"{name} {values[-1]:.4g}{best}")
    epochs = max(map(len, history.values()), default=0)
    return f"after {format_count(epochs, 'epoch')}: {', '.join(ends)}"
