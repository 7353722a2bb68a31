"""What `streamd-train` learns: a label, or an image of every sample. Needs no Keras."""

from __future__ import annotations

from dataclasses import dataclass

from streamd.core.spec import ImageSpec, LabelSpec, StreamSpec
from streamd.errors import ConfigError
from streamd.frameworks.model_inputs import find_label


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
        return _check_is_learnable(find_label(spec, name))
    learnable = [label for label in spec.labels.values() if label.type != "string" and not label.is_ragged]
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


def _check_is_learnable(label: LabelSpec) -> LabelSpec:
    """Returns the label. Raises ConfigError for text, boxes and points."""
    if label.type == "string":
        raise ConfigError(f"label {label.name!r} is text, which cannot be learned: serve it as type category or tags")
    if label.is_ragged:
        raise ConfigError(
            f"label {label.name!r} holds {label.type}, for which streamd-train has no model and no loss: write a "
            "training program with fit_data or loader, or choose another label"
        )
    return label


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
