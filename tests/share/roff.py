"""Text as man wants it: the macros of man(7) that every man knows, and nothing that could be taken for one of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_ESCAPED: Final = str.maketrans({"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"})
_ASIS: Final = "\b"  # click's mark of a paragraph whose lines stay as they are


def plain(text: str) -> str:
    """One line, without meaning to roff."""
    return _guarded(text.translate(_ESCAPED))


def marked(text: str) -> str:
    """One line in which what stands between backquotes is bold."""
    parts = re.split(r"`([^`]+)`", " ".join(text.split()))
    escaped = (part.translate(_ESCAPED) for part in parts)
    return _guarded("".join(rf"\fB{part}\fP" if odd % 2 else part for odd, part in enumerate(escaped)))


def _guarded(line: str) -> str:
    """What begins with a dot or a quote would be a macro."""
    return rf"\&{line}" if line.startswith((".", r"\(aq")) else line


def title(name: str, section: int, version: str) -> list[str]:
    """The head of a page; without a date, for the same sources make the same page."""
    kind = {1: "User Commands", 5: "File Formats"}[section]
    return [
        '.\\" Written by scripts/manual, from the program itself.',
        f'.TH {plain(name.upper())} {section} "" "streamd {version}" "{kind}"',
        ".nh",
        ".ad l",
    ]


def item(head: str, text: str) -> list[str]:
    """A word, and what there is to say of it; `head` is roff already."""
    return [".TP", head, marked(text)]


def bold(text: str) -> str:
    """As it is typed."""
    return rf"\fB{text.translate(_ESCAPED)}\fP"


def italic(text: str) -> str:
    """What stands for something else."""
    return rf"\fI{text.translate(_ESCAPED)}\fP"


def example(lines: Iterable[str]) -> list[str]:
    """Lines as they are."""
    return [".PP", ".RS 4", ".EX", *(plain(line) for line in lines), ".EE", ".RE"]


def paragraphs(text: str) -> list[str]:
    """A help text: paragraphs between empty lines, of which those that begin with click's mark keep their lines."""
    found: list[str] = []
    for paragraph in text.strip("\n").split("\n\n"):
        lines = [line for line in paragraph.split("\n") if line]
        if lines[0] == _ASIS:
            found += _as_it_is(lines[1:])
        else:
            found += [".PP", marked(paragraph)]
    return found


def _as_it_is(lines: list[str]) -> list[str]:
    """`Example:` and the like belong to the text."""
    if lines[0].endswith(":") and all(line.startswith("  ") for line in lines[1:]):
        return [".PP", marked(lines[0]), *example(line[2:] for line in lines[1:])]
    return example(lines)
