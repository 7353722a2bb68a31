"""Figures that pages quote: a mark names the figure, and the number behind it is what the measurement says.

    ... `<!-- figure compare:s.one_of_limit -->0.93` of the limit ...

`compare` is results/compare.json, `s.one_of_limit` a key of its "figures"; in files without those, a path such as
`growth:machine.cores`. `python benchmarks/compare.py --write-figures` writes all of them anew, and a test holds them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent
RESULTS: Final = HERE / "results"
MARK: Final = re.compile(r"(?P<mark><!-- figure (?P<file>[a-z_]+):(?P<key>[\w.]+) -->)(?P<number>-?[\d,]*\.?\d*)")


@dataclass(frozen=True, slots=True)
class Figure:
    """A marked figure: where it stands, what it quotes, and the number as it is written."""

    page: str
    line: int
    file: str
    key: str
    number: str


def pages() -> list[Path]:
    """The pages that may quote."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def form(value: float) -> str:
    """As pages write it: three digits or more."""
    if abs(value) >= 100:  # noqa: PLR2004 - three digits stand before the point
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"  # noqa: PLR2004 - two digits do


def find(text: str, page: str) -> Iterator[Figure]:
    """The figures of a page. The example of this module's docstring is one in code, which counts as well."""
    for number, line in enumerate(text.splitlines(), 1):
        for found in MARK.finditer(line):
            yield Figure(page, number, found["file"], found["key"], found["number"].rstrip(",."))


def value_of(file: str, key: str, results: Path = RESULTS) -> float:
    """The measured figure. Raises LookupError, naming it, where there is none."""
    path = results / f"{file}.json"
    if not path.exists():
        raise LookupError(f"{file}:{key}: there is no {path.name}")
    document: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    named: dict[str, float] = document.get("figures", {})
    if key in named:
        return named[key]
    found: Any = document
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, int | float):
        return found
    raise LookupError(f"{file}:{key}: {path.name} has no such figure")


def complaint(figure: Figure, results: Path = RESULTS) -> str | None:
    """What is wrong with a figure on a page, and None when it is what was measured."""
    try:
        wanted = form(value_of(figure.file, figure.key, results))
    except LookupError as error:
        return f"{figure.page}:{figure.line}: {error}"
    if figure.number == wanted:
        return None
    return (
        f"{figure.page}:{figure.line}: {figure.file}:{figure.key} says {figure.number or 'nothing'}, measured {wanted}"
    )


def written(text: str, results: Path = RESULTS) -> str:
    """The page with every marked figure as measured. Raises LookupError for one that was not."""

    def write(found: re.Match[str]) -> str:
        rest = found["number"][len(found["number"].rstrip(",.")) :]  # a comma or full stop of the sentence
        return found["mark"] + form(value_of(found["file"], found["key"], results)) + rest

    return MARK.sub(write, text)


def write_all() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        anew = written(text)
        if anew != text:
            page.write_text(anew, encoding="utf-8")
            print(page.relative_to(ROOT))
