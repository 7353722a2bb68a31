"""What independence.py found, as values and as a page.

    python benchmarks/independence_page.py [RESULTS.json]

writes the page anew beside the figures.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from report import Machine

DEFAULT_RESULTS: Final = Path(__file__).resolve().parent / "results" / "independence.json"
LEAST_OF_ALONE: Final = 0.95  # a stopped trainer may cost the others less than 5 %
MOST_BEYOND_S: Final = 2.0  # the pause after a kill, less the daemon's start


@dataclass(frozen=True, slots=True)
class Round:
    """Batches a second, an entry a running trainer: alone, beside a fresh stopped one, beside one stopped in step.

    The stopped one is never among them: all three have the same number of running trainers.
    """

    alone: tuple[float, ...]
    fresh: tuple[float, ...]
    reading: tuple[float, ...]

    @property
    def of_fresh(self) -> float:
        return statistics.median(self.fresh) / statistics.median(self.alone)

    @property
    def of_reading(self) -> float:
        return statistics.median(self.reading) / statistics.median(self.alone)


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
        of_alone = min(self.median(lambda each: each.of_fresh), self.median(lambda each: each.of_reading))
        return of_alone > LEAST_OF_ALONE and max(self.beyond_s) < MOST_BEYOND_S


_RATES: Final[tuple[tuple[str, Callable[[Round], float], str], ...]] = (
    ("three trainers, each", lambda each: statistics.median(each.alone), ",.0f"),
    ("beside one stopped before its first batch", lambda each: statistics.median(each.fresh), ",.0f"),
    ("beside one stopped in step with them", lambda each: statistics.median(each.reading), ",.0f"),
    ("stopped before its first batch / nobody stopped", lambda each: each.of_fresh, ".3f"),
    ("stopped in step / nobody stopped", lambda each: each.of_reading, ".3f"),
)


def _row(found: Independence, name: str, figure: Callable[[Round], float], form: str) -> str:
    ordered = sorted(figure(each) for each in found.rounds)
    quarter = len(ordered) // 4
    cells = (
        f"**{statistics.median(ordered):{form}}**",
        f"{ordered[quarter]:{form}}",
        f"{ordered[-1 - quarter]:{form}}",
    )
    return f"| {name} | {' | '.join(cells)} |"


def _pause_row(name: str, values: list[float]) -> str:
    ordered = sorted(values)
    tenth = ordered[len(ordered) * 9 // 10]
    return f"| {name} | **{statistics.median(ordered):.2f}** | {tenth:.2f} | {ordered[-1]:.2f} |"


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
            f"Batches a second of the trainers that run, over {count} interleaved rounds; the stopped one holds all",
            f"its credit meanwhile. It may cost them less than {1 - LEAST_OF_ALONE:.0%}; the median of ratios counts.",
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


def save(found: Independence, results: Path) -> None:
    """Writes `results` (JSON) and the page of the same name beside it."""
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    results.with_suffix(".md").write_text(render(found))


def main() -> None:
    results = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_RESULTS
    if not results.exists():
        sys.exit(f"independence_page: no {results}: run  python benchmarks/independence.py  first")
    results.with_suffix(".md").write_text(render(msgspec.json.decode(results.read_bytes(), type=Independence)))
    print(results.with_suffix(".md"))


if __name__ == "__main__":
    main()
