"""What is said of a mistake in a configuration: one table from pydantic's type of error to a sentence, and the hints.

A hint is the end of a sentence, from its semicolon on, or empty: for words of other tools, keys in the wrong place and
values in another form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, get_args

from pydantic_core import ErrorDetails

from streamd.config.fields import MAX_SIDE, ConfigModel, is_host_port
from streamd.config.locations import ConfigProblem, KeyPath
from streamd.config.schema import Config, StreamConfig
from streamd.config.schema_sections import SECTION_MODELS, SOURCE_MODELS, EngineKind, LabelConfig
from streamd.config.units import format_bytes, format_yaml_value
from streamd.core.spec import Shuffle
from streamd.core.text import is_encodable
from streamd.errors import suggest_name
from streamd.limits import MAX_FRAMES

_MOST_SIDES: Final = 2  # height and width

# Examples for keys that need a mapping.
KEY_EXAMPLES: Final[dict[str | int, str]] = {
    "streams": "streams: {train: {source: {kind: folder, path: data/train}, image: {size: [128, 128]}}}",
    "source": "source: {kind: folder, path: data/train}",
    "where": "where: {split: train}",
    "split": "split: {validation: 0.2}",
    "labels": "labels: {label: category}",
    "image": "image: {size: [128, 128]}",
    "shuffle": "{kind: full, seed: 0}",
    "bad_samples": "bad_samples: {policy: mask, max_fraction: 0.01}",
    "cache": "cache: {path: cache/train, max: 20GiB}",
    "curve": "curve: {secret: keys/daemon.secret, clients: keys/clients}",
    "engine": "{kind: ray, address: auto}",
}

# Keys whose mapping may be written as one word.
SHORT_FORMS: Final[dict[str | int, list[str]]] = {
    "shuffle": list(get_args(Shuffle)),
    "engine": list(get_args(EngineKind)),
}

MISSING_KEY_HINTS: Final[dict[str | int, str]] = {
    "streams": f"add at least one: {KEY_EXAMPLES['streams']}",
    "source": f"say where the samples are, such as {KEY_EXAMPLES['source']}",
    "path": "say where the data is, relative to the file",
    "image": "give the column that holds the file names",
    "images": "give the array that holds the images",
    "type": "use category, int, float, string, tags, boxes or points",
    "mean": "mean and std come together, one number per channel, from 0 to 255",
    "std": "mean and std come together, one number per channel, from 0 to 255",
    "secret": "give the path of the daemon's secret key file",
    "clients": "give the path of the folder of the clients' public keys",
}

# The commonest keys of other tools, or of another place, and what replaces them here.
FOREIGN_KEYS: Final = {
    "augmentation": "each trainer augments in its own model",
    "channels": "mode sets it: RGB has 3, L has 1",
    "epochs": "set it in the trainer: streamd-train --epochs N, or subscribe(epochs=N)",
    "image_size": "write image: {size: [height, width]}",
    "num_workers": "write workers, at the top level",
    "port": "the daemon's address is listen, at the top level",
    "prefetch": "set it in the trainer: subscribe(prefetch=N)",
    "rank": "set it in the trainer: subscribe(rank=R, world=W)",
    "target_size": "write image: {size: [height, width]}",
    "validation_split": "write split: {validation: 0.2}, and part: train or part: validation under source",
}

# Keys of the configuration's whole language that this version does not serve, and what to do until it does.
UNSERVED_KEYS: Final = {
    "draw": "each sample comes once per epoch; weights: COLUMN weighs samples in the loss",
    "fetch": "copy the files to a disk of this host",
    "fold": "write the folds into a column of a table, and select with where: {COLUMN: 1}",
    "folds": "write the folds into a column of a table, and select with where: {COLUMN: 1}",
    "mix": "list the samples of both streams in one table",
    "stratify": "split by a column of a table, or leave it out",
    "take": "list the samples that you want in a table or a file list",
}

_FOREIGN_WORDS: Final = {  # the commonest, and what YAML reads as no text
    "classification": "category",
    "csv": "table",
    "parquet": "table",
    "webdataset": "tar",
    "double": "float",
    "float32": "float",
    "regression": "float",
    "gray": "L",
    "grey": "L",
    "random": "full",
    "false": "none",
    "null": "none",
    "true": "full",
    "val": "validation",
    "semicolon": ";",
}
_BOOLEAN_WORDS: Final = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}
_REMAINDER_WORDS: Final = {"keep": "; did you mean false?", "drop": "; did you mean true?"}  # what other tools say


def suggest_choice(value: object, choices: list[str]) -> str:
    """Suggests `; did you mean 'full'?` for a word that means one of `choices`, or nearly is one."""
    # YAML reads some of these words, such as true or null, as values other than text.
    if value is not None and not isinstance(value, bool | str):
        return ""
    text = format_yaml_value(value) if isinstance(value, bool) else value or "null"
    word = _FOREIGN_WORDS.get(text.casefold())
    return f"; did you mean {word!r}?" if word in choices else suggest_name(text, choices)


def suggest_boolean(value: object) -> str:
    """Suggests `; did you mean true?` for the other booleans of YAML 1.1, and for quoted ones."""
    word = _BOOLEAN_WORDS.get(str(value).casefold()) if isinstance(value, str) else None
    return f"; did you mean {word}?" if word else ""


def suggest_whole_number(value: object) -> str:
    """Suggests `; did you mean 1000?` for 1e3, 1000.0 and '1000', which are no whole numbers in YAML."""
    if isinstance(value, float) and value.is_integer():
        return f"; did you mean {int(value)}?"
    if isinstance(value, str) and value.strip().isdecimal():
        return f"; did you mean {int(value)}, without quotes?"
    return ""


def suggest_fraction(value: object) -> str:
    """Suggests `; did you mean 0.2?` for 20, 20% and '0.2'."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return ""
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        return ""
    number = number / 100 if text.endswith("%") or (number > 1 and number.is_integer()) else number
    return f"; did you mean {number:g}?" if 0 < number <= 1 else ""


def suggest_word(value: object, word: str) -> str:
    """Suggests `; did you mean 'auto'?` for a text that nearly is `word`."""
    return suggest_name(value, [word]) if isinstance(value, str) else ""


def suggest_quotes(value: object) -> str:
    """Suggests quotes around a number that is meant as text."""
    if isinstance(value, str) and not is_encodable(value):
        return " and can be written in UTF-8"
    return "; put it in quotes" if isinstance(value, int | float) else ""


def suggest_size(value: object) -> str:
    """Suggests `; did you mean [128, 128]?` for 128, '128x128' and ['128', '128'], in the order they are written."""
    if near := suggest_word(value, "stored"):
        return near
    plain = isinstance(value, int | str | list | tuple) and not isinstance(value, bool)
    numbers = [int(number) for number in re.findall(r"(?<![\d.-])\d{1,5}(?!\d)", str(value))] if plain else []
    if not 1 <= len(numbers) <= _MOST_SIDES or not all(1 <= number <= MAX_SIDE for number in numbers):
        return ""
    return f"; did you mean [{numbers[0]}, {numbers[-1]}]?"


def suggest_host_port(value: object) -> str:
    """Suggests `; did you mean 127.0.0.1:9191?` for a port alone, or an address with a scheme before it."""
    near = f"127.0.0.1:{value}" if type(value) is int else str(value).rpartition("://")[2]
    return f"; did you mean {near}?" if is_host_port(near) else ""


# --- unknown and misplaced keys


def explain_errors(errors: Iterable[ErrorDetails]) -> list[ConfigProblem]:
    """Returns one problem for each validation error, except for a missing key that a misspelled one stands for."""
    # `pth` is an unknown key, and `path` is missing: one mistake, which is told once, where it was made.
    errors = list(errors)
    misspelled: set[KeyPath] = set()
    for error in errors:
        if error["type"] != "extra_forbidden":
            continue
        *above, key = error["loc"]
        owner = _find_model_of_key(error["loc"])
        if owner is Config and (key == "stream" or _has_stream_keys(error["input"]) or key in _list_keys(StreamConfig)):
            misspelled.add(("streams",))
        meant = suggest_name(str(key), _list_keys(owner))
        misspelled |= {(*above, known) for known in _list_keys(owner) if repr(known) in meant}
    return [
        ConfigProblem(_strip_union_member_keys(error["loc"]), SENTENCES[error["type"]](error))
        for error in errors
        if error["type"] != "missing" or error["loc"] not in misspelled
    ]


def _strip_union_member_keys(place: KeyPath) -> KeyPath:
    """Returns the keys as they are written, without pydantic's marks of union members."""
    if place[2:3] == ("source",) and place[3:4] and place[3] in SOURCE_MODELS:
        place = (*place[:3], *place[4:])
    return tuple(key for key in place if key not in {"<name>", "<values>", "[key]"})


def _list_keys(model: type[ConfigModel]) -> list[str]:
    """Returns the keys of `model` as they are written in a file."""
    names = [field.alias or name for name, field in model.model_fields.items()]
    return [*(name for name in names if name != "name"), "like"] if model is StreamConfig else names


def _find_model_of_key(place: KeyPath) -> type[ConfigModel]:
    """Returns the model in which the unknown key at `place` was found."""
    match place[:-1]:
        case ("streams", _):
            return StreamConfig
        case ("streams", _, "source", str(kind), *_):
            return SOURCE_MODELS[kind]
        case ("streams", _, "labels", *_):
            return LabelConfig
        case ("streams", _, "images", _, *inner) | ("streams", _, "image", *inner):
            return SECTION_MODELS[str(inner[0]) if inner else "image"]
        case ("streams", _, str(part), *_) | (str(part), *_):
            return SECTION_MODELS[part]
        case _:
            return Config


def _has_stream_keys(value: object) -> bool:
    return isinstance(value, Mapping) and not {"source", "like"}.isdisjoint(value)


def _explain_unknown_key(error: ErrorDetails) -> Iterator[str]:
    """Yields what may be said, the likeliest first: not served, of another place, of another tool, or misspelled."""
    place, value = error["loc"], error["input"]
    owner, key = _find_model_of_key(place), str(place[-1])
    known = _list_keys(owner)
    is_of_source = owner in SOURCE_MODELS.values()
    kind, kinds = place[3] if is_of_source else "", _list_kinds_with_key(key, value)
    parts = [name for name, model in SECTION_MODELS.items() if model is not owner and key in _list_keys(model)]
    # A key that differs from one of this source only by an s is meant as that one, and not as another kind's. A table's
    # `images` means its `image`, and not the key of a stream, unless it has keys of its own.
    is_near = is_of_source and not {f"{key}s", key.removesuffix("s")}.isdisjoint(known)
    may_move = not is_near or isinstance(value, Mapping)
    if key in UNSERVED_KEYS:
        yield f"is not in this version; {UNSERVED_KEYS[key]}"
    if owner is Config and _has_stream_keys(value):
        yield "unknown key; it looks like a stream: write it under streams"
    if is_of_source and kinds and not is_near:
        yield f"belongs to kind {_join_choices(kinds)}, but kind is {kind}; remove it, or change the kind"
    if may_move and owner is not StreamConfig and key in _list_keys(StreamConfig):
        yield "is a key of a stream: write it under streams.NAME"
    if may_move and owner is not Config and key in _list_keys(Config):
        yield "is a key of the whole file: write it at the top level"
    if owner is StreamConfig and _list_kinds_with_key(key, None):
        yield f"is a key of source: write it as source: {{{key}: ...}}"
    if may_move and parts and key != "kind":
        yield f"is a key of {parts[0]}: write it as {parts[0]}: {{{key}: ...}}"
    if may_move and owner is not LabelConfig and key in _list_keys(LabelConfig):
        yield f"is a key of a label: write it as labels: {{NAME: {{{key}: ...}}}}"
    if ":" in key:
        yield "unknown key; put a space after the colon"
    # A word of another tool that is also one of ours in other letters means ours.
    if key.casefold() in FOREIGN_KEYS and key.casefold() not in map(str.casefold, known):
        yield f"unknown key; {FOREIGN_KEYS[key.casefold()]}"
    yield f"unknown key{suggest_name(key, known) or f'; use {_join_choices(known)}'}"


def _list_kinds_with_key(key: str, value: object) -> list[str]:
    """Returns the kinds of sources that have a key; an `image` with keys of its own belongs to a stream."""
    if key == "image" and isinstance(value, Mapping):
        return []
    return [kind for kind, model in SOURCE_MODELS.items() if key in _list_keys(model)]


# --- sentences


def _join_choices(choices: list[str]) -> str:
    return " or ".join([*filter(None, [", ".join(choices[:-1])]), *choices[-1:]])


def _format_allowed_choices(value: object, expected: str, also: str = "") -> str:
    # Pydantic gives the choices only as text: "'full', 'none' or 'chunk'".
    choices = re.findall(r"'([^']*)'", expected)
    # A choice that is a punctuation mark is quoted, such as ";".
    shown = [each if any(map(str.isalnum, each)) else f'"{each}"' for each in choices] + [also] * bool(also)
    return f"found {format_yaml_value(value)}; use {_join_choices(shown)}{suggest_choice(value, choices)}"


def _format_needed_keys(error: ErrorDetails) -> str:
    place, value = _strip_union_member_keys(error["loc"]), error["input"]
    # One word would do, or the mapping that it stands for.
    if place[-1] in SHORT_FORMS:
        words = SHORT_FORMS[place[-1]]
        return (
            f"found {format_yaml_value(value)}; use "
            f"{_join_choices([*words, KEY_EXAMPLES[place[-1]]])}{suggest_choice(value, words)}"
        )
    # Standard case: an example of the mapping, under the name that it has in the file.
    if len(place) == len(("streams", "NAME")):
        example = f"{place[-1]}: {{{KEY_EXAMPLES['source']}, {KEY_EXAMPLES['image']}}}"
    elif place[-2:-1] == ("labels",):
        example = f"{place[-1]}: category"
    else:
        example = KEY_EXAMPLES.get(place[-1], "{key: value}")
    need = f"indent the keys of {place[-1]} under it, or write" if value is None else "keys are needed, as in"
    return f"found {format_yaml_value(value)}; {need} {example}"


def _tell(words: str, hint: Callable[[object], str] | None = None) -> Callable[[ErrorDetails], str]:
    """Returns what words `found 0; use a number from 1 to 9`; `words` may name the bounds, as {ge} and {le}."""

    def tell(error: ErrorDetails) -> str:
        value = error["input"]
        return f"found {format_yaml_value(value)}; {words.format(**error.get('ctx', {}))}{hint(value) if hint else ''}"

    return tell


_LIST_OF_FRAMES: Final = _tell(f"use a list of 1 to {MAX_FRAMES} whole numbers, such as [-1, 0]")

# The type of an error, pydantic's or one that a type of `fields` names, and what is said of the value.
SENTENCES: Final[Mapping[str, Callable[[ErrorDetails], str]]] = {
    # Keys.
    "missing": lambda error: "; ".join(
        ["is missing", *([MISSING_KEY_HINTS[error["loc"][-1]]] if error["loc"][-1] in MISSING_KEY_HINTS else [])]
    ),
    "extra_forbidden": lambda error: next(_explain_unknown_key(error)),
    "invalid_key": _tell("a key must be text; put it in quotes"),
    **dict.fromkeys(("model_type", "dict_type", "model_attributes_type"), _format_needed_keys),
    "union_tag_not_found": lambda _: f"kind is missing; use {_join_choices(list(SOURCE_MODELS))}",
    "union_tag_invalid": lambda error: (
        f"kind: {_format_allowed_choices(error['ctx']['tag'], str(error['ctx']['expected_tags']))}"
    ),
    # Whole sentences, of rules between keys and of validators.
    "rule": lambda error: str(error["ctx"]["why"]),
    "value_error": lambda error: str(error["ctx"]["error"]),
    # Words.
    "literal_error": lambda error: _format_allowed_choices(
        error["input"],
        str(error["ctx"]["expected"]),
        "{mean: [r, g, b], std: [r, g, b]}" if _strip_union_member_keys(error["loc"])[-1] == "normalize" else "",
    ),
    "bool_type": _tell("use true or false", suggest_boolean),
    "string_type": _tell("text is needed; put it in quotes"),
    "text": _tell("use text that is not empty", suggest_quotes),
    "from": _tell("use a column, [several, columns], /an/array or a file.npy"),
    "weights": _tell("use one column, /array or file.npy, such as weights: weight"),
    "transform": _tell("use module:function such as augment:flip, or null"),
    "identity": _tell("use the 32 hexadecimal digits that `streamd check` prints", suggest_quotes),
    "host_port": _tell("use address:port such as 127.0.0.1:9191, or null", suggest_host_port),
    "listen": _tell("use an endpoint, a list of endpoints, or null for the default place"),
    "remainder": _tell(
        "use true, false or pad",
        lambda value: _REMAINDER_WORDS.get(str(value)) or suggest_boolean(value) or suggest_word(value, "pad"),
    ),
    "pace": _tell("use free or {{lockstep: 10s}}", lambda value: suggest_word(value, "free")),
    "scalar": lambda error: _tell(
        ("conditions other than equality are not in this version; " if isinstance(error["input"], dict | list) else "")
        + "use text, a number, true or false"
    )(error),
    # Numbers.
    "whole_number": _tell("use a whole number from {ge} to {le}", suggest_whole_number),
    "auto_or_number": _tell(
        "use auto or a whole number from {ge} to {le}",
        lambda value: suggest_whole_number(value) or suggest_word(value, "auto"),
    ),
    "fraction": _tell("use a number above {gt:g}, up to {le:g}", suggest_fraction),
    "visible_share": _tell("use a number from {ge:g} to {le:g}, the part of a box's area", suggest_fraction),
    "cpu_count": _tell("use a number above {gt:g}, up to {le:g}"),
    "resource_count": _tell("use a number above {gt:g}"),
    "memory": lambda error: (
        f"{format_bytes(error['input'])} is too little; use {format_bytes(error['ctx']['ge']).replace(' ', '')} or more"
    ),
    "int_type": _tell("use a whole number", suggest_whole_number),
    # Lists.
    **dict.fromkeys(("tuple_type", "too_short", "too_long"), _LIST_OF_FRAMES),
    "image_size": _tell("use [height, width], each from {ge} to {le} pixels", suggest_size),
    "bounds": _tell("use [least, most], both from {ge:g} to {le:g}"),
    "pixel_range": _tell("use [low, high], the numbers for black and for white, such as [0, 1]"),
    "pixel_range_order": _tell("the number for black comes first and is the lower one: [low, high]"),
    "levels": _tell("use a list of one number per channel, each from 0 to 255"),
    "zero_std": _tell("pixels cannot be divided by a std of 0; use numbers above 0"),
    "classes": _tell(
        "use a list of names or whole numbers, such as [cat, dog]",
        # YAML reads the names of some classes as true or false.
        lambda value: (
            "; put true and false in quotes"
            if isinstance(value, list | tuple) and any(isinstance(name, bool) for name in value)
            else ""
        ),
    ),
    "repeated_class": lambda error: f"class {error['ctx']['name']} is listed twice; list each class once",
}
