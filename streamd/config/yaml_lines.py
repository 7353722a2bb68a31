"""YAML text to plain data, with the line of every key. JSON is YAML."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.tag import Tag

from streamd.config.locations import Keys, Problem
from streamd.errors import ConfigError

_TEXT: Final = "tag:yaml.org,2002:str"

# What people have done who meet a parser's words, and what to do about it; the first that fits is told in their place.
_REMEDIES: Final = {
    r"'\t'": "a tab is here; indent with spaces",
    "mapping values are not allowed": "a second colon is in this line; give each key a line of its own, or put a value "
    "that holds a colon in quotes",
    "expected <block end>": "this line is indented unlike those it belongs to; give them the same number of spaces",
    "expected ',' or": "a comma is missing before this, or the bracket opened at line {begun} is not closed",
    "undefined alias": "a value that begins with * needs quotes",
    "cannot start any token": "a value that begins with this character needs quotes",
    "unknown escape": "a backslash is in double quotes; write paths with /, or use single quotes",
    "unexpected end of stream": "the quote opened at line {begun} is not closed",
    "another document": "a configuration is one document; remove the line with ---",
    "could not determine a constructor": "a word that begins with ! is a tag, and none is known here; remove it",
    "could not find expected ':'": "the key at line {begun} needs a colon and a space behind it",
}


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: `data` of dict, list, str, int, float, bool and None; `lines` count from 1."""

    data: object
    lines: dict[Keys, int]
    problems: tuple[Problem, ...] = ()


class _PlainConstructor(SafeConstructor):
    """Builds plain values only; a tag that would build anything else is an error. Keys are text, as in JSON."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        for key, _ in node.value:
            if isinstance(key, ScalarNode) and key.value != "<<":
                key.ctag = Tag(suffix=_TEXT)  # `2026:` and `no:` are names of streams and columns, never numbers
        return super().construct_mapping(node, deep)


def _as_written(_constructor: SafeConstructor, node: ScalarNode) -> str:
    return str(node.value)


_PlainConstructor.add_constructor("tag:yaml.org,2002:timestamp", _as_written)  # JSON knows no dates, nor do we


def parse(text: str, name: str) -> Document:
    """Reads `text`. Raises ConfigError with line and column where it is no YAML; keys written twice are problems."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ReusedAnchorWarning)
            return _document(text)
    except YAMLError as error:
        raise ConfigError(f"{name}:{_why(error, text)}") from error
    except ReusedAnchorWarning as error:
        raise ConfigError(f"{name}: {' '.join(str(error).split())}; give each anchor a name of its own") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # ruamel on a tag such as !!int x
        raise ConfigError(f"{name}: not valid YAML: a tag does not fit its value: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{name}: nested too deeply to be a configuration") from error


def _document(text: str) -> Document:
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _PlainConstructor
    root = yaml.compose(io.StringIO(text))
    if root is None:
        return Document(None, {})
    lines, problems = _survey(root)
    yaml.constructor.allow_duplicate_keys = True  # they are in `problems`, all of them
    return Document(yaml.constructor.construct_document(root), lines, problems)


def _why(error: YAMLError, text: str) -> str:
    if isinstance(error, ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return f"{line}: not valid YAML: character {error.character:#x} is not allowed in a text file"
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return f" not valid YAML: {error}"
    mark, problem = error.problem_mark, str(error.problem).partition("\n")[0]
    begun = (error.context_mark or mark).line + 1
    remedy = next((remedy.format(begun=begun) for words, remedy in _REMEDIES.items() if words in problem), None)
    return f"{mark.line + 1}:{mark.column + 1}: not valid YAML: {remedy or f'{problem}, {error.context}'}"


def _survey(root: Node) -> tuple[dict[Keys, int], tuple[Problem, ...]]:
    """The line of every key, and the keys written twice. A node that aliases repeat is walked once."""
    lines: dict[Keys, int] = {(): 1}
    problems = []
    walked: set[int] = set()
    waiting: list[tuple[Keys, Node]] = [((), root)]
    while waiting:
        keys, node = waiting.pop()
        if id(node) in walked:
            continue
        walked.add(id(node))
        for key, line, child in _children(node):
            place = (*keys, key)
            if place in lines:
                problems.append(Problem(place, f"is written twice, first at line {lines[place]}; keep one"))
            lines[place] = line
            waiting.append((place, child))
    return lines, tuple(problems)


def _children(node: Any) -> Iterator[tuple[str | int, int, Node]]:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            yield str(key.value), key.start_mark.line + 1, value
    elif isinstance(node, SequenceNode):
        for number, value in enumerate(node.value):
            yield number, value.start_mark.line + 1, value
