"""What the models refuse, in sentences that say what was found and what is allowed. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from pydantic_core import ErrorDetails

from streamd.config.fields import ConfigModel
from streamd.config.hints import (
    FOREIGN_KEYS,
    KEY_EXAMPLES,
    MISSING_KEY_HINTS,
    SHORT_FORMS,
    suggest_boolean,
    suggest_choice,
)
from streamd.config.locations import ConfigProblem, KeyPath
from streamd.config.schema import Config, StreamConfig
from streamd.config.schema_sections import SECTION_MODELS, LabelConfig
from streamd.config.schema_sources import SOURCE_MODELS
from streamd.config.units import format_value
from streamd.errors import suggest_name


def explain_errors(errors: Iterable[ErrorDetails]) -> list[ConfigProblem]:
    """One problem for each of a validation's errors, but none for a key that is missing because it is misspelled."""
    errors = list(errors)
    misspelled = {
        wanted for error in errors if error["type"] == "extra_forbidden" for wanted in _find_intended_keys(error)
    }
    return [
        ConfigProblem(_strip_union_marks(error["loc"]), _format_sentence(error))
        for error in errors
        if error["type"] != "missing" or error["loc"] not in misspelled
    ]


def _strip_union_marks(place: KeyPath) -> KeyPath:
    """The keys as they are written: without the marks that tell the members of a union apart."""
    if place[2:3] == ("source",) and place[3:4] and place[3] in SOURCE_MODELS:
        place = (*place[:3], *place[4:])
    return tuple(key for key in place if key not in {"<name>", "<values>", "[key]"})


def _format_sentence(error: ErrorDetails) -> str:
    tell = _SENTENCE_FORMATTERS.get(error["type"])
    return tell(error) if tell else f"found {format_value(error['input'])}; {error['msg'].lower()}"


def _format_missing_key(place: KeyPath) -> str:
    key = place[-1]
    return f"is missing; {MISSING_KEY_HINTS[key]}" if key in MISSING_KEY_HINTS else "is missing"


def _format_choice(value: object, expected: str, also: str = "") -> str:
    choices = re.findall(r"'([^']*)'", expected)
    return (
        f"found {format_value(value)}; use "
        f"{_join_choices([*choices, also] if also else choices)}{suggest_choice(value, choices)}"
    )


def _join_choices(choices: list[str]) -> str:
    return " or ".join([", ".join(choices[:-1]), choices[-1]]) if len(choices) > 1 else choices[0]


def _format_literal_error(error: ErrorDetails) -> str:
    also = "{mean: [r, g, b], std: [r, g, b]}" if _strip_union_marks(error["loc"])[-1] == "normalize" else ""
    return _format_choice(error["input"], str(error["ctx"]["expected"]), also)


def _list_known_keys(model: type[ConfigModel]) -> list[str]:
    """The keys of `model` as they are written."""
    names = [field.alias or name for name, field in model.model_fields.items()]
    return [*(name for name in names if name != "name"), "like"] if model is StreamConfig else names


def _find_owner_model(place: KeyPath) -> type[ConfigModel]:
    """The model that the unknown key at `place` was found in."""
    match place[:-1]:
        case ("streams", _):
            return StreamConfig
        case ("streams", _, "source", str(kind), *_):
            return SOURCE_MODELS[kind]
        case ("streams", _, "labels", *_):
            return LabelConfig
        case ("streams", _, str(part), *_) | (str(part), *_):
            return SECTION_MODELS[part]
    return Config


def _find_intended_keys(error: ErrorDetails) -> Iterator[KeyPath]:
    """The places of the keys that an unknown key stands for."""
    *above, key = error["loc"]
    owner = _find_owner_model(error["loc"])
    if owner is Config and (
        key == "stream" or _looks_like_a_stream(error["input"]) or key in _list_known_keys(StreamConfig)
    ):
        yield ("streams",)
    meant = suggest_name(str(key), _list_known_keys(owner))
    yield from ((*above, known) for known in _list_known_keys(owner) if repr(known) in meant)


def _looks_like_a_stream(value: object) -> bool:
    return isinstance(value, Mapping) and not {"source", "like"}.isdisjoint(value)


def _format_unknown_key(place: KeyPath, value: object) -> str:
    owner, key = _find_owner_model(place), str(place[-1])
    if owner is Config and _looks_like_a_stream(value):
        return "unknown key; it looks like a stream: write it below streams"
    if (
        owner in SOURCE_MODELS.values()
        and (kinds := _list_kinds_with_key(key, value))
        and not _is_plural_of_known(key, owner)
    ):
        return f"belongs to kind {_join_choices(kinds)}, and kind is {place[3]}; leave it out, or change the kind"
    if (home := _find_home_of_key(owner, key)) is not None:
        return f"is a key of {home}"
    if ":" in key:
        return "unknown key; put a space behind the colon"
    if key.casefold() in FOREIGN_KEYS and key.casefold() not in map(str.casefold, _list_known_keys(owner)):
        return f"unknown key; {FOREIGN_KEYS[key.casefold()]}"
    return (
        f"unknown key{suggest_name(key, _list_known_keys(owner)) or f'; use {_join_choices(_list_known_keys(owner))}'}"
    )


def _list_kinds_with_key(key: str, value: object = None) -> list[str]:
    """The kinds of sources that have a key; an `image` with keys of its own is a stream's."""
    if key == "image" and isinstance(value, Mapping):
        return []
    return [kind for kind, model in SOURCE_MODELS.items() if key in _list_known_keys(model)]


def _is_plural_of_known(key: str, owner: type[ConfigModel]) -> bool:
    """Whether a key of `owner` differs by nothing but an s: `image` is meant, not another kind's `images`."""
    return not {f"{key}s", key.removesuffix("s")}.isdisjoint(_list_known_keys(owner))


def _find_home_of_key(owner: type[ConfigModel], key: str) -> str | None:
    """Where a key belongs that is written in another place; None when it belongs nowhere, or in too many."""
    if owner is not StreamConfig and key in _list_known_keys(StreamConfig):
        return "a stream: write it below streams.NAME"
    if owner is not Config and key in _list_known_keys(Config):
        return "the whole file: write it at the top level"
    if owner is StreamConfig and _list_kinds_with_key(key):
        return f"source: write it as source: {{{key}: ...}}"
    part = next(
        (name for name, model in SECTION_MODELS.items() if model is not owner and key in _list_known_keys(model)), None
    )
    if part is not None and key != "kind":
        return f"{part}: write it as {part}: {{{key}: ...}}"
    if owner is not LabelConfig and key in _list_known_keys(LabelConfig):
        return f"a label: write it as labels: {{NAME: {{{key}: ...}}}}"
    return None


def _format_needed_keys(error: ErrorDetails) -> str:
    place, value = _strip_union_marks(error["loc"]), error["input"]
    if place[-1] in SHORT_FORMS:
        words = SHORT_FORMS[place[-1]]
        return (
            f"found {format_value(value)}; use "
            f"{_join_choices([*words, KEY_EXAMPLES[place[-1]]])}{suggest_choice(value, words)}"
        )
    if len(place) == len(("streams", "NAME")):
        example = f"{place[-1]}: {{{KEY_EXAMPLES['source']}, {KEY_EXAMPLES['image']}}}"
    elif place[-2:-1] == ("labels",):
        example = f"{place[-1]}: category"
    else:
        example = KEY_EXAMPLES.get(place[-1], "{key: value}")
    need = "indent its keys below it, or write" if value is None else "keys are needed, as in"
    return f"found {format_value(value)}; {need} {example}"


def _build_need_formatter(what: str) -> Callable[[ErrorDetails], str]:
    return lambda error: f"found {format_value(error['input'])}; {what}"


_SENTENCE_FORMATTERS: Final[dict[str, Callable[[ErrorDetails], str]]] = {
    "value_error": lambda error: str(error["ctx"]["error"]),
    "refused": lambda error: str(error["ctx"]["why"]),
    "missing": lambda error: _format_missing_key(error["loc"]),
    "extra_forbidden": lambda error: _format_unknown_key(error["loc"], error["input"]),
    "literal_error": _format_literal_error,
    "union_tag_invalid": lambda error: (
        f"kind: {_format_choice(error['ctx']['tag'], str(error['ctx']['expected_tags']))}"
    ),
    "union_tag_not_found": lambda _: f"kind is missing; use {_join_choices(list(SOURCE_MODELS))}",
    "bool_type": lambda error: (
        f"found {format_value(error['input'])}; use true or false{suggest_boolean(error['input'])}"
    ),
    "invalid_key": _build_need_formatter("a key is text, put it in quotes"),
    "string_type": _build_need_formatter("a text is needed, put it in quotes"),
    **dict.fromkeys(("model_type", "dict_type", "model_attributes_type"), _format_needed_keys),
}
