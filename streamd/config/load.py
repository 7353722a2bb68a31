"""config.yaml to a `Config`. The only file of this package that reads a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from streamd.config import inherit, locations, yaml_lines
from streamd.config.error_text import explain
from streamd.config.hints import EXAMPLES
from streamd.config.locations import Places, Problem, message
from streamd.config.schema import Config
from streamd.config.units import show
from streamd.config.yaml_lines import Document
from streamd.errors import ConfigError

Given = Path | str | Mapping[str, object]  # a configuration: a file's path, or what would stand in it


def load(where: Given) -> Config:
    """The configuration in the YAML or JSON file `where`, or given as a mapping.

    Relative paths are seen from the file's folder, those of a mapping from the current one; none has to exist.
    Raises ConfigError with one line, `file:line: key.path: what is wrong and what is allowed`, for each mistake.
    """
    if isinstance(where, Mapping):
        return _build(Document(where, {}), "configuration", _here())
    path = Path(where)
    return _build(yaml_lines.parse(_read(path), str(path)), str(path), path.absolute().parent)


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise ConfigError("the working directory was removed: change to another one with os.chdir") from error


@contextmanager
def located(config: Config) -> Iterator[None]:
    """Puts file and line before the errors of the data that `config` names, where they begin with a key path."""
    try:
        yield
    except ConfigError as error:
        text = locations.located(str(error), config.places)
        if text == str(error):
            raise
        raise ConfigError(text) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file; name your configuration, or write one there") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path}: is a folder; name the file in it, such as {path / 'config.yaml'}") from error
    except UnicodeDecodeError as error:
        what = "no text; name the configuration" if b"\0" in error.object else "not in UTF-8; save it as UTF-8"
        raise ConfigError(f"{path}: byte {error.start} is {what}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _build(document: Document, name: str, base: Path) -> Config:
    data = document.data
    if not isinstance(data, Mapping):
        found = "is empty" if data is None else f"holds {show(data)} where keys are needed"
        raise ConfigError(f"{name}:1: {found}; write at least {EXAMPLES['streams']}")
    streams = inherit.resolve(data["streams"]) if "streams" in data else inherit.Streams({}, {}, ())
    places = Places(name, document.lines, streams.copied)
    wrong = [*document.problems, *streams.problems]
    config = _validated({**data, "streams": streams.raw} if "streams" in data else data, base, places)
    if isinstance(config, Config) and not wrong:
        return config
    wrong += [] if isinstance(config, Config) else config
    raise ConfigError(message(wrong, places))


def _validated(data: Mapping[str, object], base: Path, places: Places) -> Config | list[Problem]:
    try:
        return Config.model_validate(data, context={"base": base, "places": places})
    except ValidationError as error:
        return explain(error.errors(include_url=False))
