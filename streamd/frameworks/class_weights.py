"""Weights of samples by their class, or of pixels by their class number. Pure NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from streamd.core.spec import ImageSpec, LabelSpec, StreamSpec
from streamd.core.text import format_list
from streamd.errors import ConfigError, suggest_name

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
