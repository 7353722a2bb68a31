"""What restart.py found, as values and as a page.

    python benchmarks/restart_page.py [RESULTS.json]

writes the page anew beside the figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pages import RESULTS, Page, line
from report import Machine

from streamd.limits import BACKOFF_MAX_S

MOST_S: Final = 3.0  # from a daemon's command to the first batch of a trainer that waits, its samples being listed


@dataclass(frozen=True, slots=True)
class Restart:
    """One start after a kill: seconds of each part, which come one after the other and are all that there is.

    `opened_s` until the daemon has imported its libraries and mapped the manifest, `ready_s` until its workers are up
    and it serves, `found_s` until the trainer has found it, `batch_s` until its loop has the first batch.
    """

    opened_s: float
    ready_s: float
    found_s: float
    batch_s: float

    @property
    def all_s(self) -> float:
        return self.opened_s + self.ready_s + self.found_s + self.batch_s


@dataclass(frozen=True, slots=True)
class Size:
    """A list of so many samples: its file, and a restart a round."""

    samples: int
    manifest_bytes: int
    restarts: tuple[Restart, ...]

    def median(self, part: Callable[[Restart], float]) -> float:
        return statistics.median(part(each) for each in self.restarts)


@dataclass(frozen=True, slots=True)
class Restarts:
    """All that one run of restart.py found."""

    machine: Machine
    sizes: tuple[Size, ...]

    def holds(self) -> bool:
        """Whether it comes in time even if the trainer has just begun its longest pause between two attempts."""
        return all(size.median(lambda each: each.all_s) + BACKOFF_MAX_S < MOST_S for size in self.sizes)


def _row(size: Size) -> str:
    parts: tuple[Callable[[Restart], float], ...] = (
        lambda each: each.opened_s,
        lambda each: each.ready_s,
        lambda each: each.found_s,
        lambda each: each.batch_s,
    )
    alls = [each.all_s for each in size.restarts]
    cells = [f"{size.median(part):.2f}" for part in parts]
    return line([
        f"{size.samples:,}", f"{size.manifest_bytes / 1e6:.1f}", *cells, f"**{statistics.median(alls):.2f}**",
        f"{max(alls):.2f}",
    ])  # fmt: skip


def render(found: Restarts) -> str:
    """The page: a line a size."""
    where = found.machine
    rounds = len(found.sizes[0].restarts)
    lines = [
        "# From a restart to the first batch",
        "",
        f"{where.date}, commit {where.commit}, {where.cores} cores, Python {where.python}. Written by",
        f"`python benchmarks/restart.py`. {rounds} interleaved rounds, medians.",
        "",
        "A trainer reads; the daemon is killed with -9 and started again, on samples that are listed. Seconds from the",
        "command to the trainer's next batch, and the parts that they are made of: until the libraries are imported",
        "and the list is mapped, until the workers are up and the daemon serves, until the trainer has found it, and",
        "until its loop has a batch, which is the first that was decoded.",
        "",
        "| samples | list, MB | opened | serves | found | batch | all | worst |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
        *map(_row, found.sizes),
        "",
        f"A trainer whose daemon has been away for long tries again after {BACKOFF_MAX_S:g} s at most. With that it",
        f"is to be less than {MOST_S:g} s: **{'held' if found.holds() else 'missed'}**.",
        "",
    ]
    return "\n".join(lines)


PAGE: Final = Page(Restarts, render, by="restart.py", results=RESULTS / "restart.json")


if __name__ == "__main__":
    PAGE.rewrite()
