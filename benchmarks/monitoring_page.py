"""What monitoring.py found, as values and as a page.

    python benchmarks/monitoring_page.py [RESULTS.json]

writes the page anew beside the figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pages import RESULTS, Page, line
from report import Machine

MOST: Final = 0.01  # of the daemon's processor time
SHOWN_EVERY_S: Final = 2.0  # a page waits so long between two batches


@dataclass(frozen=True, slots=True)
class Look:
    """Medians: processor time that it adds to a second of the daemon, time until an answer was there, and its size."""

    cpu_s: float
    answer_s: float
    longest_s: float
    answer_bytes: int


@dataclass(frozen=True, slots=True)
class Cost:
    """`quiet` is the daemon's own processor time a second while nobody looks, `workers` that of its workers.

    `scrape` is one a second; `dashboards` are open, which take `live_cpu_s` a second together, and each of them gets
    `pictures` of a batch every SHOWN_EVERY_S.
    """

    machine: Machine
    trainers: int
    samples_per_s: float
    quiet: float
    workers: float
    scrape: Look
    dashboards: int
    live_cpu_s: float
    pictures: Look

    @property
    def watched_cpu_s(self) -> float:
        """A second of all of it."""
        return self.scrape.cpu_s + self.live_cpu_s + self.pictures.cpu_s

    def of_all(self, cpu_s: float) -> float:
        """Processor time a second as a part of what the daemon takes with its workers."""
        return cpu_s / (self.quiet + self.workers)

    def holds(self) -> bool:
        return self.of_all(self.watched_cpu_s) < MOST


def _row(name: str, cost: Cost, cpu_s: float, look: Look | None = None) -> str:
    answer = ["", ""] if look is None else [f"{look.answer_bytes:,}", f"{1000 * look.answer_s:.1f}"]
    return line([
        name, *answer, f"{1000 * cpu_s:.2f}", f"{cpu_s / cost.quiet:.2%}", f"**{cost.of_all(cpu_s):.2%}**",
    ])  # fmt: skip


def render(cost: Cost) -> str:
    """The page."""
    where = cost.machine
    lines = [
        "# What it costs to be watched",
        "",
        f"{where.date}, commit {where.commit}, {where.cores} cores, Python {where.python}. Written by",
        "`python benchmarks/monitoring.py`, which says how. Medians.",
        "",
        f"{cost.trainers} trainers get {cost.samples_per_s:,.0f} samples a second, as fast as they come. For that the",
        f"daemon's own process takes {cost.quiet:.3f} of a core, its workers {cost.workers:.2f}.",
        "",
        "| watched by | bytes | answered, ms | ms of processor a second | of the daemon's own | with its workers |",
        "|---|--:|--:|--:|--:|--:|",
        _row("a scrape each second", cost, cost.scrape.cpu_s, cost.scrape),
        _row(f"{cost.dashboards} dashboards", cost, cost.live_cpu_s),
        _row(f"their pictures, each {SHOWN_EVERY_S:g} s", cost, cost.pictures.cpu_s, cost.pictures),
        _row("all of them", cost, cost.watched_cpu_s),
        "",
        f"Together they are to take less than {MOST:.0%} of what the daemon takes with its workers:",
        f"**{'held' if cost.holds() else 'missed'}**. While nobody looks, nothing is done. What drowns in the noise of",
        "the machine may show as less than nothing.",
        "",
    ]
    return "\n".join(lines)


PAGE: Final = Page(Cost, render, by="monitoring.py", results=RESULTS / "monitoring.json")


if __name__ == "__main__":
    PAGE.rewrite()
