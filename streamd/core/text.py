"""Text for people: escapes foreign text for terminals, and formats numbers with their nouns."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

_Item = TypeVar("_Item")

FIRST_KEY_USER: Final = 1 << 32  # beyond every uid: the users that are keys count from here
_FEW_ITEMS: Final = 2  # so few items are shown instead of counted
_WHOLE_FROM: Final = 100  # from here on three digits need no decimal point
_POWERS_FROM: Final = 1e6
# In what spellings of a name differ, and what makes them alike. Quotes stand at the ends only once what does not show
# is gone, such as zero-width spaces and marks of direction; blanks within quotes are tidied after these.
_SPELLINGS: Final[Sequence[tuple[str, Callable[[str], str]]]] = (
    ("how their letters are encoded", partial(unicodedata.normalize, "NFC")),
    (
        "characters that do not show",
        lambda name: "".join(each for each in name if each.isspace() or unicodedata.category(each) not in {"Cf", "Cc"}),
    ),
    (
        "quotes around them",
        lambda name: name[1:-1] if len(name) > 2 and name[0] == name[-1] and name[0] in "'\"`" else name,  # noqa: PLR2004 - two quotes
    ),
    ("blanks", lambda name: " ".join(name.split())),
    ("upper and lower case", str.casefold),
)


def escape_unprintable(text: str) -> str:
    """Returns `text` as one line; characters that do not print, such as escape sequences, are written as in Python."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def shorten_text(text: str, most_chars: int) -> str:
    """Returns `text` as one printable line of at most `most_chars` characters; an ellipsis marks a cut."""
    fit = escape_unprintable(text)
    return fit if len(fit) <= most_chars else f"{fit[: most_chars - 1]}…"


def is_encodable(name: str) -> bool:
    """Whether a path is text. Linux allows any bytes, and Python keeps those that are not UTF-8 as lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def fold_name(name: str) -> str:
    """Returns a name less that in which spellings of it may differ: case, blanks, quotes, invisible signs, encoding."""
    for _, level in _SPELLINGS:
        name = level(name)
    return name


def describe_name_difference(names: Sequence[str]) -> str:
    """Returns in what names differ that are equal for `fold_name`."""
    alike = (difference for difference, level in reversed(_SPELLINGS) if len(set(map(level, names))) == 1)
    return next(alike, "case, blanks or how their letters are encoded")


def format_count(number: int, what: str, plural: str | None = None) -> str:
    """Returns a number with its noun: `1 file`, `1,234 files`."""
    return f"{number:,} {what if number == 1 else plural or f'{what}s'}"


def format_user(user: int) -> str:
    """Returns a user as messages name it: by its uid, or by the fingerprint of its key on another host."""
    return f"user {user}" if user < FIRST_KEY_USER else f"the key {user - FIRST_KEY_USER:08x}"


def split_long_list(items: Sequence[_Item], limit: int) -> tuple[Sequence[_Item], int]:
    """Returns the first `limit` items and the number left out; all of them if there are only one or two more."""
    left_out = len(items) - limit
    return (items[:limit], left_out) if left_out > _FEW_ITEMS else (items, 0)


def format_list(items: Sequence[str], limit: int) -> str:
    """Returns `a, b, c`, or only the first of many items: `a, b, c and 7 more`."""
    shown, left_out = split_long_list(items, limit)
    return ", ".join(shown) + (f" and {left_out:,} more" if left_out else "")


def format_duration(seconds: float) -> str:
    """Returns a time such as `12 ms`, `3.4 s`, `41 s`, `12 min` or `3.4 h`."""
    for unit_s, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.2g} {unit}" if seconds < 10 * unit_s else f"{seconds / unit_s:.0f} {unit}"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004 - two digits say enough


def format_number(number: float) -> str:
    """Returns a number with three digits, integers in full: `-0.123`, `12.5`, `1,234`, `1.2e+09`."""
    if isinstance(number, int) or _WHOLE_FROM <= abs(number) < _POWERS_FROM:
        return f"{number:,.0f}"
    return f"{number:.3g}"
