"""What the models refuse, in sentences that say what was found and what is allowed. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from pydantic_core import ErrorDetails

from streamd.config.fields import Model
from streamd.config.hints import ELSEWHERE, EXAMPLES, MISSING, SHORT, meant, switch
from streamd.config.locations import Keys, Problem
from streamd.config.schema import Config, StreamConfig
from streamd.config.schema_sections import PARTS, LabelConfig
from streamd.config.schema_sources import SOURCES
from streamd.config.units import show
from streamd.errors import suggest_name


def explain(errors: Iterable[ErrorDetails]) -> list[Problem]:
    """One problem for each of a validation's errors, but none for a key that is missing because it is misspelled."""
    errors = list(errors)
    misspelled = {wanted for error in errors if error["type"] == "extra_forbidden" for wanted in _wanted(error)}
    return [
        Problem(_keys(error["loc"]), _sentence(error))
        for error in errors
        if error["type"] != "missing" or error["loc"] not in misspelled
    ]


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
    return f"is missing; {MISSING[key]}" if key in MISSING else "is missing"


def _choice(value: object, expected: str, also: str = "") -> str:
    choices = re.findall(r"'([^']*)'", expected)
    return f"found {show(value)}; use {_either([*choices, also] if also else choices)}{meant(value, choices)}"


def _either(choices: list[str]) -> str:
    return " or ".join([", ".join(choices[:-1]), choices[-1]]) if len(choices) > 1 else choices[0]


def _literal(error: ErrorDetails) -> str:
    also = "{mean: [r, g, b], std: [r, g, b]}" if _keys(error["loc"])[-1] == "normalize" else ""
    return _choice(error["input"], str(error["ctx"]["expected"]), also)


def _known(model: type[Model]) -> list[str]:
    """The keys of `model` as they are written."""
    names = [field.alias or name for name, field in model.model_fields.items()]
    return [*(name for name in names if name != "name"), "like"] if model is StreamConfig else names


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


def _wanted(error: ErrorDetails) -> Iterator[Keys]:
    """The places of the keys that an unknown key stands for."""
    *above, key = error["loc"]
    owner = _owner(error["loc"])
    if owner is Config and (key == "stream" or _looks_like_a_stream(error["input"]) or key in _known(StreamConfig)):
        yield ("streams",)
    meant = suggest_name(str(key), _known(owner))
    yield from ((*above, known) for known in _known(owner) if repr(known) in meant)


def _looks_like_a_stream(value: object) -> bool:
    return isinstance(value, Mapping) and not {"source", "like"}.isdisjoint(value)


def _unknown_key(place: Keys, value: object) -> str:
    owner, key = _owner(place), str(place[-1])
    if owner is Config and _looks_like_a_stream(value):
        return "unknown key; it looks like a stream: write it below streams"
    if owner in SOURCES.values() and (kinds := _kinds_with(key, value)) and not _plural(key, owner):
        return f"belongs to kind {_either(kinds)}, and kind is {place[3]}; leave it out, or change the kind"
    if (home := _home(owner, key)) is not None:
        return f"is a key of {home}"
    if ":" in key:
        return "unknown key; put a space behind the colon"
    if key.casefold() in ELSEWHERE and key.casefold() not in map(str.casefold, _known(owner)):
        return f"unknown key; {ELSEWHERE[key.casefold()]}"
    return f"unknown key{suggest_name(key, _known(owner)) or f'; use {_either(_known(owner))}'}"


def _kinds_with(key: str, value: object = None) -> list[str]:
    """The kinds of sources that have a key; an `image` with keys of its own is a stream's."""
    if key == "image" and isinstance(value, Mapping):
        return []
    return [kind for kind, model in SOURCES.items() if key in _known(model)]


def _plural(key: str, owner: type[Model]) -> bool:
    """Whether a key of `owner` differs by nothing but an s: `image` is meant, not another kind's `images`."""
    return not {f"{key}s", key.removesuffix("s")}.isdisjoint(_known(owner))


def _home(owner: type[Model], key: str) -> str | None:
    """Where a key belongs that is written in another place; None when it belongs nowhere, or in too many."""
    if owner is not StreamConfig and key in _known(StreamConfig):
        return "a stream: write it below streams.NAME"
    if owner is not Config and key in _known(Config):
        return "the whole file: write it at the top level"
    if owner is StreamConfig and _kinds_with(key):
        return f"source: write it as source: {{{key}: ...}}"
    part = next((name for name, model in PARTS.items() if model is not owner and key in _known(model)), None)
    if part is not None and key != "kind":
        return f"{part}: write it as {part}: {{{key}: ...}}"
    if owner is not LabelConfig and key in _known(LabelConfig):
        return f"a label: write it as labels: {{NAME: {{{key}: ...}}}}"
    return None


def _needs_keys(error: ErrorDetails) -> str:
    place, value = _keys(error["loc"]), error["input"]
    if place[-1] in SHORT:
        words = SHORT[place[-1]]
        return f"found {show(value)}; use {_either([*words, EXAMPLES[place[-1]]])}{meant(value, words)}"
    if len(place) == len(("streams", "NAME")):
        example = f"{place[-1]}: {{{EXAMPLES['source']}, {EXAMPLES['image']}}}"
    elif place[-2:-1] == ("labels",):
        example = f"{place[-1]}: category"
    else:
        example = EXAMPLES.get(place[-1], "{key: value}")
    need = "indent its keys below it, or write" if value is None else "keys are needed, as in"
    return f"found {show(value)}; {need} {example}"


def _needs(what: str) -> Callable[[ErrorDetails], str]:
    return lambda error: f"found {show(error['input'])}; {what}"


_SENTENCES: Final[dict[str, Callable[[ErrorDetails], str]]] = {
    "value_error": lambda error: str(error["ctx"]["error"]),
    "refused": lambda error: str(error["ctx"]["why"]),
    "missing": lambda error: _missing(error["loc"]),
    "extra_forbidden": lambda error: _unknown_key(error["loc"], error["input"]),
    "literal_error": _literal,
    "union_tag_invalid": lambda error: f"kind: {_choice(error['ctx']['tag'], str(error['ctx']['expected_tags']))}",
    "union_tag_not_found": lambda _: f"kind is missing; use {_either(list(SOURCES))}",
    "bool_type": lambda error: f"found {show(error['input'])}; use true or false{switch(error['input'])}",
    "invalid_key": _needs("a key is text, put it in quotes"),
    "string_type": _needs("a text is needed, put it in quotes"),
    **dict.fromkeys(("model_type", "dict_type", "model_attributes_type"), _needs_keys),
}
