"""Tables in Markdown, and the places in docs/operations.md that they are written to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "operations.md"
END: Final = "<!-- to here -->"
_PLACE: Final = re.compile(r"<!-- scripts/docs operations writes (\w+) from here -->\n.*?<!-- to here -->", re.DOTALL)

Part = Callable[[], str]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells may hold bars and newlines."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def code(text: str) -> str:
    """As what a program says or reads."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def with_parts(page: str, parts: Mapping[str, Part]) -> str:
    """The page with each part as it is now. KeyError for a place that nothing is written to."""
    return _PLACE.sub(lambda found: f"{_begin(found[1])}\n{parts[found[1]]()}\n{END}", page)


def places(page: str) -> list[str]:
    """The parts that the page has a place for, in their order."""
    return _PLACE.findall(page)


def prose(page: str) -> str:
    """What is written by hand, without line ends."""
    return " ".join(_PLACE.sub("", page).split())


def _begin(name: str) -> str:
    return f"<!-- scripts/docs operations writes {name} from here -->"
