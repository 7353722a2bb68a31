"""Text from elsewhere, made fit for a terminal: names of files, and what decoders say of them, may hold anything."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` in one line, with what is not for printing, such as escape sequences, written as Python would."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
