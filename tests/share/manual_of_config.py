"""streamd-config(5): every key of config.yaml, from the JSON schema that editors use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from roff import bold, example, italic, marked, paragraphs, plain, title

from streamd.config.schema import Config, build_json_schema, list_unserved_settings
from streamd.config.units import format_bytes

Schema = dict[str, Any]

INTRODUCTION: Final = """\
`streamd serve` reads its configuration at the start, and again when it gets SIGHUP; streams that are as before go on
undisturbed. The settings beside `streams` need a restart. Each mistake is told with file, line, key and what is
allowed.

It is YAML, or JSON. Relative paths are relative to the file. Sizes are written 512MiB or 2GB, durations 10s or 2m. A
key that is left out has its default.

`streamd check` tries a configuration out without a daemon; `streamd schema` prints the schema by which editors complete
and check it."""
EXAMPLE: Final = """\
memory: 4GiB
monitor: 127.0.0.1:9191
streams:
  train:
    source: {kind: folder, path: /data/pets, part: train}
    split: {validation: 0.2}
    image: {size: [224, 224], resize: random_crop}
    batch_size: 64
    normalize: imagenet
  validation:
    like: train
    source: {kind: folder, path: /data/pets, part: validation}
    image: {size: [224, 224], resize: crop}
    shuffle: none
"""
# One of each thing that is in the schema for later versions.
LATER: Final[Schema] = {
    "curve": {"secret": "key", "clients": "keys"},
    "listen": "tcp://0.0.0.0:9190",
    "engine": "ray",
    "streams": {"train": {"name": "train", "source": {"kind": "npy", "path": "a.npy"}, "pace": {"lockstep": "10s"}}},
}
_SIZES: Final = {"memory"}
_NO_BOUND: Final = 2**31  # where the next one up would be, it says nothing to anybody


def config_page(version: str) -> str:
    """The page, section 5."""
    schema = build_json_schema()
    definitions: dict[str, Schema] = schema["definitions"]
    stream = definitions["StreamConfig"]
    sources = [each["$ref"].rpartition("/")[2] for each in stream["properties"]["source"]["oneOf"]]
    lines = [*title("streamd-config", 5, version), ".SH NAME", r"streamd\-config \- what streamd serves: config.yaml"]
    lines += [".SH DESCRIPTION", *paragraphs(INTRODUCTION)]
    lines += [".PP", "An example:", *example(EXAMPLE.splitlines())]
    lines += [".SH SETTINGS", *_keys(schema, definitions)]
    lines += [".SH STREAMS", marked("Below the name of each stream:"), *_keys(stream, definitions)]
    lines += [".SH SOURCES", marked("Below `source`, by its kind:")]
    for name in sources:
        source = definitions[name]
        kind = source["properties"]["kind"]["const"]
        lines += [f'.SS "{plain(f"kind: {kind}")}"', marked(source["description"]), *_keys(source, definitions)]
    lines += [".SH NOT YET", marked("This version refuses, by name, what later ones are to do:")]
    lines += [
        line for each in list_unserved_settings(Config.model_validate(LATER)) for line in (".PP", plain(each) + ".")
    ]
    return "\n".join([*lines, ".SH FILES", ".TP", italic("/etc/streamd/config.yaml"), "That of the service.",
                      ".SH SEE ALSO", plain("streamd(1), streamd-train(1)"), ""])  # fmt: skip


def _keys(schema: Schema, definitions: dict[str, Schema]) -> list[str]:
    """Each key with what it is, what it may be, and the keys below it."""
    lines: list[str] = []
    for name, key in schema["properties"].items():
        if name == "kind" and "const" in key:
            continue  # it is the heading
        lines += [".TP", bold(name), marked(" ".join([key["description"], *_facts(name, key, schema)]))]
        for below in _below(key):
            if below != "StreamConfig" and not below.endswith("Source"):
                lines += [".RS", *_keys(definitions[below], definitions), ".RE"]
    return lines


def _facts(name: str, key: Schema, schema: Schema) -> Iterator[str]:
    """What its description does not say."""
    words = [_shown(value) for each in _parts(key) for value in each.get("enum", [])]
    if any(not re.search(rf"\b{word}\b", key["description"]) for word in words):
        yield f"One of: {', '.join(words)}."
    bounds = [bound for each in _parts(key) for bound in _bounds(each)]
    if bounds:
        yield f"{' and '.join(bounds).capitalize()}."
    if name in schema.get("required", []):
        yield "Required."
    elif "default" in key:
        yield f"Default: {format_bytes(key['default']).replace(' ', '') if name in _SIZES else _shown(key['default'])}."


def _bounds(part: Schema) -> Iterator[str]:
    if part.get("type") not in {"integer", "number"} or part.get("maximum", _NO_BOUND) >= _NO_BOUND:
        return
    least, most = part.get("minimum", part.get("exclusiveMinimum")), part["maximum"]
    yield f"from {least:,} to {most:,}" if "minimum" in part else f"more than {least:,}, up to {most:,}"


def _parts(key: Schema) -> Iterator[Schema]:
    """A key's alternatives, itself if there are none."""
    alternatives = [each for kind in ("anyOf", "oneOf", "allOf") for each in key.get(kind, [])]
    if not alternatives:
        yield key
    for each in alternatives:
        yield from _parts(each)
    if "additionalProperties" in key and isinstance(key["additionalProperties"], dict):
        yield from _parts(key["additionalProperties"])


def _below(key: Schema) -> list[str]:
    """The definitions that say which keys are below it, each once."""
    found = [part["$ref"].rpartition("/")[2] for part in _parts(key) if "$ref" in part]
    return list(dict.fromkeys(found))


def _shown(value: object) -> str:
    """As it is written in the file."""
    return value if isinstance(value, str) else json.dumps(value)
