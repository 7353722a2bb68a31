"""Chooses which images and labels of a stream go into a model, and which it learns. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from streamd.core.spec import LabelSpec, StreamSpec
from streamd.errors import ConfigError, suggest_name
from streamd.frameworks.class_weights import describe_arrays

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
