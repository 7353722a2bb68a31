"""What is wrong with a configuration, and where: a place and a sentence. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

Keys = tuple[str | int, ...]  # the way to a value: ("streams", "train", "image", "size"); numbers are places in lists

_MOST: Final = 10  # problems in one message: more are never read at once


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to mend."""

    keys: Keys
    sentence: str


@dataclass(frozen=True, slots=True)
class Places:
    """Where keys are written: the file's name, the line of each key, and the streams that keys were copied from."""

    name: str
    lines: Mapping[Keys, int]
    copied: Mapping[tuple[str, str], str]

    def origin(self, keys: Keys) -> Keys:
        """The same keys in the stream that wrote them."""
        match keys:
            case ("streams", str(stream), str(key), *_) if (stream, key) in self.copied:
                return ("streams", self.copied[stream, key], *keys[2:])
        return keys

    def line(self, keys: Keys) -> int:
        """The line of `keys`, or of the nearest key above them that is written; 0 when there is no file."""
        keys = self.origin(keys)
        for length in range(len(keys), -1, -1):
            if keys[:length] in self.lines:
                return self.lines[keys[:length]]
        return 0


def dotted(keys: Keys) -> str:
    """`streams.train.image.size`, `listen[0]`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")


def message(problems: Iterable[Problem], places: Places) -> str:
    """One line a problem, in the order of the file; what `like` copied is told once, where it is written."""
    seen: set[tuple[Keys, str]] = set()
    lines = []
    for problem in sorted(problems, key=lambda problem: places.line(problem.keys)):
        what = (places.origin(problem.keys), problem.sentence)
        if what not in seen:
            seen.add(what)
            lines.append(_line(problem, places))
    more = [f"and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
    return "\n".join(lines[:_MOST] + more)


def _line(problem: Problem, places: Places) -> str:
    line = places.line(problem.keys)
    place = f"{places.name}:{line}" if line else places.name
    return f"{place}: {dotted(problem.keys)}: {problem.sentence}" if problem.keys else f"{place}: {problem.sentence}"
