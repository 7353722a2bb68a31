"""Text for people: what comes from elsewhere made fit for a terminal, and numbers with their nouns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

_Item = TypeVar("_Item")

_FEW_ITEMS: Final = 2  # that are shown rather than counted


def escape_unprintable(text: str) -> str:
    """`text` in one line, with what is not for printing, such as escape sequences, written as Python would."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def shorten_text(text: str, most_chars: int) -> str:
    """`text` in one printable line of at most so many characters, the cut marked."""
    fit = escape_unprintable(text)
    return fit if len(fit) <= most_chars else f"{fit[: most_chars - 1]}…"


def is_encodable(name: str) -> bool:
    """Whether a path is text: Linux takes any bytes, and Python keeps those that are not UTF-8 as lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def format_count(number: int, what: str, plural: str | None = None) -> str:
    """`1 file`, `1,234 files`."""
    return f"{number:,} {what if number == 1 else plural or f'{what}s'}"


def split_long_list(items: Sequence[_Item], limit: int) -> tuple[Sequence[_Item], int]:
    """The first `limit` items, and how many are left out: none where there are only one or two more."""
    left_out = len(items) - limit
    return (items[:limit], left_out) if left_out > _FEW_ITEMS else (items, 0)


def format_list(items: Sequence[str], limit: int) -> str:
    """`a, b, c`, and of many items the first ones: `a, b, c and 7 more`."""
    shown, left_out = split_long_list(items, limit)
    return ", ".join(shown) + (f" and {left_out:,} more" if left_out else "")


def format_duration(seconds: float) -> str:
    """`12 ms`, `3.4 s`, `41 s`, `12 min`, `3.4 h`."""
    for unit_s, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.2g} {unit}" if seconds < 10 * unit_s else f"{seconds / unit_s:.0f} {unit}"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004 - two digits say enough
