"""Parses and formats sizes and durations as users write them: `1GiB`, `512 MB`, `10s`, `2m`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_BYTE_UNITS: Final = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)},
}
_SECOND_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_QUANTITY: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]*)", re.ASCII)
_NEAR_BYTES: Final = {f"{letter}{end}": f"{letter.upper()}iB" for letter in "kmgt" for end in ("", "i")}
_NEAR_SECONDS: Final = {
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
}
_SHOWN_CHARS: Final = 60  # of a value in a message: enough to find it in the file


def format_yaml_value(value: object) -> str:
    """Formats a value for a message: short, and as YAML spells it."""
    match value:
        case None:
            return "nothing (null)"
        case bool():
            return "true" if value else "false"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list" if len(value) > 4 else "[" + ", ".join(format_yaml_value(item) for item in value) + "]"  # noqa: PLR2004 - four numbers still read well
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


def _parse_quantity(
    value: object, units: Mapping[str, float], near: Mapping[str, str], below: float, allowed: str
) -> float:
    """Returns the number that `value` denotes, in base units. Raises ValueError, which suggests 1GiB for 1G."""
    found = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    amount: float | None = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        amount = value
    elif found and found[2].lower() in units:
        amount = (int(found[1]) if found[1].isdigit() else float(found[1])) * units[found[2].lower()]
    if amount is None or not 0 <= amount < below:
        meant = near.get(found[2].lower()) if found else None
        hint = f"; did you mean {found[1]}{meant}?" if found and meant else ""
        raise ValueError(f"found {format_yaml_value(value)}, which is {allowed}{hint}")
    return amount


def parse_bytes(value: object) -> int:
    """Parses `1GiB`, `512 MB`, `1.5GiB` or a plain number to bytes. Raises ValueError, which says what is allowed."""
    allowed = "not a size; write a size such as 512MiB, 1.5GiB or 20GB, or a whole number of bytes"
    return round(_parse_quantity(value, _BYTE_UNITS, _NEAR_BYTES, 1 << 63, allowed))


def parse_seconds(value: object) -> float:
    """Parses `10s`, `250ms`, `2m`, `1h` or a number to seconds. Raises ValueError, which says what is allowed."""
    allowed = "not a duration; write a duration such as 10s, 250ms, 2m or 1h, or a number of seconds"
    return float(_parse_quantity(value, _SECOND_UNITS, _NEAR_SECONDS, float("inf"), allowed))


def format_bytes(count: int) -> str:
    """Formats `count` bytes in the largest binary unit that gives one or more: `1.5 GiB`, `12 bytes`."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.1f}".removesuffix(".0") + f" {unit}"
    return f"{count} byte{'' if count == 1 else 's'}"
