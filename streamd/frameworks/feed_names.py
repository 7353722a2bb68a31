"""Chooses which images and labels of a stream go into a model, and which it learns. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from streamd.core.spec import ImageSpec, LabelSpec, StreamSpec
from streamd.core.text import format_list
from streamd.errors import ConfigError, suggest_name

ArrayNames = str | Sequence[str] | None  # names of images and labels

IMAGES: Final = "images"  # the first image among a model's inputs, where only labels are named


def choose_inputs(spec: StreamSpec, given: ArrayNames) -> dict[str, str]:
    """Returns the inputs of a model: the images and labels by the names under which it receives them.

    None: all images but those of class numbers. Labels alone: the first image as "images", and these. Otherwise what is
    named. Raises ConfigError for a name that the stream does not have, and for text.
    """
    _check_are_names("inputs", given, "the name of an image or a label, a list of names or None")
    names = _list_names(given)
    for name in names:
        _check_input_name(spec, name)
    if not names:
        return {name: name for name in _list_pictures(spec)}
    if any(name in spec.images for name in names):
        return {name: name for name in names}
    if IMAGES in names:
        raise ConfigError(
            f"inputs={_format_names(names)}: the first image is an input called {IMAGES!r}, as a label of stream "
            f"{spec.name!r} is called: name the image too, as in  inputs={_format_names((*spec.images, *names))}"
        )
    return {IMAGES: next(iter(spec.images)), **{name: name for name in names}}


def choose_targets(spec: StreamSpec, inputs: Collection[str], given: ArrayNames) -> tuple[str, ...]:
    """Returns the names of the images and labels that a model learns; `inputs` are the names of its inputs.

    "auto": all labels but text, and the images of class numbers, without those among the inputs. Raises ConfigError for
    a name that the stream does not have, for text, and if every target is a label among the inputs.
    """
    _check_are_names("targets", given, 'the name of a label or an image, a list of names, "auto" or None')
    if given == "auto":
        labels = [name for name, label in spec.labels.items() if label.type != "string"]
        masks = [name for name, image in spec.images.items() if image.mode == "index"]
        return tuple(name for name in (*labels, *masks) if name not in inputs)
    names = _list_names(given)
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


def _list_pictures(spec: StreamSpec) -> list[str]:
    pictures = [name for name, image in spec.images.items() if image.mode != "index"]
    if not pictures:
        first = next(iter(spec.images))
        raise ConfigError(
            f"all images of stream {spec.name!r} hold class numbers ({', '.join(spec.images)}), which go into a model "
            f"only where they are named, as in  inputs=[{first!r}]"
        )
    return pictures


def _check_input_name(spec: StreamSpec, name: str) -> None:
    if name == IMAGES and name not in (*spec.images, *spec.labels):
        raise ConfigError(
            f"inputs= names images and labels of the stream, and none is called {IMAGES!r}: name labels alone, and the "
            f"first image goes in with them as {IMAGES!r}; or name each image by its own name ({describe_arrays(spec)})"
        )
    _check_array_name(spec, name)


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


def _check_are_names(argument: str, given: object, expected: str) -> None:
    is_names = isinstance(given, Collection) and all(isinstance(name, str) for name in given)
    if given is not None and (not is_names or isinstance(given, Mapping)):
        raise ConfigError(f"{argument} must be {expected}, not {given!r}")


def _list_names(given: ArrayNames) -> tuple[str, ...]:
    """Returns each name once, in order."""
    return (given,) if isinstance(given, str) else tuple(dict.fromkeys(given or ()))


def _format_names(names: Sequence[str]) -> str:
    return f"[{', '.join(map(repr, names))}]"


# --- Weights of samples by their class, or of pixels by their class number. Pure NumPy.


Array = npt.NDArray[Any]
GivenWeights = Mapping[int | str, float] | Literal["balanced"]

_SHOWN_CLASSES: Final = 5  # of a label, in a message


@dataclass(frozen=True, slots=True)
class ClassWeights:
    """The weights of the classes of one target: `table[number]`, float32 (classes,).

    The target is a label that is a category, or an image of class numbers, each pixel of which has its own weight.
    """

    target: str
    table: npt.NDArray[np.float32]

    def lookup_weights(self, numbers: Array) -> npt.NDArray[np.float32]:
        """Returns the weight of each class number, float32 of the same shape."""
        return self.table[numbers]


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
    if image is not None and image.mode == "index":
        return ClassWeights(name, _parse_number_weights(name, image, weights))
    if label is not None and label.type == "category" and not label.width:
        return ClassWeights(name, _build_label_table(label, weights))
    raise ConfigError(
        "class_weight needs exactly one target that is a category, one value per sample, or an image of mode index; "
        f"{describe_arrays(spec)}; choose with targets="
    )


def check_keras_class_numbers(spec: StreamSpec, weights: ClassWeights) -> None:
    """Raises ConfigError if a key of `fit(class_weight=...)` is ambiguous: a class's own number, or its position."""
    classes = spec.labels[weights.target].classes if weights.target in spec.labels else ()
    if classes and classes != tuple(range(len(classes))) and not isinstance(classes[0], str):
        more = ", ..." if len(classes) > 3 else ""  # noqa: PLR2004 - enough to see what they are
        raise ConfigError(
            f"Keras numbers the classes of {weights.target!r} from 0, but the classes are "
            f"{', '.join(map(str, classes[:3]))}{more}: give  fit_data(stream, class_weight={{class: weight}}), which "
            "takes the classes by these numbers"
        )


def describe_arrays(spec: StreamSpec) -> str:
    """Describes what a batch has: `the labels of stream 'train' are: angle (float), and its images: photo (RGB)`."""
    labels = ", ".join(f"{label.name} ({label.type})" for label in spec.labels.values()) or "none"
    images = ", ".join(f"{name} ({image.mode})" for name, image in spec.images.items())
    return f"the labels of stream {spec.name!r} are: {labels}; its images are: {images}"


def _parse_number_weights(name: str, image: ImageSpec, weights: GivenWeights) -> npt.NDArray[np.float32]:
    """Returns the weight of each number that the image's dtype holds; 1 where none is given."""
    if weights == "balanced":
        raise ConfigError(
            f"class_weight='balanced' needs the counts of classes, which are not known for the pixels of {name!r}: "
            "give {class number: weight} instead"
        )
    table = np.ones(np.iinfo(image.dtype).max + 1, np.float32)
    for number, weight in weights.items():
        if not _is_class_number(number, table.size):
            raise ConfigError(
                f"class_weight: the classes of image {name!r} are the numbers 0 to {table.size - 1}, not {number!r}"
            )
        table[int(number)] = _parse_class_weight(number, weight)
    return table


def _is_class_number(given: object, numbers: int) -> bool:
    return type(given) is not bool and isinstance(given, Integral) and 0 <= int(given) < numbers


def _build_label_table(label: LabelSpec, weights: GivenWeights) -> npt.NDArray[np.float32]:
    return _compute_balanced_weights(label) if weights == "balanced" else _parse_class_weights(label, weights)


def _compute_balanced_weights(label: LabelSpec) -> npt.NDArray[np.float32]:
    if len(label.counts) != len(label.classes):
        raise ConfigError(f"class_weight='balanced' needs the counts of {label.name!r}: give {{class: weight}} instead")
    counts = np.array(label.counts, dtype=np.float64)
    even = counts.sum() / max(1, np.count_nonzero(counts))
    return np.asarray(np.divide(even, counts, out=np.ones_like(counts), where=counts > 0), np.float32)


def _parse_class_weights(label: LabelSpec, weights: Mapping[int | str, float]) -> npt.NDArray[np.float32]:
    table = np.ones(len(label.classes), dtype=np.float32)
    names_by_index: dict[int, int | str] = {}
    for name, weight in weights.items():
        index = _find_class_index(label, name)
        if index in names_by_index:
            raise ConfigError(
                f"class_weight gives class {label.classes[index]!r} of {label.name!r} twice, as "
                f"{names_by_index[index]!r} and as {name!r}: give it once"
            )
        names_by_index[index] = name
        table[index] = _parse_class_weight(name, weight)
    return table


def _parse_class_weight(name: int | str, weight: object) -> float:
    """Returns the weight of a class. Raises ConfigError for what is no number, or none that float32 holds."""
    if isinstance(weight, Real) and 0 <= float(weight) <= np.finfo(np.float32).max:
        return float(weight)
    raise ConfigError(f"class_weight: the weight of class {name!r} must be a finite number, 0 or more, not {weight!r}")


def _find_class_index(label: LabelSpec, name: object) -> int:
    """Returns the position of a class, given by its value; a named class may also be given by number, as in Keras."""
    if name in label.classes:
        return label.classes.index(name)
    named = all(isinstance(known, str) for known in label.classes)
    if named and isinstance(name, Integral) and 0 <= int(name) < len(label.classes):
        return int(name)
    hint = suggest_name(str(name), map(str, label.classes))
    numbers = f", or the numbers 0 to {len(label.classes) - 1}" if named else ""
    known = f"{format_list([repr(each) for each in label.classes], _SHOWN_CLASSES)}{numbers}"
    raise ConfigError(f"class_weight: {label.name!r} has no class {name!r}; its classes are: {known}{hint}")
