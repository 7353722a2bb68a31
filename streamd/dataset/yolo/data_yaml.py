"""Reads the data.yaml of a YOLO data set: the names of its classes, and where the pictures of a part are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from streamd.core.text import is_encodable
from streamd.dataset.labels.encode import warn_of_equal_classes
from streamd.dataset.paths.confined import format_path, translate_read_errors
from streamd.dataset.yolo import YoloPart
from streamd.errors import ConfigError
from streamd.limits import MAX_BOX_CLASS, MAX_DATA_YAML_BYTES, MIB

_KEY_OF_PART: Final[Mapping[YoloPart, str]] = {"train": "train", "validation": "val", "test": "test"}
_UP: Final = "../"


@dataclass(frozen=True, slots=True)
class YoloData:
    """What a data.yaml says of one part: the `classes`, the folder `base`, and its folders and lists of pictures.

    `has_points`: behind each box, a line of labels has key points.
    """

    classes: tuple[int | str, ...]
    base: Path
    places: tuple[Path, ...]
    has_points: bool


def read_data_yaml(path: Path, part: YoloPart, key: str) -> YoloData:
    """Reads a data.yaml; `key` is the configuration key of the source. Raises ConfigError."""
    data = load_data_yaml(path, f"{key}.path")
    where = f"{key}.path: {format_path(path)}"
    value = data.get("path")
    if value is None:
        base = Path(os.path.abspath(path.parent))  # noqa: PTH100 - resolve() would follow links
    else:
        if not isinstance(value, str) or not value or not is_encodable(value) or "\0" in value:
            raise ConfigError(f"{where}: path must be the folder of the data set; correct it, or leave it out")
        base = Path(os.path.abspath(path.parent / value))  # noqa: PTH100 - as above
    name = _KEY_OF_PART[part]
    if data.get(name) is None:
        there = ", ".join(each for each in _KEY_OF_PART.values() if data.get(each) is not None) or "no part at all"
        raise ConfigError(
            f"{key}.part: {format_path(path)} has no key {name}, which lists the pictures of part {part}; it has "
            f"{there}: choose another part, or add the key"
        )
    places = data[name] if isinstance(data[name], list) else [data[name]]
    if not places or not all(isinstance(each, str) and each and is_encodable(each) for each in places):
        raise ConfigError(f"{where}: {name} must be a folder, a list file, or a list of these; correct it")
    found: list[Path] = []
    for each in places:
        found.append(Path(os.path.abspath(base / each)))  # noqa: PTH100 - resolve() would follow links
        # Many exports write ../train/images for a folder beside the data.yaml.
        if each.startswith(_UP) and not found[-1].exists():
            beside = Path(os.path.abspath(path.parent / each.removeprefix(_UP)))  # noqa: PTH100 - as above
            found[-1] = beside if beside.exists() else found[-1]
    return YoloData(_parse_class_names(data, where), base, tuple(found), has_points=data.get("kpt_shape") is not None)


def load_data_yaml(path: Path, key: str) -> Mapping[str, Any]:
    """Returns the keys of a data.yaml. Raises ConfigError."""
    with translate_read_errors(path, key):
        if path.is_dir():
            raise ConfigError(f"{key}: {format_path(path)} is a folder; name the data.yaml in it")
        if path.stat().st_size > MAX_DATA_YAML_BYTES:
            raise ConfigError(
                f"{key}: {format_path(path)} has more than {MAX_DATA_YAML_BYTES // MIB} MiB, so it is no data.yaml; "
                "name the YAML file of the data set"
            )
        text = path.read_bytes()
    try:
        data = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{key}: {format_path(path)} is not YAML: {' '.join(str(error).split())}; correct it"
        ) from error
    if not isinstance(data, Mapping):
        raise ConfigError(f"{key}: {format_path(path)} has no keys; a data.yaml has names, train and val")
    return data


def _parse_class_names(data: Mapping[str, Any], where: str) -> tuple[int | str, ...]:
    """Returns the names of the classes; the numbers 0 to nc - 1 where only their count is given."""
    names, count = data.get("names"), data.get("nc")
    if names is None and type(count) is int and 0 < count <= MAX_BOX_CLASS:
        return tuple(range(count))
    if isinstance(names, Mapping):
        if set(names) != set(range(len(names))):
            raise ConfigError(
                f"{where}: the keys of names must be the numbers from 0 to {len(names) - 1}, one for each class; "
                "correct them"
            )
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list) or not names or not all(type(each) in {str, int} for each in names):
        raise ConfigError(
            f"{where}: names must list the classes, as in names: [cat, dog] or names: {{0: cat, 1: dog}}; write it"
        )
    if type(count) is int and count != len(names):
        raise ConfigError(
            f"{where}: nc is {count}, but names lists {len(names)} classes; make them agree, or remove nc"
        )
    warn_of_equal_classes(where, "names", names, range(len(names)))
    return tuple(names)
