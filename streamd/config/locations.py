"""Problems of a configuration, and the lines of its keys. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from streamd.core.text import split_long_list

# The keys that lead to a value, ("streams", "train", "image", "size"); numbers are indices of lists.
KeyPath = tuple[str | int, ...]

_MAX_PROBLEMS: Final = 10  # problems in one message: nobody reads more at once


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing to correct: the keys that lead to it, and a sentence."""

    keys: KeyPath
    sentence: str


@dataclass(frozen=True, slots=True)
class KeyLocations:
    """Where keys are written: the file's name, the line of each key, and the streams that keys were copied from.

    All instances compare equal, since the lines of a configuration are no part of its meaning.
    """

    name: str = field(compare=False)
    lines: Mapping[KeyPath, int] = field(compare=False)
    copied: Mapping[tuple[str, str], str] = field(compare=False)

    def resolve_inherited_keys(self, keys: KeyPath) -> KeyPath:
        """Returns the same keys in the stream that wrote them, if they were copied by `like`."""
        match keys:
            case ("streams", str(stream), str(key), *_) if (stream, key) in self.copied:
                return ("streams", self.copied[stream, key], *keys[2:])
        return keys

    def find_line(self, keys: KeyPath) -> int:
        """Returns the line of `keys`, or of the nearest key above them that is written; 0 without a file."""
        keys = self.resolve_inherited_keys(keys)
        for length in range(len(keys), -1, -1):
            if keys[:length] in self.lines:
                return self.lines[keys[:length]]
        return 0

    def format_location(self, keys: KeyPath) -> str:
        """Returns `config.yaml:7`; without a file only its name."""
        line = self.find_line(keys)
        return f"{self.name}:{line}" if line else self.name


_LAST_KEY: Final = re.compile(r"[.\[]?[^.\[]*$")


def format_keys(keys: KeyPath) -> str:
    """Formats keys as `streams.train.image.size` or `listen[0]`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")


def format_problems(problems: Iterable[ConfigProblem], places: KeyLocations) -> str:
    """Formats one line for each problem, in the order of the file.

    A problem of a key that `like` copied appears once, where the key is written.
    """
    seen: set[tuple[KeyPath, str]] = set()
    lines = []
    for problem in sorted(problems, key=lambda problem: places.find_line(problem.keys)):
        what = (places.resolve_inherited_keys(problem.keys), problem.sentence)
        if what not in seen:
            seen.add(what)
            keys = problem.keys
            # The index of a list that is not written: `listen: x` stands for `listen: [x]`.
            if keys and isinstance(keys[-1], int) and keys[:-1] in places.lines and keys not in places.lines:
                keys = keys[:-1]
            named = f"{format_keys(keys)}: " if keys else ""
            lines.append(f"{places.format_location(problem.keys)}: {named}{problem.sentence}")
    shown, left_out = split_long_list(lines, _MAX_PROBLEMS)
    return "\n".join([*shown, f"and {left_out} more"] if left_out else shown)


def add_locations(text: str, places: KeyLocations) -> str:
    """Puts file and line before each line of `text` that begins with a key path, `streams.train.source: ...`."""
    # The keys that are written, and those that `like` copied, by their dotted path.
    known = {format_keys(keys): keys for keys in places.lines}
    for (stream, key), other in places.copied.items():
        below = [keys[2:] for keys in places.lines if keys[:3] == ("streams", other, key)]
        known |= {format_keys(("streams", stream, *rest)): ("streams", stream, *rest) for rest in below}
    lines = []
    for line in text.split("\n"):
        path = line.partition(": ")[0]
        # Where the keys themselves are not written, the nearest ones above them are.
        while path and path not in known:
            path = _LAST_KEY.sub("", path)
        keys = known.get(path, ())
        lines.append(f"{places.format_location(keys)}: {line}" if keys else line)
    return "\n".join(lines)
