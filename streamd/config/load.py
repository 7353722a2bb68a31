"""Loads config.yaml as a `Config`: text to plain data with the line of every key, to streams, to models. JSON is YAML.

Errors of the models become sentences that say what was found and what is allowed. No other module of the package reads
a file.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.tag import Tag

from streamd.config import locations
from streamd.config.errors import KEY_EXAMPLES, MISSING_KEY_HINTS, explain_errors
from streamd.config.locations import ConfigProblem, KeyLocations, KeyPath, format_problems
from streamd.config.schema import Config
from streamd.config.units import format_yaml_value
from streamd.core.host import read_regular_file
from streamd.errors import ConfigError, suggest_name
from streamd.limits import MAX_CONFIG_BYTES

ConfigInput = Path | str | Mapping[str, object]  # a configuration: the path of a file, or the contents of one
_TEXT_TAG: Final = "tag:yaml.org,2002:str"
# The mistake behind a message of the YAML parser, and what to do about it. The first that matches replaces the message.
_YAML_REMEDIES: Final = {
    r"'\t'": "there is a tab here; indent with spaces",
    "mapping values are not allowed": "there is a second colon on this line; give each key a line of its own, or put "
    "a value that holds a colon in quotes",
    "expected <block end>": "this line is not indented like the lines above and below it; give all of them the same "
    "number of spaces",
    "expected ',' or": "a comma is missing before this point, or the bracket opened on line {begun} is not closed; add "
    "the comma, or close the bracket",
    "undefined alias": "a value that begins with * needs quotes",
    "cannot start any token": "a value that begins with this character needs quotes",
    "unknown escape": "there is a backslash inside double quotes; write paths with /, or use single quotes",
    "unexpected end of stream": "the quote opened on line {begun} is not closed",
    "another document": "a configuration is one document; remove the line with ---",
    "could not determine a constructor": "a word that begins with ! is a tag, but streamd knows none; remove it",
    "could not find expected ':'": "the key on line {begun} must be followed by a colon and a space",
}


def load_config(where: ConfigInput) -> Config:
    """Loads the configuration in the YAML or JSON file `where`, or from a mapping.

    Paths are relative to the file's folder, and for a mapping to the current directory; none has to exist. Raises
    ConfigError with one line, `file:line: key.path: what is wrong and what is allowed`, for each mistake.
    """
    if isinstance(where, Mapping):
        try:
            base = Path.cwd()
        except FileNotFoundError as error:
            raise ConfigError("the working directory was removed: change to another one with os.chdir") from error
        return _build_config(YamlDocument(where, {}), "configuration", base)
    path = Path(where)
    try:
        text = read_regular_file(path, MAX_CONFIG_BYTES).decode("utf-8-sig")
    except FileNotFoundError as error:
        remedy = (
            "give the path of your configuration (--config FILE), or let streamd write one for your images: streamd "
            "init PATH"
        )
        raise ConfigError(f"{path}: there is no such file; {remedy}") from error
    except IsADirectoryError as error:
        raise ConfigError(
            f"{path}: is a folder; give the path of the configuration in it, such as {path / 'config.yaml'}, or write "
            f"one for a folder of images:  streamd init {path}"
        ) from error
    except UnicodeDecodeError as error:
        what = (
            "not text; give the path of the configuration"
            if b"\0" in error.object
            else "not in UTF-8; save it as UTF-8"
        )
        raise ConfigError(f"{path}: byte {error.start} is {what}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    return _build_config(parse_yaml(text, str(path)), str(path), path.absolute().parent)


@contextmanager
def add_error_locations(config: Config) -> Iterator[None]:
    """Puts file and line before each line of a ConfigError of the body that begins with a key path of `config`."""
    try:
        yield
    except ConfigError as error:
        text = locations.add_locations(str(error), config.key_locations)
        if text == str(error):
            raise
        raise ConfigError(text) from error


def _build_config(document: YamlDocument, name: str, base: Path) -> Config:
    data = document.data
    if not isinstance(data, Mapping):
        if data is None:
            raise ConfigError(f"{name}:1: is empty; write at least {KEY_EXAMPLES['streams']}")
        raise ConfigError(
            f"{name}:1: holds {format_yaml_value(data)} where keys are needed; write at least "
            f"{KEY_EXAMPLES['streams']}, or, if this file is your data, let  streamd init PATH  write a configuration"
        )
    # Models are validated even if the document or `like` has problems, so that one message names all mistakes.
    streams = resolve_streams(data["streams"]) if "streams" in data else ResolvedStreams({}, {}, ())
    places = KeyLocations(name, document.lines, streams.copied)
    wrong = [*document.problems, *streams.problems]
    if "streams" in data:
        data = {**data, "streams": streams.raw}
    try:
        config = Config.model_validate(data, context={"base": base, "places": places})
    except ValidationError as error:
        wrong += explain_errors(error.errors(include_url=False))
    if wrong:
        raise ConfigError(format_problems(wrong, places))
    return config


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A parsed file: `data` of dict, list, str, int, float, bool and None, and the line of each key, from 1."""

    data: object
    lines: dict[KeyPath, int]
    problems: tuple[ConfigProblem, ...] = ()


class _PlainConstructor(SafeConstructor):
    """Constructs plain values only; a tag for anything else is an error. Keys are text, as in JSON."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        for key, _ in node.value:
            if isinstance(key, ScalarNode) and key.value != "<<":
                key.ctag = Tag(suffix=_TEXT_TAG)  # `2026:` and `no:` are names of streams or columns
        return super().construct_mapping(node, deep)


# A date stays text: JSON has no dates, and no key needs one.
_PlainConstructor.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: str(node.value))


def parse_yaml(text: str, name: str) -> YamlDocument:
    """Parses `text`. Raises ConfigError with line and column where it is not YAML; repeated keys become problems."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ReusedAnchorWarning)
            yaml = YAML(typ="safe", pure=True)
            yaml.Constructor = _PlainConstructor
            root = yaml.compose(io.StringIO(text))
            if root is None:
                return YamlDocument(None, {})
            lines, problems = _index_key_lines(root)
            yaml.constructor.allow_duplicate_keys = True  # `problems` has all of them; ruamel would stop at the first
            return YamlDocument(yaml.constructor.construct_document(root), lines, problems)
    except ReaderError as error:
        line, what = text.count("\n", 0, error.position) + 1, f"character {error.character:#x}"
        raise ConfigError(f"{name}:{line}: not valid YAML: {what} is not allowed in a text file") from error
    except YAMLError as error:
        if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
            raise ConfigError(f"{name}: not valid YAML: {error}") from error
        mark, problem = error.problem_mark, str(error.problem).partition("\n")[0]
        begun = (error.context_mark or mark).line + 1
        remedies = (remedy.format(begun=begun) for words, remedy in _YAML_REMEDIES.items() if words in problem)
        why = next(remedies, f"{problem}, {error.context}")
        raise ConfigError(f"{name}:{mark.line + 1}:{mark.column + 1}: not valid YAML: {why}") from error
    except ReusedAnchorWarning as error:
        raise ConfigError(f"{name}: {' '.join(str(error).split())}; give each anchor a name of its own") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # from ruamel, for a tag such as !!int x
        raise ConfigError(f"{name}: not valid YAML: a tag does not fit its value: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{name}: nested too deeply to be a configuration") from error


def _index_key_lines(root: Node) -> tuple[dict[KeyPath, int], tuple[ConfigProblem, ...]]:
    """Returns the line of every key, and a problem for each repeated key.

    A node that aliases repeat is visited once: nested aliases would otherwise take exponential time.
    """
    lines: dict[KeyPath, int] = {(): 1}
    problems = []
    walked: set[int] = set()
    waiting: list[tuple[KeyPath, Node]] = [((), root)]
    while waiting:
        keys, node = waiting.pop()
        if id(node) in walked:
            continue
        walked.add(id(node))
        children: list[tuple[str | int, int, Node]] = []
        if isinstance(node, MappingNode):
            children = [(str(key.value), key.start_mark.line + 1, value) for key, value in node.value]
        elif isinstance(node, SequenceNode):
            children = [(number, value.start_mark.line + 1, value) for number, value in enumerate(node.value)]
        for key, line, child in children:
            place = (*keys, key)
            if place in lines:
                problems.append(ConfigProblem(place, f"is written twice, first on line {lines[place]}; keep one"))
            lines[place] = line
            waiting.append((place, child))
    return lines, tuple(problems)


# --- streams: their names, and the keys that they copy by `like`, before any value is validated; pure


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
    for name, stream in streams.items():
        place, wrong = ("streams", str(name)), []
        if not isinstance(name, str):
            why = f"a stream's name is text, found {format_yaml_value(name)}; put it in quotes"
            wrong.append(ConfigProblem(place, why))
        elif not _STREAM_NAME.fullmatch(name):
            wrong.append(ConfigProblem(place, "a stream's name has 1 to 64 characters from A-Z a-z 0-9 _ . -"))
        if isinstance(stream, Mapping) and "name" in stream:
            wrong.append(ConfigProblem((*place, "name"), "unknown key; a stream's name is the key above it"))
        chain, trouble = (None, []) if wrong else _find_like_chain(name, streams)
        problems += [*wrong, *trouble]
        if chain is None:
            continue
        if not isinstance(stream, Mapping):
            raw[name] = stream
            continue
        merged: dict[str, object] = {}
        for other in [*reversed(chain), name]:
            source = streams[other]
            given = (
                {key: value for key, value in source.items() if key != "like"} if isinstance(source, Mapping) else {}
            )
            # `image` is short for one of `images`, so a stream that gives one of the two drops the other that it
            # copies.
            for key, replaced in (("image", "images"), ("images", "image")):
                if key in given and replaced not in given:
                    merged.pop(replaced, None)
            merged |= given
            copied |= {(name, key): other for key in given if other != name and key not in stream}
        raw[name] = {**merged, "name": name}
    return ResolvedStreams(raw, copied, tuple(problems))


def _find_like_chain(name: str, streams: RawStreams) -> tuple[list[str] | None, list[ConfigProblem]]:
    """Returns the streams that `name` copies from, nearest first.

    Returns None if the chain is broken, and the problem only for the stream where it breaks.
    """
    chain: list[str] = []
    here = name
    while (wanted := stream.get("like") if isinstance(stream := streams[here], Mapping) else None) is not None:
        if not isinstance(wanted, str) or wanted not in streams:
            others = [str(other) for other in streams if other != here]
            hint = suggest_name(str(wanted), others) or (f"; use one of {', '.join(others)}" if others else "")
            why = f"found {format_yaml_value(wanted)}, which is not a stream in this file{hint}"
            return None, [] if chain else [ConfigProblem(("streams", here, "like"), why)]
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
