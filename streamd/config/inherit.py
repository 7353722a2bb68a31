"""Resolves `like:` and checks the names of streams, before any value is validated. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from streamd.config.errors import MISSING_KEY_HINTS
from streamd.config.locations import ConfigProblem
from streamd.config.units import format_yaml_value
from streamd.errors import suggest_name

_STREAM_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

RawStreams = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ResolvedStreams:
    """The `raw` streams to validate, `copied` (stream, key) -> the stream that wrote the key, and the problems."""

    raw: dict[str, object]
    copied: dict[tuple[str, str], str]
    problems: tuple[ConfigProblem, ...]


def resolve_streams(streams: object) -> ResolvedStreams:
    """Gives every stream its name and the keys that it copies; leaves out a stream that cannot be resolved.

    A stream that is left out has a problem of its own, or copies from one that has.
    """
    if not isinstance(streams, Mapping) or not streams:
        found = "there are none" if not streams else f"found {format_yaml_value(streams)}; a mapping of names is needed"
        return ResolvedStreams({}, {}, (ConfigProblem(("streams",), f"{found}; {MISSING_KEY_HINTS['streams']}"),))
    raw: dict[str, object] = {}
    copied: dict[tuple[str, str], str] = {}
    problems: list[ConfigProblem] = []
    for name in streams:
        wrong = [*_find_stream_name_problems(name), *_find_name_key_problems(name, streams[name])]
        chain, trouble = (None, []) if wrong else _find_like_chain(name, streams)
        problems += [*wrong, *trouble]
        if chain is None:
            continue
        raw[name] = _merge_streams(name, chain, streams)
        copied |= _find_copied_keys(name, chain, streams)
    return ResolvedStreams(raw, copied, tuple(problems))


def _find_stream_name_problems(name: object) -> list[ConfigProblem]:
    if isinstance(name, str) and _STREAM_NAME.fullmatch(name):
        return []
    place = ("streams", str(name))
    if not isinstance(name, str):
        return [ConfigProblem(place, f"a stream's name is text, found {format_yaml_value(name)}; put it in quotes")]
    return [ConfigProblem(place, "a stream's name has 1 to 64 characters from A-Z a-z 0-9 _ . -")]


def _find_name_key_problems(name: object, stream: object) -> list[ConfigProblem]:
    if isinstance(stream, Mapping) and "name" in stream:
        return [ConfigProblem(("streams", str(name), "name"), "unknown key; a stream's name is the key above it")]
    return []


def _lookup_like_name(stream: object) -> object:
    return stream.get("like") if isinstance(stream, Mapping) else None


def _find_like_chain(name: str, streams: RawStreams) -> tuple[list[str] | None, list[ConfigProblem]]:
    """Returns the streams that `name` copies from, nearest first.

    Returns None if the chain is broken, and the problem only for the stream where it breaks.
    """
    chain: list[str] = []
    here = name
    while (wanted := _lookup_like_name(streams[here])) is not None:
        if not isinstance(wanted, str) or wanted not in streams:
            return None, [] if chain else [_build_unknown_like_problem(here, wanted, streams)]
        if wanted in (name, *chain):
            circle = " -> ".join([name, *chain, wanted])
            # A circle is reported once, for the one of its streams whose name sorts first. A stream that only leads
            # into the circle is not reported.
            is_told = wanted != name or name != min([name, *chain])
            return None, [] if is_told else [
                ConfigProblem(
                    ("streams", name, "like"),
                    f"copies itself in a circle: {circle}; "
                    f"{'remove like: from one of these streams' if chain else 'remove its key like'}",
                )
            ]
        chain.append(wanted)
        here = wanted
    return chain, []


def _build_unknown_like_problem(name: str, wanted: object, streams: RawStreams) -> ConfigProblem:
    others = [str(other) for other in streams if other != name]
    hint = suggest_name(str(wanted), others) or (f"; use one of {', '.join(others)}" if others else "")
    return ConfigProblem(
        ("streams", name, "like"), f"found {format_yaml_value(wanted)}, which is not a stream in this file{hint}"
    )


def _copy_without_like(name: str, streams: RawStreams) -> RawStreams:
    stream = streams[name]
    return {key: value for key, value in stream.items() if key != "like"} if isinstance(stream, Mapping) else {}


def _merge_streams(name: str, chain: list[str], streams: RawStreams) -> object:
    if not isinstance(streams[name], Mapping):
        return streams[name]
    merged: dict[str, object] = {}
    for other in [*reversed(chain), name]:
        given = _copy_without_like(other, streams)
        # `image` is short for one of `images`, so a stream that gives one of the two drops the other that it copies.
        for key, replaced in (("image", "images"), ("images", "image")):
            if key in given and replaced not in given:
                merged.pop(replaced, None)
        merged |= given
    return {**merged, "name": name}


def _find_copied_keys(name: str, chain: list[str], streams: RawStreams) -> dict[tuple[str, str], str]:
    own = _copy_without_like(name, streams)
    return {
        (name, key): other for other in reversed(chain) for key in _copy_without_like(other, streams) if key not in own
    }
