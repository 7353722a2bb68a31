"""What `streamd-train` learns, and the networks that learn it, with their loss, optimizer and precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from streamd.core.import_function import call_user_function, load_function
from streamd.core.spec import ImageSpec, LabelSpec, StreamSpec
from streamd.errors import ConfigError, suggest_name
from streamd.frameworks import import_library
from streamd.frameworks.keras import load_keras, normalization
from streamd.frameworks.model_inputs import choose_inputs, find_label

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
    if target.type in {"category", "tags"}:
        return lambda spec: build_classifier(spec, target, inputs)
    return lambda spec: build_regressor(spec, target, inputs)


def build_regressor(spec: StreamSpec, label: LabelSpec, inputs: Sequence[str] = ()) -> Any:
    """Builds a network that predicts one number, or `label.width` numbers, from the images of a stream.

    The feature map is flattened, so the position of an object matters.
    """
    layers = load_keras().layers
    images, features = _build_branches(spec, inputs, layers.Flatten)
    features = layers.Dense(64, activation="relu")(features)
    outputs = layers.Dense(label.width or 1, dtype=_OUTPUT_TYPE)(features)
    if label.mean is not None and label.std:
        # The layers before it work in units of std.
        outputs = layers.Rescaling(label.std, offset=label.mean, dtype=_OUTPUT_TYPE)(outputs)
    return load_keras().Model(images, outputs, name=_build_model_name(label))


def build_classifier(spec: StreamSpec, label: LabelSpec, inputs: Sequence[str] = ()) -> Any:
    """Builds a network that predicts the probability of each class: of exclusive classes, or of each tag separately.

    The feature map is averaged, so the position of an object does not matter.
    """
    layers = load_keras().layers
    images, features = _build_branches(spec, inputs, layers.GlobalAveragePooling2D)
    features = layers.Dense(64, activation="relu")(features)
    activation = "sigmoid" if label.type == "tags" else "softmax"
    outputs = layers.Dense(len(label.classes), activation=activation, dtype=_OUTPUT_TYPE)(features)
    return load_keras().Model(images, outputs, name=_build_model_name(label))


def _build_model_name(label: LabelSpec) -> str:
    """Returns a model's name with only the characters that Keras allows in scopes."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in f"streamd_{label.name}")


def _build_branches(spec: StreamSpec, chosen: Sequence[str], join: Callable[[], Any]) -> tuple[Any, Any]:
    """Builds a branch of convolutions for each image that goes into a model, with weights of its own.

    `join` makes the layer that turns a feature map into a vector. Returns the only input or a dict of several, as
    `fit_data` gives them, and the vectors of all branches in a row. Raises ConfigError for labels, masks and views.
    """
    keras = load_keras()
    names = tuple(choose_inputs(spec, chosen))
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
    inputs, vectors = {}, []
    for name in names:
        image, scaled = spec.images[name], spec
        inputs[name] = keras.Input(image.shape, dtype=image.dtype, name="images" if len(names) == 1 else name)
        # `normalize: none` leaves scaling to the model: these learn twice as well from -1 to 1 as from 0 to 255.
        if (spec.normalize if len(spec.images) == 1 else image.normalize) == "none":
            images = {**spec.images, name: replace(image, normalize="minus_one_one")}
            scaled = replace(spec, normalize="minus_one_one", images=images)
        features = normalization(scaled, name)(inputs[name])
        # Strided convolutions, down to a feature map of about SMALLEST_MAP a side.
        for number, (side, stride) in enumerate(_compute_strides(min(image.height, image.width))):
            width = LAYER_WIDTHS[min(number, len(LAYER_WIDTHS) - 1)]
            kernel = 5 if side >= LARGE_SIDE else 3
            features = keras.layers.Conv2D(width, kernel, strides=stride, padding="same", activation="relu")(features)
        vectors.append(join()(features))
    if len(names) == 1:
        return inputs[names[0]], vectors[0]
    return inputs, keras.layers.Concatenate()(vectors)


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
