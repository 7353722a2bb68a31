"""What independence.py found, as values and as a page.

    python benchmarks/independence_page.py [RESULTS.json]

writes the page anew beside the figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pages import RESULTS, Page, line
from report import Machine

LEAST_OF_ALONE: Final = 0.95  # a stopped trainer may cost the others less than 5 %
MOST_BEYOND_S: Final = 2.0  # the pause after a kill, less the daemon's start


@dataclass(frozen=True, slots=True)
class Take:
    """Batches a second, an entry a running trainer; processor milliseconds for each batch that one of them got.

    The processor time is the daemon's, its workers' and the running trainers'.
    """

    rates: tuple[float, ...]
    cpu_ms: float

    @property
    def each(self) -> float:
        return statistics.median(self.rates)


@dataclass(frozen=True, slots=True)
class Round:
    """Three trainers alone, beside one stopped before its first batch, beside one stopped in step with them."""

    alone: Take
    fresh: Take
    in_step: Take

    @property
    def of_fresh(self) -> float:
        return self.fresh.each / self.alone.each

    @property
    def of_in_step(self) -> float:
        return self.in_step.each / self.alone.each


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill -9. `pauses_s` is from the kill to each trainer's first batch from the next daemon.

    `startup_s` is from the start of that daemon's command to its word that it serves.
    """

    startup_s: float
    pauses_s: tuple[float, ...]

    @property
    def beyond_s(self) -> tuple[float, ...]:
        """The pauses less the start-up."""
        return tuple(pause_s - self.startup_s for pause_s in self.pauses_s)


@dataclass(frozen=True, slots=True)
class Independence:
    """All that one run of independence.py found."""

    machine: Machine
    seed: int
    rounds: tuple[Round, ...]
    kills: tuple[Kill, ...]

    def median(self, figure: Callable[[Round], float]) -> float:
        return statistics.median(figure(each) for each in self.rounds)

    @property
    def beyond_s(self) -> list[float]:
        return [beyond_s for kill in self.kills for beyond_s in kill.beyond_s]

    @property
    def ok(self) -> bool:
        """Whether what was promised holds."""
        of_alone = min(self.median(lambda each: each.of_fresh), self.median(lambda each: each.of_in_step))
        return of_alone > LEAST_OF_ALONE and max(self.beyond_s) < MOST_BEYOND_S


_RATES: Final[tuple[tuple[str, Callable[[Round], float], str], ...]] = (
    ("three trainers, batches a second each", lambda each: each.alone.each, ",.0f"),
    ("beside one stopped before its first batch", lambda each: each.fresh.each, ",.0f"),
    ("beside one stopped in step with them", lambda each: each.in_step.each, ",.0f"),
    ("stopped before its first batch / nobody stopped", lambda each: each.of_fresh, ".3f"),
    ("stopped in step / nobody stopped", lambda each: each.of_in_step, ".3f"),
    ("processor ms a batch, nobody stopped", lambda each: each.alone.cpu_ms, ".2f"),
    ("stopped before its first batch / nobody stopped", lambda each: each.fresh.cpu_ms / each.alone.cpu_ms, ".3f"),
    ("stopped in step / nobody stopped", lambda each: each.in_step.cpu_ms / each.alone.cpu_ms, ".3f"),
)


def _row(found: Independence, name: str, figure: Callable[[Round], float], form: str) -> str:
    ordered = sorted(figure(each) for each in found.rounds)
    quarter = len(ordered) // 4
    cells = [
        name,
        f"**{statistics.median(ordered):{form}}**",
        f"{ordered[quarter]:{form}}",
        f"{ordered[-1 - quarter]:{form}}",
    ]
    return line(cells)


def _pause_row(name: str, values: list[float]) -> str:
    ordered = sorted(values)
    tenth = ordered[len(ordered) * 9 // 10]
    return line([name, f"**{statistics.median(ordered):.2f}**", f"{tenth:.2f}", f"{ordered[-1]:.2f}"])


def render(found: Independence) -> str:
    """The page: a table of rates, a round a column, and one of pauses."""
    where, count = found.machine, len(found.rounds)
    trainers = len(found.kills[0].pauses_s)
    return "\n".join(
        [
            "# Independence: what the death of one costs the others",
            "",
            f"{where.date}, commit {where.commit}, {where.cores} cores, Python {where.python}. 20,000 JPEGs of",
            "128x128, batches of 32. Written by `python benchmarks/independence.py`.",
            "",
            "## A trainer that is stopped for ever",
            "",
            f"{count} interleaved rounds; the stopped one holds all its credit meanwhile. It may cost the others less",
            f"than {1 - LEAST_OF_ALONE:.0%} of their rate, by the median of the rounds' ratios. Where others use the",
            "machine, rates scatter, and the processor time that daemon, workers and trainers use for a batch says it",
            "better.",
            "",
            "| | median | a quarter is below | a quarter is above |",
            "|---|--:|--:|--:|",
            *(_row(found, *line) for line in _RATES),
            "",
            "## The pause when the daemon is killed",
            "",
            f"{len(found.kills)} times kill -9 while {trainers} trainers read as fast as they can, and the same",
            f"command at once (seed {found.seed}). The pause is from the kill to a trainer's first batch from the next",
            f"daemon. It may be {MOST_BEYOND_S:g} s longer than that daemon's start, from the command to its word that",
            "it serves.",
            "",
            "| seconds | median | nine of ten | worst |",
            "|---|--:|--:|--:|",
            _pause_row("start of the daemon", [kill.startup_s for kill in found.kills]),
            _pause_row("pause of each trainer", [pause_s for kill in found.kills for pause_s in kill.pauses_s]),
            _pause_row("pause less start", found.beyond_s),
            "",
            f"Both as promised: **{'yes' if found.ok else 'NO'}**.",
            "",
        ]
    )


PAGE: Final = Page(Independence, render, by="independence.py", results=RESULTS / "independence.json")


if __name__ == "__main__":
    PAGE.rewrite()
