"""What the models refuse, in sentences that say what was found and what is allowed. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from pydantic_core import ErrorDetails

from streamd.config.fields import Model
from streamd.config.problems import Keys, Problem
from streamd.config.schema import Config, StreamConfig
from streamd.config.schema_parts import PARTS, BadSamplesConfig, ImageConfig, LabelConfig, ShuffleConfig
from streamd.config.schema_sources import SOURCES
from streamd.config.units import show
from streamd.errors import near_name

_HINTS: Final[dict[str | int, str]] = {
    "source": "say where the samples are, such as source: {kind: folder, path: data/train}",
    "path": "say where the data is, relative to the file",
    "image": "name the column that holds the file names",
    "images": "name the array that holds the images",
    "type": "use category, int, float, string or tags",
    "mean": "mean and std come together, one number a channel, in 0-255",
    "std": "mean and std come together, one number a channel, in 0-255",
    "validation": "give the fraction held back, such as 0.2",
}


def explain(errors: Iterable[ErrorDetails]) -> list[Problem]:
    """One problem for each of a validation's errors."""
    return [Problem(_keys(error["loc"]), _sentence(error)) for error in errors]


def _keys(place: Keys) -> Keys:
    """The keys as they are written: without the marks that tell the members of a union apart."""
    if place[2:3] == ("source",) and place[3:4] and place[3] in SOURCES:
        place = (*place[:3], *place[4:])
    return tuple(key for key in place if key not in {"<name>", "<values>", "[key]"})


def _sentence(error: ErrorDetails) -> str:
    tell = _SENTENCES.get(error["type"])
    return tell(error) if tell else f"found {show(error['input'])}; {error['msg'].lower()}"


def _missing(place: Keys) -> str:
    key = place[-1]
    return f"is missing; {_HINTS[key]}" if key in _HINTS else "is missing"


def _choice(value: object, expected: str) -> str:
    choices = re.findall(r"'([^']*)'", expected)
    return f"found {show(value)}; use {_either(choices)}{near_name(str(value), choices)}"


def _either(choices: list[str]) -> str:
    return " or ".join([", ".join(choices[:-1]), choices[-1]]) if len(choices) > 1 else choices[0]


def _known(model: type[Model]) -> list[str]:
    """The keys of `model` as they are written."""
    names = [field.alias or name for name, field in model.model_fields.items()]
    return [*(name for name in names if name != "name"), "like"] if model is StreamConfig else names


_HOMES: Final[dict[type[Model], str]] = {
    StreamConfig: "a stream: write it below streams.NAME",
    Config: "the whole file: write it at the top level",
    ImageConfig: "image: write it as image: {KEY: ...}",
    ShuffleConfig: "shuffle: write it as shuffle: {KEY: ...}",
    BadSamplesConfig: "bad_samples: write it as bad_samples: {KEY: ...}",
}


def _owner(place: Keys) -> type[Model]:
    """The model that the unknown key at `place` was found in."""
    match place[:-1]:
        case ("streams", _):
            return StreamConfig
        case ("streams", _, "source", str(kind), *_):
            return SOURCES[kind]
        case ("streams", _, "labels", *_):
            return LabelConfig
        case ("streams", _, str(part), *_) | (str(part), *_):
            return PARTS[part]
    return Config


def _unknown_key(place: Keys, value: object) -> str:
    owner, key = _owner(place), str(place[-1])
    if owner is Config and isinstance(value, Mapping) and {"source", "like"} & value.keys():
        return "unknown key; it looks like a stream: write it below streams"
    for model, home in _HOMES.items():
        if model is not owner and key != "kind" and key in _known(model):  # too many have a kind
            return f"is a key of {home.replace('KEY', key)}"
    known = _known(owner)
    return f"unknown key{near_name(key, known) or f'; use {_either(known)}'}"


def _needs(what: str) -> Callable[[ErrorDetails], str]:
    return lambda error: f"found {show(error['input'])}; {what}"


_SENTENCES: Final[dict[str, Callable[[ErrorDetails], str]]] = {
    "value_error": lambda error: str(error["ctx"]["error"]),
    "refused": lambda error: str(error["ctx"]["why"]),
    "missing": lambda error: _missing(error["loc"]),
    "extra_forbidden": lambda error: _unknown_key(error["loc"], error["input"]),
    "literal_error": lambda error: _choice(error["input"], str(error["ctx"]["expected"])),
    "union_tag_invalid": lambda error: f"kind: {_choice(error['ctx']['tag'], str(error['ctx']['expected_tags']))}",
    "union_tag_not_found": lambda _: f"kind is missing; use {_either(list(SOURCES))}",
    "bool_type": _needs("use true or false"),
    "invalid_key": _needs("a key is text, put it in quotes"),
    "string_type": _needs("a text is needed, put it in quotes"),
    **dict.fromkeys(
        ("model_type", "dict_type", "model_attributes_type"), _needs("keys are needed, as in {key: value}")
    ),
}
