"""What a model gets of a stream: the choice of its arrays, their weights, and the numbers that scale its pixels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from streamd.client import Batch, Stream
from streamd.client.waiting import print_stderr_line
from streamd.core.display import get_number_range
from streamd.core.sampler import PAD_ID
from streamd.core.slot_layout import build_blank_label
from streamd.core.spec import LabelSpec, StreamSpec
from streamd.core.text import format_count, format_list
from streamd.errors import ConfigError, StreamdError, suggest_name
from streamd.headroom import Replay

Array = npt.NDArray[Any]

# --- The choice of what goes into a model, and of what it learns.

ArrayNames = str | Sequence[str] | None  # names of images and labels

IMAGES: Final = "images"  # the first image among a model's inputs, where only labels are named


def choose_inputs(spec: StreamSpec, given: ArrayNames) -> dict[str, str]:
    """Returns the inputs of a model: the images and labels by the names under which it receives them.

    None: all images but those of class numbers. Labels alone: the first image as "images", and these. Otherwise what is
    named. Raises ConfigError for a name that the stream does not have, and for text.
    """
    names = _parse_names("inputs", given, "the name of an image or a label, a list of names or None")
    for name in names:
        if name == IMAGES and name not in (*spec.images, *spec.labels):
            raise ConfigError(
                f"inputs= names images and labels of the stream, and none is called {IMAGES!r}: name labels alone, and "
                f"the first image goes in with them as {IMAGES!r}; or name each image by its own name "
                f"({describe_arrays(spec)})"
            )
        _check_array_name(spec, name)
    # Nothing is named: every image of pixels.
    if not names:
        pictures = {name: name for name, image in spec.images.items() if image.mode != "index"}
        if not pictures:
            first = next(iter(spec.images))
            raise ConfigError(
                f"all images of stream {spec.name!r} hold class numbers ({', '.join(spec.images)}), which go into a "
                f"model only where they are named, as in  inputs=[{first!r}]"
            )
        return pictures
    if any(name in spec.images for name in names):
        return {name: name for name in names}
    # Labels alone: the first image goes in with them.
    if IMAGES in names:
        raise ConfigError(
            f"inputs={[*names]}: the first image is an input called {IMAGES!r}, as a label of stream {spec.name!r} is "
            f"called: name the image too, as in  inputs={[*spec.images, *names]}"
        )
    return {IMAGES: next(iter(spec.images)), **{name: name for name in names}}


def choose_targets(spec: StreamSpec, inputs: Collection[str], given: ArrayNames) -> tuple[str, ...]:
    """Returns the names of the images and labels that a model learns; `inputs` are the names of its inputs.

    "auto": all labels but text, and the images of class numbers, without those among the inputs. Raises ConfigError for
    a name that the stream does not have, for text, and if every target is a label among the inputs.
    """
    names = _parse_names("targets", given, 'the name of a label or an image, a list of names, "auto" or None')
    if given == "auto":
        labels = [name for name, label in spec.labels.items() if label.type != "string"]
        masks = [name for name, image in spec.images.items() if image.mode == "index"]
        return tuple(name for name in (*labels, *masks) if name not in inputs)
    for name in names:
        _check_array_name(spec, name)
    # An image may be both: a model that learns to return its input is an autoencoder.
    if names and all(name in inputs and name in spec.labels for name in names):
        raise ConfigError(
            f"label {names[0]!r} of stream {spec.name!r} is both an input and a target, so the model would be given "
            "the answer: name it in inputs= or in targets= only"
        )
    return names


def find_label(spec: StreamSpec, name: str) -> LabelSpec:
    """Returns the label `name` of a stream. Raises ConfigError, which suggests a similar name, if there is none."""
    if name not in spec.labels:
        known = ", ".join(f"{label.name} ({label.type})" for label in spec.labels.values()) or "none"
        hint = suggest_name(name, spec.labels)
        raise ConfigError(f"stream {spec.name!r} has no label {name!r}; its labels are: {known}{hint}")
    return spec.labels[name]


def _check_array_name(spec: StreamSpec, name: str) -> None:
    """Raises ConfigError for a name that is neither an image nor a label, and for text."""
    if name in spec.images:
        return
    if name not in spec.labels:
        hint = suggest_name(name, (*spec.labels, *spec.images))
        raise ConfigError(f"stream {spec.name!r} has no label and no image {name!r}; {describe_arrays(spec)}{hint}")
    if spec.labels[name].type == "string":
        raise ConfigError(
            f"label {name!r} of stream {spec.name!r} is text, which no model takes; serve it as type category or tags, "
            "or read batch.labels yourself"
        )


def _parse_names(argument: str, given: ArrayNames, expected: str) -> tuple[str, ...]:
    """Returns each name once, in order. Raises ConfigError for anything but names and None."""
    is_names = isinstance(given, Collection) and all(isinstance(name, str) for name in given)
    if given is not None and (not is_names or isinstance(given, Mapping)):
        raise ConfigError(f"{argument} must be {expected}, not {given!r}")
    return (given,) if isinstance(given, str) else tuple(dict.fromkeys(given or ()))


# --- Weights of samples by their class, or of pixels by their class number.

GivenWeights = Mapping[int | str, float] | Literal["balanced"]

_SHOWN_CLASSES: Final = 5  # of a label, in a message


@dataclass(frozen=True, slots=True)
class ClassWeights:
    """The weights of the classes of one target: `table[number]`, float32 (classes,).

    The target is a label that is a category, or an image of class numbers, each pixel of which has its own weight.
    """

    target: str
    table: npt.NDArray[np.float32]


def build_class_weights(spec: StreamSpec, targets: tuple[str, ...], weights: GivenWeights) -> ClassWeights:
    """Returns the weights of the classes of the only target.

    Raises ConfigError for several targets, for a target without classes, and for weights that do not match its classes.
    """
    if len(targets) > 1:
        raise ConfigError(
            f"class_weight would weigh all {len(targets)} targets of stream {spec.name!r} by the class of one "
            f"({', '.join(targets)}): choose that one with targets="
        )
    if weights != "balanced" and not isinstance(weights, Mapping):
        raise ConfigError(f'class_weight is {{class: weight}}, or "balanced", not {weights!r}')
    name = targets[0] if targets else ""
    image, label = spec.images.get(name), spec.labels.get(name)
    # An image of class numbers: a weight for each number that its dtype holds, 1 where none is given.
    if image is not None and image.mode == "index":
        if weights == "balanced":
            raise ConfigError(
                "class_weight='balanced' needs the counts of classes, which are not known for the pixels of "
                f"{name!r}: give {{class number: weight}} instead"
            )
        table = np.ones(np.iinfo(image.dtype).max + 1, np.float32)
        for number, weight in weights.items():
            if isinstance(number, bool) or not _is_index(number, table.size):
                raise ConfigError(
                    f"class_weight: the classes of image {name!r} are the numbers 0 to {table.size - 1}, not {number!r}"
                )
            table[int(number)] = _parse_class_weight(number, weight)
        return ClassWeights(name, table)
    # A category: its samples say what is balanced, else each class is given by its value.
    if label is not None and label.type == "category" and not label.width:
        if weights != "balanced":
            return ClassWeights(name, _parse_class_weights(label, weights))
        if len(label.counts) != len(label.classes):
            raise ConfigError(
                f"class_weight='balanced' needs the counts of {label.name!r}: give {{class: weight}} instead"
            )
        counts = np.array(label.counts, dtype=np.float64)
        even = counts.sum() / max(1, np.count_nonzero(counts))
        balanced = np.divide(even, counts, out=np.ones_like(counts), where=counts > 0)
        return ClassWeights(name, balanced.astype(np.float32))
    raise ConfigError(
        "class_weight needs exactly one target that is a category, one value per sample, or an image of mode index; "
        f"{describe_arrays(spec)}; choose with targets="
    )


def describe_arrays(spec: StreamSpec) -> str:
    """Describes what a batch has: `the labels of stream 'train' are: angle (float), and its images: photo (RGB)`."""
    labels = ", ".join(f"{label.name} ({label.type})" for label in spec.labels.values()) or "none"
    images = ", ".join(f"{name} ({image.mode})" for name, image in spec.images.items())
    return f"the labels of stream {spec.name!r} are: {labels}; its images are: {images}"


def _parse_class_weights(label: LabelSpec, weights: Mapping[int | str, float]) -> npt.NDArray[np.float32]:
    """Returns the weight of each class of a category, 1 where none is given."""
    table = np.ones(len(label.classes), dtype=np.float32)
    names_by_index: dict[int, int | str] = {}
    are_named = all(isinstance(each, str) for each in label.classes)
    for name, weight in weights.items():
        # A class is given by its value; a named one may also be given by its number, as in Keras.
        if name in label.classes:
            index = label.classes.index(name)
        elif are_named and _is_index(name, len(label.classes)):
            index = int(name)
        else:
            hint = suggest_name(str(name), map(str, label.classes))
            numbers = f", or the numbers 0 to {len(label.classes) - 1}" if are_named else ""
            known = f"{format_list([repr(each) for each in label.classes], _SHOWN_CLASSES)}{numbers}"
            raise ConfigError(f"class_weight: {label.name!r} has no class {name!r}; its classes are: {known}{hint}")
        if index in names_by_index:
            raise ConfigError(
                f"class_weight gives class {label.classes[index]!r} of {label.name!r} twice, as "
                f"{names_by_index[index]!r} and as {name!r}: give it once"
            )
        names_by_index[index] = name
        table[index] = _parse_class_weight(name, weight)
    return table


def _is_index(given: object, count: int) -> bool:
    return isinstance(given, Integral) and 0 <= int(given) < count


def _parse_class_weight(name: int | str, weight: object) -> float:
    """Returns the weight of a class. Raises ConfigError for what is no number, or none that float32 holds."""
    if isinstance(weight, Real) and 0 <= float(weight) <= np.finfo(np.float32).max:
        return float(weight)
    raise ConfigError(f"class_weight: the weight of class {name!r} must be a finite number, 0 or more, not {weight!r}")


# --- A batch becomes the arrays of a model.

# What feeds a model: a stream, or held batches that stand in its place.
FeedStream = Stream | Replay


@dataclass(frozen=True, slots=True)
class ModelFeed:
    """Turns a batch into `(x,)`, `(x, y)` or `(x, y, weights)`, with the same structure for every batch.

    One input or target is an array, several are a dict by name.

    inputs: the images and labels that go into the model, by the names under which it receives them.
    targets: the names of the images and labels that it learns.
    value_ranks: the dimensions of the values of a usual loss for each target: 1 where there is one value per sample.
    one_hot: the number of classes of each target that is expanded, by name.
    weighted: weights are part of the structure.
    """

    inputs: Mapping[str, str]
    targets: tuple[str, ...] = ()
    value_ranks: Mapping[str, int] = field(default_factory=dict)
    one_hot: Mapping[str, int] = field(default_factory=dict)
    class_weights: ClassWeights | None = None
    weighted: bool = False

    @property
    def array_names(self) -> tuple[str, ...]:
        """The names of all images and labels that the model receives, each once."""
        return tuple(dict.fromkeys((*self.inputs.values(), *self.targets)))

    def build_arrays(self, batch: Batch) -> tuple[Any, ...]:
        """Returns the arrays of a batch.

        Raises StreamdError when a sample has a weight other than 1 and the structure has no weights.
        """
        x = unwrap_only_item({key: get_array(batch, name) for key, name in self.inputs.items()})
        targets: dict[str, Array] = {}
        for name in self.targets:
            values = get_array(batch, name)
            if name in self.one_hot:
                values = (values[..., None] == np.arange(self.one_hot[name])).astype(np.float32)
            targets[name] = values
        y = unwrap_only_item(targets) if targets else None
        if self.weighted:
            # Keras multiplies the values of a loss by weights of the same shape. Weights of another shape it
            # broadcasts, or counts too few of them when it divides by their sum. So there is a weight for each row, or
            # for each value of a usual loss if a target has several values per sample.
            if all(rank == 1 for rank in self.value_ranks.values()):
                return x, y, self._build_target_weights(batch, next(iter(self.targets), ""))
            return x, y, unwrap_only_item({name: self._build_target_weights(batch, name) for name in self.targets})
        if not (batch.weights == 1).all():
            raise StreamdError(
                f"batch {batch.epoch}:{batch.index} has samples of weight 0 (no image of it could be read, or it pads "
                "an uneven epoch), but this stream was not expected to have any: set  bad_samples: {policy: mask}  "
                'for it, and subscribe with uneven="drop"'
            )
        return (x, y) if self.targets else (x,)

    def _build_target_weights(self, batch: Batch, name: str) -> npt.NDArray[np.float32]:
        rank = self.value_ranks.get(name, 1)
        weights = batch.weights
        # The weight of each row for each of its values, in an array of its own.
        if rank > 1:
            weights = np.empty(get_array(batch, name).shape[:rank], np.float32)
            weights[...] = batch.weights.reshape(-1, *(1 for _ in weights.shape[1:]))
        if self.class_weights is None:
            return weights
        return weights * self.class_weights.table[get_array(batch, self.class_weights.target)]


def unwrap_only_item(items: dict[str, Any]) -> Any:
    """Returns the only array or tensor, or the dict of several or of none."""
    return next(iter(items.values())) if len(items) == 1 else items


def get_array(batch: Batch, name: str) -> Array:
    """Returns an image or a label of a batch by its name; no label has the name of an image."""
    return batch.labels[name] if name in batch.labels else batch.arrays[name]


def build_model_feed(
    spec: StreamSpec,
    *,
    inputs: ArrayNames = None,
    targets: ArrayNames = "auto",
    one_hot: bool = False,
    class_weight: GivenWeights | None = None,
) -> ModelFeed:
    """Decides, once for all batches, which arrays go to the model. Raises ConfigError for those the stream lacks.

    Weights are part of the structure if any sample can have a weight other than 1: samples or classes have weights, bad
    samples are masked, or the last batch is padded. The weights of a sample and of its class are multiplied.
    """
    chosen = choose_inputs(spec, inputs)
    names = choose_targets(spec, chosen.values(), targets)
    weights = None if class_weight is None else build_class_weights(spec, names, class_weight)
    # A usual loss has a value for each class number, and otherwise one over the numbers along the last axis, such as
    # the channels of a pixel or the numbers of a vector.
    value_ranks: dict[str, int] = {}
    for name in names:
        if name in spec.images:
            value_ranks[name] = len(spec.images[name].shape) + (1 if spec.images[name].mode == "index" else 0)
        else:
            label = spec.labels[name]
            value_ranks[name] = len(label.shape) + 1 if label.type == "category" else max(1, len(label.shape))
    if not isinstance(one_hot, bool | np.bool_):
        raise ConfigError(f"one_hot must be True or False, not {one_hot!r}")
    labels = [spec.labels[name] for name in names if name in spec.labels]
    categories = {label.name: len(label.classes) for label in labels if label.type == "category"}
    if one_hot and not categories:
        raise ConfigError(
            f"one_hot needs a target that is a category; {describe_arrays(spec)}. The class numbers of an image are "
            "taken as they are by a sparse loss"
        )
    return ModelFeed(
        inputs=chosen,
        targets=names,
        value_ranks=value_ranks,
        one_hot=categories if one_hot else {},
        class_weights=weights,
        weighted=weights is not None or spec.weighted or spec.bad_policy == "mask" or spec.remainder == "pad",
    )


def begins_anew(spec: StreamSpec, evaluate: object) -> bool:
    """Returns whether every pass of an adapter begins at index 0, by its argument `evaluate`. Raises ConfigError.

    None decides by the shuffle: a stream without one is for evaluation.
    """
    if evaluate is None:
        return spec.shuffle == "none"
    if not isinstance(evaluate, bool | np.bool_):
        raise ConfigError(
            f"evaluate={evaluate!r}: write True for passes that each begin at index 0, False for passes that are one "
            "epoch after the other, or None to let the stream's shuffle decide"
        )
    return bool(evaluate)


def check_is_stream(given: object, function: str) -> None:
    """Raises ConfigError, which shows the correct call of `function`, if `given` is not a stream."""
    if hasattr(given, "spec") and hasattr(given, "epochs"):
        return
    if hasattr(given, "subscribe"):
        what, remedy = "a client", f'{function}(client.subscribe("train"))'
    elif isinstance(given, str):
        what, remedy = f"the name {given!r}", f"{function}(client.subscribe({given!r}))"
    else:
        what, remedy = type(given).__name__, f'{function}(client.subscribe("train"))'
    raise ConfigError(f"{function} takes a stream, not {what}: write  {remedy}")


def add_class_weights(feed: ModelFeed, spec: StreamSpec, class_weight: GivenWeights) -> ModelFeed:
    """Returns the feed with `fit`'s class_weight, whose keys are the class numbers that the model sees.

    Raises ConfigError if it fits no target, or if a key is ambiguous: a class's own number, or its position among the
    classes.
    """
    weights = build_class_weights(spec, feed.targets, class_weight)
    classes = spec.labels[weights.target].classes if weights.target in spec.labels else ()
    are_positions = not classes or isinstance(classes[0], str) or classes == tuple(range(len(classes)))
    if class_weight != "balanced" and not are_positions:
        more = ", ..." if len(classes) > 3 else ""  # noqa: PLR2004 - enough to see what they are
        raise ConfigError(
            f"Keras numbers the classes of {weights.target!r} from 0, but the classes are "
            f"{', '.join(map(str, classes[:3]))}{more}: give  fit_data(stream, class_weight={{class: weight}}), which "
            "takes the classes by these numbers"
        )
    return replace(feed, class_weights=weights, weighted=True)


def build_blank_batch(spec: StreamSpec) -> Batch:
    """Builds a batch of black images, labels of value 0 and weights of 1, of the stream's full size, to build a model.

    Its images take no memory. It has no position in the stream.
    """
    rows = spec.batch_size
    arrays = {
        name: np.broadcast_to(np.zeros((), image.dtype), (rows, *image.shape)) for name, image in spec.images.items()
    }
    labels = {name: build_blank_label(label, rows) for name, label in spec.labels.items()}
    return Batch(arrays, labels, np.ones(rows, np.float32), np.full(rows, PAD_ID), (), 0, 0, str, spec)


# --- The numbers behind a stream's `normalize`, the same for every framework.


# ImageNet's training images, in 0-255. The weights of torchvision and of Keras's "torch" mode were trained with these.
IMAGENET_MEAN: Final = (123.675, 116.28, 103.53)
IMAGENET_STD: Final = (58.395, 57.12, 57.375)
# The mean and the std of all channels, in parts of the range from black to white.
_EVEN_SCALINGS: Final = {"unit": (0.0, 1.0), "minus_one_one": (0.5, 0.5)}
_LEVELS: Final = 255.0  # of the numbers of ImageNet
_REPORTED: Final[set[tuple[str, str]]] = set()  # streams and images whose layer changes nothing, as a line has said


@dataclass(frozen=True, slots=True)
class PixelScaling:
    """(pixel - mean) / std for each channel, in the numbers of a batch. `even`: all channels share mean and std."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    even: bool = False


def compute_pixel_scaling(spec: StreamSpec, image: str | None = None) -> PixelScaling:
    """Returns the scaling of the numbers of an image of a stream: the one called `image`, or the first.

    Where the stream has normalize none, which scales nothing, a line on stderr says so once. Raises ConfigError for an
    image that does not exist or holds class numbers, for a `normalize` that this version does not know, and for numbers
    that do not match the image's channels.
    """
    name = next(iter(spec.images)) if image is None else image
    shown = spec.images.get(name)
    if shown is None:
        near = suggest_name(name, spec.images)
        raise ConfigError(f"stream {spec.name!r} has no image {name!r}; its images are {', '.join(spec.images)}{near}")
    if shown.mode == "index":
        raise ConfigError(
            f"stream {spec.name!r}: {name!r} holds class numbers, which are not normalized; name an image of pixels"
        )
    # A stream of one image has one `normalize`. Trainers may replace it in the stream's specification.
    normalize = spec.normalize if len(spec.images) == 1 else shown.normalize
    low, high = get_number_range(shown)
    width = high - low
    # Each channel has numbers of its own.
    if normalize == "imagenet" or isinstance(normalize, Mapping):
        if isinstance(normalize, Mapping):
            mean, std = normalize["mean"], normalize["std"]
        else:
            mean = [low + width * (level / _LEVELS) for level in IMAGENET_MEAN]
            std = [width * (level / _LEVELS) for level in IMAGENET_STD]
        if not len(mean) == len(std) == shown.channels:
            raise ConfigError(
                f"stream {spec.name!r}: normalize has {format_count(len(mean), 'mean')} and "
                f"{format_count(len(std), 'deviation')} for {format_count(shown.channels, 'channel')}"
            )
        return PixelScaling(tuple(mean), tuple(std))
    if normalize == "none":
        if (spec.name, name) not in _REPORTED:
            _REPORTED.add((spec.name, name))
            numbers = f"{low:g} to {high:g}" if shown.dtype != "float32" else "as they are stored"
            print_stderr_line(
                f"normalization changes nothing: stream {spec.name!r} has  normalize: none  for {name!r}, so the "
                f"model gets its numbers {numbers}; write  normalize: unit  (0 to 1) or another one in the "
                "configuration, or leave the layer out"
            )
        return PixelScaling((0.0,) * shown.channels, (1.0,) * shown.channels, even=True)
    if normalize not in _EVEN_SCALINGS:
        near = suggest_name(normalize, ["none", *_EVEN_SCALINGS, "imagenet"])
        raise ConfigError(f"stream {spec.name!r}: there is no normalize setting {normalize!r}{near}")
    part, parts = _EVEN_SCALINGS[normalize]
    return PixelScaling((low + width * part,) * shown.channels, (width * parts,) * shown.channels, even=True)
