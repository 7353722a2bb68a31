"""The JSON schema of config.yaml, by which editors complete keys, explain them and underline mistakes. Pure.

It is made from the models, and says what they accept, short forms and `like` included. What no schema can say (means
that fit the mode, a `like` of a stream that exists) is left to `load`. It is in draft 7, which every editor knows.
"""

from __future__ import annotations

from typing import Any, Final

from streamd.config.schema import Config
from streamd.config.schema_sources import ENCODED_KINDS

JsonSchema = dict[str, Any]

_NAME_PATTERN: Final = "^[A-Za-z0-9_.-]{1,64}$"
_DROPPED_KEYS: Final = ("title", "discriminator")  # names of our classes, and what draft 7 does not know


def build_json_schema() -> JsonSchema:
    """The schema, with its definitions in alphabetical order."""
    schema = _tidy_schema(Config.model_json_schema(ref_template="#/definitions/{model}"))
    definitions = schema.pop("$defs")
    definitions["StreamConfig"] = _extend_stream_schema(definitions["StreamConfig"])
    schema["properties"]["streams"] |= {"minProperties": 1, "propertyNames": {"pattern": _NAME_PATTERN}}
    definitions["PaceConfig"]["minProperties"] = 1
    for name, definition in definitions.items():
        if not name.endswith("Source"):
            del definition["description"]  # it speaks of our classes; every key has words of its own
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "streamd: config.yaml",
        **schema,
        "description": "What streamd serves. Relative paths are relative to this file.",
        "definitions": definitions,
    }


def _extend_stream_schema(schema: JsonSchema) -> JsonSchema:
    """A stream has no key for its name, may copy another one, and if not, needs a source, and a size for files."""
    properties = {key: value for key, value in schema["properties"].items() if key != "name"}
    like = {"type": "string", "description": "A stream whose keys are copied, but for those given here."}
    files = {
        "properties": {"source": {"properties": {"kind": {"enum": sorted(ENCODED_KINDS)}}}},
        "required": ["source"],
    }
    sized = {"properties": {"image": {"required": ["size"]}}, "required": ["image"]}
    return {
        **schema,
        "properties": {"like": like, **properties},
        "required": [],
        "if": {"required": ["like"]},
        "else": {"required": ["source"], "if": files, "then": sized},
    }


def _tidy_schema(schema: Any) -> Any:
    """Without noise, and with what stands beside a reference, which draft 7 overlooks, put around it.

    A default that is null or has keys says nothing to the person who may leave the key out.
    """
    if isinstance(schema, list):
        return [_tidy_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: _tidy_schema(value)
        for key, value in schema.items()
        if not (key in _DROPPED_KEYS and isinstance(value, str | dict))
    }
    if kept.get("default", ...) is None or isinstance(kept.get("default"), dict):
        del kept["default"]
    if isinstance(kept.get("description"), str):
        kept["description"] = " ".join(kept["description"].split())
    if "$ref" in kept and len(kept) > 1:
        return {"allOf": [{"$ref": kept.pop("$ref")}], **kept}
    return kept
