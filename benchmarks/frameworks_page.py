"""What frameworks.py found, as values and as a page.

    python benchmarks/frameworks_page.py [RESULTS.json]

writes the page anew beside the figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pages import RESULTS, Page, median_head, median_row
from report import Machine

PACE: Final = 10_000  # samples a second at which a client's cost is told
MOST_OF_CORE: Final = 0.03  # what next() and the client's threads may take of a core at that pace


@dataclass(frozen=True, slots=True)
class Way:
    """One way of a batch in memory into a framework; an entry a round, in samples a second."""

    name: str
    rates: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rates)


@dataclass(frozen=True, slots=True)
class Client:
    """What one paced trainer paid for a batch, in microseconds of processor time.

    `loop_us` is `next()` and the end of the lease, in the trainer's own thread; `io_us` the client's thread,
    `zmq_us` ZeroMQ's. `rate` is the samples a second that it really took.
    """

    batch: int
    rate: float
    loop_us: float
    io_us: float
    zmq_us: float

    @property
    def total_us(self) -> float:
        return self.loop_us + self.io_us + self.zmq_us

    @property
    def of_core(self) -> float:
        """Of a core, at PACE."""
        return self.total_us * PACE / self.batch / 1e6


@dataclass(frozen=True, slots=True)
class Frameworks:
    """All that one run of frameworks.py found; `clients` has an entry a round."""

    machine: Machine
    ways: tuple[Way, ...]
    clients: tuple[Client, ...]

    def median(self, figure: Callable[[Client], float]) -> float:
        return statistics.median(figure(each) for each in self.clients)

    def holds(self) -> bool:
        """Whether a client costs what it may."""
        return self.median(lambda each: each.of_core) <= MOST_OF_CORE


_COSTS: Final[tuple[tuple[str, Callable[[Client], float], str], ...]] = (
    ("samples/s taken", lambda each: each.rate, ",.0f"),
    ("`next()` and the end of the lease, µs a batch", lambda each: each.loop_us, ".0f"),
    ("the client's thread, µs a batch", lambda each: each.io_us, ".0f"),
    ("ZeroMQ's thread, µs a batch", lambda each: each.zmq_us, ".0f"),
    (f"of a core at {PACE:,} samples/s, %", lambda each: 100 * each.of_core, ".1f"),
)


def render(found: Frameworks) -> str:
    """The page: into each framework, then what a client pays for its batches."""
    where, rounds = found.machine, len(found.clients)
    lines = [
        "# Into the framework, and what a client costs",
        "",
        f"{where.date}, commit {where.commit}, {where.cores} cores, Python {where.python}. Rounds are interleaved:",
        "compare along a column. Written by `python benchmarks/frameworks.py`.",
        "",
        "Batches of 32 x 128x128x3 that lie in memory already, made tensors of and dropped, samples/s:",
        "",
        *median_head(rounds),
        *(median_row(way.name, way.rates, ",.0f") for way in found.ways),
        "",
        f"Processor time of a trainer that takes {PACE:,} samples/s from a daemon and does nothing with them. Between",
        "batches it sleeps, as one waits for its step, so that each meets cold caches:",
        "",
        *median_head(rounds),
        *(median_row(name, tuple(figure(each) for each in found.clients), form) for name, figure, form in _COSTS),
        "",
        f"It may be {100 * MOST_OF_CORE:.0f} % of a core: **{'held' if found.holds() else 'missed'}**.",
        "",
    ]
    return "\n".join(lines)


PAGE: Final = Page(Frameworks, render, by="frameworks.py", results=RESULTS / "frameworks.json")


if __name__ == "__main__":
    PAGE.rewrite()
