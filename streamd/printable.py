"""Text for people: what comes from elsewhere made fit for a terminal, and numbers with their nouns."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` in one line, with what is not for printing, such as escape sequences, written as Python would."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def is_text(name: str) -> bool:
    """Whether a path is text: Linux takes any bytes, and Python keeps those that are not UTF-8 as lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def counted(number: int, what: str, plural: str | None = None) -> str:
    """`1 file`, `1,234 files`."""
    return f"{number:,} {what if number == 1 else plural or f'{what}s'}"
