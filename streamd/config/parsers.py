"""Parses single values: a value from YAML to the value of a model, or a ValueError that is a whole sentence. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from streamd.config.hints import suggest_boolean, suggest_fraction, suggest_whole_number
from streamd.config.units import format_bytes, format_yaml_value, parse_bytes
from streamd.errors import suggest_name
from streamd.limits import MAX_NODES, MIB

HintBuilder = Callable[[object], str]  # returns the end of a message: `; did you mean 0.2?`, or empty

_NUMBERS_OF_SIZE: Final = 2  # height and width
_NUMBERS_OF_RANGE: Final = 2  # minimum and maximum
_IDENTITY_PATTERN: Final = re.compile(r"[0-9a-f]{32}")
MAX_SIDE: Final = 16384  # pixels; beyond it a single image is no longer a row of a batch
_MAX_LEVEL: Final = 255.0  # the brightest value of a pixel
_FRACTIONS: Final = {  # means and stds of other tools, for pixels in 0-1, by their name here
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "minus_one_one": ((0.5,), (0.5, 0.5, 0.5)),
}
MAX_WORKERS: Final = 1024
_LEVELS_ALLOWED: Final = "use a list of one number per channel, each from 0 to 255"
_MAX_PORT: Final = 65535


def _build_refusal(value: object, allowed: str) -> ValueError:
    return ValueError(f"found {format_yaml_value(value)}; {allowed}")


def build_short_form_parser(key: str) -> Callable[[object], object]:
    """Returns a parser for the short form of a model: a plain string stands for `{key: string}`."""
    return lambda value: {key: value} if isinstance(value, str) else value


def build_whole_number_parser(low: int, high: int) -> Callable[[object], int]:
    """Returns a parser of whole numbers from `low` to `high`; true and false are not numbers."""

    def parse_value(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _build_refusal(value, f"use a whole number from {low} to {high}{suggest_whole_number(value)}")
        return value

    return parse_value


def build_number_parser(low: float, high: float, hint: HintBuilder) -> Callable[[object], float]:
    """Returns a parser of numbers above `low`, up to and including `high`; `hint` ends the message for other values."""

    def parse_value(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low < value <= high:
            raise _build_refusal(value, f"use a number above {low:g}, up to {high:g}{hint(value)}")
        return value

    return parse_value


def parse_visible_share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise _build_refusal(value, f"use a number from 0 to 1, the part of a box's area{suggest_fraction(value)}")
    return float(value)


def parse_scalar(value: object) -> object:
    if isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    unserved = "conditions other than equality are not in this version; " if isinstance(value, dict | list) else ""
    raise _build_refusal(value, f"{unserved}use text, a number, true or false")


def parse_nonempty_text(value: object) -> object:
    if not isinstance(value, str) or not value or "\0" in value:
        quotes = "; put it in quotes" if isinstance(value, int | float) else ""
        raise _build_refusal(value, f"use text that is not empty{quotes}")
    return value


def parse_identity(value: object) -> object:
    if not isinstance(value, str) or not _IDENTITY_PATTERN.fullmatch(value):
        quotes = "; put it in quotes" if isinstance(value, int | float) else ""
        raise _build_refusal(value, f"use the 32 hexadecimal digits that `streamd check` prints{quotes}")
    return value


def parse_memory_bytes(value: object) -> int:
    count = parse_bytes(value)
    if count < MIB:
        raise ValueError(f"{format_bytes(count)} is too little; use 1MiB or more")
    return count


_HOST_PORT: Final = re.compile(r"(?:[^\s:/\[\]]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", re.ASCII)


def is_host_port(text: str) -> bool:
    """Whether `text` is address:port, such as 127.0.0.1:9191, [::1]:9191 or *:9191."""
    found = _HOST_PORT.fullmatch(text)
    return found is not None and int(found[1]) <= _MAX_PORT


def parse_host_port(value: object) -> object:
    if not isinstance(value, str) or not is_host_port(value):
        near = f"127.0.0.1:{value}" if type(value) is int else str(value).rpartition("://")[2]
        near = f"; did you mean {near}?" if is_host_port(near) else ""
        raise _build_refusal(value, f"use address:port such as 127.0.0.1:9191, or null{near}")
    return value


def parse_image_size(value: object) -> object:
    if value is None or value == "stored":
        return value
    sides = value if isinstance(value, list | tuple) else ()
    if len(sides) != _NUMBERS_OF_SIZE or not all(type(side) is int and 1 <= side <= MAX_SIDE for side in sides):
        near = suggest_name(value, ["stored"]) if isinstance(value, str) else ""
        near = near or _suggest_size(value)
        raise _build_refusal(value, f"use [height, width], each from 1 to {MAX_SIDE} pixels{near}")
    return tuple(sides)


def _suggest_size(value: object) -> str:
    """Suggests `; did you mean [128, 128]?` for 128, '128x128' and ['128', '128'], in the order they are written."""
    plain = isinstance(value, int | str | list | tuple) and not isinstance(value, bool)
    numbers = [int(number) for number in re.findall(r"(?<![\d.-])\d{1,5}(?!\d)", str(value))] if plain else []
    if not 1 <= len(numbers) <= _NUMBERS_OF_SIZE or not all(1 <= number <= MAX_SIDE for number in numbers):
        return ""
    return f"; did you mean [{numbers[0]}, {numbers[-1]}]?"


def build_bounds_parser(low: float, high: float) -> Callable[[object], object]:
    """Returns a parser of [least, most], both from `low` to `high`."""

    def parse_value(value: object) -> object:
        ends = value if isinstance(value, list | tuple) else ()
        numbers = all(type(end) in {int, float} for end in ends)
        if len(ends) != _NUMBERS_OF_RANGE or not numbers or not low <= ends[0] <= ends[1] <= high:
            raise _build_refusal(value, f"use [least, most], both from {low:g} to {high:g}")
        return tuple(ends)

    return parse_value


def parse_pixel_range(value: object) -> object:
    ends = value if isinstance(value, list | tuple) else ()
    if len(ends) != _NUMBERS_OF_RANGE or not all(type(end) in {int, float} and math.isfinite(end) for end in ends):
        raise _build_refusal(value, "use [low, high], the numbers for black and for white, such as [0, 1]")
    if ends[0] >= ends[1]:
        raise _build_refusal(value, "the number for black comes first and is the lower one: [low, high]")
    return tuple(float(end) for end in ends)


def parse_channel_levels(value: object) -> object:
    levels = value if isinstance(value, list | tuple) else ()
    if not levels or not all(type(level) in {int, float} and math.isfinite(level) for level in levels):
        raise _build_refusal(value, _LEVELS_ALLOWED)
    return tuple(levels)


def find_level_mistake(levels: Sequence[float]) -> str | None:
    """Returns why `levels` are not of pixels from 0 to 255, or None if they are; in mode raw any will do."""
    if not all(0 <= level <= _MAX_LEVEL for level in levels):
        return str(_build_refusal(list(levels), _LEVELS_ALLOWED))
    if max(levels) <= 1 and any(0 < level < 1 for level in levels):
        return (
            f"found {format_yaml_value(list(levels))}, which is for pixels from 0 to 1; pixels here are from 0 to 255: "
            f"write {_suggest_levels(levels)}"
        )
    return None


def _suggest_levels(levels: Sequence[float]) -> str:
    """Returns what to write for `levels` that are meant for pixels in 0-1."""
    scaled = ", ".join(f"{level * _MAX_LEVEL:.6g}" for level in levels)
    name = next((name for name, known in _FRACTIONS.items() if tuple(levels) in known), None)
    if name is not None:
        return f"normalize: {name}, or [{scaled}]"
    return f"[{scaled}]; if the images really are that dark, use normalize: none and a layer of your own"


def parse_class_list(value: object) -> object:
    if value is None:
        return None
    names = value if isinstance(value, list | tuple) else ()
    if not names or not all(type(name) in {int, str} for name in names):
        quoted = "; put true and false in quotes" if any(isinstance(name, bool) for name in names) else ""
        raise _build_refusal(value, f"use a list of names or whole numbers, such as [cat, dog]{quoted}")
    (name, count), *_ = Counter(names).most_common(1)
    if count > 1:
        raise ValueError(f"class {format_yaml_value(name)} is listed twice; list each class once")
    return tuple(names)


def parse_from_setting(value: object) -> object:
    names = value if isinstance(value, list | tuple) else [value]
    if value is not None and not (names and all(isinstance(name, str) and name for name in names)):
        raise _build_refusal(value, "use a column, [several, columns], /an/array or a file.npy")
    return tuple(names) if isinstance(value, list) else value


def parse_weights_setting(value: object) -> object:
    if isinstance(value, str):
        return {"from": value}
    if value is not None and not isinstance(value, Mapping):
        raise _build_refusal(value, "use one column, /array or file.npy, such as weights: weight")
    return value


def parse_transform_setting(value: object) -> object:
    if value is not None and not (isinstance(value, str) and re.fullmatch(r"[^\W\d][\w.]*:[^\W\d]\w*", value)):
        raise _build_refusal(value, "use module:function such as augment:flip, or null")
    return value


def parse_pace_setting(value: object) -> object:
    if value == "free":
        return {}
    if not isinstance(value, Mapping) or not value:
        near = suggest_name(value, ["free"]) if isinstance(value, str) else ""
        raise _build_refusal(value, f"use free or {{lockstep: 10s}}{near}")
    return value


def parse_remainder_setting(value: object) -> object:
    if not isinstance(value, bool) and value != "pad":
        words = {"keep": "; did you mean false?", "drop": "; did you mean true?"}
        near = (
            words.get(value) or suggest_boolean(value) or suggest_name(value, ["pad"]) if isinstance(value, str) else ""
        )
        raise _build_refusal(value, f"use true, false or pad{near}")
    return value


def parse_workers_setting(value: object) -> object:
    if value != "auto" and (type(value) is not int or not 1 <= value <= MAX_WORKERS):
        near = suggest_name(value, ["auto"]) if isinstance(value, str) else ""
        near = suggest_whole_number(value) or near
        raise _build_refusal(value, f"use auto or a whole number from 1 to {MAX_WORKERS}{near}")
    return value


def parse_node_count(value: object) -> object:
    if value is not None and value != "auto" and (type(value) is not int or not 1 <= value <= MAX_NODES):
        near = suggest_name(value, ["auto"]) if isinstance(value, str) else ""
        near = suggest_whole_number(value) or near
        raise _build_refusal(value, f"use auto or a whole number from 1 to {MAX_NODES}{near}")
    return value


def parse_listen_setting(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    if value is not None and not (isinstance(value, list | tuple) and value):
        raise _build_refusal(value, "use an endpoint, a list of endpoints, or null for the default place")
    return value
