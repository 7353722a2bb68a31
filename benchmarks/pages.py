"""Figures in a file, and a page elsewhere that is made of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Page(Generic[Found]):
    """Figures that a script `by` finds: a frozen dataclass `kind`, kept in `results`, and the page made of it.

    The page lies beside the results, unless it is `elsewhere`.
    """

    kind: type[Found]
    render: Callable[[Found], str]
    by: str
    results: Path
    elsewhere: Path | None = None

    def save(self, found: Found, results: Path, **more: object) -> None:
        """Writes `results` (JSON), with `more` for other readers, and the page."""
        results.parent.mkdir(parents=True, exist_ok=True)
        document = {**msgspec.to_builtins(found), **more}
        results.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
        self._write(found, results)

    def load(self, results: Path) -> Found:
        """Reads what `save` wrote."""
        return msgspec.json.decode(results.read_bytes(), type=self.kind)

    def rewrite(self) -> None:
        """The command: writes the page anew, of the results that it is given or of `results`."""
        results = Path(sys.argv[1]) if len(sys.argv) > 1 else self.results
        if not results.exists():
            sys.exit(f"{Path(sys.argv[0]).stem}: no {results}: run  python benchmarks/{self.by}  first")
        print(self._write(self.load(results), results))

    def _write(self, found: Found, results: Path) -> Path:
        page = self.elsewhere or results.with_suffix(".md")
        page.write_text(self.render(found))
        return page
