"""What the spine benchmark found, as values and as a page.

    python benchmarks/report.py [RESULTS.json]

reads what run.py wrote and writes the table beside it, as Markdown.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from batch_cost import BatchCost
from pages import RESULTS, Page, median_head, median_row

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """Where and on what the figures were taken."""

    commit: str
    date: str
    cores: int
    python: str


@dataclass(frozen=True, slots=True)
class Round:
    """One interleaved round, in samples a second. `four` has one entry a trainer.

    `cost` is the processor time of one trainer's batches; None in results that are older than it.
    """

    limit: float
    one: float
    four: tuple[float, ...]
    cost: BatchCost | None = None

    @property
    def four_each(self) -> float:
        return statistics.median(self.four)

    @property
    def four_sum(self) -> float:
        return sum(self.four)

    @property
    def one_of_limit(self) -> float:
        return self.one / self.limit

    @property
    def four_each_of_one(self) -> float:
        return self.four_each / self.one


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What a daemon costs: memory under the load of four trainers, then processor time with nobody there.

    Bytes, except `idle_cpu` (processor seconds a second, daemon and workers together). `anonymous_workers` has one
    entry a worker; `slots` is what the batches' memory really takes, against `memory_limit`, which the
    configuration allows.
    """

    anonymous_daemon: int
    anonymous_workers: tuple[int, ...]
    slots: int
    memory_limit: int
    idle_cpu: float


@dataclass(frozen=True, slots=True)
class Spine:
    """All that one run of run.py found."""

    machine: Machine
    rounds: tuple[Round, ...]
    upkeep: Upkeep

    def median(self, figure: Callable[[Round], float]) -> float:
        return statistics.median(figure(each) for each in self.rounds)


_RATES: Final[tuple[tuple[str, Callable[[Round], float]], ...]] = (
    ("limit: a process a core, read and decode, nothing else", lambda each: each.limit),
    ("streamd, one trainer", lambda each: each.one),
    ("streamd, four trainers, each", lambda each: each.four_each),
    ("streamd, four trainers, together", lambda each: each.four_sum),
)
_RATIOS: Final[tuple[tuple[str, Callable[[Round], float]], ...]] = (
    ("one trainer / limit", lambda each: each.one_of_limit),
    ("four trainers, each / one trainer", lambda each: each.four_each_of_one),
)
_COSTS: Final[tuple[tuple[str, str, Callable[[BatchCost], float]], ...]] = (
    ("daemon_ms", "processor time a batch, daemon and workers, ms", lambda cost: cost.daemon_ms),
    ("trainer_ms", "processor time a batch, the trainer, ms", lambda cost: cost.trainer_ms),
)


def _costs(spine: Spine) -> list[BatchCost]:
    """One a round; none at all when any round lacks it."""
    costs = [each.cost for each in spine.rounds if each.cost]
    return costs if len(costs) == len(spine.rounds) else []


def medians(spine: Spine) -> dict[str, float]:
    """The figures to quote: medians over rounds, the ratios being medians of each round's ratio."""
    costs = _costs(spine)
    return {
        "limit": spine.median(lambda each: each.limit),
        "one": spine.median(lambda each: each.one),
        "four_each": spine.median(lambda each: each.four_each),
        "four_sum": spine.median(lambda each: each.four_sum),
        "one_of_limit": spine.median(lambda each: each.one_of_limit),
        "four_each_of_one": spine.median(lambda each: each.four_each_of_one),
        **{key: statistics.median(map(figure, costs)) for key, _, figure in _COSTS if costs},
    }


def render(spine: Spine) -> str:
    """The page: a table of rates and ratios, a line a round's column, and the upkeep below it."""
    where, upkeep, count, costs = spine.machine, spine.upkeep, len(spine.rounds), _costs(spine)
    lines = [
        "# The spine: JPEGs to batches, one trainer and four",
        "",
        f"{where.date}, commit {where.commit}, {where.cores} cores, Python {where.python}. Samples a second; 20,000",
        "JPEGs of 128x128, in the page cache, shuffled, batches of 32. Rounds are interleaved: compare along a column.",
        "",
        *median_head(count),
        *(median_row(name, [figure(each) for each in spine.rounds], ",.0f") for name, figure in _RATES),
        *(median_row(name, [figure(each) for each in spine.rounds], ".2f") for name, figure in _RATIOS),
        *(median_row(name, [figure(each) for each in costs], ".3f") for _, name, figure in _COSTS if costs),
        "",
        "| the daemon | |",
        "|---|--:|",
        f"| processor while nobody is there | {100 * upkeep.idle_cpu:.2f} % |",
        f"| its own memory, under four trainers | {upkeep.anonymous_daemon / _MIB:.0f} MiB |",
        *(
            f"| the same of worker {number} | {anonymous / _MIB:.0f} MiB |"
            for number, anonymous in enumerate(upkeep.anonymous_workers, 1)
        ),
        f"| memory of all batches / allowed | {upkeep.slots / _MIB:.0f} MiB / {upkeep.memory_limit / _MIB:.0f} MiB |",
        "",
    ]
    return "\n".join(lines)


PAGE: Final = Page(Spine, render, by="run.py", results=RESULTS / "spine.json")


if __name__ == "__main__":
    PAGE.rewrite()
