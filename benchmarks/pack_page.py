"""What pack.py found, as values and as a page.

    python benchmarks/pack_page.py [RESULTS.json]

writes the page anew beside the figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pages import RESULTS, Page, median_head, median_row
from report import Machine

LEAST: Final = 0.8  # of what bounds a pack: decoding, or the disk


@dataclass(frozen=True, slots=True)
class Round:
    """Rates of one round: samples/s of decoding alone, of a disk that took the same bytes, and of the pack."""

    limit: float
    disk: float
    pack: float
    verify_s: float

    @property
    def ratio(self) -> float:
        """Of what bounds it: the slower of the two."""
        return self.pack / min(self.limit, self.disk)


@dataclass(frozen=True, slots=True)
class Packs:
    """All that one run of pack.py found: an entry a round for each format."""

    machine: Machine
    samples: int
    workers: int
    formats: dict[str, tuple[Round, ...]]

    def ratio(self, name: str) -> float:
        """The median of a format."""
        return statistics.median(each.ratio for each in self.formats[name])


_ROWS: Final[tuple[tuple[str, Callable[[Round], float], str], ...]] = (
    ("decoding alone", lambda each: each.limit, ",.0f"),
    ("the disk, as many bytes in a plain file", lambda each: each.disk, ",.0f"),
    ("the pack", lambda each: each.pack, ",.0f"),
    ("of the slower of both", lambda each: each.ratio, ".2f"),
    ("seconds to read it back", lambda each: each.verify_s, ".1f"),
)


def render(found: Packs) -> str:
    """The page: a table a format."""
    where = found.machine
    lines = [
        "# Packs: what `streamd pack` takes",
        "",
        f"{where.date}, commit {where.commit}, {where.cores} cores, Python {where.python}. Rounds are interleaved:",
        "compare along a column. Written by `python benchmarks/pack.py`.",
        "",
        f"{found.samples:,} JPEGs of 128x128 from memory, {found.workers} workers, samples/s: of processes that",
        "decode and do nothing else, of a plain file of as many bytes as the pack, and of the pack until it is safe",
        "on the disk.",
        "",
    ]
    for name, rounds in found.formats.items():
        verdict = "held" if found.ratio(name) >= LEAST else "missed"
        table = [median_row(what, [figure(each) for each in rounds], form) for what, figure, form in _ROWS]
        lines += [f"`--format {name}`, {LEAST:g} of the slower is wanted: **{verdict}**.", ""]
        lines += [*median_head(len(rounds)), *table, ""]
    return "\n".join(lines)


PAGE: Final = Page(Packs, render, by="pack.py", results=RESULTS / "pack.json")


if __name__ == "__main__":
    PAGE.rewrite()
