"""`like:` and the names of streams: raw streams with all their keys, before any value is looked at. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from streamd.config.hints import MISSING
from streamd.config.locations import Problem
from streamd.config.units import show
from streamd.errors import suggest_name

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

Raw = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Streams:
    """`raw` streams that can be validated, `copied` (stream, key) -> the stream that wrote it, and what is wrong."""

    raw: dict[str, object]
    copied: dict[tuple[str, str], str]
    problems: tuple[Problem, ...]


def resolve(streams: object) -> Streams:
    """Gives every stream its name and the keys it takes from others; a stream that cannot be resolved is left out."""
    if not isinstance(streams, Mapping) or not streams:
        found = "there are none" if not streams else f"found {show(streams)}, a mapping of names is needed"
        return Streams({}, {}, (Problem(("streams",), f"{found}; {MISSING['streams']}"),))
    raw: dict[str, object] = {}
    copied: dict[tuple[str, str], str] = {}
    problems: list[Problem] = []
    for name in streams:
        wrong = [*_name_problems(name), *_own_problems(name, streams[name])]
        chain, trouble = (None, []) if wrong else _chain(name, streams)
        problems += [*wrong, *trouble]
        if chain is None:
            continue
        raw[name] = _merged(name, chain, streams)
        copied |= _copied(name, chain, streams)
    return Streams(raw, copied, tuple(problems))


def _name_problems(name: object) -> list[Problem]:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return []
    place = ("streams", str(name))
    if not isinstance(name, str):
        return [Problem(place, f"a stream's name is text, found {show(name)}; put it in quotes")]
    return [Problem(place, "a stream's name has 1 to 64 characters out of A-Z a-z 0-9 _ . -")]


def _own_problems(name: object, stream: object) -> list[Problem]:
    if isinstance(stream, Mapping) and "name" in stream:
        return [Problem(("streams", str(name), "name"), "unknown key; a stream's name is the key above it")]
    return []


def _like(stream: object) -> object:
    return stream.get("like") if isinstance(stream, Mapping) else None


def _chain(name: str, streams: Raw) -> tuple[list[str] | None, list[Problem]]:
    """The streams that `name` copies from, nearest first; None when the way is broken, told where it breaks."""
    chain: list[str] = []
    here = name
    while (wanted := _like(streams[here])) is not None:
        if not isinstance(wanted, str) or wanted not in streams:
            return None, [] if chain else [_unknown(here, wanted, streams)]
        if wanted in (name, *chain):
            circle = " -> ".join([name, *chain, wanted])
            is_told = wanted != name or name != min([name, *chain])  # once for each circle
            return None, [] if is_told else [
                Problem(("streams", name, "like"), f"goes in a circle: {circle}; take a like away")
            ]
        chain.append(wanted)
        here = wanted
    return chain, []


def _unknown(name: str, wanted: object, streams: Raw) -> Problem:
    others = [str(other) for other in streams if other != name]
    hint = suggest_name(str(wanted), others) or (f"; use one of {', '.join(others)}" if others else "")
    return Problem(("streams", name, "like"), f"found {show(wanted)}, which is no stream of this file{hint}")


def _written(name: str, streams: Raw) -> Raw:
    stream = streams[name]
    return {key: value for key, value in stream.items() if key != "like"} if isinstance(stream, Mapping) else {}


def _merged(name: str, chain: list[str], streams: Raw) -> object:
    if not isinstance(streams[name], Mapping):
        return streams[name]
    merged: dict[str, object] = {}
    for other in [*reversed(chain), name]:
        merged |= _written(other, streams)
    return {**merged, "name": name}


def _copied(name: str, chain: list[str], streams: Raw) -> dict[tuple[str, str], str]:
    own = _written(name, streams)
    return {(name, key): other for other in reversed(chain) for key in _written(other, streams) if key not in own}
