"""What is wrong with a configuration, and where: a place and a sentence. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
    """Where keys are written: the file's name, the line of each key, and the streams that keys were copied from.

    All are equal: where a configuration is written is no part of what it says.
    """

    name: str = field(compare=False)
    lines: Mapping[Keys, int] = field(compare=False)
    copied: Mapping[tuple[str, str], str] = field(compare=False)

    def origin(self, keys: Keys) -> Keys:
        """The same keys in the stream that wrote them."""
        match keys:
            case ("streams", str(stream), str(key), *_) if (stream, key) in self.copied:
                return ("streams", self.copied[stream, key], *keys[2:])
        return keys

    def written(self, keys: Keys) -> Keys:
        """`keys` without the number of a list that nobody wrote: `listen: x` stands for `listen: [x]`."""
        alone = keys and isinstance(keys[-1], int) and keys[:-1] in self.lines and keys not in self.lines
        return keys[:-1] if alone else keys

    def line(self, keys: Keys) -> int:
        """The line of `keys`, or of the nearest key above them that is written; 0 when there is no file."""
        keys = self.origin(keys)
        for length in range(len(keys), -1, -1):
            if keys[:length] in self.lines:
                return self.lines[keys[:length]]
        return 0

    def place(self, keys: Keys) -> str:
        """`config.yaml:7`; without a file only its name."""
        line = self.line(keys)
        return f"{self.name}:{line}" if line else self.name

    def find(self, path: str) -> Keys:
        """The keys that a dotted path means, or the nearest above them that are written; () when it means none."""
        known = {dotted(keys): keys for keys in self.lines}
        for (stream, key), other in self.copied.items():
            below = [keys[2:] for keys in self.lines if keys[:3] == ("streams", other, key)]
            known |= {dotted(("streams", stream, *rest)): ("streams", stream, *rest) for rest in below}
        while path and path not in known:
            path = _CUT.sub("", path)
        return known.get(path, ())


_CUT: Final = re.compile(r"[.\[]?[^.\[]*$")


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
    keys = f"{dotted(places.written(problem.keys))}: " if problem.keys else ""
    return f"{places.place(problem.keys)}: {keys}{problem.sentence}"


def located(text: str, places: Places) -> str:
    """Puts file and line before each line of `text` that begins with a key path, `streams.train.source: ...`."""
    return "\n".join(_located(line, places) for line in text.split("\n"))


def _located(line: str, places: Places) -> str:
    keys = places.find(line.partition(": ")[0])
    return f"{places.place(keys)}: {line}" if keys else line
